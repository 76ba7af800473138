"""`errandry queues stats`: what ever happened in each queue, or what happened lately and how long it took."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click
from msgspec import to_builtins

from errandry.cli import table
from errandry.cli.command import CliCommand
from errandry.cli.param_types import LENGTH
from errandry.cli.session import Session, client
from errandry.cli.table import Cell, Column
from errandry.cli.text import curve
from errandry.core.stats import MINUTE, Counts, DurationHistogram, Stats, TimeSlice

if TYPE_CHECKING:
    from errandry.api.app import Errandry

TOTALS = Counts.__struct_fields__[:7]
PARTS = 30
"""So many parts has the curve of a time, but none is shorter than a minute."""
SHARES = (0.5, 0.99)


@click.command("stats", cls=CliCommand)
@click.option("--last", type=LENGTH, help='Only what happened in this time, with how long it took: "1h".')
@click.option("--queue", help="Only of this queue; with --last.")
@click.option("--task", help="Only of this task; with --last.")
@click.option(
    "--by", type=click.Choice(["queue", "task"]), default="queue", help="A row for each; with --last."
)
@client
async def stats(
    session: Session, jobs: "Errandry", last: str | None, queue: str | None, task: str | None, by: str
) -> None:
    """Count what happened in each queue, ever or lately.

    Lately, it also tells how long jobs waited and ran: half of them at most p50, all but one of a hundred
    at most p99. The curve is of jobs that ended.
    """
    if last is not None:
        _show_lately(session, await jobs.stats(last, queue=queue, task=task), by)
        return
    if queue or task:
        raise click.UsageError("--queue and --task go with --last: without it, all of each queue is counted.")
    totals = await jobs.totals()
    if session.json:
        for name, counters in totals.items():
            session.data({"queue": name, **counters})
        return
    if not totals:
        session.talk("There are no queues: nothing was ever enqueued.")
        return
    heads = [Column("QUEUE", gives=True), *(Column(name.upper(), right=True) for name in TOTALS)]
    rows = [(name, *(f"{counters.get(one, 0):,}" for one in TOTALS)) for name, counters in totals.items()]
    table.show(session, heads, rows)


def _show_lately(session: Session, found: Stats, by: str) -> None:
    slices = found.tasks if by == "task" else found.queues
    if session.json:
        for name, one in slices.items():
            session.data({by: name, **_plain(one)})
        return
    if not slices:
        session.talk("Nothing happened in this time.")
        return
    heads = [Column(by.upper(), gives=True)]
    heads += [Column(one, right=True) for one in ("COMPLETED", "FAILED", "RETRIED", "PER SECOND")]
    heads += [Column(f"{what} {share}", right=True) for what in ("WAIT", "RUN") for share in ("P50", "P99")]
    curves = {name: _curve(found, name, by) for name in slices}
    if session.is_terminal:
        heads.append(Column("ENDED"))
    rows = [
        (
            name,
            f"{one.counts.completed:,}",
            Cell(f"{one.counts.failed:,}", "red" if one.counts.failed else None),
            f"{one.counts.retried:,}",
            f"{one.rate:,.3g}",
            *(took(times, share) for times in (one.wait, one.run) for share in SHARES),
            *([curves[name]] if session.is_terminal else ()),
        )
        for name, one in slices.items()
    ]
    table.show(session, heads, rows)


def _curve(found: Stats, name: str, by: str) -> str:
    own = Stats(found.since, found.until, tuple(one for one in found.figures if getattr(one, by) == name))
    parts = max(1, min(PARTS, int((found.until - found.since) / MINUTE)))
    return curve([one.rate for one in own.series(parts)])


def took(times: DurationHistogram, share: float = 0.99) -> str:
    """How long this share took at most."""
    seconds = times.quantile(share)
    if seconds is None:
        return ""
    if seconds < 1:
        return f"{1_000 * seconds:.3g} ms"
    return f"{seconds:.3g} s" if seconds < 600 else f"{seconds / 3_600:.2g} h"


def _plain(one: TimeSlice) -> dict[str, object]:
    times: Sequence[tuple[str, DurationHistogram]] = (("wait", one.wait), ("run", one.run))
    return {
        "since": one.at,
        "seconds": one.span,
        **to_builtins(one.counts),
        **{what: {f"p{100 * share:g}": own.quantile(share) for share in SHARES} for what, own in times},
    }
