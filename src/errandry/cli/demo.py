"""`errandry demo`: a shop, two workers and a story, live; nothing to configure and nothing left behind."""

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
from errandry.cli.param_types import LENGTH
from errandry.cli.session import Session
from errandry.cli.text import clean, fitted
from errandry.core.duration import seconds

if TYPE_CHECKING:
    from errandry.demo.story import Chapter, Story

UNSEEN = 20.0
"""How long it lasts where nobody watches."""
MARGIN = 60.0
"""What has begun when the time is up may take so much longer."""
GRACE = 3.0
REFRESH = 0.25
LAST_WORDS = 20
MARKS = {True: ("✓", "green"), False: ("✗", "red"), None: ("·", "bright_black")}


@click.command(cls=CliCommand)
@click.option("--for", "length", type=LENGTH, help="End after so long (without a terminal: 20s).")
@click.option("--keep", metavar="FILE", help="Keep the jobs in a new SQLite file, to look around in later.")
def demo(length: str | None, keep: str | None) -> int:
    """See jobs run, fail, retry, wait and be canceled; and a worker being killed, and its job rescued.

    Ends on Ctrl-C or q with a summary. The exit code is 0 if everything happened that was promised.
    """
    session = click.get_current_context().ensure_object(Session)
    if session.url is not None or session.app is not None:
        raise click.UsageError("The demo brings its own app and store: leave out --url and --app.")
    limit = seconds(length) if length is not None else None
    is_live = session.is_terminal and sys.stdin.isatty() and not session.json
    if limit is None and not is_live:
        limit = UNSEEN
    with tempfile.TemporaryDirectory(prefix="errandry-demo-") as name:
        folder = Path(name)
        path = _new_file(keep) if keep is not None else folder / "demo.db"
        os.environ["ERRANDRY_URL"] = f"sqlite:///{path}"
        log = folder / "workers.log"
        story = asyncio.run(_show(session, limit, is_live, log))
        _summary(session, story, log, is_live, keep)
        return 0 if all(chapter.is_kept for chapter in story.chapters) else 1


def _new_file(name: str) -> Path:
    path = Path(name).absolute()
    if path.exists():
        raise click.UsageError(f"--keep {name}: there is such a file already; name a new one.")
    return path


async def _show(session: Session, limit: float | None, is_live: bool, log: Path) -> "Story":
    """Play the story until the time is up or somebody has seen enough."""
    from errandry.demo import shop
    from errandry.demo.story import WORKERS, Story
    from errandry.worker.supervisor import Supervisor

    began = time.monotonic()

    def tell(chapter: "Chapter") -> None:
        if not is_live and not session.json:
            session.print(f"{_elapsed(began)}  {_line(session, chapter)}")

    story, supervisor = Story(tell), Supervisor(_worker, WORKERS, GRACE)
    async with shop.jobs:
        with _stderr_to(log):
            tasks = [asyncio.create_task(supervisor.run()), asyncio.create_task(story.play())]
            if is_live:
                tasks.append(asyncio.create_task(_picture(session, story, began)))
            await _ended(tasks, story, limit)
            supervisor.stop()
            for task in tasks[1:]:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
        for error in results:
            if isinstance(error, Exception):
                raise error
        await story.end()
    return story


async def _ended(tasks: "Sequence[asyncio.Task[Any]]", story: "Story", limit: float | None) -> None:
    """Until one of the tasks has ended, or the time is up and all that has begun has happened."""
    done, _ = await asyncio.wait(tasks, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
    give_up = time.monotonic() + MARGIN
    while not done and not story.is_over and time.monotonic() < give_up:
        done, _ = await asyncio.wait(tasks, timeout=REFRESH, return_when=asyncio.FIRST_COMPLETED)


def _worker(lifeline: int) -> list[str]:
    """The command of a worker, as anybody would start it."""
    command = [sys.executable, "-P", "-m", "errandry", "worker", "errandry.demo.shop:jobs"]
    return [*command, "--id", "demo", "--grace", f"{GRACE:g}", "--children", "1", "--lifeline", str(lifeline)]


async def _picture(session: Session, story: "Story", began: float) -> None:
    """The promises above, queues, workers and jobs below; until q is pressed."""
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
        while not keys.quit:
            if not keys.held:
                await view.look(shop.jobs)
            width, height = console.size
            lines = [session.style(fitted(f"errandry demo  {_elapsed(began)}", width), bold=True)]
            lines += [_line(session, chapter, width) for chapter in story.chapters]
            lines += ["", *view.lines(width, max(4, height - len(lines) - 1), keys.held)]
            live.update(Text.from_ansi("\n".join(lines), no_wrap=True, overflow="crop"), refresh=True)
            await keys.pressed(REFRESH)


def _line(session: Session, chapter: "Chapter", width: int | None = None) -> str:
    mark, color = MARKS[chapter.is_kept]
    text = f"{chapter.promise:<45}{clean(chapter.fact)}".rstrip()
    return f"{session.style(mark, color)} {text if width is None else fitted(text, width - 2)}"


def _elapsed(began: float) -> str:
    minutes, rest = divmod(int(time.monotonic() - began), 60)
    return f"{minutes:02}:{rest:02}"


def _summary(session: Session, story: "Story", log: Path, is_live: bool, keep: str | None) -> None:
    if session.json:
        for one in story.chapters:
            session.data({"promise": one.promise, "kept": one.is_kept, "fact": one.fact})
        return
    missing = [chapter for chapter in story.chapters if not chapter.is_kept]
    if is_live:
        for chapter in story.chapters:
            session.print(_line(session, chapter))
    if not missing:
        session.print("\nEverything that was promised has happened.")
    elif any(chapter.is_kept is False for chapter in missing):
        session.talk(f"\n{len(missing)} promises were not kept. What the workers said last:")
        session.talk("\n".join(log.read_text(errors="replace").splitlines()[-LAST_WORDS:]))
    else:
        session.talk(
            f"\nEnded before all of it had happened: {len(missing)} of {len(story.chapters)} are missing."
        )
    if keep is not None:
        session.talk(f"The jobs are in {keep}: errandry jobs ls --url sqlite:///{keep}")


@contextmanager
def _stderr_to(log: Path) -> Iterator[None]:
    """What this process and its workers have to say goes into a file, not across the picture."""
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
