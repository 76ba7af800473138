"""The options of a worker. Invalid values are refused when they are given."""

import os
from typing import Literal

from msgspec import Struct

from errandry.core import check
from errandry.core.command import check_queue_order
from errandry.errors import InvalidValue

RECYCLE_MIN = 64_000_000
"""Minimum of `recycle_memory` in bytes.

A new child uses up to half of this, so a smaller limit would replace it after every job.
"""


class WorkerOptions(Struct, frozen=True, kw_only=True):
    """The options of a worker. Times are in seconds.

    id            first part of the worker's id; each start adds a unique suffix
    concurrency   maximum number of async handlers at once
    threads       maximum number of sync handlers at once, each in a thread
    children      maximum number of handlers at once in child processes; None for one per processor
    recycle_jobs  number of jobs after which a child process is replaced; None for never
    recycle_memory bytes of memory above which a child process is replaced; None for never
    queues        claim only from these queues; None for all
    queue_order   strict for the queues as named, or how often each goes first; None for the most urgent job
    tasks         claim only these tasks; None for all, declared in this worker or not
    prefetch      number of jobs to claim beyond the free slots
    lease         how long a claim lasts without renewal
    renew_every   time between two renewals; None for a third of the lease
    grace         how long a stop, or a timeout of a thread, waits for handlers
    upkeep        whether this worker expires, promotes and prunes jobs
    upkeep_every  time between two upkeeps
    beat_every    time between two heartbeats
    stall_after   how long a handler may block the event loop before a warning names it
    on_unknown    what to do with a job whose task is not declared in this worker: release it, or fail it
    release_delay how long a released job of an unknown task waits before another worker may claim it
    prune_schedules remove schedules that were declared in code and are no longer
    burst         stop when nothing is left to do
    """

    id: str | None = None
    concurrency: int = 100
    threads: int = 8
    children: int | None = None
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
    prune_schedules: bool = False
    burst: bool = False

    def __post_init__(self) -> None:
        check.whole("concurrency", self.concurrency, 1, 10_000)
        check.whole("threads", self.threads, 1, 1_000)
        if self.children is not None:
            check.whole("children", self.children, 1, 1_000)
        if self.recycle_jobs is not None:
            check.whole("recycle_jobs", self.recycle_jobs, 1, check.INT_MAX)
        if self.recycle_memory is not None:
            check.whole("recycle_memory", self.recycle_memory, RECYCLE_MIN, check.INT_MAX)
        check.whole("prefetch", self.prefetch, 0, 10_000)
        for name in ("lease", "upkeep_every", "beat_every", "stall_after"):
            if check.span(name, getattr(self, name)) <= 0:
                raise InvalidValue(name, getattr(self, name), "must be more than 0 seconds")
        for name in ("grace", "release_delay"):
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
        for option, names in (("queue", self.queues), ("task", self.tasks), ("id", self.id and (self.id,))):
            for name in names or ():
                check.name(option, name)

    @property
    def renewal(self) -> float:
        """Seconds between renewals."""
        return self.lease / 3 if self.renew_every is None else self.renew_every

    @property
    def processes(self) -> int:
        """Maximum number of process handlers at once: `children`, or one for each available processor."""
        if self.children is not None:
            return self.children
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
