"""`errandry queues stats`: lifetime totals of each queue, or recent counts, rates, waits and run times."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click
from msgspec import to_builtins

from errandry.cli import table
from errandry.cli.command import CliCommand
from errandry.cli.param_types import DURATION
from errandry.cli.session import Session, app_command
from errandry.cli.table import Cell, Column
from errandry.cli.text import sparkline
from errandry.core.stats import MINUTE, Counts, DurationHistogram, Stats, TimeSlice

if TYPE_CHECKING:
    from errandry.api.app import Errandry

TOTAL_COUNTERS = Counts.__struct_fields__[:7]
CURVE_POINTS_MAX = 30
"""Maximum number of points of a rate curve; each covers at least a minute."""
QUANTILES = (0.5, 0.99)


@click.command("stats", cls=CliCommand)
@click.option("--last", type=DURATION, help="Only this recent time, such as 1h, with wait and run times")
@click.option("--queue", help="Only this queue; needs --last")
@click.option("--task", help="Only this task; needs --last")
@click.option(
    "--by", type=click.Choice(["queue", "task"]), default="queue", help="One row for each; with --last"
)
@app_command
async def stats(
    session: Session, jobs: "Errandry", last: str | None, queue: str | None, task: str | None, by: str
) -> None:
    """Print the lifetime totals or recent figures of queues.

    With --last, prints recent counts, the rate of finished jobs, and the p50 and p99 of wait and run times.
    """
    if last is not None:
        _print_recent(session, await jobs.stats(last, queue=queue, task=task), by)
        return
    if queue or task:
        raise click.UsageError("--queue and --task need --last.")
    totals = await jobs.totals()
    if session.json:
        for name, counters in totals.items():
            session.print_json({"queue": name, **counters})
        return
    if not totals:
        session.print_message("There are no queues: no job was ever enqueued.")
        return
    columns = [
        Column("QUEUE", can_shrink=True),
        *(Column(name.upper(), is_right=True) for name in TOTAL_COUNTERS),
    ]
    rows = [
        (name, *(f"{counters.get(counter, 0):,}" for counter in TOTAL_COUNTERS))
        for name, counters in totals.items()
    ]
    table.print_table(session, columns, rows)


def _print_recent(session: Session, stats: Stats, by: str) -> None:
    slices = stats.tasks if by == "task" else stats.queues
    if session.json:
        for name, slice_ in slices.items():
            session.print_json({by: name, **_as_data(slice_)})
        return
    if not slices:
        session.print_message("Nothing happened in this time.")
        return
    columns = [Column(by.upper(), can_shrink=True)]
    columns += [Column(slice_, is_right=True) for slice_ in ("COMPLETED", "FAILED", "RETRIED", "PER SECOND")]
    columns += [
        Column(f"{what} {share}", is_right=True) for what in ("WAIT", "RUN") for share in ("P50", "P99")
    ]
    curves = {name: _rate_curve(stats, name, by) for name in slices}
    if session.is_terminal:
        columns.append(Column("ENDED"))
    rows = [
        (
            name,
            f"{slice_.counts.completed:,}",
            Cell(f"{slice_.counts.failed:,}", "red" if slice_.counts.failed else None),
            f"{slice_.counts.retried:,}",
            f"{slice_.rate:,.3g}",
            *(format_quantile(times, share) for times in (slice_.wait, slice_.run) for share in QUANTILES),
            *([curves[name]] if session.is_terminal else ()),
        )
        for name, slice_ in slices.items()
    ]
    table.print_table(session, columns, rows)


def _rate_curve(stats: Stats, name: str, by: str) -> str:
    own = Stats(
        stats.since, stats.until, tuple(slice_ for slice_ in stats.figures if getattr(slice_, by) == name)
    )
    parts = max(1, min(CURVE_POINTS_MAX, int((stats.until - stats.since).total_seconds() / MINUTE)))
    return sparkline([slice_.rate for slice_ in own.series(parts)])


def format_quantile(histogram: DurationHistogram, share: float = 0.99) -> str:
    """The quantile in milliseconds, seconds or hours; empty if there is none."""
    seconds = histogram.quantile(share)
    if seconds is None:
        return ""
    if seconds < 1:
        return f"{1_000 * seconds:.3g} ms"
    return f"{seconds:.3g} s" if seconds < 600 else f"{seconds / 3_600:.2g} h"


def _as_data(slice_: TimeSlice) -> dict[str, object]:
    times: Sequence[tuple[str, DurationHistogram]] = (("wait", slice_.wait), ("run", slice_.run))
    return {
        "since": slice_.at,
        "seconds": slice_.span,
        **to_builtins(slice_.counts),
        **{
            name: {f"p{100 * share:g}": histogram.quantile(share) for share in QUANTILES}
            for name, histogram in times
        },
    }
