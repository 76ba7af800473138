"""`errandry queues`: how full they are, a halt for one of them, or for a task in all of them, and rules."""

from typing import TYPE_CHECKING

import click
from msgspec import to_builtins

from errandry.cli import pausing, table
from errandry.cli.command import CliGroup
from errandry.cli.job_view import COLORS
from errandry.cli.queue_jobs import BULK
from errandry.cli.rules import RULE_COMMANDS
from errandry.cli.session import Session, client
from errandry.cli.stats import stats
from errandry.cli.table import Cell, Column
from errandry.core.duration import rough
from errandry.core.gate import GateKind
from errandry.core.state import State

if TYPE_CHECKING:
    from errandry.api.app import Errandry
    from errandry.api.gates import GateHandle


@click.group(cls=CliGroup)
def queues() -> None:
    """See how full queues are; pause, limit, empty and move them."""


@queues.command("ls")
@client
async def ls(session: Session, jobs: "Errandry") -> None:
    """List queues with their jobs by state, and what is paused."""
    found, paused, now = await jobs.queues(), await jobs.paused(), await jobs.now()
    if session.json:
        for info in found:
            session.data(to_builtins(info))
        return
    if not found:
        session.talk("There are no queues: nothing was ever enqueued.")
        return
    states = [state for state in State if any(info.states.get(state) for info in found)]
    heads = [Column("QUEUE", gives=True), *(Column(state.upper(), right=True) for state in states)]
    heads += [Column("OLDEST"), Column("PAUSED", gives=True)]
    rows = [
        (
            info.name,
            *(Cell(f"{count:,}", COLORS[s]) if (count := info.states.get(s, 0)) else "" for s in states),
            "" if info.waited is None else rough(info.waited),
            Cell(pausing.said(info.paused, now), "yellow"),
        )
        for info in found
    ]
    table.show(session, heads, rows)
    for name, pause_info in paused[GateKind.TASK].items():
        session.talk(f"The task {name} was paused {pausing.said(pause_info, now)}.")
    if any(one.ruling is not None or one.group for one in await jobs.rules()):
        session.talk("Some have rules: see errandry queues rules.")


@queues.command("pause")
@click.argument("names", nargs=-1, metavar="[QUEUE]...")
@click.option("--group", "groups", multiple=True, help="Only this group of the queue; may be repeated.")
@click.option("--task", "tasks", multiple=True, help="A task, in all queues; may be repeated.")
@click.option("--by", help="Who wants it; you, without it.")
@client
async def pause(session: Session, jobs: "Errandry", by: str | None, **chosen: tuple[str, ...]) -> None:
    """Have no more jobs claimed from queues.

    Until they are resumed. What runs goes on.
    """
    for one in _gates(jobs, **chosen):
        await pausing.pause(session, one, by)


@queues.command("resume")
@click.argument("names", nargs=-1, metavar="[QUEUE]...")
@click.option("--group", "groups", multiple=True, help="Only this group of the queue; may be repeated.")
@click.option("--task", "tasks", multiple=True, help="A task; may be repeated.")
@client
async def resume(session: Session, jobs: "Errandry", **chosen: tuple[str, ...]) -> None:
    """Undo a pause."""
    for one in _gates(jobs, **chosen):
        await pausing.resume(session, one)


def _gates(
    jobs: "Errandry", names: tuple[str, ...], groups: tuple[str, ...], tasks: tuple[str, ...]
) -> "list[GateHandle]":
    if groups and len(names) != 1:
        raise click.UsageError("--group is a group of one queue: name that queue.")
    gates: list[GateHandle] = [jobs.queue(name).group(group) for name in names for group in groups]
    gates += [jobs.queue(name) for name in names if not groups]
    gates += [jobs.task_gate(name) for name in tasks]
    if not gates:
        raise click.UsageError("Which? Name queues, or tasks with --task.")
    return gates


for command in (stats, *BULK, *RULE_COMMANDS):
    queues.add_command(command)
