"""Change many jobs: count them, ask for confirmation, then change them slice by slice.

The command changes only jobs that it counted. It addresses them by id, so that it leaves alone jobs that
began to match the query later.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from errandry.cli.job_arguments import JobTarget, resolve_ids
from errandry.cli.param_types import DURATION, TIME
from errandry.cli.prompt import ask_yes_no
from errandry.cli.session import Session
from errandry.cli.text import pluralize, short_id
from errandry.core.answer import Moved
from errandry.core.printable import one_line
from errandry.errors import ErrandryError

if TYPE_CHECKING:
    from errandry.api.app import Errandry

SLICE_SIZE = 500
REFUSED_SHOWN_MAX = 10
PROGRESS_BAR_MIN = 2_000


class Action(NamedTuple):
    """A change of jobs.

    act         changes the jobs with these ids or of a query, or with `dry_run` only returns them
    participle  for messages: "canceled", as in "3 jobs canceled"
    """

    act: Callable[..., Awaitable[Moved]]
    participle: str


def confirm_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of every command that changes many jobs."""
    for option in (
        click.option("--dry-run", is_flag=True, help="List the jobs without changing them"),
        click.option("--yes", is_flag=True, help="Skip the confirmation prompt", allow_from_autoenv=False),
    ):
        function = option(function)
    return function


def rerun_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of every command that reruns jobs."""
    for option in (
        click.option("--reset-attempts", is_flag=True, help="Reset the attempt count to zero"),
        click.option("--delay", type=DURATION, help="Run after this delay, such as 5m"),
        click.option("--run-at", type=TIME, help="Run at this time; default: now"),
    ):
        function = option(function)
    return function


async def apply_action(
    session: Session,
    jobs: "Errandry",
    target: JobTarget,
    action: Action,
    *,
    yes: bool,
    dry_run: bool,
) -> int:
    """Apply the action to the target jobs. The exit code is 1 if any job was refused."""
    participle, query = action.participle, target.query
    if target.flow:
        ids, query = (
            (await action.act(*await resolve_ids(jobs, target.ids), flow=True, dry_run=True)).moved,
            "",
        )
    elif query is None:
        ids = await resolve_ids(jobs, target.ids)
    else:
        ids = (await action.act(query=query, dry_run=True)).moved
    if not ids:
        session.print_message(
            f"No {'job of the flow' if target.flow else 'matching job'} can be {participle}."
        )
        return 0
    if dry_run:
        session.print_message(f"{pluralize(len(ids), 'job')} would be {participle}.")
        for job_id in ids:
            session.print_json({"id": job_id, "would": participle}) if session.json else session.print(job_id)
        return 0
    if query is not None:
        await confirm(session, f"{pluralize(len(ids), 'job')} will be {participle}.", yes)
    moved = await _in_slices(session, ids, query, action)
    return report(session, moved, participle, len(ids))


class ConfirmationRequired(click.ClickException):
    """The command needs --yes because it cannot prompt; reported as a usage error."""

    exit_code = 2


async def confirm(session: Session, text: str, yes: bool) -> None:
    """Ask for confirmation unless `yes`; refuse if stdin is not a terminal."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise ConfirmationRequired(
            f"{text} stdin is not a terminal to confirm this: add --yes, or --dry-run to list the jobs."
        )
    if not await ask_yes_no(f"{text} Continue?"):
        session.print_message("Nothing was changed.")
        click.get_current_context().exit(1)


async def _in_slices(session: Session, ids: Sequence[str], query: str | None, action: Action) -> Moved:
    """Apply the action to those of the ids that still match the query, `SLICE_SIZE` at a time."""
    moved: list[str] = []
    already: list[str] = []
    refused: list[tuple[str, ErrandryError]] = []
    with progress_bar(session, len(ids)) as advance:
        for start in range(0, len(ids), SLICE_SIZE):
            part = ids[start : start + SLICE_SIZE]
            try:
                answer = await action.act(*part, query=query)
            except asyncio.CancelledError:
                session.print_message(
                    f"\nStopped: {len(moved):,} of {pluralize(len(ids), 'job')} {action.participle}."
                )
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
def progress_bar(session: Session, total: int) -> Iterator[Callable[[int], object]]:
    """Show a progress bar if stderr is a terminal and there are at least `PROGRESS_BAR_MIN` jobs."""
    if total < PROGRESS_BAR_MIN or not sys.stderr.isatty():
        yield lambda _count: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True, no_color=not session.has_color), transient=True) as progress:
        task = progress.add_task("jobs", total=total)
        yield lambda count: progress.advance(task, count)


def report(session: Session, moved: Moved, participle: str, total: int) -> int:
    """Print the result for `total` jobs. The exit code is 1 if any was refused."""
    if session.json:
        for job_id in moved.moved:
            session.print_json({"id": job_id, "answer": "moved"})
        for job_id in moved.already:
            session.print_json({"id": job_id, "answer": "already"})
        for job_id, error in moved.refused:
            session.print_json({"id": job_id, "answer": "refused", "why": str(error)})
        return 1 if moved.refused else 0
    parts = [f"{pluralize(len(moved.moved), 'job')} {participle}"]
    if moved.already:
        parts.append(f"{len(moved.already):,} already {participle}")
    if moved.refused:
        parts.append(f"{len(moved.refused):,} refused")
    left = total - len(moved.moved) - len(moved.already) - len(moved.refused)
    if left > 0:
        parts.append(f"{left:,} no longer matched")
    session.print(f"{', '.join(parts)}.")
    for job_id, error in moved.refused[:REFUSED_SHOWN_MAX]:
        session.print_message(f"  {short_id(job_id)}: {one_line(str(error))}")
    if len(moved.refused) > REFUSED_SHOWN_MAX:
        session.print_message(f"  and {len(moved.refused) - REFUSED_SHOWN_MAX:,} more")
    return 1 if moved.refused else 0
