"""How a worker works. Options that make no sense are refused when they are given."""

import os
from typing import Literal

from msgspec import Struct

from errandry.core import check
from errandry.core.command import queue_order
from errandry.errors import InvalidValue

RECYCLE_MIN = 64_000_000
"""A child that has done nothing yet may have half of this: less would replace it after every job."""


class WorkerOptions(Struct, frozen=True, kw_only=True):
    """Everything that can be set about a worker; seconds where it is a time.

    id            what its id begins with; every start adds a mark of its own
    concurrency   how many async handlers run at once
    threads       how many sync handlers run at once, each in a thread
    children      how many handlers run at once in processes of their own; None for one per processor
    recycle_jobs  after how many jobs such a process is replaced by a new one; None for never
    recycle_memory above how many bytes of memory it is; None for never
    queues        only these; None for all
    queue_order   strict for the queues as named, or how often each goes first; None for the most urgent job
    tasks         only these; None for all, known or not
    prefetch      how many jobs to claim beyond the free slots
    lease         how long a claim lasts unrenewed
    renew_every   None for a third of the lease
    grace         how long a stop, or a timeout of a thread, waits for handlers
    upkeep        whether this worker expires, promotes and prunes
    upkeep_every  how often it does
    beat_every    how often it says that it lives
    stall_after   how long a handler may block the event loop before a warning names it
    on_unknown    what to do with a job whose task is not declared here: release it, or fail it
    release_delay how long such a job waits before another worker may claim it
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
            why = f"must be more than 0 and leave a second try within the lease of {self.lease:g} s"
            raise InvalidValue("renew_every", self.renew_every, why)
        if self.queue_order is not None:
            queue_order(self.queues, self.queue_order)
        if self.on_unknown not in ("release", "fail"):
            raise InvalidValue("on_unknown", self.on_unknown, "must be release or fail")
        for what, names in (("queue", self.queues), ("task", self.tasks), ("id", self.id and (self.id,))):
            for one in names or ():
                check.name(what, one)

    @property
    def renewal(self) -> float:
        """Seconds between renewals."""
        return self.lease / 3 if self.renew_every is None else self.renew_every

    @property
    def processes(self) -> int:
        """How many handlers run at once in processes: as told, or one for each processor there is for us."""
        if self.children is not None:
            return self.children
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
