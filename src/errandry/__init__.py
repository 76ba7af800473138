"""Errandry: background jobs for Python, kept through crashes, from one SQLite file to a database server.

What it offers is imported when it is first asked for: a command line that only prints its help needs none.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from errandry.app import Errandry
    from errandry.context import Child, JobContext, current
    from errandry.core.job import Keep, Progress
    from errandry.core.retry import Backoff, Curve
    from errandry.core.state import State
    from errandry.errors import ErrandryError
    from errandry.flows import Flow, Group, chain, chord, flow, group, result_of
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

_NAMES = {
    "app": ("Errandry",),
    "context": ("Child", "JobContext", "current"),
    "core.job": ("Keep", "Progress"),
    "core.retry": ("Backoff", "Curve"),
    "core.state": ("State",),
    "errors": ("ErrandryError",),
    "flows": ("Flow", "Group", "chain", "chord", "flow", "group", "result_of"),
    "handle": ("Job",),
    "outcome": ("Cancel", "Fail", "Retry", "Snooze"),
    "schedule": ("Schedule",),
    "task": ("Task",),
    "unique": ("Unique",),
    "worker": ("Worker", "WorkerOptions"),
}
_HOMES = {name: f"errandry.{module}" for module, names in _NAMES.items() for name in names}

if not TYPE_CHECKING:  # or a type checker would take every name for one of ours

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module 'errandry' has no attribute {name!r}")
        globals()[name] = found = getattr(import_module(_HOMES[name]), name)
        return found

    def __dir__() -> list[str]:
        return __all__
