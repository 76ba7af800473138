"""Facts in the past tense: what observers read, one or more for each move."""

from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from enum import StrEnum

from msgspec import Struct

from errandry.core.state import Move, State
from errandry.errors import InvalidValue


class EventKind(StrEnum):
    """What happened.

    blocked           the job waits for other jobs
    scheduled         the job waits for its time or a signal: delayed, snoozed or postponed
    waiting           the job is ready for a worker
    claimed           a worker has taken the job
    started           the worker is about to call the handler
    progress          the handler reported progress; text has the share
    log               the handler logged a line; text has its first 200 characters
    completed         the job is done
    failed            the job has failed for good
    canceled          the job was canceled
    retrying          an attempt failed and another one follows
    stalled           the lease ran out, or the worker died; the next event says where the job went
    edited            an operator changed the job
    removed           the record of the job is gone
    drained           the last waiting job of a queue was claimed
    paused            a queue, task, group or worker was paused; text names who paused it, or the group or worker
    resumed           a queue, task, group or worker was resumed
    rule_changed      a queue, task or group has another rule; text names who set it, or the group
    tick_missed       a tick of a schedule did not run; text names the schedule and the tick
    schedule_changed  a schedule was put, paused, resumed or removed; text names it and says which
    events_missed     older events are no longer kept: this reader missed some
    """

    BLOCKED = "blocked"
    SCHEDULED = "scheduled"
    WAITING = "waiting"
    CLAIMED = "claimed"
    STARTED = "started"
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
    RULE_CHANGED = "rule_changed"
    TICK_MISSED = "tick_missed"
    SCHEDULE_CHANGED = "schedule_changed"
    EVENTS_MISSED = "events_missed"


class Event(Struct, frozen=True, gc=False):
    """Something that happened, to a job or, where `job` is empty, to a queue or task."""

    kind: EventKind
    job: str
    queue: str
    task: str
    attempt: int = 0
    text: str = ""


class EventRun(Struct, frozen=True, array_like=True):
    """What happened to one job after the other: all of `kinds` to the first, then to the next.

    So a pass tells of very many jobs in little more than their ids. Stored as an array: the order of the
    fields is part of the format.
    """

    kinds: tuple[EventKind, ...]
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


def expand(told: Iterable[EventRun]) -> tuple[Event, ...]:
    return tuple(event for alike in told for event in alike)


class EventFilter(Struct, frozen=True):
    """Which events are wanted; what is empty lets everything through.

    That some were missed is told to everyone.
    """

    kinds: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    jobs: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for kind in self.kinds:
            if kind not in tuple(EventKind):
                close = get_close_matches(str(kind), tuple(EventKind), 1)
                hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(EventKind)}"
                raise InvalidValue("kind", kind, f"there are no such events: {hint}")

    def has(self, event: Event) -> bool:
        return event.kind is EventKind.EVENTS_MISSED or (
            (not self.kinds or event.kind in self.kinds)
            and (not self.queues or event.queue in self.queues)
            and (not self.tasks or event.task in self.tasks)
            and (not self.jobs or event.job in self.jobs)
        )


KIND_OF_STATE = {
    State.BLOCKED: EventKind.BLOCKED,
    State.SCHEDULED: EventKind.SCHEDULED,
    State.WAITING: EventKind.WAITING,
    State.CLAIMED: EventKind.CLAIMED,
    State.RUNNING: EventKind.STARTED,
    State.COMPLETED: EventKind.COMPLETED,
    State.FAILED: EventKind.FAILED,
    State.CANCELED: EventKind.CANCELED,
}
"""What a job is said to be that has come into a state."""
FINAL_KINDS = frozenset({EventKind.COMPLETED, EventKind.FAILED, EventKind.CANCELED, EventKind.REMOVED})
"""After one of these nothing more happens to a job, unless somebody runs it again."""


def _kinds(move: Move, state: State) -> tuple[EventKind, ...]:
    match move:
        case Move.CLAIM:
            return (EventKind.CLAIMED, EventKind.STARTED) if state is State.RUNNING else (EventKind.CLAIMED,)
        case Move.RETRY if state in (State.SCHEDULED, State.WAITING):
            return (EventKind.RETRYING,)
        case Move.EXPIRE:
            return (EventKind.STALLED, KIND_OF_STATE[state])
        case Move.EDIT:
            return (EventKind.EDITED,)
        case Move.REMOVE | Move.REMOVE_FORCED:
            return (EventKind.REMOVED,)
        case Move.CANCEL if state is State.RUNNING:
            return ()
        case Move.RENEW | Move.NOTE | Move.STEP:
            return ()
        case _:
            return (KIND_OF_STATE[state],)


KINDS = {(move, state): _kinds(move, state) for move in Move for state in State}
"""What a move that led to a state is reported as, in order."""
