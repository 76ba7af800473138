"""`errandry worker`: one worker in this process, or a supervisor with several."""

import asyncio
import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from errandry import event_loop
from errandry.cli.command import CliCommand
from errandry.cli.param_types import LENGTH, NAMES, NUMBERS, SIZE
from errandry.cli.session import Session
from errandry.cli.text import clean, number
from errandry.core.duration import seconds
from errandry.errors import ErrandryError, InvalidValue, UnknownTask
from errandry.store.url import without_password

if TYPE_CHECKING:
    from errandry.api.app import Errandry
    from errandry.worker import Worker, WorkerOptions
    from errandry.worker.supervisor_pipe import SupervisorPipe

log = logging.getLogger("errandry.worker")

FORMAT = "%(asctime)s %(levelname)-7s %(message)s"
LEVELS = ("debug", "info", "warning", "error")
REFRESH = 1.0

Show = Callable[[str], None]
"""Shows a line at the foot of the terminal; what is logged goes above it."""


@click.command(cls=CliCommand)
@click.argument("target", metavar="[MODULE:NAME]", required=False)
@click.option("--concurrency", type=int, metavar="N", help="Async handlers at once (100).")
@click.option("--threads", type=int, metavar="N", help="Plain functions at once, in threads (8).")
@click.option("--children", type=int, metavar="N", help="Process handlers at once (one per processor).")
@click.option("--recycle-jobs", type=int, metavar="N", help="Replace a child process after so many jobs.")
@click.option("--recycle-memory", type=SIZE, help="Replace it when it has more memory, such as 500 MB.")
@click.option("--queues", type=NAMES, help="Only these queues, such as mail,reports.")
@click.option("--strict", is_flag=True, help="A queue goes before all those named after it.")
@click.option("--weights", type=NUMBERS, help="How often each goes first, such as 3,1.")
@click.option("--tasks", type=NAMES, help="Only these tasks.")
@click.option("--prefetch", type=int, metavar="N", help="Jobs to claim beyond the free slots (0).")
@click.option("--lease", type=LENGTH, help="How long a claim lasts unrenewed (30s).")
@click.option("--grace", type=LENGTH, help="How long handlers may finish on a stop (25s).")
@click.option("--burst", is_flag=True, default=None, help="Stop when nothing is left to do.")
@click.option("--id", metavar="NAME", help="What the worker's id begins with (the host's name).")
@click.option("--no-upkeep", is_flag=True, help="Leave upkeep to other workers.")
@click.option(
    "--prune-schedules",
    is_flag=True,
    default=None,
    help="Remove schedules that were declared in code and are no longer.",
)
@click.option("--processes", type=click.IntRange(1, 1_000), default=1, help="Worker processes (1).")
@click.option("--reload", is_flag=True, help="Start again when a Python file here changes, for development.")
@click.option("--log-level", type=click.Choice(LEVELS), default="info", help="What is logged from (info).")
@click.option("--lifeline", type=int, hidden=True)
def worker(
    target: str | None,
    processes: int,
    reload: bool,
    log_level: str,
    lifeline: int | None,
    no_upkeep: bool,
    **given: Any,
) -> int:
    """Run the handlers of an app's tasks: errandry worker shop:jobs.

    SIGTERM or Ctrl-C drains: no more claims, handlers may finish for the grace, the rest is given back.
    A second one does not wait.
    """
    session = click.get_current_context().ensure_object(Session)
    session.app = target or session.app
    if session.app is None:
        raise click.UsageError(
            "Which app? Write errandry worker shop:jobs, for jobs = Errandry(…) in shop.py."
        )
    options = _options(no_upkeep, given)
    if lifeline is None and (processes > 1 or reload):
        _log(log_level)
        return _supervise(processes, options.grace, os.getcwd() if reload else None)
    from errandry.worker.supervisor_pipe import SupervisorPipe

    line = None if lifeline is None else SupervisorPipe(lifeline)
    jobs = _app(session)
    for name in options.tasks or ():
        if name not in jobs.tasks:
            raise click.UsageError(f"--tasks {name}: {UnknownTask(name, tuple(sorted(jobs.tasks)))}.")
    has_status = line is None and not session.json and sys.stderr.isatty()
    with _shown(has_status, log_level) as show:
        return event_loop.run(_work(jobs, options, line, show))


