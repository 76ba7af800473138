"""`errandry queues`: list queues; pause queues, groups and tasks; set limits and other rules."""

from typing import TYPE_CHECKING

import click

from errandry.cli import pausing, table
from errandry.cli.command import CliGroup
from errandry.cli.job_view import COLORS
from errandry.cli.queue_jobs import BULK_COMMANDS
from errandry.cli.rules import RULE_COMMANDS
from errandry.cli.session import Session, app_command
from errandry.cli.stats import stats
from errandry.cli.table import Cell, Column
from errandry.core.duration import rough_duration
from errandry.core.gate import GateKind
from errandry.core.rule import NO_RULE
from errandry.core.state import State

if TYPE_CHECKING:
    from errandry.api.app import Errandry
    from errandry.api.gates import GateHandle


@click.group(cls=CliGroup)
def queues() -> None:
    """List, pause, limit, clear and move queues."""


@queues.command("ls")
@app_command
async def ls(session: Session, jobs: "Errandry") -> None:
    """List queues with their jobs by state and their pauses."""
    infos, paused, now = await jobs.queues(), await jobs.paused(), await jobs.now()
    if session.json:
        for info in infos:
            session.print_json(info)
        return
    if not infos:
        session.print_message("There are no queues: no job was ever enqueued.")
        return
    states = [state for state in State if any(info.states.get(state) for info in infos)]
    columns = [Column("QUEUE", can_shrink=True), *(Column(state.upper(), is_right=True) for state in states)]
    columns += [Column("OLDEST"), Column("PAUSED", can_shrink=True)]
    rows = [
        (
            info.name,
            *(
                Cell(f"{count:,}", COLORS[state]) if (count := info.states.get(state, 0)) else ""
                for state in states
            ),
            "" if info.waited is None else rough_duration(info.waited),
            Cell(pausing.since_text(info.paused, now), "yellow"),
        )
        for info in infos
    ]
    table.print_table(session, columns, rows)
    for name, pause_info in paused[GateKind.TASK].items():
        session.print_message(f"The task {name} was paused {pausing.since_text(pause_info, now)}.")
    if any(gate.rule != NO_RULE or gate.group for gate in await jobs.rules()):
        session.print_message("Some queues, tasks or groups have rules: see errandry queues rules.")


@queues.command("pause")
@click.argument("names", nargs=-1, metavar="[QUEUE]...")
@click.option("--group", "groups", multiple=True, help="Pause only this group of the queue; may be repeated")
@click.option("--task", "tasks", multiple=True, help="Pause a task in all queues; may be repeated")
@click.option("--by", help="Name recorded as the operator; default: your user name")
@app_command
async def pause(session: Session, jobs: "Errandry", by: str | None, **chosen: tuple[str, ...]) -> None:
    """Pause queues, groups of a queue, or tasks.

    Workers claim no more jobs from them until they are resumed. Running jobs continue.
    """
    for gate in _gates(jobs, **chosen):
        await pausing.pause(session, gate, by)


@queues.command("resume")
@click.argument("names", nargs=-1, metavar="[QUEUE]...")
@click.option("--group", "groups", multiple=True, help="Resume only this group of the queue; may be repeated")
@click.option("--task", "tasks", multiple=True, help="Resume a task; may be repeated")
@app_command
async def resume(session: Session, jobs: "Errandry", **chosen: tuple[str, ...]) -> int:
    """Resume paused queues, groups or tasks.

    This also opens a group or task that a handler has closed by a retry that pauses its group. The exit code
    is 1 if the store knows nothing of a name.
    """
    known = [await pausing.resume(session, jobs, gate) for gate in _gates(jobs, **chosen)]
    return 0 if all(known) else 1


def _gates(
    jobs: "Errandry", names: tuple[str, ...], groups: tuple[str, ...], tasks: tuple[str, ...]
) -> "list[GateHandle]":
    if groups and len(names) != 1:
        raise click.UsageError("--group needs exactly one queue.")
    gates: list[GateHandle] = [jobs.queue(name).group(group) for name in names for group in groups]
    gates += [jobs.queue(name) for name in names if not groups]
    gates += [jobs.remote_task(name) for name in tasks]
    if not gates:
        raise click.UsageError("No queues given: name queues, or tasks with --task.")
    return gates


for command in (stats, *BULK_COMMANDS, *RULE_COMMANDS):
    queues.add_command(command)
