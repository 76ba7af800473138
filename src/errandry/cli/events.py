"""`errandry events`: what has happened, and what happens."""

from typing import TYPE_CHECKING

import click
from msgspec import to_builtins

from errandry.cli.command import CliCommand
from errandry.cli.job_arguments import id_of
from errandry.cli.session import Session, client
from errandry.cli.text import local, one_line, short_id
from errandry.core.event import EventFilter, EventKind
from errandry.store.contract import EventEntry

if TYPE_CHECKING:
    from errandry.api.app import Errandry

PAGE = 10_000
COLORS = {
    EventKind.COMPLETED: "green",
    EventKind.FAILED: "red",
    EventKind.STALLED: "red",
    EventKind.EVENTS_MISSED: "red",
    EventKind.RETRYING: "yellow",
    EventKind.PAUSED: "yellow",
    EventKind.STARTED: "cyan",
    EventKind.CANCELED: "bright_black",
    EventKind.REMOVED: "bright_black",
}


@click.command(cls=CliCommand)
@click.option("-f", "--follow", is_flag=True, help="Go on with what happens from now on.")
@click.option(
    "--limit", type=click.IntRange(0), default=50, show_default=True, help="So many of the last ones."
)
@click.option("--after", metavar="CURSOR", help="All after this one, which --json prints with each event.")
@click.option(
    "--kind",
    "kinds",
    multiple=True,
    type=click.Choice([str(kind) for kind in EventKind]),
    metavar="KIND",
    help="Only such events, as failed; may be repeated.",
)
@click.option("--queue", "queues", multiple=True, help="Only of this queue; may be repeated.")
@click.option("--task", "tasks", multiple=True, help="Only of this task; may be repeated.")
@click.option("--job", metavar="ID", help="Only of this job.")
@client
async def events(
    session: Session,
    jobs: "Errandry",
    follow: bool,
    limit: int,
    after: str | None,
    job: str | None,
    **only: tuple[str, ...],
) -> None:
    """Print what happened lately, and with --follow what happens, until Ctrl-C."""
    wanted = EventFilter(**only, jobs=() if job is None else (await id_of(jobs, job),))
    cursor = await _print_past(session, jobs, wanted, None if after else limit, after)
    if follow:
        async for happened in jobs.events(after=cursor):
            if wanted.has(happened.event):
                _print(session, happened)


async def _print_past(
    session: Session, jobs: "Errandry", wanted: EventFilter, limit: int | None, after: str | None
) -> str:
    """The last events, or all after a cursor; returns where they end."""
    if limit is None:
        found, end = await _since(session, jobs, wanted, after)
    else:
        found, end = await _last(session, jobs, wanted, limit)
    for happened in found:
        _print(session, happened)
    return end


async def _last(
    session: Session, jobs: "Errandry", wanted: EventFilter, limit: int
) -> tuple[list[EventEntry], str]:
    """Go back further and further until there are enough, or no more."""
    back, oldest = limit, ""
    while True:
        start = await jobs.latest_cursor(back)
        found, end = await _since(session, jobs, wanted, start)
        if len(found) >= limit or start == oldest:
            return found[len(found) - limit :] if len(found) > limit else found, end
        back, oldest = max(1, back) * 16, start


async def _since(
    session: Session, jobs: "Errandry", wanted: EventFilter, after: str | None
) -> tuple[list[EventEntry], str]:
    found: list[EventEntry] = []
    while True:
        page = await jobs.engine.call(jobs.store.events, after, PAGE)
        if page.missed:
            session.talk("Events before these are no longer kept: some were missed.")
        found += [happened for happened in page.entries if wanted.has(happened.event)]
        after = page.cursor
        if len(page.entries) < PAGE:
            return found, page.cursor


def _print(session: Session, happened: EventEntry) -> None:
    event = happened.event
    if session.json:
        session.data({"cursor": happened.cursor, "at": happened.at, **to_builtins(event)})
        return
    kind = session.style(f"{event.kind:<10}", COLORS.get(event.kind))
    job = short_id(event.job) if session.is_terminal else one_line(event.job)
    tried = event.attempt and f"attempt {event.attempt}"
    what = [kind, job, event.task, event.queue and f"in {event.queue}", tried, one_line(event.text)]
    session.print(f"{local(happened.at)}  {' '.join(str(one) for one in what if one)}")
