"""Which jobs an operator's command means."""

from msgspec import Struct

from errandry.core import check
from errandry.core.job import INSERT_MAX
from errandry.core.query import Query
from errandry.core.state import TABLE, Move, State
from errandry.errors import InvalidValue


class JobSelection(Struct, frozen=True, kw_only=True, gc=False):
    """Ids; or a query in slices; or both: those of the ids that still match.

    A slice is up to `limit` jobs, newest first, and goes on `below` the `seq` the last answer ended at. It
    looks at no more jobs than the store's bound: it may find few, or none, and still not be the last.
    """

    ids: tuple[str, ...] = ()
    query: Query | None = None
    limit: int = 500
    below: int | None = None

    @property
    def moves(self) -> tuple[Move, ...]:
        """What it does to a job, each from states of its own."""
        raise NotImplementedError

    @property
    def states(self) -> frozenset[State]:
        """In which it can be done."""
        return frozenset(state for made in self.moves for state in TABLE[made].sources)

    def __post_init__(self) -> None:
        if not self.ids and self.query is None:
            raise InvalidValue("ids", self.ids, "give job ids, a query, or both")
        if len(self.ids) > INSERT_MAX:
            raise InvalidValue("ids", len(self.ids), f"at most {INSERT_MAX:,} at a time")
        check.whole("limit", self.limit, 1, INSERT_MAX)
        if self.below is not None:
            check.whole("below", self.below, 0, check.INT_MAX)
        for one in self.ids:
            check.name("id", one)
