"""`errandry bench`: measure this machine and its store; figures beside what the store could do at best."""

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
from errandry.cli.param_types import NAMES
from errandry.cli.session import Session
from errandry.cli.table import Cell, Column

if TYPE_CHECKING:
    from errandry.bench.report import Report, Stress

STDOUT = "-"
FAULTS_SHOWN = 10
EVERY = 10.0
"""How often numbers that rise are said where they cannot be written over each other."""


@click.command(cls=CliCommand)
@click.option("--quick", is_flag=True, help="Less of everything: about half a minute, not two.")
@click.option("--only", type=NAMES, metavar="PART,…", help="Only these parts, such as enqueue,drain.")
@click.option("--stress", is_flag=True, help="Instead: 120,000 jobs of all kinds, workers killed meanwhile.")
@click.option("--jobs", type=click.IntRange(100, 10_000_000), metavar="N", help="How many, with --stress.")
@click.option(
    "--json",
    "document",
    metavar="[FILE]",
    is_flag=False,
    flag_value=STDOUT,
    allow_from_autoenv=False,
    help="Write everything as JSON to a file; without one, to stdout instead of the table.",
)
@click.option(
    "--plots",
    metavar="FOLDER",
    type=click.Path(file_okay=False, path_type=Path),
    help="Draw it: SVG files in this folder.",
)
def bench(
    quick: bool,
    only: tuple[str, ...] | None,
    stress: bool,
    jobs: int | None,
    document: str | None,
    plots: Path | None,
) -> int:
    """Measure: how fast jobs are enqueued and run, how soon they begin, how soon a crash is made good.

    In a new SQLite file in this folder, removed at the end, or with --url in a store that holds no jobs.
    Beside each figure: how many of the store's own single writes that is. With --stress, the exit code is 1
    if one job is not accounted for.
    """
    session = click.get_current_context().ensure_object(Session)
    _check(session, quick, only, stress, jobs)
    document = STDOUT if session.json and document is None else document
    if document is not None and document != STDOUT:
        _must_be_writable(Path(document).parent)
    if plots is not None:
        _must_be_writable(plots)
    from errandry.bench.bench_store import BenchFailed
    from errandry.bench.run import measured, stressed
    from errandry.bench.stress import JOBS

    with _told(session) as tell:
        run = (
            stressed(session.url, jobs or JOBS, tell)
            if stress
            else measured(session.url, quick, only or (), tell)
        )
        try:
            report = event_loop.run(_stoppable(run))
        except BenchFailed as error:
            raise click.ClickException(str(error)) from None
        except TimeoutError:
            why = (
                "a worker did not do in a minute what should take it milliseconds: is the machine overloaded?"
            )
            raise click.ClickException(why) from None
    _written(session, report, document)
    if document != STDOUT:
        _shown(session, report)
    if plots is not None:
        _drawn(session, report, plots)
    return 0 if report.stress is None or report.stress.is_sound else 1


def _check(
    session: Session, quick: bool, only: tuple[str, ...] | None, stress: bool, jobs: int | None
) -> None:
    from errandry.bench.measure import PARTS

    if session.app is not None:
        raise click.UsageError("The benchmark brings its own tasks: leave out --app.")
    if stress and (quick or only):
        raise click.UsageError("--stress is one test of its own: --jobs makes it shorter.")
    if jobs is not None and not stress:
        raise click.UsageError("--jobs goes with --stress.")
    for name in only or ():
        if name not in PARTS:
            close = get_close_matches(name, PARTS, 1)
            hint = f"Did you mean {close[0]}?" if close else f"There are {', '.join(PARTS)}."
            raise click.UsageError(f"--only: there is no part {name!r}. {hint}")


async def _stoppable(run: "Coroutine[Any, Any, Report]") -> "Report":
    """SIGTERM is as good as Ctrl-C: workers are ended, and what is only for the run is removed."""
    loop, task = asyncio.get_running_loop(), asyncio.ensure_future(run)
    loop.add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        return await task
    except asyncio.CancelledError:
        if task.cancelled() and not asyncio.current_task().cancelling():  # type: ignore[union-attr]
            raise click.Abort from None
        raise


