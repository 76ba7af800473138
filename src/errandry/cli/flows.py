"""`errandry flows`: list flows, and show the jobs of a flow as a tree."""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from errandry.cli import table
from errandry.cli.command import CliGroup
from errandry.cli.job_arguments import query, resolve_id
from errandry.cli.job_view import COLORS
from errandry.cli.jobs import all_option, limit_option, print_pages
from errandry.cli.param_types import WholeNumber
from errandry.cli.session import Session, app_command, store_time
from errandry.cli.table import Cell, Column
from errandry.cli.text import ago, pluralize
from errandry.core.flow import EdgeRecord, Policy
from errandry.core.job import JobRecord
from errandry.core.printable import clean
from errandry.core.state import State

if TYPE_CHECKING:
    from errandry.api.app import Errandry
    from errandry.api.job import Job


JSON_FIELDS = ("id", "task", "queue", "state", "created_at")


@click.group(cls=CliGroup)
def flows() -> None:
    """List flows and show their jobs."""


@flows.command("ls")
@click.argument("terms", nargs=-1, metavar="[QUERY]...")
@limit_option
@all_option
@app_command
async def ls(
    session: Session, jobs: "Errandry", terms: tuple[str, ...], limit: int, everything: bool
) -> None:
    """List flows, newest first.

    A flow is listed by its last job, which waits for all others.
    """
    now = await store_time(jobs)

    def show(page: "Sequence[Job[Any]]", titles: bool) -> None:
        if session.json:
            for job in page:
                data = job.as_dict()
                counts = {"children": job.record.children, "ended": _ended_children(job.record)}
                session.print_json({name: data[name] for name in JSON_FIELDS} | counts)
            return
        rows = [
            (
                job.id,
                Cell(job.state, COLORS[job.state]),
                job.task,
                f"{_ended_children(job):,} of {job.children:,}",
                ago(job.created_at, now),
            )
            for job in (handle.record for handle in page)
        ]
        columns = [
            Column("FLOW"),
            Column("STATE"),
            Column("TASK", can_shrink=True),
            Column("ENDED", is_right=True),
        ]
        table.print_table(session, [*columns, Column("CREATED")], rows, titles)

    text = f"children>0 parents:0 {query(terms)}".rstrip()
    if not await print_pages(session, jobs, text, None if everything else limit, show, "flow"):
        session.print_message("No flow matches." if terms else "There are no flows.")


def _ended_children(job: JobRecord) -> int:
    """The number of children that have ended."""
    return job.children - (job.open_children if job.state is State.BLOCKED else 0)


@flows.command("show")
@click.argument("job_id", metavar="ID")
@click.option(
    "--limit",
    type=WholeNumber(1),
    metavar="N",
    default=20,
    show_default=True,
    help="Maximum number of children shown per job",
)
@app_command
async def show(session: Session, jobs: "Errandry", job_id: str, limit: int) -> None:
    """Print a job and all its descendants as a tree.

    A policy other than `fail` is printed with the child. With --json, prints one line for each job, with its
    parent and its policy there.
    """
    root = await jobs.client.record(await resolve_id(jobs, job_id))
    stack: list[tuple[int, EdgeRecord | None, str, str, str]] = [(0, None, root.id, root.task, root.state)]
    while stack:
        depth, edge_up, node, task, state = stack.pop()
        if not node:
            session.print(f"{'  ' * depth}{task}")
            continue
        edges = await jobs.client.edges(node)
        counts = Counter(edge.outcome or "open" for edge in edges)
        if session.json:
            session.print_json(_data(node, edge_up, task, state, counts))
        else:
            session.print(f"{'  ' * depth}{_line(session, node, edge_up, task, state, edges)}")
        shown = edges if session.json else edges[:limit]
        if len(shown) < len(edges):
            rest = pluralize(len(edges) - len(shown), "more child", "more children")
            stack.append((depth + 1, None, "", f"… {rest}: --limit", ""))
        states = await _child_states(jobs, shown)
        stack += [(depth + 1, edge, edge.child, edge.task, states[edge.child]) for edge in reversed(shown)]


async def _child_states(jobs: "Errandry", edges: list[EdgeRecord]) -> dict[str, str]:
    """The state of each child, or its outcome if its record is deleted."""
    records = await jobs.engine.call(jobs.store.get, [edge.child for edge in edges]) if edges else []
    return {
        edge.child: str(edge.outcome) if job is None else str(job.state)
        for edge, job in zip(edges, records, strict=True)
    }


def _line(
    session: Session, job_id: str, edge_up: EdgeRecord | None, task: str, state: str, edges: list[EdgeRecord]
) -> str:
    color = COLORS[State(state)] if state in tuple(State) else None
    parts = [session.style(state, color), clean(task), clean(job_id)]
    if edge_up is not None and edge_up.policy is not Policy.FAIL:
        parts.append(f"(policy {edge_up.policy})")
    if edges:
        parts.append(f"({sum(edge.outcome is not None for edge in edges):,} of {len(edges):,} ended)")
    return "  ".join(parts)


def _data(
    job_id: str, edge_up: EdgeRecord | None, task: str, state: str, counts: Counter[Any]
) -> dict[str, Any]:
    return {
        "id": job_id,
        "parent": None if edge_up is None else edge_up.parent,
        "policy": None if edge_up is None else edge_up.policy,
        "task": task,
        "state": state,
        "children": {str(name): count for name, count in sorted(counts.items())},
    }
