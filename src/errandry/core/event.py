"""Facts in the past tense: what observers read, one or more for each move."""

from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from enum import StrEnum

from msgspec import Struct

from errandry.core.state import Move, State
from errandry.errors import InvalidValue


class Kind(StrEnum):
    """What observers can be told.

    blocked    it waits for other jobs
    scheduled  it waits for its time or a signal: delayed, snoozed or postponed
    waiting    it is ready for a worker
    claimed    a worker has taken it
    active     its handler is about to be called
    progress   its handler said how far it is; text has the share
    log        its handler logged a line; text has its first 200 characters
    completed  it is done
    failed     it has failed for good
    canceled   it was canceled
    retrying   an attempt went wrong and another will follow
    stalled    its lease ran out, or its worker died; where it went is told next
    edited     an operator has changed it
    removed    its record is gone
    drained    the last waiting job of a queue was claimed
    paused     a queue, a task, a group or a worker was paused; text says by whom, or which group or worker
    resumed    a queue, a task, a group or a worker was resumed
    ruled      a queue, a task or a group has another rule; text says by whom, or which group
    missed     a tick of a schedule came to nothing; text says of which, and which tick
    planned    a schedule was put, paused, resumed or removed; text says which, and what
    error      events before this one are no longer kept: the reader missed some
    """

    BLOCKED = "blocked"
    SCHEDULED = "scheduled"
    WAITING = "waiting"
    CLAIMED = "claimed"
    ACTIVE = "active"
    PROGRESS = "progress"
    LOG = "log"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELED = "canceled"
    RETRYING = "retrying"
    STALLED = "stalled"
    EDITED = "edited"
    REMOVED = "removed"
    DRAINED = "drained"
    PAUSED = "paused"
    RESUMED = "resumed"
    RULED = "ruled"
    MISSED = "missed"
    PLANNED = "planned"
    ERROR = "error"


class Event(Struct, frozen=True, gc=False):
    """Something that happened, to a job or, where `job` is empty, to a queue or task."""

    kind: Kind
    job: str
    queue: str
    task: str
    attempt: int = 0
    text: str = ""


class Alike(Struct, frozen=True, array_like=True):
    """What happened to one job after the other: all of `kinds` to the first, then to the next.

    So a pass tells of very many jobs in little more than their ids. Stored as an array: the order of the
    fields is part of the format.
    """

    kinds: tuple[Kind, ...]
    jobs: list[str]
    queue: str
    task: str
    attempt: int = 0
    text: str = ""

    def __len__(self) -> int:
        return len(self.kinds) * len(self.jobs)

    def __iter__(self) -> Iterator[Event]:
        for job in self.jobs:
            for kind in self.kinds:
                yield Event(kind, job, self.queue, self.task, self.attempt, self.text)


def spelled_out(told: Iterable[Alike]) -> tuple[Event, ...]:
    return tuple(event for alike in told for event in alike)


class Filter(Struct, frozen=True):
    """Which events are wanted; what is empty lets everything through.

    That some were missed is told to everyone.
    """

    kinds: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    jobs: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for kind in self.kinds:
            if kind not in tuple(Kind):
                close = get_close_matches(str(kind), tuple(Kind), 1)
                hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(Kind)}"
                raise InvalidValue("kind", kind, f"there are no such events: {hint}")

    def has(self, event: Event) -> bool:
        return event.kind is Kind.ERROR or (
            (not self.kinds or event.kind in self.kinds)
            and (not self.queues or event.queue in self.queues)
            and (not self.tasks or event.task in self.tasks)
            and (not self.jobs or event.job in self.jobs)
        )


REACHED = {
    State.BLOCKED: Kind.BLOCKED,
    State.SCHEDULED: Kind.SCHEDULED,
    State.WAITING: Kind.WAITING,
    State.CLAIMED: Kind.CLAIMED,
    State.RUNNING: Kind.ACTIVE,
    State.COMPLETED: Kind.COMPLETED,
    State.FAILED: Kind.FAILED,
    State.CANCELED: Kind.CANCELED,
}
"""What a job is said to be that has come into a state."""
ENDS = frozenset({Kind.COMPLETED, Kind.FAILED, Kind.CANCELED, Kind.REMOVED})
"""After one of these nothing more happens to a job, unless somebody runs it again."""


def _kinds(move: Move, state: State) -> tuple[Kind, ...]:
    match move:
        case Move.CLAIM:
            return (Kind.CLAIMED, Kind.ACTIVE) if state is State.RUNNING else (Kind.CLAIMED,)
        case Move.RETRY if state in (State.SCHEDULED, State.WAITING):
            return (Kind.RETRYING,)
        case Move.EXPIRE:
            return (Kind.STALLED, REACHED[state])
        case Move.EDIT:
            return (Kind.EDITED,)
        case Move.REMOVE | Move.REMOVE_FORCED:
            return (Kind.REMOVED,)
        case Move.CANCEL if state is State.RUNNING:
            return ()
        case Move.RENEW | Move.NOTE | Move.STEP:
            return ()
        case _:
            return (REACHED[state],)


KINDS = {(move, state): _kinds(move, state) for move in Move for state in State}
"""What a move that led to a state is reported as, in order."""
