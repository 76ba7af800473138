"""The options of a worker. Invalid values are refused when they are given."""

import os
from typing import Literal

from msgspec import Struct, field
from msgspec.structs import force_setattr

from errandry.core import check
from errandry.core.command import check_queue_order
from errandry.core.job import DAY
from errandry.errors import InvalidValue

PROCESS_SLOTS_MAX = 1_000
"""Maximum number of slots for handlers in child processes."""
RECYCLE_MIN = 64_000_000
"""Minimum of `recycle_memory` in bytes.

A new child uses up to half of this, so a smaller limit would replace it after every job.
"""


def _default_process_slots() -> int:
    """One for each processor core that this process may use, up to the maximum."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, PROCESS_SLOTS_MAX)


class WorkerOptions(Struct, frozen=True, kw_only=True):
    """The options of a worker. Times are in seconds. `queues` and `tasks` also take a list, or one name.

    id            first part of the worker's id; each start adds a unique suffix
    concurrency   slots for async handlers: maximum number at once
    thread_slots  slots for handlers in threads: maximum number at once
    process_slots slots for handlers in child processes: maximum number at once
    recycle_jobs  number of jobs after which a child process is replaced; None for never
    recycle_memory bytes of memory above which a child process is replaced; None for never
    queues        claim only from these queues; None for all
    queue_order   strict for the queues as named, or how often each goes first; None for the most urgent job
    tasks         claim only these, if they are declared in this worker; None for all, also unknown ones
    prefetch      number of jobs to claim beyond the free slots
    lease         how long a claim lasts without renewal
    renew_every   time between two renewals; None for a third of the lease
    grace         how long handlers may go on after a stop, or after their timeout
    upkeep        whether this worker expires, promotes and prunes jobs
    upkeep_every  time between two upkeeps
    beat_every    time between two heartbeats
    stall_after   how long a handler may block the event loop before a warning names it
    on_unknown    what to do with a job that seems to be of a newer program: release it, or fail it at once
    release_delay how long such a job waits before it may be claimed again; grows up to a minute
    unknown_timeout how long such a job is released before it fails, unless a live worker has its task
    prune_declared remove schedules and rules that the code of this app no longer declares
    burst         stop when nothing is left to do
    """

    id: str | None = None
    concurrency: int = 100
    thread_slots: int = 8
    process_slots: int = field(default_factory=_default_process_slots)
    recycle_jobs: int | None = None
    recycle_memory: int | None = None
    queues: tuple[str, ...] | None = None
    queue_order: Literal["strict"] | tuple[float, ...] | None = None
    tasks: tuple[str, ...] | None = None
    prefetch: int = 0
    lease: float = 30.0
    renew_every: float | None = None
    grace: float = 25.0
    upkeep: bool = True
    upkeep_every: float = 1.0
    beat_every: float = 5.0
    stall_after: float = 1.0
    on_unknown: Literal["release", "fail"] = "release"
    release_delay: float = 5.0
    unknown_timeout: float = DAY
    prune_declared: bool = False
    burst: bool = False

    def __post_init__(self) -> None:
        for name in ("queues", "tasks"):
            force_setattr(self, name, _read_names(name, getattr(self, name)))
        if isinstance(self.queue_order, list):
            force_setattr(self, "queue_order", tuple(self.queue_order))
        for name in ("upkeep", "prune_declared", "burst"):
            check.flag(name, getattr(self, name))
        check.whole("concurrency", self.concurrency, 1, 10_000)
        check.whole("thread_slots", self.thread_slots, 1, 1_000)
        check.whole("process_slots", self.process_slots, 1, PROCESS_SLOTS_MAX)
        if self.recycle_jobs is not None:
            check.whole("recycle_jobs", self.recycle_jobs, 1, check.INT_MAX)
        if self.recycle_memory is not None:
            check.whole("recycle_memory", self.recycle_memory, RECYCLE_MIN, check.INT_MAX)
        check.whole("prefetch", self.prefetch, 0, 10_000)
        for name in ("lease", "upkeep_every", "beat_every", "stall_after"):
            if check.span(name, getattr(self, name)) <= 0:
                raise InvalidValue(name, getattr(self, name), "must be more than 0 seconds")
        for name in ("grace", "release_delay", "unknown_timeout"):
            check.span(name, getattr(self, name))
        if (
            self.renew_every is not None
            and not 0 < check.span("renew_every", self.renew_every) <= self.lease / 2
        ):
            rule = f"must be more than 0 and leave a second try within the lease of {self.lease:g} s"
            raise InvalidValue("renew_every", self.renew_every, rule)
        if self.queue_order is not None:
            check_queue_order(self.queues, self.queue_order)
        if self.on_unknown not in ("release", "fail"):
            raise InvalidValue("on_unknown", self.on_unknown, "must be release or fail")
        check.names(self.queues, self.tasks)
        if self.id is not None:
            check.name("id", self.id)

    @property
    def renewal(self) -> float:
        """Seconds between renewals."""
        return self.lease / 3 if self.renew_every is None else self.renew_every


def _read_names(option: str, names: object) -> tuple[object, ...] | None:
    """One name or several as a tuple; None stays None."""
    if isinstance(names, str):
        return (names,)
    if isinstance(names, list | tuple):
        return tuple(names)
    if names is not None:
        raise InvalidValue(option, names, "must be a name, a list of names, or None for all")
    return None
