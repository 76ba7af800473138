"""The answers of a store to commands."""

from enum import StrEnum

from msgspec import Struct

from errandry.core.job import JobRecord
from errandry.core.schedule import Backfilled
from errandry.core.state import State
from errandry.core.suspect import SuspectKind
from errandry.errors import ErrandryError

LOCKED_RETRY_AFTER = 0.02
"""Seconds before the next claim if due jobs are locked (see `Claims`)."""


class LossCause(StrEnum):
    """Why a worker no longer holds a job."""

    NOT_HELD = "not_held"
    OTHER_FENCE = "other_fence"
    EXPIRED = "expired"


class Lost(Struct, frozen=True, gc=False):
    """The claim is no longer valid; nothing was changed."""

    cause: LossCause


class Ack(StrEnum):
    WRITTEN = "written"
    ALREADY = "already"
    HELD = "held"
    CANCEL = "cancel"


WRITTEN, ALREADY, HELD, CANCEL = Ack.WRITTEN, Ack.ALREADY, Ack.HELD, Ack.CANCEL


class Inserted(Struct, frozen=True, gc=False):
    """The ids of the inserted jobs, in their order; for a job whose unique key is held, the id of the holder.

    `existed` are the ids that were in the store before, `replaced` those of them that got new arguments.
    """

    ids: tuple[str, ...]
    existed: frozenset[str] = frozenset()
    replaced: frozenset[str] = frozenset()


class Expiry(Struct, frozen=True, gc=False):
    """A claim whose lease has expired or whose worker has died; `state` is that of the job after it.

    `was_running` is False if its handler had not begun.
    """

    job: str
    task: str
    queue: str
    worker: str | None
    attempt: int
    max_attempts: int
    was_running: bool
    state: State

    @classmethod
    def of(cls, job: JobRecord, after: JobRecord) -> "Expiry":
        """The expiry of the claim of `job`, which is now `after`."""
        was_running = job.state is not State.CLAIMED
        attempts = job.attempts, job.max_attempts
        return cls(
            job.id, job.task, job.queue, job.worker or job.lost_by, *attempts, was_running, after.state
        )


class Claims(Struct, frozen=True, gc=False):
    """The claimed jobs, each under a new fence, and the seconds until the next job is due.

    `waiting_suspects` has the kinds of the suspects that wait in any queue. `has_locked`: jobs are due that
    another pass has locked, mostly to make them ready. Claim again soon. `expiries` are the claims,
    mostly of other workers, that this pass has found expired.
    """

    jobs: tuple[JobRecord, ...]
    due_in: float | None = None
    waiting_suspects: tuple[SuspectKind, ...] = ()
    has_locked: bool = False
    expiries: tuple[Expiry, ...] = ()


class Renewed(Struct, frozen=True, gc=False):
    acks: tuple[Ack | Lost, ...]


class Moved(Struct, frozen=True):
    """The ids of the jobs that moved, that were in that state already, and that were refused, with the error.

    If the query may match more jobs, `below` is the value to send with the next command.
    """

    moved: tuple[str, ...] = ()
    already: tuple[str, ...] = ()
    refused: tuple[tuple[str, ErrandryError], ...] = ()
    below: int | None = None


class UpkeepResult(Struct, frozen=True, gc=False):
    """How many records each part of upkeep changed; `more` is true if it stopped at its limit.

    `expiries` are the claims that expired.
    """

    expired: int = 0
    promoted: int = 0
    lapsed: int = 0
    pruned: int = 0
    trimmed: int = 0
    ticked: int = 0
    more: bool = False
    expiries: tuple[Expiry, ...] = ()


Answer = Inserted | Claims | Renewed | Moved | UpkeepResult | Backfilled | Ack | Lost | ErrandryError
