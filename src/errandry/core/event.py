"""Events: what observers read. Each move of a job has none, one or two of them."""

from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from enum import StrEnum
from typing import Literal

from msgspec import Struct

from errandry.core import check
from errandry.core.state import Move, State
from errandry.errors import InvalidValue

ERROR_TEXT_MAX = 200
"""Maximum number of characters of an error in the text of an event."""


class EventKind(StrEnum):
    """What happened.

    blocked           the job waits for other jobs
    scheduled         the job waits for its time or a signal: delayed, snoozed or postponed
    waiting           the job is ready for a worker
    claimed           a worker claimed the job
    started           the worker is about to call the handler
    progress          the handler reported progress; text is the share
    log               the handler logged a line; text is its first 200 characters
    completed         the job is done
    failed            the job failed for good; text has the type and message of its error, or the reason
    canceled          the job was canceled
    retrying          an attempt failed and another one follows; text has the type and message of its error
    stalled           the lease ran out, or the worker died; the next event has the new state of the job
    edited            an operator changed the job, or an enqueue with its unique key replaced its arguments
    removed           the record of the job was deleted
    drained           the last waiting job of a queue was claimed, or has left that state in another way
    paused            a queue, task, group or worker was paused; text has the group or worker, the operator
    resumed           a queue, task, group or worker was resumed; text has the group or worker
    rule_changed      a rule of a queue, task or group was changed; text has the group, change and operator
    tick_missed       a tick of a schedule did not run; text names the schedule and the tick
    schedule_changed  a schedule was put, declared, paused, …; text has its name, the change, the operator
    error             trouble of a worker, not of a job; text has the worker, what failed, and the error
    events_missed     this reader missed events that the store has already deleted
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
    ERROR = "error"
    EVENTS_MISSED = "events_missed"


EventName = Literal[
    "blocked",
    "scheduled",
    "waiting",
    "claimed",
    "started",
    "progress",
    "log",
    "completed",
    "failed",
    "canceled",
    "retrying",
    "stalled",
    "edited",
    "removed",
    "drained",
    "paused",
    "resumed",
    "rule_changed",
    "tick_missed",
    "schedule_changed",
    "error",
    "events_missed",
]
"""An event kind as text."""


class EventRecord(Struct, frozen=True, gc=False):
    """Something that happened to a job; if `job` is empty, to a queue, task, group, schedule or worker."""

    kind: EventKind
    job: str
    queue: str
    task: str
    attempt: int = 0
    text: str = ""


class EventRun(Struct, frozen=True, array_like=True):
    """The same events of several jobs: all of `kinds` for the first job, then for the next.

    A pass with thousands of jobs stores little more than their ids. A run is stored as a JSON array, so the
    order of the fields is part of the format.
    """

    kinds: tuple[EventKind, ...]
    jobs: list[str]
    queue: str
    task: str
    attempt: int = 0
    text: str = ""

    def __len__(self) -> int:
        return len(self.kinds) * len(self.jobs)

    def __iter__(self) -> Iterator[EventRecord]:
        for job in self.jobs:
            for kind in self.kinds:
                yield EventRecord(kind, job, self.queue, self.task, self.attempt, self.text)


def trouble_event(worker: str, text: str) -> EventRecord:
    """The `error` event for trouble of a worker."""
    return EventRecord(EventKind.ERROR, "", "", "", 0, trouble_text(worker, text))


def trouble_text(worker: str, text: str) -> str:
    """The text of an `error` event: it begins with the worker."""
    return check.storable_text(f"{trouble_prefix(worker)}{text}"[:ERROR_TEXT_MAX])


def trouble_prefix(worker: str) -> str:
    """The beginning of the texts of all `error` events of a worker."""
    return f"worker {worker}: "


def change_text(subject: str, change: str, by: str) -> str:
    """The text of a change by an operator or by code: "group acme: limit 5 -> 10, by ada".

    Each part may be empty. `change` is cut to `ERROR_TEXT_MAX` characters; the others are names.
    """
    change = check.storable_text(change, ERROR_TEXT_MAX)
    parts = ": ".join(part for part in (subject, change) if part), f"by {by}" if by else ""
    return ", ".join(part for part in parts if part)


def expand(event_runs: Iterable[EventRun]) -> tuple[EventRecord, ...]:
    return tuple(event for run in event_runs for event in run)


class EventFilter(Struct, frozen=True):
    """Which events a reader wants. An empty field allows every value; `events_missed` always matches."""

    kinds: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    jobs: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for kind in self.kinds:
            if kind not in tuple(EventKind):
                close = get_close_matches(str(kind), tuple(EventKind), 1)
                hint = f"did you mean {close[0]}?" if close else f"valid kinds: {', '.join(EventKind)}"
                raise InvalidValue("kind", kind, f"unknown kind of event; {hint}")
        for field, values in (("queue", self.queues), ("task", self.tasks), ("job", self.jobs)):
            for value in values:
                check.name(field, value)
            if values and EventKind.ERROR in self.kinds:
                why = f"error events have no {field}: they report trouble of workers; leave {field} out"
                raise InvalidValue(field, values[0], why)

    def matches(self, event: EventRecord) -> bool:
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
"""The event of a job that enters a state."""
FINAL_KINDS = frozenset({EventKind.COMPLETED, EventKind.FAILED, EventKind.CANCELED, EventKind.REMOVED})
"""After one of these events nothing more happens to a job, unless an operator reruns it."""


def _kinds_of_move(move: Move, state: State) -> tuple[EventKind, ...]:
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


KINDS_OF_MOVE = {(move, state): _kinds_of_move(move, state) for move in Move for state in State}
"""The events of a move that led to a state, in order."""
