"""`errandry top`: a live view of queues, workers, running and failed jobs."""

import asyncio
import os
import signal
import sys
import termios
import tty
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING

import click
from msgspec import Struct
from msgspec.structs import replace

from errandry.cli import table
from errandry.cli.command import CliCommand
from errandry.cli.job_view import COLORS, error_line, short_note
from errandry.cli.pausing import since_text
from errandry.cli.session import Session, app_command, store_name, store_time
from errandry.cli.stats import format_quantile
from errandry.cli.table import Cell, Column, TableRow
from errandry.cli.text import ago, local_time, pluralize, short_id, sparkline, truncate
from errandry.cli.workers import busy_text, status, worker_records
from errandry.core.command import Beat, WorkerRecord
from errandry.core.duration import rough_duration
from errandry.core.job import JobRecord
from errandry.core.state import State
from errandry.core.stats import DurationHistogram
from errandry.core.why import slots_taken
from errandry.errors import ErrandryError

if TYPE_CHECKING:
    from errandry.api.app import Errandry
    from errandry.api.gate_info import QueueInfo

RATE_COUNTERS = ("inserted", "completed", "failed", "retried")
SNAPSHOTS_MAX = 60
"""Maximum number of snapshots kept, for rates and their curve."""
STATS_SPAN = "5 minutes"
HELD_MAX = 500
"""Maximum number of claimed and running jobs read for a snapshot."""
FAILED_MAX = 50


class StoreSnapshot(Struct, frozen=True):
    """The state of the store at one time."""

    at: float
    monotonic: float
    queues: "list[QueueInfo]"
    workers: list[WorkerRecord]
    held: list[JobRecord]
    failed: Sequence[JobRecord]
    totals: Mapping[str, int]
    times: Mapping[str, DurationHistogram]


class Section(Struct, frozen=True):
    title: str
    columns: Sequence[Column]
    rows: Sequence[TableRow]


@click.command(cls=CliCommand)
@click.option(
    "--every", type=click.FloatRange(0.1, 60), default=1.0, show_default=True, help="Seconds between updates"
)
@app_command
async def top(session: Session, jobs: "Errandry", every: float) -> None:
    """Show queues, workers, running and failed jobs, live. q quits, p pauses the view."""
    if not (session.is_terminal and sys.stdin.isatty()):
        raise click.UsageError("top needs a terminal; in scripts, use queues ls, workers ls and events.")
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    view, keys = TopView(session, store_name(jobs)), Keys()
    console = Console(no_color=not session.has_color, highlight=False)
    with (
        keys.read(),
        Live(console=console, screen=True, auto_refresh=False, vertical_overflow="crop") as live,
    ):
        while not keys.is_quit:
            if not keys.is_paused:
                await view.refresh(jobs)
            lines = view.lines(*console.size, keys.is_paused)
            live.update(Text.from_ansi("\n".join(lines), no_wrap=True, overflow="crop"), refresh=True)
            await keys.wait_for_key(every)


class Keys:
    """The keys pressed so far: q sets `is_quit`, p toggles `is_paused`."""

    def __init__(self) -> None:
        self.is_quit = self.is_paused = False
        self._changed = asyncio.Event()

    @contextmanager
    def read(self) -> Iterator[None]:
        """Read keys one by one, without echo; a resize of the terminal wakes `wait_for_key` too."""
        loop, stdin = asyncio.get_running_loop(), sys.stdin.fileno()
        before = termios.tcgetattr(stdin)
        try:
            tty.setcbreak(stdin)
            loop.add_reader(stdin, self._read, stdin)
            loop.add_signal_handler(signal.SIGWINCH, self._changed.set)
            yield
        finally:
            loop.remove_signal_handler(signal.SIGWINCH)
            loop.remove_reader(stdin)
            termios.tcsetattr(stdin, termios.TCSADRAIN, before)

    async def wait_for_key(self, timeout: float) -> None:
        """Return when a key was pressed or the time is up."""
        try:
            await asyncio.wait_for(self._changed.wait(), timeout)
        except TimeoutError:
            return
        self._changed.clear()

    def _read(self, stdin: int) -> None:
        typed = os.read(stdin, 100)
        self.is_quit |= not typed or b"q" in typed
        self.is_paused ^= typed.count(b"p") % 2 == 1
        self._changed.set()


