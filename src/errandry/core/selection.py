"""The selection of jobs for a command of an operator."""

from errandry.core import check
from errandry.core.job import INSERT_MAX
from errandry.core.once import OnceCommand
from errandry.core.query import Query
from errandry.core.state import TABLE, Move, State
from errandry.errors import InvalidValue


class JobSelection(OnceCommand, frozen=True, kw_only=True, gc=False):
    """Jobs by id, by query, or by both: then those of the ids that match the query.

    A query is processed in slices of up to `limit` jobs, newest first. `below` continues at the `seq` at
    which the last answer ended. A slice scans a limited number of jobs (`StoreLimits.scan`), so it may
    contain few jobs or none although more follow.
    """

    ids: tuple[str, ...] = ()
    query: Query | None = None
    limit: int = 500
    below: int | None = None

    @property
    def moves(self) -> tuple[Move, ...]:
        """The moves that the command may make, each from other states."""
        raise NotImplementedError

    @property
    def states(self) -> frozenset[State]:
        """The states from which the command can move a job."""
        return frozenset(state for move in self.moves for state in TABLE[move].sources)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.ids and self.query is None:
            raise InvalidValue("ids", self.ids, "give job ids, a query, or both")
        if len(self.ids) > INSERT_MAX:
            raise InvalidValue("ids", len(self.ids), f"at most {INSERT_MAX:,} at a time")
        check.whole("limit", self.limit, 1, INSERT_MAX)
        if self.below is not None:
            check.whole("below", self.below, 0, check.INT_MAX)
        for job_id in self.ids:
            check.name("id", job_id)
