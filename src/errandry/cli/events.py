"""`errandry events`: print past events, and follow new ones."""

from datetime import datetime
from typing import TYPE_CHECKING

import click
from msgspec import to_builtins

from errandry.api.events import Event, event_of_entry
from errandry.cli.command import CliCommand
from errandry.cli.job_arguments import resolve_id
from errandry.cli.param_types import WholeNumber, Word
from errandry.cli.session import Session, app_command
from errandry.cli.text import local_time, short_id
from errandry.core.event import EventFilter, EventKind
from errandry.core.printable import one_line

if TYPE_CHECKING:
    from errandry.api.app import Errandry

PAGE_SIZE = 10_000
KIND_WIDTH = max(map(len, EventKind))
COLORS = {
    EventKind.COMPLETED: "green",
    EventKind.FAILED: "red",
    EventKind.STALLED: "red",
    EventKind.ERROR: "red",
    EventKind.EVENTS_MISSED: "red",
    EventKind.RETRYING: "yellow",
    EventKind.PAUSED: "yellow",
    EventKind.STARTED: "cyan",
    EventKind.CANCELED: "bright_black",
    EventKind.REMOVED: "bright_black",
}


@click.command(cls=CliCommand)
@click.option("-f", "--follow", is_flag=True, help="Keep printing new events")
@click.option(
    "--limit",
    type=WholeNumber(0),
    metavar="N",
    default=50,
    show_default=True,
    help="Number of past events to print",
)
@click.option("--after", metavar="CURSOR", help="Print all events after this cursor; --json prints cursors")
@click.option(
    "--kind",
    "kinds",
    multiple=True,
    type=Word("kind of event", EventKind),
    metavar="KIND",
    help="Only events of this kind, such as failed; may be repeated",
)
@click.option("--queue", "queues", multiple=True, help="Only events of this queue; may be repeated")
@click.option("--task", "tasks", multiple=True, help="Only events of this task; may be repeated")
@click.option("--job", metavar="ID", help="Only events of this job")
@app_command
async def events(
    session: Session,
    jobs: "Errandry",
    follow: bool,
    limit: int,
    after: str | None,
    job: str | None,
    **only: tuple[str, ...],
) -> None:
    """Print the latest events, and with --follow new ones until Ctrl-C."""
    wanted = EventFilter(**only, jobs=() if job is None else (await resolve_id(jobs, job),))
    cursor = await _print_past(session, jobs, wanted, None if after else limit, after)
    if follow:
        async for event in jobs.events(after=cursor):
            if wanted.matches(event):
                _print(session, event)


async def _print_past(
    session: Session, jobs: "Errandry", wanted: EventFilter, limit: int | None, after: str | None
) -> str:
    """Print the last `limit` events, or all after a cursor; return the cursor where they end."""
    if limit is None:
        found, end = await _read_since(session, jobs, wanted, after)
    else:
        found, end = await _read_last(session, jobs, wanted, limit)
    for event in found:
        _print(session, event)
    return end


async def _read_last(
    session: Session, jobs: "Errandry", wanted: EventFilter, limit: int
) -> tuple[list[Event], str]:
    """Read the last `limit` matching events: start further back until there are enough or no more."""
    back, oldest = limit, ""
    while True:
        start = await jobs.latest_cursor(back)
        found, end = await _read_since(session, jobs, wanted, start)
        if len(found) >= limit or start == oldest:
            return found[len(found) - limit :] if len(found) > limit else found, end
        back, oldest = max(1, back) * 16, start


async def _read_since(
    session: Session, jobs: "Errandry", wanted: EventFilter, after: str | None
) -> tuple[list[Event], str]:
    found: list[Event] = []
    while True:
        page = await jobs.engine.call(jobs.store.events, after, PAGE_SIZE)
        if page.missed:
            session.print_message("Older events have been deleted; some are missing here.")
        found += [event_of_entry(entry) for entry in page.entries if wanted.matches(entry.event)]
        after = page.cursor
        if len(page.entries) < PAGE_SIZE:
            return found, page.cursor


def _print(session: Session, event: Event) -> None:
    if session.json:
        session.print_json(to_builtins(event, builtin_types=(datetime,)))
        return
    kind = session.style(f"{event.kind:<{KIND_WIDTH}}", COLORS.get(event.kind))
    job = short_id(event.job) if session.is_terminal else one_line(event.job)
    attempt = event.attempt and f"attempt {event.attempt}"
    parts = [kind, job, event.task, event.queue and f"in {event.queue}", attempt, one_line(event.text)]
    session.print(f"{local_time(event.at)}  {' '.join(str(part) for part in parts if part)}")
