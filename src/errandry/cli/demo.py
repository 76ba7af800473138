"""`errandry demo`: run a demo shop with two workers; it needs no configuration and leaves no files behind."""

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from errandry.cli.command import CliCommand
from errandry.cli.param_types import DURATION
from errandry.cli.session import Session
from errandry.cli.text import truncate
from errandry.core.duration import seconds
from errandry.core.printable import clean

if TYPE_CHECKING:
    from errandry.demo.story import Chapter, Story

UNATTENDED_SECONDS = 20.0
"""Seconds that the demo runs if there is no terminal and no `--for`."""
FINISH_TIMEOUT = 60.0
"""Seconds that unfinished chapters may take after the time is up."""
WORKER_GRACE = 3.0
REFRESH_INTERVAL = 0.25
LOG_LINES_SHOWN = 20
MARKS = {True: ("✓", "green"), False: ("✗", "red"), None: ("·", "bright_black")}


@click.command(cls=CliCommand)
@click.option("--for", "length", type=DURATION, help="Stop after this time; default without a terminal: 20s")
@click.option("--keep", metavar="FILE", help="Keep the jobs in a new SQLite file, to inspect later")
def demo(length: str | None, keep: str | None) -> int:
    """Run a demo: jobs run, fail, are retried and canceled, and a worker is killed with -9.

    Ctrl-C or q stops it and prints a summary. The exit code is 0 if every chapter ended as expected.
    """
    session = click.get_current_context().ensure_object(Session)
    if session.url is not None or session.app is not None:
        raise click.UsageError("The demo has its own app and store: leave out --url and --app.")
    limit = seconds(length) if length is not None else None
    is_live = session.is_terminal and sys.stdin.isatty() and not session.json
    if limit is None and not is_live:
        limit = UNATTENDED_SECONDS
    with tempfile.TemporaryDirectory(prefix="errandry-demo-") as name:
        folder = Path(name)
        path = _new_file(keep) if keep is not None else folder / "demo.db"
        os.environ["ERRANDRY_URL"] = f"sqlite:///{path}"
        log = folder / "workers.log"
        story = asyncio.run(_run_story(session, limit, is_live, log))
        _print_summary(session, story, log, is_live, keep)
        return 0 if all(chapter.has_passed for chapter in story.chapters) else 1


def _new_file(name: str) -> Path:
    path = Path(name).absolute()
    if path.exists():
        raise click.UsageError(f"--keep {name}: the file exists already; name a new one.")
    return path


async def _run_story(session: Session, limit: float | None, is_live: bool, log: Path) -> "Story":
    """Run workers and play the story until the time is up or the user quits."""
    from errandry.demo import shop
    from errandry.demo.story import WORKERS, Story
    from errandry.worker.supervisor import Supervisor

    started = time.monotonic()

    def print_chapter(chapter: "Chapter") -> None:
        if not is_live and not session.json:
            session.print(f"{_elapsed(started)}  {_chapter_line(session, chapter)}")

    story, supervisor = Story(print_chapter), Supervisor(_worker_command(), WORKERS, WORKER_GRACE)
    async with shop.jobs:
        with _redirect_stderr(log):
            tasks = [asyncio.create_task(supervisor.run()), asyncio.create_task(story.play())]
            if is_live:
                tasks.append(asyncio.create_task(_show_live(session, story, started)))
            await _wait_for_end(tasks, story, limit)
            supervisor.stop()
            for task in tasks[1:]:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
        for error in results:
            if isinstance(error, Exception):
                raise error
        await story.end()
    return story


async def _wait_for_end(tasks: "Sequence[asyncio.Task[Any]]", story: "Story", limit: float | None) -> None:
    """Wait until a task has ended, or until the time is up and every chapter is over."""
    done, _ = await asyncio.wait(tasks, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
    give_up = time.monotonic() + FINISH_TIMEOUT
    while not done and not story.is_over and time.monotonic() < give_up:
        done, _ = await asyncio.wait(tasks, timeout=REFRESH_INTERVAL, return_when=asyncio.FIRST_COMPLETED)


def _worker_command() -> list[str]:
    """The command line of a worker, the same as a user would type."""
    command = [sys.executable, "-P", "-m", "errandry", "worker", "errandry.demo.shop:jobs"]
    return [
        *command,
        "--id",
        "demo",
        "--grace",
        f"{WORKER_GRACE:g}",
        "--process-slots",
        "1",
    ]


async def _show_live(session: Session, story: "Story", began: float) -> None:
    """Show the chapters above, and queues, workers and jobs below, until q is pressed."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    from errandry.cli.top import Keys, TopView
    from errandry.demo import shop

    view, keys = TopView(session, shop.jobs.url or ""), Keys()
    console = Console(no_color=not session.has_color, highlight=False)
    with (
        keys.read(),
        Live(console=console, screen=True, auto_refresh=False, vertical_overflow="crop") as live,
    ):
        while not keys.is_quit:
            if not keys.is_paused:
                await view.refresh(shop.jobs)
            width, height = console.size
            lines = [session.style(truncate(f"errandry demo  {_elapsed(began)}", width), bold=True)]
            lines += [_chapter_line(session, chapter, width) for chapter in story.chapters]
            lines += ["", *view.lines(width, max(4, height - len(lines) - 1), keys.is_paused)]
            live.update(Text.from_ansi("\n".join(lines), no_wrap=True, overflow="crop"), refresh=True)
            await keys.wait_for_key(REFRESH_INTERVAL)


def _chapter_line(session: Session, chapter: "Chapter", width: int | None = None) -> str:
    mark, color = MARKS[chapter.has_passed]
    text = f"{chapter.title:<45}{clean(chapter.fact)}".rstrip()
    return f"{session.style(mark, color)} {text if width is None else truncate(text, width - 2)}"


def _elapsed(began: float) -> str:
    minutes, rest = divmod(int(time.monotonic() - began), 60)
    return f"{minutes:02}:{rest:02}"


def _print_summary(session: Session, story: "Story", log: Path, is_live: bool, keep: str | None) -> None:
    if session.json:
        for chapter in story.chapters:
            session.print_json({"promise": chapter.title, "kept": chapter.has_passed, "fact": chapter.fact})
        return
    missing = [chapter for chapter in story.chapters if not chapter.has_passed]
    if is_live:
        for chapter in story.chapters:
            session.print(_chapter_line(session, chapter))
    if not missing:
        session.print("\nEvery chapter ended as expected.")
    elif any(chapter.has_passed is False for chapter in missing):
        session.print_message(
            f"\n{len(missing)} chapters did not end as expected. Last lines of the worker log:"
        )
        session.print_message("\n".join(log.read_text(errors="replace").splitlines()[-LOG_LINES_SHOWN:]))
    else:
        titles = "; ".join(chapter.title for chapter in missing)
        session.print_message(
            f"\nStopped early: {len(missing)} of {len(story.chapters)} chapters had not ended: {titles}."
        )
    if keep is not None:
        session.print_message(f"The jobs are kept in {keep}: errandry jobs ls --url sqlite:///{keep}")


@contextmanager
def _redirect_stderr(log: Path) -> Iterator[None]:
    """Write stderr of this process and its workers to a file, so that it does not disturb the live view."""
    sys.stderr.flush()
    before, file = os.dup(2), os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(file, 2)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(before, 2)
        os.close(before)
        os.close(file)
