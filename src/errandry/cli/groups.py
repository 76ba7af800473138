"""`errandry groups`: whose jobs wait and run in a queue that is shared."""

from typing import TYPE_CHECKING

import click
from msgspec import to_builtins

from errandry.cli import pausing, table
from errandry.cli.command import CliGroup
from errandry.cli.session import Session, client
from errandry.cli.table import Cell, Column
from errandry.core.duration import rough
from errandry.store.contract import GroupInfo
from errandry.store.table_store import COUNTED

if TYPE_CHECKING:
    from errandry.api.app import Errandry


@click.group(cls=CliGroup)
def groups() -> None:
    """See the groups of queues, how many of their jobs wait and run, and what limits them."""


@groups.command("ls")
@click.option("--queue", help="Only of this queue.")
@click.option(
    "--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="So many of them."
)
@client
async def ls(session: Session, jobs: "Errandry", queue: str | None, limit: int) -> None:
    """List groups that have jobs or rules, by name."""
    found, now = await jobs.groups(queue, limit + 1), await jobs.now()
    if session.json:
        for info in found[:limit]:
            session.data(to_builtins(info))
        return
    if not found:
        session.talk("There are no groups: no job that waits or runs has one.")
        return
    heads = [Column("QUEUE", gives=True), Column("GROUP", gives=True), Column("WAITING", right=True)]
    heads += [Column("RUNNING", right=True), Column("RATE"), Column("WEIGHT", right=True)]
    heads += [Column("PAUSED", gives=True)]
    table.show(session, heads, [_row(info, now) for info in found[:limit]])
    if len(found) > limit:
        session.talk(f"There are more: --limit {limit * 10}, or --queue.")


def _row(info: GroupInfo, now: float) -> tuple[str | Cell, ...]:
    one = info.gate
    weight = one.rule.weight
    rests = f"rests {rough(one.closed_until - now)}" if one.closed_until > now else ""
    return (
        one.name,
        one.group,
        f"{info.waiting:,}{'+' if info.waiting >= COUNTED else ''}",
        f"{info.held:,}" if info.limit is None else f"{info.held:,} of {info.limit:,}",
        "" if info.rate is None else str(info.rate),
        "" if weight is None else f"{weight:g}",
        Cell(pausing.said(one.paused, now) or rests, "yellow"),
    )
