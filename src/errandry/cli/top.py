"""`errandry top`: queues, workers, what runs and what failed, live."""

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
from errandry.cli.job_view import COLORS, error_line, note
from errandry.cli.pausing import said
from errandry.cli.session import Session, client
from errandry.cli.stats import took
from errandry.cli.table import Cell, Column, TableRow
from errandry.cli.text import ago, curve, fitted, local, number, short_id
from errandry.cli.workers import busy, status
from errandry.core.command import Beat, WorkerInfo
from errandry.core.duration import rough
from errandry.core.job import JobRecord
from errandry.core.state import State
from errandry.core.stats import DurationHistogram
from errandry.core.why import slots_taken
from errandry.errors import ErrandryError
from errandry.store.contract import QueueInfo

if TYPE_CHECKING:
    from errandry.api.app import Errandry

RATES = ("inserted", "completed", "failed", "retried")
HISTORY = 60
LATELY = "5 minutes"
HELD_MAX = 500
FAILED_MAX = 50


class StoreSnapshot(Struct, frozen=True):
    """The store at one moment."""

    at: float
    monotonic: float
    queues: list[QueueInfo]
    workers: list[WorkerInfo]
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
    "--every", type=click.FloatRange(0.1, 60), default=1.0, show_default=True, help="Seconds between looks."
)
@client
async def top(session: Session, jobs: "Errandry", every: float) -> None:
    """Watch queues, workers, what runs and what failed. q quits, p holds the picture."""
    if not (session.is_terminal and sys.stdin.isatty()):
        raise click.UsageError(
            "top needs a terminal; for programs there are queues ls, workers ls and events."
        )
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    view, keys = TopView(session, jobs.display_url), Keys()
    console = Console(no_color=not session.has_color, highlight=False)
    with (
        keys.read(),
        Live(console=console, screen=True, auto_refresh=False, vertical_overflow="crop") as live,
    ):
        while not keys.quit:
            if not keys.held:
                await view.look(jobs)
            lines = view.lines(*console.size, keys.held)
            live.update(Text.from_ansi("\n".join(lines), no_wrap=True, overflow="crop"), refresh=True)
            await keys.pressed(every)


class Keys:
    """What was pressed: `quit` and `held` say what is wanted."""

    def __init__(self) -> None:
        self.quit = self.held = False
        self._changed = asyncio.Event()

    @contextmanager
    def read(self) -> Iterator[None]:
        """Have keys come one by one, unseen; a resize counts as one."""
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

    async def pressed(self, timeout: float) -> None:
        """Return when something was pressed, or the time is up."""
        try:
            await asyncio.wait_for(self._changed.wait(), timeout)
        except TimeoutError:
            return
        self._changed.clear()

    def _read(self, stdin: int) -> None:
        typed = os.read(stdin, 100)
        self.quit |= not typed or b"q" in typed
        self.held ^= typed.count(b"p") % 2 == 1
        self._changed.set()


class TopView:
    """What is shown: the last look, and how fast things went since the ones before."""

    def __init__(self, session: Session, url: str) -> None:
        self._session, self._url = session, url
        self._looks: deque[StoreSnapshot] = deque(maxlen=HISTORY)
        self._trouble = ""

    async def look(self, jobs: "Errandry") -> None:
        try:
            self._looks.append(await _look(jobs))
            self._trouble = ""
        except ErrandryError as error:
            self._trouble = str(error)

    def lines(self, width: int, height: int, held: bool) -> list[str]:
        """The picture, as it fits."""
        style = self._session.style
        if not self._looks:
            return [style(fitted(self._trouble or "…", width), "red")]
        look = self._looks[-1]
        lines = [*self._head(look, width, held), *(self._body(look, width, height - 4))]
        if self._trouble:
            lines[2:3] = [style(fitted(self._trouble, width), "red")]
        keys = "q quit   p go on" if held else "q quit   p hold"
        return [*lines[: height - 1], *[""] * (height - 1 - len(lines)), style(keys, "bright_black")]

    def _head(self, look: StoreSnapshot, width: int, held: bool) -> Iterator[str]:
        style = self._session.style
        mark = "  HELD" if held else ""
        running = sum(job.state is State.RUNNING for job in look.held)
        more = "+" if len(look.held) == HELD_MAX else ""
        counts = f"{number(len(look.workers), 'worker')}, {running:,}{more} running{mark}"
        yield style(fitted(f"errandry  {local(look.at)}  {counts}  {self._url}", width), bold=True)
        rates = [f"{name} {_rate(self._looks, name):,.0f}/s" for name in RATES]
        rates += [f"{what} p99 {took(own)}" for what, own in look.times.items() if own.count]
        bars = curve([_step(a, b, "completed") for a, b in pairwise(self._looks)])
        yield fitted(f"{'  '.join(rates)}  {bars}", width)
        yield ""

    def _body(self, look: StoreSnapshot, width: int, height: int) -> Iterator[str]:
        sections = [_queues(look), _workers(look), _running(look), _failed(look)]
        for section, rows in zip(sections, _shares([len(s.rows) for s in sections], height), strict=True):
            if not section.rows or not rows:
                continue
            hidden = len(section.rows) - rows
            title = f"{section.title}{f' ({hidden:,} more)' if hidden > 0 else ''}"
            yield self._session.style(fitted(title, width), "cyan", bold=True)
            yield from table.lines(self._session, section.columns, section.rows[:rows], width)
            yield ""


