"""Doing something to many jobs: the exact number first, then a question, then slice by slice.

What was counted is what is done: jobs are named by their ids, so that none that comes later is swept along.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from errandry.cli.session import Session
from errandry.cli.stdin import agrees
from errandry.cli.target import Target, ids_of
from errandry.cli.text import number, one_line, short_id
from errandry.core.answer import Moved
from errandry.core.state import TABLE, Move
from errandry.errors import ErrandryError

if TYPE_CHECKING:
    from errandry.app import Errandry

SLICE = 500
PAGE = 5_000
REFUSED_MAX = 10
WORTH_A_BAR = 2_000


class Action(NamedTuple):
    """What to do with ids, from which states that can be, and what has then become of the jobs."""

    act: Callable[..., Awaitable[Moved]]
    moves: Sequence[Move]
    done: str


def asking(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options of everything that can be done to many jobs."""
    for option in (
        click.option("--dry-run", is_flag=True, help="Say how many jobs it would be, and do nothing."),
        click.option("--yes", is_flag=True, help="Do not ask.", allow_from_autoenv=False),
    ):
        function = option(function)
    return function


async def operate(
    session: Session,
    jobs: "Errandry",
    target: Target,
    action: Action,
    *,
    yes: bool,
    dry_run: bool,
) -> int:
    """Do it to what is meant. The exit code is 1 if any job was refused."""
    done = action.done
    if target.query is None:
        ids = await ids_of(jobs, target.ids)
    else:
        ids = await _matching(jobs, target.query, action.moves)
        if not ids:
            session.talk(f"No job that matches can be {done}.")
            return 0
    if dry_run:
        session.talk(f"{number(len(ids), 'job')} would be {done}.")
        for job_id in ids:
            session.data({"id": job_id, "would": done}) if session.json else session.print(job_id)
        return 0
    if target.query is not None:
        await confirm(session, f"{number(len(ids), 'job')} will be {done}.", yes)
    return _report(session, await _in_slices(session, ids, action), done)


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


async def _matching(jobs: "Errandry", query: str, moves: Sequence[Move]) -> tuple[str, ...]:
    """The ids of all that match and are in a state it can be done in."""
    states = sorted({state for move in moves for state in TABLE[move].sources})
    narrowed, cursor = f"{query} state:{','.join(states)}", None
    ids: list[str] = []
    while True:
        page = await jobs.list(narrowed, cursor=cursor, limit=PAGE)
        ids += [job.id for job in page.jobs]
        cursor = page.cursor
        if cursor is None:
            return tuple(ids)


async def _in_slices(session: Session, ids: Sequence[str], action: Action) -> Moved:
    moved: list[str] = []
    already: list[str] = []
    refused: list[tuple[str, ErrandryError]] = []
    with _bar(session, len(ids)) as advance:
        for start in range(0, len(ids), SLICE):
            part = ids[start : start + SLICE]
            try:
                answer = await action.act(*part)
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
def _bar(session: Session, total: int) -> Iterator[Callable[[int], object]]:
    """A progress bar on stderr, if somebody is there to watch and it takes long enough."""
    if total < WORTH_A_BAR or not sys.stderr.isatty():
        yield lambda _count: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True, no_color=not session.has_color), transient=True) as progress:
        task = progress.add_task("jobs", total=total)
        yield lambda count: progress.advance(task, count)


def _report(session: Session, moved: Moved, done: str) -> int:
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
    session.print(f"{', '.join(parts)}.")
    for job_id, error in moved.refused[:REFUSED_MAX]:
        session.talk(f"  {short_id(job_id)}: {one_line(str(error))}")
    if len(moved.refused) > REFUSED_MAX:
        session.talk(f"  and {len(moved.refused) - REFUSED_MAX:,} more")
    return 1 if moved.refused else 0