class TopView:
    """The view: the last snapshot, and rates computed from the ones before."""

    def __init__(self, session: Session, url: str) -> None:
        self._session, self._url = session, url
        self._snapshots: deque[StoreSnapshot] = deque(maxlen=SNAPSHOTS_MAX)
        self._error = ""

    async def refresh(self, jobs: "Errandry") -> None:
        try:
            self._snapshots.append(await _take_snapshot(jobs))
            self._error = ""
        except ErrandryError as error:
            self._error = str(error)

    def lines(self, width: int, height: int, is_paused: bool) -> list[str]:
        """The lines of the view, fitted to this size."""
        style = self._session.style
        if not self._snapshots:
            return [style(truncate(self._error or "…", width), "red")]
        snapshot = self._snapshots[-1]
        lines = [*self._head(snapshot, width, is_paused), *(self._body(snapshot, width, height - 4))]
        if self._error:
            lines[2:3] = [style(truncate(self._error, width), "red")]
        keys = "q quit   p resume" if is_paused else "q quit   p pause"
        return [*lines[: height - 1], *[""] * (height - 1 - len(lines)), style(keys, "bright_black")]

    def _head(self, snapshot: StoreSnapshot, width: int, is_paused: bool) -> Iterator[str]:
        style = self._session.style
        mark = "  VIEW PAUSED" if is_paused else ""
        running = sum(job.state is State.RUNNING for job in snapshot.held)
        more = "+" if len(snapshot.held) == HELD_MAX else ""
        counts = f"{pluralize(len(snapshot.workers), 'worker')}, {running:,}{more} running{mark}"
        yield style(truncate(f"errandry  {local_time(snapshot.at)}  {counts}  {self._url}", width), bold=True)
        rates = [f"{name} {_rate(self._snapshots, name):,.0f}/s" for name in RATE_COUNTERS]
        rates += [
            f"{name} p99 {format_quantile(histogram)}"
            for name, histogram in snapshot.times.items()
            if histogram.count
        ]
        bars = sparkline(
            [_rate_between(before, after, "completed") for before, after in pairwise(self._snapshots)]
        )
        yield truncate(f"{'  '.join(rates)}  {bars}", width)
        yield ""

    def _body(self, snapshot: StoreSnapshot, width: int, height: int) -> Iterator[str]:
        sections = [_queues(snapshot), _workers(snapshot), _running(snapshot), _failed(snapshot)]
        for section, rows in zip(
            sections, _share_rows([len(section.rows) for section in sections], height), strict=True
        ):
            if not section.rows or not rows:
                continue
            hidden = len(section.rows) - rows
            title = f"{section.title}{f' ({hidden:,} more)' if hidden > 0 else ''}"
            yield self._session.style(truncate(title, width), "cyan", bold=True)
            yield from table.lines(self._session, section.columns, section.rows[:rows], width)
            yield ""


async def _take_snapshot(jobs: "Errandry") -> StoreSnapshot:
    totals: dict[str, int] = {}
    for counters in (await jobs.totals()).values():
        for name, count in counters.items():
            totals[name] = totals.get(name, 0) + count
    recent = (await jobs.stats(STATS_SPAN)).total
    return StoreSnapshot(
        await store_time(jobs),
        jobs.clock.monotonic(),
        await jobs.queues(),
        await worker_records(jobs),
        [job.record for job in await jobs.held(HELD_MAX)],
        [job.record for job in (await jobs.list("state:failed", limit=FAILED_MAX)).jobs],
        totals,
        {"wait": recent.wait, "run": recent.run},
    )


