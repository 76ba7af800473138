"""`RunWorkerOptions`: the options of `jobs.run_worker`, for type checkers."""

from typing import Literal, TypedDict

Names = str | tuple[str, ...] | list[str]
"""One name, or several."""


class RunWorkerOptions(TypedDict, total=False):
    """The fields of `WorkerOptions`, which checks them; the API cannot import it from the layer above."""

    id: str | None
    concurrency: int
    thread_slots: int
    process_slots: int
    recycle_jobs: int | None
    recycle_memory: int | None
    queues: Names | None
    queue_order: Literal["strict"] | tuple[float, ...] | list[float] | None
    tasks: Names | None
    prefetch: int
    lease: float
    renew_every: float | None
    grace: float
    upkeep: bool
    upkeep_every: float
    beat_every: float
    stall_after: float
    on_unknown: Literal["release", "fail"]
    release_delay: float
    unknown_timeout: float
    prune_declared: bool
    burst: bool
