"""`errandry bench`: measure this machine and its store, and compare with raw writes to the same store."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from errandry import event_loop
from errandry.cli import table
from errandry.cli.command import CliCommand
from errandry.cli.param_types import NAMES, WholeNumber
from errandry.cli.session import Session
from errandry.cli.table import Cell, Column

if TYPE_CHECKING:
    from errandry.bench.report import Report, Stress

STDOUT = "-"
FAULTS_SHOWN_MAX = 10
PROGRESS_INTERVAL = 10.0
"""Seconds between progress lines if stderr is not a terminal."""


@click.command(cls=CliCommand)
@click.option("--quick", is_flag=True, help="Measure less: about half a minute instead of two")
@click.option("--only", type=NAMES, metavar="PART,…", help="Measure only these parts, such as enqueue,drain")
@click.option("--stress", is_flag=True, help="Run the stress test instead: 120,000 jobs, workers are killed")
@click.option(
    "--jobs",
    type=WholeNumber(100, 10_000_000),
    metavar="N",
    help="Number of jobs in the stress test; default: 120,000",
)
@click.option(
    "--json",
    "document",
    metavar="[FILE]",
    is_flag=False,
    flag_value=STDOUT,
    allow_from_autoenv=False,
    help="Write the report as JSON to FILE, or to stdout instead of the table",
)
@click.option(
    "--plots",
    metavar="FOLDER",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write charts as SVG files to this folder",
)
def bench(
    quick: bool,
    only: tuple[str, ...] | None,
    stress: bool,
    jobs: int | None,
    document: str | None,
    plots: Path | None,
) -> int:
    """Measure throughput, latency, cancel time and crash recovery on this machine.

    Uses a new SQLite file in the current folder, which is removed at the end; with --url, a store that holds
    no jobs. Each figure is compared with single raw writes to the same store. With --stress, the exit code
    is 1 if a job is missing or ended in a wrong state.
    """
    session = click.get_current_context().ensure_object(Session)
    _check_options(session, quick, only, stress, jobs)
    document = STDOUT if session.json and document is None else document
    if document is not None and document != STDOUT:
        _require_writable(Path(document).parent)
    if plots is not None:
        _require_writable(plots)
    from errandry.bench.bench_store import BenchFailed
    from errandry.bench.run import run_benchmark, run_stress_test
    from errandry.bench.stress import JOBS

    with _progress(session) as show_progress:
        run = (
            run_stress_test(session.url, jobs or JOBS, show_progress)
            if stress
            else run_benchmark(session.url, quick, only or (), show_progress)
        )
        try:
            report = event_loop.run(_cancel_on_sigterm(run))
        except BenchFailed as error:
            raise click.ClickException(str(error)) from None
        except TimeoutError:
            why = "a worker did not respond within a minute: is the machine overloaded?"
            raise click.ClickException(why) from None
    _write_report(session, report, document)
    if document != STDOUT:
        _print_report(session, report)
    if plots is not None:
        _write_plots(session, report, plots)
    return 0 if report.stress is None or report.stress.is_sound else 1


def _check_options(
    session: Session, quick: bool, only: tuple[str, ...] | None, stress: bool, jobs: int | None
) -> None:
    from errandry.bench.measure import PARTS

    if session.app is not None:
        raise click.UsageError("The benchmark has its own tasks: leave out --app.")
    if stress and (quick or only):
        raise click.UsageError("--stress takes neither --quick nor --only; --jobs makes it shorter.")
    if jobs is not None and not stress:
        raise click.UsageError("--jobs needs --stress.")
    for name in only or ():
        if name not in PARTS:
            close = get_close_matches(name, PARTS, 1)
            hint = f"Did you mean {close[0]}?" if close else f"The parts are {', '.join(PARTS)}."
            raise click.UsageError(f"--only: there is no part {name!r}. {hint}")


async def _cancel_on_sigterm(run: "Coroutine[Any, Any, Report]") -> "Report":
    """Cancel the run on SIGTERM as on Ctrl-C, so that it ends its workers and removes its files."""
    loop, task = asyncio.get_running_loop(), asyncio.ensure_future(run)
    loop.add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        return await task
    except asyncio.CancelledError:
        if task.cancelled() and not asyncio.current_task().cancelling():  # type: ignore[union-attr]
            raise click.Abort from None
        raise


@contextmanager
def _progress(session: Session) -> Iterator[Callable[[str], None]]:
    """Show progress on stderr: a status line on a terminal, otherwise a line now and then."""
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.status import Status

        with Status("starting", console=Console(stderr=True, no_color=not session.has_color)) as status:
            yield status.update
        return
    last = 0.0

    def show(text: str) -> None:
        nonlocal last
        if not text[0].isdigit() or time.monotonic() - last > PROGRESS_INTERVAL:
            last = time.monotonic()
            session.print_message(text)

    yield show


def _write_report(session: Session, report: "Report", document: str | None) -> None:
    from msgspec import json

    if document is None:
        return
    text = json.format(json.encode(report)).decode()
    if document == STDOUT:
        session.print(text)
    else:
        _write_file(Path(document), f"{text}\n")
        session.print_message(f"Wrote {document}")


def _require_writable(folder: Path) -> None:
    """Create the folder and fail now if it is not writable, not after everything was measured."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise click.ClickException(f"cannot create the folder {folder}: {error.strerror}") from None
    if not os.access(folder, os.W_OK):
        raise click.ClickException(f"the folder {folder} is not writable")


