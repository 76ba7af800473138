"""What a store answers to commands."""

from enum import StrEnum

from msgspec import Struct

from errandry.core.job import JobRecord
from errandry.core.schedule import Backfilled
from errandry.errors import ErrandryError


class LossCause(StrEnum):
    """Why a claim no longer stands."""

    NOT_HELD = "not_held"
    OTHER_FENCE = "other_fence"
    EXPIRED = "expired"


class Lost(Struct, frozen=True, gc=False):
    """The claim no longer stands; nothing was changed."""

    cause: LossCause


class Ack(StrEnum):
    WRITTEN = "written"
    ALREADY = "already"
    HELD = "held"
    CANCEL = "cancel"


WRITTEN, ALREADY, HELD, CANCEL = Ack.WRITTEN, Ack.ALREADY, Ack.HELD, Ack.CANCEL


class Inserted(Struct, frozen=True, gc=False):
    """For each job its id, or of who holds its key; which were there, which of them took its arguments."""

    ids: tuple[str, ...]
    existed: frozenset[str] = frozenset()
    replaced: frozenset[str] = frozenset()


class Claims(Struct, frozen=True, gc=False):
    """The jobs, each under a fence nobody has had before, and seconds until the next one is due."""

    jobs: tuple[JobRecord, ...]
    due_in: float | None = None


class Renewed(Struct, frozen=True, gc=False):
    acks: tuple[Ack | Lost, ...]


class Moved(Struct, frozen=True):
    """What moved, what had been there already, and what was refused and why.

    `below`, where a query has more to give, is what to send to go on.
    """

    moved: tuple[str, ...] = ()
    already: tuple[str, ...] = ()
    refused: tuple[tuple[str, ErrandryError], ...] = ()
    below: int | None = None


class UpkeepResult(Struct, frozen=True, gc=False):
    """How much upkeep did; `more` when a bound stopped it."""

    expired: int = 0
    promoted: int = 0
    lapsed: int = 0
    pruned: int = 0
    trimmed: int = 0
    ticked: int = 0
    more: bool = False


Answer = Inserted | Claims | Renewed | Moved | UpkeepResult | Backfilled | Ack | Lost | ErrandryError
