"""Jobs that one call of a handler takes together."""

from msgspec import Struct

from errandry.core import check

BATCH_MAX = 1_000


class Batch(Struct, frozen=True, gc=False):
    """One call of this task's handler is for up to `size` jobs; without `start` it waits for more to come."""

    task: str
    size: int
    start: bool = True

    def __post_init__(self) -> None:
        check.name("task", self.task)
        check.whole("size", self.size, 1, BATCH_MAX)
