"""Errandry: background jobs for Python, kept through crashes, from one SQLite file to a database server."""

from errandry.app import Errandry
from errandry.context import Child, JobContext, current
from errandry.core.job import Keep, Progress
from errandry.core.retry import Backoff, Curve
from errandry.core.state import State
from errandry.errors import ErrandryError
from errandry.flow import Flow, Group, chain, chord, flow, group, result_of
from errandry.handle import Job
from errandry.outcome import Cancel, Fail, Retry, Snooze
from errandry.schedule import Schedule
from errandry.task import Task
from errandry.unique import Unique
from errandry.worker import Worker, WorkerOptions

__version__ = "0.1.0"

__all__ = [
    "Backoff",
    "Cancel",
    "Child",
    "Curve",
    "Errandry",
    "ErrandryError",
    "Fail",
    "Flow",
    "Group",
    "Job",
    "JobContext",
    "Keep",
    "Progress",
    "Retry",
    "Schedule",
    "Snooze",
    "State",
    "Task",
    "Unique",
    "Worker",
    "WorkerOptions",
    "__version__",
    "chain",
    "chord",
    "current",
    "flow",
    "group",
    "result_of",
]
