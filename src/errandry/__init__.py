"""Errandry: background jobs for Python that survive crashes, from one SQLite file to a database server.

The public names are imported on first access, so that `errandry --help` starts without loading them.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from errandry.api.app import Errandry
    from errandry.api.claimed_job import ClaimedJob
    from errandry.api.claimer import Claimer
    from errandry.api.context import Child, JobContext, current
    from errandry.api.events import Event
    from errandry.api.flow import Flow, Parallel, chain, child, chord, flow, parallel, result_of
    from errandry.api.gate_info import GateInfo, GroupInfo, OperatorChangeInfo, PauseInfo, QueueInfo
    from errandry.api.gates import RuleOptions
    from errandry.api.job import Job
    from errandry.api.job_view import JobPage
    from errandry.api.options import DefaultOptions
    from errandry.api.outcome import Cancel, Fail, Retry, Snooze
    from errandry.api.schedule import Schedule
    from errandry.api.schedule_options import ScheduleOptions
    from errandry.api.steps import Step
    from errandry.api.sync import SyncClaimedJob, SyncClaimer, SyncJob
    from errandry.api.task import Call, Task
    from errandry.api.unique_options import UniqueOptions
    from errandry.api.workers import WorkerInfo
    from errandry.codec.encryption import Encrypted, Signed, new_key
    from errandry.codec.json_codec import Codec, DocumentInfo
    from errandry.core.answer import Moved
    from errandry.core.event import EventKind
    from errandry.core.gate import GateKind
    from errandry.core.job import Keep, Progress
    from errandry.core.retry import Backoff, Curve
    from errandry.core.rule import Rate, Rule
    from errandry.core.rule_info import Source
    from errandry.core.state import State
    from errandry.core.stats import Stats
    from errandry.core.step import StepKind
    from errandry.core.why import Why
    from errandry.errors import ErrandryError
    from errandry.store.contract import StoreLimits
    from errandry.store.engine.backlog import WriteLimits
    from errandry.worker import Worker, WorkerOptions

__version__ = "0.1.0"

__all__ = [
    "Backoff",
    "Call",
    "Cancel",
    "Child",
    "ClaimedJob",
    "Claimer",
    "Codec",
    "Curve",
    "DefaultOptions",
    "DocumentInfo",
    "Encrypted",
    "Errandry",
    "ErrandryError",
    "Event",
    "EventKind",
    "Fail",
    "Flow",
    "GateInfo",
    "GateKind",
    "GroupInfo",
    "Job",
    "JobContext",
    "JobPage",
    "Keep",
    "Moved",
    "OperatorChangeInfo",
    "Parallel",
    "PauseInfo",
    "Progress",
    "QueueInfo",
    "Rate",
    "Retry",
    "Rule",
    "RuleOptions",
    "Schedule",
    "ScheduleOptions",
    "Signed",
    "Snooze",
    "Source",
    "State",
    "Stats",
    "Step",
    "StepKind",
    "StoreLimits",
    "SyncClaimedJob",
    "SyncClaimer",
    "SyncJob",
    "Task",
    "UniqueOptions",
    "Why",
    "Worker",
    "WorkerInfo",
    "WorkerOptions",
    "WriteLimits",
    "__version__",
    "chain",
    "child",
    "chord",
    "current",
    "flow",
    "new_key",
    "parallel",
    "result_of",
]

_NAMES = {
    "api.app": ("Errandry",),
    "api.claimed_job": ("ClaimedJob",),
    "api.claimer": ("Claimer",),
    "api.context": ("Child", "JobContext", "current"),
    "api.events": ("Event",),
    "api.flow": ("Flow", "Parallel", "chain", "child", "chord", "flow", "parallel", "result_of"),
    "api.gate_info": ("GateInfo", "GroupInfo", "OperatorChangeInfo", "PauseInfo", "QueueInfo"),
    "api.gates": ("RuleOptions",),
    "api.job": ("Job",),
    "api.job_view": ("JobPage",),
    "api.options": ("DefaultOptions",),
    "api.outcome": ("Cancel", "Fail", "Retry", "Snooze"),
    "api.schedule": ("Schedule",),
    "api.schedule_options": ("ScheduleOptions",),
    "api.sync": ("SyncClaimedJob", "SyncClaimer", "SyncJob"),
    "api.task": ("Call", "Task"),
    "api.unique_options": ("UniqueOptions",),
    "codec.encryption": ("Encrypted", "Signed", "new_key"),
    "codec.json_codec": ("Codec", "DocumentInfo"),
    "api.steps": ("Step",),
    "api.workers": ("WorkerInfo",),
    "core.answer": ("Moved",),
    "core.event": ("EventKind",),
    "core.gate": ("GateKind",),
    "core.job": ("Keep", "Progress"),
    "core.retry": ("Backoff", "Curve"),
    "core.rule": ("Rate", "Rule"),
    "core.rule_info": ("Source",),
    "core.state": ("State",),
    "core.stats": ("Stats",),
    "core.step": ("StepKind",),
    "core.why": ("Why",),
    "errors": ("ErrandryError",),
    "store.contract": ("StoreLimits",),
    "store.engine.backlog": ("WriteLimits",),
    "worker": ("Worker", "WorkerOptions"),
}
_MODULES = {name: f"errandry.{module}" for module, names in _NAMES.items() for name in names}

if not TYPE_CHECKING:  # a type checker that saw __getattr__ would accept any name

    def __getattr__(name: str) -> object:
        if name not in _MODULES:
            raise AttributeError(f"module 'errandry' has no attribute {name!r}")
        globals()[name] = value = getattr(import_module(_MODULES[name]), name)
        return value

    def __dir__() -> list[str]:
        return __all__
