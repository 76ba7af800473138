"""`errandry flows`: which jobs wait for which, and how far they are."""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from errandry.cli import table
from errandry.cli.command import CliGroup
from errandry.cli.job_arguments import id_of, query
from errandry.cli.job_view import COLORS
from errandry.cli.jobs import limited, print_pages, unlimited
from errandry.cli.session import Session, client
from errandry.cli.table import Cell, Column
from errandry.cli.text import ago, clean, number
from errandry.core.flow import EdgeRecord
from errandry.core.job import JobRecord
from errandry.core.state import State

if TYPE_CHECKING:
    from errandry.api.app import Errandry


FIELDS = ("id", "task", "queue", "state", "children", "created_at")


@click.group(cls=CliGroup)
def flows() -> None:
    """See which jobs wait for which, and how far they are."""


@flows.command("ls")
@click.argument("terms", nargs=-1, metavar="[QUERY]...")
@limited
@unlimited
@client
async def ls(
    session: Session, jobs: "Errandry", terms: tuple[str, ...], limit: int, everything: bool
) -> None:
    """List flows by the job that all others of each lead to, newest first, and how far they are."""
    now = await jobs.now()

    def show(found: Sequence[JobRecord], titles: bool) -> None:
        if session.json:
            for job in found:
                session.data({**{name: getattr(job, name) for name in FIELDS}, "ended": _ended(job)})
            return
        rows = [
            (
                job.id,
                Cell(job.state, COLORS[job.state]),
                job.task,
                f"{_ended(job):,} of {job.children:,}",
                ago(job.created_at, now),
            )
            for job in found
        ]
        heads = [Column("FLOW"), Column("STATE"), Column("TASK", gives=True), Column("ENDED", right=True)]
        table.show(session, [*heads, Column("CREATED")], rows, titles)

    text = f"children>0 parents:0 {query(terms)}".rstrip()
    if not await print_pages(session, jobs, text, None if everything else limit, show, "flow"):
        session.talk("No flow matches." if terms else "There are no flows.")


def _ended(job: JobRecord) -> int:
    """How many of its children have: all, unless it waits for some."""
    return job.children - (job.open_children if job.state is State.BLOCKED else 0)


@flows.command("show")
@click.argument("job_id", metavar="ID")
@click.option(
    "--limit",
    type=click.IntRange(1),
    default=20,
    show_default=True,
    help="At most so many children each.",
)
@client
async def show(session: Session, jobs: "Errandry", job_id: str, limit: int) -> None:
    """Print a job and all it waits for, or has waited for, as a tree.

    With --json a line for each job, with its parent.
    """
    root = await jobs.record(await id_of(jobs, job_id))
    left: list[tuple[int, str | None, str, str, str]] = [(0, None, root.id, root.task, root.state)]
    while left:
        depth, parent, one, task, state = left.pop()
        if not one:
            session.print(f"{'  ' * depth}{task}")
            continue
        links = await jobs.children(one)
        counts = Counter(link.outcome or "open" for link in links)
        if session.json:
            session.data(_data(one, parent, task, state, counts))
        else:
            session.print(f"{'  ' * depth}{_line(session, one, task, state, links)}")
        shown = links if session.json else links[:limit]
        if len(shown) < len(links):
            rest = number(len(links) - len(shown), "more child", "more children")
            left.append((depth + 1, one, "", f"… {rest}: --limit", ""))
        states = await _states(jobs, shown)
        left += [(depth + 1, one, link.child, link.task, states[link.child]) for link in reversed(shown)]


async def _states(jobs: "Errandry", links: list[EdgeRecord]) -> dict[str, str]:
    """How each child is, or was when its record was last there."""
    found = await jobs.engine.call(jobs.store.get, [link.child for link in links]) if links else []
    return {
        link.child: str(link.outcome) if job is None else str(job.state)
        for link, job in zip(links, found, strict=True)
    }


def _line(session: Session, job_id: str, task: str, state: str, links: list[EdgeRecord]) -> str:
    color = COLORS[State(state)] if state in tuple(State) else None
    words = [session.style(state, color), clean(task), clean(job_id)]
    if links:
        words.append(f"({sum(link.outcome is not None for link in links):,} of {len(links):,} ended)")
    return "  ".join(words)


def _data(job_id: str, parent: str | None, task: str, state: str, counts: Counter[Any]) -> dict[str, Any]:
    return {
        "id": job_id,
        "parent": parent,
        "task": task,
        "state": state,
        "children": {str(name): count for name, count in sorted(counts.items())},
    }
