"""`errandry groups`: list the groups of queues, with their jobs and limits."""

from datetime import datetime
from typing import TYPE_CHECKING

import click

from errandry.cli import pausing, table
from errandry.cli.command import CliGroup
from errandry.cli.param_types import WholeNumber
from errandry.cli.session import Session, app_command
from errandry.cli.table import Cell, Column
from errandry.store.table_store import GROUP_COUNT_MAX

if TYPE_CHECKING:
    from errandry.api.app import Errandry
    from errandry.api.gate_info import GroupInfo


@click.group(cls=CliGroup)
def groups() -> None:
    """List the groups of queues, with the number of waiting and running jobs and their limits."""


@groups.command("ls")
@click.option("--queue", help="Only groups of this queue")
@click.option(
    "--limit",
    type=WholeNumber(1, 10_000),
    metavar="N",
    default=50,
    show_default=True,
    help="Maximum number of groups",
)
@app_command
async def ls(session: Session, jobs: "Errandry", queue: str | None, limit: int) -> None:
    """List groups that have jobs or rules, by name."""
    infos, now = await jobs.groups(queue, limit + 1), await jobs.now()
    if session.json:
        for info in infos[:limit]:
            session.print_json(info)
        return
    if not infos:
        session.print_message("There are no groups: no waiting or running job has one.")
        return
    columns = [
        Column("QUEUE", can_shrink=True),
        Column("GROUP", can_shrink=True),
        Column("WAITING", is_right=True),
    ]
    columns += [Column("RUNNING", is_right=True), Column("RATE"), Column("WEIGHT", is_right=True)]
    columns += [Column("PAUSED", can_shrink=True)]
    table.print_table(session, columns, [_row(info, now) for info in infos[:limit]])
    if len(infos) > limit:
        session.print_message(f"There are more: --limit {limit * 10}, or --queue.")


def _row(info: "GroupInfo", now: datetime) -> tuple[str | Cell, ...]:
    weight = info.rule.weight
    return (
        info.queue,
        info.group,
        f"{info.waiting:,}{'+' if info.waiting >= GROUP_COUNT_MAX else ''}",
        f"{info.held:,}" if info.limit is None else f"{info.held:,} of {info.limit:,}",
        "" if info.rate is None else str(info.rate),
        "" if weight is None else f"{weight:g}",
        Cell(pausing.since_text(info.paused, now) or pausing.closed_text(info.closed_until, now), "yellow"),
    )