def _options(no_upkeep: bool, given: dict[str, Any]) -> "WorkerOptions":
    """What was said, and for the rest what is so without saying."""
    from errandry.worker import WorkerOptions

    said = {name: value for name, value in given.items() if value is not None}
    said |= {name: seconds(said[name], name) for name in ("lease", "grace") if name in said}
    is_strict, weights = said.pop("strict"), said.pop("weights", None)
    if is_strict and weights is not None:
        raise click.UsageError("Give either --strict or --weights.")
    said["queue_order"] = "strict" if is_strict else weights
    try:
        return WorkerOptions(upkeep=not no_upkeep, **said)
    except InvalidValue as error:
        name = {"order": "strict" if is_strict else "weights"}.get(error.name, error.name)
        raise click.UsageError(f"--{name.replace('_', '-')} {error.value}: {error.why}.") from None


def _app(session: Session) -> "Errandry":
    """The app. A store named by a flag reaches its child processes through the environment or not at all."""
    url, session.url = session.url, None
    if url is not None:
        os.environ["ERRANDRY_URL"] = url
    jobs = session.jobs()
    if url is not None and jobs.url != url:
        why = f"{session.app} names its own store, {jobs.display_url}: leave --url out, or have the app name none"
        raise click.UsageError(f"--url {without_password(url)}: {why}.")
    return jobs


async def _work(
    jobs: "Errandry", options: "WorkerOptions", line: "SupervisorPipe | None", show: Show | None
) -> int:
    from errandry.worker import Worker
    from errandry.worker.worker import LAST_WORDS

    async with jobs:
        worker = Worker(jobs, options)
        _announce(jobs, worker)
        if line is not None:
            line.hold(worker.stop, options.grace)
        watching = None if show is None else asyncio.create_task(_watch(jobs, worker, show))
        try:
            await worker.run(signals=line is None)
        finally:
            if watching is not None:
                watching.cancel()
            await jobs.close(LAST_WORDS)
    return 0


def _announce(jobs: "Errandry", worker: "Worker") -> None:
    """What it is about to do, with all that goes without saying."""
    options = worker.options
    tasks = sorted(set(jobs.tasks) & set(options.tasks) if options.tasks else jobs.tasks)
    if not tasks:
        log.warning("no task is declared: every job will be given back")
    url = os.environ.get("ERRANDRY_URL")
    if url and url != jobs.url:
        why = "the app names a store of its own: have it name none to use this one"
        log.warning("$ERRANDRY_URL is %s, but %s", without_password(url), why)
    log.info(
        "worker %s: %s; tasks %s; queues %s; at once %d async, %d in threads, %d in processes; lease %g s",
        worker.id,
        jobs.display_url,
        ", ".join(tasks) or "none",
        ", ".join(options.queues) if options.queues else "all",
        options.concurrency,
        options.threads,
        options.processes,
        options.lease,
    )


def _supervise(processes: int, grace: float, reload: str | None) -> int:
    from errandry.worker.supervisor import Supervisor

    def command(lifeline: int) -> list[str]:
        return [sys.executable, "-P", "-m", "errandry", *sys.argv[1:], "--lifeline", str(lifeline)]

    async def run() -> int:
        return await Supervisor(command, processes, grace, reload).run()

    return asyncio.run(run())


@contextmanager
def _shown(has_status: bool, level: str) -> Iterator[Show | None]:
    """Log lines, and on a terminal a line below them that says how things stand."""
    if not has_status:
        _log(level)
        yield None
        return
    from rich.console import Console
    from rich.status import Status

    with Status("starting", console=Console(stderr=True), refresh_per_second=2) as status:
        _log(level)  # now: what is written to stderr goes above the status
        yield status.update


async def _watch(jobs: "Errandry", worker: "Worker", show: Show) -> None:
    """How things stand, every second."""
    done, at = _done(await jobs.counts()), asyncio.get_running_loop().time()
    while True:
        await asyncio.sleep(REFRESH)
        try:
            counts = await jobs.counts()
        except ErrandryError as error:
            show(clean(f"the store cannot be read: {error}"))
            continue
        waiting = sum(states.get("waiting", 0) for states in counts.values())
        now, total = asyncio.get_running_loop().time(), _done(counts)
        rate, done, at = max(0, total - done) / (now - at), total, now
        running = worker.health().running
        show(f"{running:,} running here · {number(waiting, 'job')} waiting · {rate:,.0f} finished/s")


def _done(counts: dict[str, dict[str, int]]) -> int:
    ends = ("completed", "failed", "canceled")
    return sum(states.get(state, 0) for states in counts.values() for state in ends)


def _log(level: str) -> None:
    """Log to stderr, unless the app has set up logging of its own."""
    logging.basicConfig(level=level.upper(), format=FORMAT, datefmt="%H:%M:%S", stream=sys.stderr)