@contextmanager
def _told(session: Session) -> Iterator[Callable[[str], None]]:
    """What is going on, on stderr: a line that changes on a terminal, elsewhere a line now and then."""
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.status import Status

        with Status("starting", console=Console(stderr=True, no_color=not session.has_color)) as status:
            yield status.update
        return
    last = 0.0

    def tell(text: str) -> None:
        nonlocal last
        if not text[0].isdigit() or time.monotonic() - last > EVERY:
            last = time.monotonic()
            session.talk(text)

    yield tell


def _written(session: Session, report: "Report", document: str | None) -> None:
    from msgspec import json

    if document is None:
        return
    text = json.format(json.encode(report)).decode()
    if document == STDOUT:
        session.print(text)
    else:
        _write(Path(document), f"{text}\n")
        session.talk(f"Written: {document}")


def _must_be_writable(folder: Path) -> None:
    """Now, not when everything has been measured."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise click.ClickException(f"{folder} cannot be made: {error.strerror}") from None
    if not os.access(folder, os.W_OK):
        raise click.ClickException(f"{folder} cannot be written to")


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise click.ClickException(f"{path} cannot be written: {error.strerror}") from None


def _shown(session: Session, report: "Report") -> None:
    machine = report.machine
    durable = f" (survives: {report.durable})" if report.durable else ""
    session.print(f"{report.store}{durable} · Errandry {machine.errandry} · Python {machine.python}")
    session.print(f"{machine.system} · {machine.processors} processors · {report.seconds:.0f} s in all")
    if report.raw:
        rate, p50 = report.raw["writes a second"], report.raw["p50"]
        session.print(f"raw: {rate:,.0f} single durable writes a second, one takes {p50:.2f} ms")
    session.print()
    if report.stress is None:
        _figures(session, report)
    else:
        _accounts(session, report.stress)


def _figures(session: Session, report: "Report") -> None:
    heads = [Column("PART"), Column("WHAT", gives=True), Column("VALUE", right=True), Column("UNIT")]
    heads += [Column("LEAST – MOST", right=True), Column("RAW WRITES", right=True)]
    rows, before = [], ""
    for figure in report.figures:
        part, before = ("" if figure.part == before else figure.part), figure.part
        spread = "" if figure.low == figure.high else f"{amount(figure.low)} – {amount(figure.high)}"
        raw = "" if figure.of_raw is None else f"{figure.of_raw:,.2f}"
        rows.append((part, figure.name, Cell(amount(figure.value), "cyan"), figure.unit, spread, raw))
    table.show(session, heads, rows)
    for name, why in report.left_out.items():
        session.talk(f"{name} was left out: {why}.")
    if report.raw:
        session.print(
            "\nRAW WRITES: jobs in the time of one single durable write, or a latency as so many of them."
        )


def _accounts(session: Session, found: "Stress") -> None:
    heads = [Column("KIND"), Column("RULE", gives=True), Column("JOBS", right=True)]
    states = ("completed", "failed", "canceled")
    heads += [Column(state.upper(), right=True) for state in (*states, "wrong")]
    rows: list[table.TableRow] = []
    for one in found.accounts:
        ends = [f"{one.states[state]:,}" if state in one.states else "" for state in states]
        wrong = Cell(f"{one.wrong:,}", "red" if one.wrong else "green")
        rows.append((one.kind, one.rule, f"{one.expected:,}", *ends, wrong))
    table.show(session, heads, rows)
    totals = found.totals
    session.print(
        f"\n{found.jobs:,} jobs over {found.queues} queues in {found.seconds:.1f} s "
        f"({found.jobs / found.seconds:,.0f} a second) with {found.workers} workers; {found.killed} killed, "
        f"{totals.get('expired', 0):,} jobs taken back from them, {totals.get('retried', 0):,} retries."
    )
    if found.is_sound:
        session.print(session.style("Every job is accounted for.", "green"))
        return
    session.talk("Not every job is accounted for:")
    for fault in found.faults[:FAULTS_SHOWN]:
        session.talk(f"  {fault}")


def amount(value: float) -> str:
    """With as many digits as mean anything."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.1f}" if abs(value) >= 10 else f"{value:,.2f}"


def _drawn(session: Session, report: "Report", folder: Path) -> None:
    from errandry.bench.charts import drawings

    for name, text in drawings(report).items():
        _write(folder / name, text)
        session.talk(f"Drawn: {folder / name}")