async def _look(jobs: "Errandry") -> StoreSnapshot:
    totals: dict[str, int] = {}
    for counters in (await jobs.totals()).values():
        for name, count in counters.items():
            totals[name] = totals.get(name, 0) + count
    lately = (await jobs.stats(LATELY)).total
    return StoreSnapshot(
        await jobs.now(),
        jobs.clock.monotonic(),
        await jobs.queues(),
        await jobs.workers(),
        await jobs.held(HELD_MAX),
        (await jobs.list("state:failed", limit=FAILED_MAX)).jobs,
        totals,
        {"wait": lately.wait, "run": lately.run},
    )


def _queues(look: StoreSnapshot) -> Section:
    states = [state for state in State if any(info.states.get(state) for info in look.queues)]
    heads = [Column("QUEUE", gives=True), *(Column(state.upper(), right=True) for state in states)]
    heads += [Column("OLDEST"), Column("PAUSED", gives=True)]
    rows: list[TableRow] = [
        (
            info.name,
            *[Cell(f"{info.states.get(state, 0):,}", COLORS[state]) for state in states],
            "" if info.waited is None else rough(info.waited),
            Cell(said(info.paused, look.at), "yellow"),
        )
        for info in sorted(look.queues, key=lambda info: -(info.waited or 0.0))
    ]
    return Section("Queues", heads, rows)


def _workers(look: StoreSnapshot) -> Section:
    heads = [Column("WORKER", gives=True), Column("STATUS"), Column("BUSY", right=True), Column("SEEN")]
    rows = [
        (info.beat.worker, status(info, look.at), busy(_now(look, info)), ago(info.seen_at, look.at))
        for info in look.workers
    ]
    return Section("Workers", heads, rows)


def _now(look: StoreSnapshot, info: WorkerInfo) -> Beat:
    """Its last beat, with what it runs now if that was seen."""
    if len(look.held) == HELD_MAX:
        return info.beat
    held = [job for job in look.held if job.worker == info.beat.worker]
    return replace(info.beat, running=slots_taken(info.beat, held))


def _running(look: StoreSnapshot) -> Section:
    heads = [
        Column("JOB"),
        Column("TASK", gives=True),
        Column("QUEUE", gives=True),
        Column("TRY", right=True),
    ]
    heads += [Column("FOR"), Column("NOTE", gives=True)]
    rows = [
        (
            short_id(job.id),
            job.task,
            job.queue,
            f"{job.attempts}/{job.max_attempts}",
            "claimed" if job.started_at is None else rough(max(0.0, look.at - job.started_at)),
            note(job),
        )
        for job in sorted(look.held, key=lambda job: job.started_at or look.at)
    ]
    return Section("Running, the longest first", heads, rows)


def _failed(look: StoreSnapshot) -> Section:
    heads = [Column("JOB"), Column("TASK", gives=True), Column("WHEN"), Column("ERROR", gives=True)]
    newest = sorted(look.failed, key=lambda job: -(job.finished_at or 0.0))
    rows = [
        (
            short_id(job.id),
            job.task,
            ago(job.finished_at, look.at),
            Cell(error_line(job.errors[-1]) if job.errors else str(job.reason or ""), "red"),
        )
        for job in newest
    ]
    return Section("Failed lately", heads, rows)


def _shares(wanted: Sequence[int], height: int) -> list[int]:
    """How many rows each section gets: first one each, with its title, heads and a line below, while there is
    room; then what it wants, as far as it goes."""
    given, room = [0] * len(wanted), height
    for index, want in enumerate(wanted):
        if want and room >= 4:
            given[index], room = 1, room - 4
    while room > 0 and any(0 < got < want for got, want in zip(given, wanted, strict=True)):
        for index, want in enumerate(wanted):
            if 0 < given[index] < want and room > 0:
                given[index] += 1
                room -= 1
    return given


def _step(before: StoreSnapshot, after: StoreSnapshot, name: str) -> float:
    gone = after.totals.get(name, 0) - before.totals.get(name, 0)
    return max(0.0, gone / max(0.001, after.monotonic - before.monotonic))


def _rate(looks: Sequence[StoreSnapshot], name: str) -> float:
    """How many a second, over the last few looks."""
    return _step(looks[-min(len(looks), 4)], looks[-1], name) if len(looks) > 1 else 0.0