def _queues(snapshot: StoreSnapshot) -> Section:
    states = [state for state in State if any(info.states.get(state) for info in snapshot.queues)]
    columns = [Column("QUEUE", can_shrink=True), *(Column(state.upper(), is_right=True) for state in states)]
    columns += [Column("OLDEST"), Column("PAUSED", can_shrink=True)]
    rows: list[TableRow] = [
        (
            info.name,
            *[Cell(f"{info.states.get(state, 0):,}", COLORS[state]) for state in states],
            "" if info.waited is None else rough_duration(info.waited),
            Cell(since_text(info.paused, snapshot.at), "yellow"),
        )
        for info in sorted(snapshot.queues, key=lambda info: -(info.waited or 0.0))
    ]
    return Section("Queues", columns, rows)


def _workers(snapshot: StoreSnapshot) -> Section:
    columns = [
        Column("WORKER", can_shrink=True),
        Column("STATUS"),
        Column("BUSY", is_right=True),
        Column("SEEN"),
    ]
    rows = [
        (
            info.beat.worker,
            status(info, snapshot.at),
            busy_text(_current_beat(snapshot, info)),
            ago(info.seen_at, snapshot.at),
        )
        for info in snapshot.workers
    ]
    return Section("Workers", columns, rows)


def _current_beat(snapshot: StoreSnapshot, info: WorkerRecord) -> Beat:
    """The last beat of the worker, with the number of jobs that it runs in this snapshot."""
    if len(snapshot.held) == HELD_MAX:
        return info.beat
    held = [job for job in snapshot.held if job.worker == info.beat.worker]
    return replace(info.beat, running=slots_taken(info.beat, held))


def _running(snapshot: StoreSnapshot) -> Section:
    columns = [
        Column("JOB"),
        Column("TASK", can_shrink=True),
        Column("QUEUE", can_shrink=True),
        Column("TRY", is_right=True),
    ]
    columns += [Column("FOR"), Column("NOTE", can_shrink=True)]
    rows = [
        (
            short_id(job.id),
            job.task,
            job.queue,
            f"{job.attempts}/{job.max_attempts}",
            "claimed" if job.started_at is None else rough_duration(max(0.0, snapshot.at - job.started_at)),
            short_note(job),
        )
        for job in sorted(snapshot.held, key=lambda job: job.started_at or snapshot.at)
    ]
    return Section("Running, longest first", columns, rows)


def _failed(snapshot: StoreSnapshot) -> Section:
    columns = [
        Column("JOB"),
        Column("TASK", can_shrink=True),
        Column("WHEN"),
        Column("ERROR", can_shrink=True),
    ]
    newest = sorted(snapshot.failed, key=lambda job: -(job.finished_at or 0.0))
    rows = [
        (
            short_id(job.id),
            job.task,
            ago(job.finished_at, snapshot.at),
            Cell(error_line(job.errors[-1]) if job.errors else str(job.reason or ""), "red"),
        )
        for job in newest
    ]
    return Section("Recently failed", columns, rows)


def _share_rows(wanted: Sequence[int], height: int) -> list[int]:
    """The number of rows for each section.

    Each section first gets one row, with its title, column titles and a line below, while there is room; then
    the remaining lines are shared out one by one to the sections that have more rows.
    """
    shares, room = [0] * len(wanted), height
    for index, count in enumerate(wanted):
        if count and room >= 4:
            shares[index], room = 1, room - 4
    while room > 0 and any(0 < share < count for share, count in zip(shares, wanted, strict=True)):
        for index, count in enumerate(wanted):
            if 0 < shares[index] < count and room > 0:
                shares[index] += 1
                room -= 1
    return shares


def _rate_between(before: StoreSnapshot, after: StoreSnapshot, name: str) -> float:
    """The rate per second of a counter between two snapshots."""
    difference = after.totals.get(name, 0) - before.totals.get(name, 0)
    return max(0.0, difference / max(0.001, after.monotonic - before.monotonic))


def _rate(snapshots: Sequence[StoreSnapshot], name: str) -> float:
    """The rate per second over the last four snapshots."""
    return (
        _rate_between(snapshots[-min(len(snapshots), 4)], snapshots[-1], name) if len(snapshots) > 1 else 0.0
    )
