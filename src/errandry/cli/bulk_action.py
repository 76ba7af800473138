"""Doing something to many jobs: the exact number first, then a question, then slice by slice.

What was counted is what is done: jobs are named by their ids, so that none that comes later is swept along.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from errandry.cli.job_arguments import JobTarget, ids_of
from errandry.cli.param_types import AT, LENGTH
from errandry.cli.prompt import agrees
from errandry.cli.session import Session
from errandry.cli.text import number, one_line, short_id
from errandry.core.answer import Moved
from errandry.errors import ErrandryError

if TYPE_CHECKING:
    from errandry.api.app import Errandry

SLICE = 500
REFUSED_MAX = 10
WORTH_A_BAR = 2_000


class Action(NamedTuple):
    """What to do by ids or a query, in earnest or only to see which; and what has then become of the jobs."""

    act: Callable[..., Awaitable[Moved]]
    done: str


def asking(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options of everything that can be done to many jobs."""
    for option in (
        click.option("--dry-run", is_flag=True, help="Say how many jobs it would be, and do nothing."),
        click.option("--yes", is_flag=True, help="Do not ask.", allow_from_autoenv=False),
    ):
        function = option(function)
    return function


def rerunning(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options of everything that has jobs run again."""
    for option in (
        click.option("--reset-attempts", is_flag=True, help="Give them all their attempts again."),
        click.option("--delay", type=LENGTH, help="After how long, such as 5m."),
        click.option("--run-at", type=AT, help="When; now without it."),
    ):
        function = option(function)
    return function


async def operate(
    session: Session,
    jobs: "Errandry",
    target: JobTarget,
    action: Action,
    *,
    yes: bool,
    dry_run: bool,
) -> int:
    """Do it to what is meant. The exit code is 1 if any job was refused."""
    done, query = action.done, target.query
    if target.flow:
        ids, query = (await action.act(*await ids_of(jobs, target.ids), flow=True, dry_run=True)).moved, ""
    elif query is None:
        ids = await ids_of(jobs, target.ids)
    else:
        ids = (await action.act(query=query, dry_run=True)).moved
    if not ids:
        session.talk(f"No job that {'is meant' if target.flow else 'matches'} can be {done}.")
        return 0
    if dry_run:
        session.talk(f"{number(len(ids), 'job')} would be {done}.")
        for job_id in ids:
            session.data({"id": job_id, "would": done}) if session.json else session.print(job_id)
        return 0
    if query is not None:
        await confirm(session, f"{number(len(ids), 'job')} will be {done}.", yes)
    moved = await _in_slices(session, ids, query, action)
    return report(session, moved, done, len(ids))


class Unasked(click.ClickException):
    """The command line should have said --yes: as wrong as an option that is missing."""

    exit_code = 2


async def confirm(session: Session, text: str, yes: bool) -> None:
    """Ask, unless told not to; where nobody can answer, refuse."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise Unasked(f"{text} Nobody can be asked here: add --yes, or --dry-run to see which.")
    if not await agrees(f"{text} Go on?"):
        session.talk("Nothing was done.")
        click.get_current_context().exit(1)


async def _in_slices(session: Session, ids: Sequence[str], query: str | None, action: Action) -> Moved:
    """Those of the ids that match still: what has moved on meanwhile is left alone."""
    moved: list[str] = []
    already: list[str] = []
    refused: list[tuple[str, ErrandryError]] = []
    with bar(session, len(ids)) as advance:
        for start in range(0, len(ids), SLICE):
            part = ids[start : start + SLICE]
            try:
                answer = await action.act(*part, query=query)
            except asyncio.CancelledError:
                session.talk(f"\nStopped: {len(moved):,} of {number(len(ids), 'job')} {action.done}.")
                raise
            except ErrandryError as error:
                if len(part) > 1 or len(ids) == 1:
                    raise
                answer = Moved(refused=((part[0], error),))
            moved += answer.moved
            already += answer.already
            refused += answer.refused
            advance(len(part))
    return Moved(tuple(moved), tuple(already), tuple(refused))


@contextmanager
def bar(session: Session, total: int) -> Iterator[Callable[[int], object]]:
    """A progress bar on stderr, if somebody is there to watch and it takes long enough."""
    if total < WORTH_A_BAR or not sys.stderr.isatty():
        yield lambda _count: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True, no_color=not session.has_color), transient=True) as progress:
        task = progress.add_task("jobs", total=total)
        yield lambda count: progress.advance(task, count)


def report(session: Session, moved: Moved, done: str, meant: int) -> int:
    """Say what became of so many jobs. The exit code is 1 if any was refused."""
    if session.json:
        for job_id in moved.moved:
            session.data({"id": job_id, "answer": "moved"})
        for job_id in moved.already:
            session.data({"id": job_id, "answer": "already"})
        for job_id, error in moved.refused:
            session.data({"id": job_id, "answer": "refused", "why": str(error)})
        return 1 if moved.refused else 0
    parts = [f"{number(len(moved.moved), 'job')} {done}"]
    if moved.already:
        parts.append(f"{len(moved.already):,} had been before")
    if moved.refused:
        parts.append(f"{len(moved.refused):,} refused")
    left = meant - len(moved.moved) - len(moved.already) - len(moved.refused)
    if left > 0:
        parts.append(f"{left:,} no longer matched")
    session.print(f"{', '.join(parts)}.")
    for job_id, error in moved.refused[:REFUSED_MAX]:
        session.talk(f"  {short_id(job_id)}: {one_line(str(error))}")
    if len(moved.refused) > REFUSED_MAX:
        session.talk(f"  and {len(moved.refused) - REFUSED_MAX:,} more")
    return 1 if moved.refused else 0