def _write_file(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise click.ClickException(f"cannot write {path}: {error.strerror}") from None


def _print_report(session: Session, report: "Report") -> None:
    machine = report.machine
    durable = f" (survives: {report.durable})" if report.durable else ""
    session.print(f"{report.store}{durable} · Errandry {machine.errandry} · Python {machine.python}")
    session.print(f"{machine.system} · {machine.processors} processors · {report.seconds:.0f} s in total")
    if report.raw:
        rate, p50 = report.raw["writes a second"], report.raw["p50"]
        session.print(f"raw: {rate:,.0f} single durable writes per second, {p50:.2f} ms each (p50)")
    session.print()
    if report.stress is None:
        _print_figures(session, report)
    else:
        _print_stress(session, report.stress)


def _print_figures(session: Session, report: "Report") -> None:
    heads = [Column("PART"), Column("WHAT", can_shrink=True), Column("VALUE", is_right=True), Column("UNIT")]
    heads += [Column("MIN – MAX", is_right=True), Column("RAW WRITES", is_right=True)]
    rows, before = [], ""
    for figure in report.figures:
        part, before = ("" if figure.part == before else figure.part), figure.part
        spread = (
            "" if figure.low == figure.high else f"{format_number(figure.low)} – {format_number(figure.high)}"
        )
        raw = "" if figure.of_raw is None else f"{figure.of_raw:,.2f}"
        rows.append((part, figure.name, Cell(format_number(figure.value), "cyan"), figure.unit, spread, raw))
    table.print_table(session, heads, rows)
    for name, why in report.left_out.items():
        session.print_message(f"Skipped {name}: {why}.")
    if report.raw:
        session.print(
            "\nRAW WRITES: jobs in the time of one raw write; for a latency, its length in raw writes."
        )


def _print_stress(session: Session, stress: "Stress") -> None:
    heads = [Column("KIND"), Column("RULE", can_shrink=True), Column("JOBS", is_right=True)]
    states = ("completed", "failed", "canceled")
    heads += [Column(state.upper(), is_right=True) for state in (*states, "wrong")]
    rows: list[table.TableRow] = []
    for result in stress.accounts:
        counts = [f"{result.states[state]:,}" if state in result.states else "" for state in states]
        wrong = Cell(f"{result.wrong:,}", "red" if result.wrong else "green")
        rows.append((result.kind, result.rule, f"{result.expected:,}", *counts, wrong))
    table.print_table(session, heads, rows)
    totals = stress.totals
    session.print(
        f"\n{stress.jobs:,} jobs in {stress.queues} queues in {stress.seconds:.1f} s "
        f"({stress.jobs / stress.seconds:,.0f} per second), {stress.workers} workers, "
        f"{stress.killed} killed, {totals.get('expired', 0):,} expired leases, "
        f"{totals.get('retried', 0):,} retries."
    )
    if stress.is_sound:
        session.print(session.style("Every job ended as expected.", "green"))
        return
    session.print_message("Some jobs are missing or ended in a wrong state:")
    for fault in stress.faults[:FAULTS_SHOWN_MAX]:
        session.print_message(f"  {fault}")


def format_number(value: float) -> str:
    """The number with two decimals below 10, one below 100, and none above."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.1f}" if abs(value) >= 10 else f"{value:,.2f}"


def _write_plots(session: Session, report: "Report", folder: Path) -> None:
    from errandry.bench.charts import drawings

    for name, text in drawings(report).items():
        _write_file(folder / name, text)
        session.print_message(f"Wrote {folder / name}")
