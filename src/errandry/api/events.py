"""`Event`: what readers of the event log and observers get."""

from datetime import datetime

from errandry.core.duration import as_datetime
from errandry.core.event import EventRecord
from errandry.store.contract import EventEntry


class Event(EventRecord, frozen=True, kw_only=True, gc=False):
    """Something that happened to a job; if `job` is empty, to a queue, task, group, schedule or worker.

        async for event in jobs.events():
            print(event.at, event.kind, event.job)

    kind     what happened: an EventKind, which equals its text, such as "completed"
    job      the id of the job
    queue    its queue
    task     its task
    attempt  the number of the attempt, 0 before the first
    text     more about it, such as the type and message of an error
    at       the time of the store's clock
    cursor   reading with `jobs.events(after=cursor)` continues after this event
    """

    at: datetime
    cursor: str


def event_at(record: EventRecord, at: float, cursor: str) -> Event:
    """The event of this record, at a time in seconds since 1970."""
    return Event(
        record.kind,
        record.job,
        record.queue,
        record.task,
        record.attempt,
        record.text,
        at=as_datetime(at),
        cursor=cursor,
    )


def event_of_entry(entry: EventEntry) -> Event:
    return event_at(entry.event, entry.at, entry.cursor)
