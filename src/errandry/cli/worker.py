"""`errandry worker`: run a worker in this process, or a supervisor with several worker processes."""

import asyncio
import logging
import os
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import click

from errandry import event_loop
from errandry.cli.command import CliCommand
from errandry.cli.log_format import FORMATS, LEVELS, configure_logging
from errandry.cli.param_types import DURATION, NAMES, NUMBERS, SIZE, WholeNumber
from errandry.cli.refused_value import FieldOption
from errandry.cli.session import Session, store_name
from errandry.cli.text import pluralize
from errandry.core.duration import seconds
from errandry.core.printable import clean
from errandry.core.size import size
from errandry.errors import ErrandryError, InvalidValue, UnknownTask
from errandry.store.url import without_password

if TYPE_CHECKING:
    from errandry.api.app import Errandry
    from errandry.worker import Worker, WorkerOptions
    from errandry.worker.supervisor_pipe import SupervisorPipe

log = logging.getLogger("errandry.worker")

STATUS_INTERVAL = 1.0

ORDER_NEEDS_QUEUES = "name the queues to order with --queues, such as --queues mail,reports"

ShowStatus = Callable[[str], None]
"""Shows a status line at the bottom of the terminal, below the log."""


@click.command(cls=CliCommand)
@click.argument("target", metavar="[MODULE:NAME]", required=False)
@click.option("--concurrency", type=int, metavar="N", help="Slots for async handlers; default: 100")
@click.option("--thread-slots", type=int, metavar="N", help="Slots for handlers in threads; default: 8")
@click.option(
    "--process-slots",
    type=int,
    metavar="N",
    help="Slots for handlers in child processes; default: one for each core",
)
@click.option("--recycle-jobs", type=int, metavar="N", help="Replace a child process after this many jobs")
@click.option("--recycle-memory", type=SIZE, help="Replace a child process above this memory, such as 500 MB")
@click.option("--queues", type=NAMES, help="Only these queues, such as mail,reports")
@click.option(
    "--strict", is_flag=True, help="Claim from a queue only if all queues named before it are empty"
)
@click.option(
    "--weights",
    cls=FieldOption,
    field="weight",
    type=NUMBERS,
    help="How often each queue goes first, such as 3,1",
)
@click.option("--tasks", type=NAMES, help="Only these tasks")
@click.option("--prefetch", type=int, metavar="N", help="Jobs to claim beyond the free slots; default: 0")
@click.option("--lease", type=DURATION, help="How long a claim lasts without a renewal; default: 30s")
@click.option("--grace", type=DURATION, help="How long handlers may take to finish on a stop; default: 25s")
@click.option("--burst", is_flag=True, default=None, help="Stop when no job is left to run")
@click.option("--id", metavar="NAME", help="Prefix of the worker's id; default: the host name")
@click.option("--no-upkeep", is_flag=True, help="Leave upkeep to other workers")
@click.option(
    "--prune-declared",
    is_flag=True,
    default=None,
    help="Remove schedules and rules that the app no longer declares",
)
@click.option(
    "--processes",
    type=WholeNumber(1, 1_000),
    metavar="N",
    default=1,
    help="Number of worker processes; default: 1",
)
@click.option(
    "--reload", is_flag=True, help="Restart when a Python file in this folder changes, for development"
)
@click.option(
    "--log-level", type=click.Choice(LEVELS), default="info", help="Minimum log level; default: info"
)
@click.option(
    "--log-format",
    type=click.Choice(FORMATS),
    default="text",
    help="Lines for people, or a JSON object per line; default: text",
)
@click.option(
    "--no-wait",
    is_flag=True,
    help="Fail at once if the store cannot be reached at the start, instead of waiting for it",
)
@click.option("--supervisor-pipe", type=int, hidden=True)
@click.option("--store-exists", is_flag=True, hidden=True)
def worker(
    target: str | None,
    processes: int,
    reload: bool,
    log_level: str,
    log_format: str,
    no_wait: bool,
    supervisor_pipe: int | None,
    **given: Any,
) -> int:
    """Run a worker for an app, such as errandry worker shop:jobs.

    SIGTERM or Ctrl-C stops it: it claims no more jobs, waits for running handlers up to --grace, and releases
    the rest. A second signal stops it at once. SIGHUP, as from a terminal that is closed, stops it too.

    If the server of its store cannot be reached yet, it waits for it. --no-wait turns that off.
    """
    session = click.get_current_context().ensure_object(Session)
    session.app = target or session.app
    if session.app is None:
        raise click.UsageError(
            "No app given: write errandry worker shop:jobs, for jobs = Errandry(…) in shop.py."
        )
    store_exists: bool = given.pop("store_exists")
    options = _worker_options(given)
    if supervisor_pipe is None and (processes > 1 or reload):
        configure_logging(log_level, log_format)
        return _supervise(processes, options.grace, os.getcwd() if reload else None)
    from errandry.cli.store_wait import open_store
    from errandry.worker import Worker
    from errandry.worker.supervisor_pipe import SupervisorPipe

    pipe = None if supervisor_pipe is None else SupervisorPipe(supervisor_pipe)
    jobs = _load_app(session)
    for name in options.tasks or ():
        if name not in jobs.tasks:
            raise InvalidValue("tasks", options.tasks, str(UnknownTask(name, tuple(sorted(jobs.tasks)))))
    is_for_people = log_format == "text" and not session.json
    has_status = pipe is None and is_for_people and sys.stderr.isatty()
    with _status_line(has_status, log_level, log_format) as show:
        opening = partial(open_store, jobs, waits=not no_wait, must_exist=store_exists)
        return event_loop.run(_run_worker(Worker(jobs, options), opening, pipe, show))


def _worker_options(given: dict[str, Any]) -> "WorkerOptions":
    """The given options, and defaults for the rest."""
    from errandry.worker import WorkerOptions

    options = {name: value for name, value in given.items() if value is not None}
    options |= {name: seconds(options[name], name) for name in ("lease", "grace") if name in options}
    if "recycle_memory" in options:
        options["recycle_memory"] = size(options["recycle_memory"])
    order = _queue_order(options.pop("strict"), options.pop("weights", None), options.get("queues"))
    return WorkerOptions(upkeep=not options.pop("no_upkeep"), queue_order=order, **options)


def _queue_order(
    is_strict: bool, weights: tuple[float, ...] | None, queues: tuple[str, ...] | None
) -> Literal["strict"] | tuple[float, ...] | None:
    """The value of `queue_order`, which is two options here."""
    if is_strict and weights is not None:
        raise click.UsageError("Give either --strict or --weights.")
    if is_strict and queues is None:
        raise InvalidValue("strict", is_strict, ORDER_NEEDS_QUEUES)
    if weights is not None and queues is None:
        raise InvalidValue("weights", weights, ORDER_NEEDS_QUEUES)
    if weights is not None and queues is not None and len(weights) != len(queues):
        right = f"{len(queues)} weights are needed, one for each of the queues; or give --strict instead"
        raise InvalidValue("weights", weights, right)
    return "strict" if is_strict else weights


def _load_app(session: Session) -> "Errandry":
    """Import the app. A store given by --url is set in the environment, so that child processes use it."""
    url, session.url = session.url, None
    if url is not None:
        session.configured_url = url  # which `load_app` sets in the environment
    jobs = session.load_app()
    if url is not None and jobs.url != url:
        why = f"{session.app} has its own store, {store_name(jobs)}: leave out --url, or the URL in the app"
        raise click.UsageError(f"--url {without_password(url)}: {why}.")
    return jobs


async def _run_worker(
    worker: "Worker",
    open_app: Callable[[], Coroutine[Any, Any, None]],
    pipe: "SupervisorPipe | None",
    show: ShowStatus | None,
) -> int:
    """Run a worker until it is stopped. If that is while the store is being opened, end at once."""
    from errandry.claims.presence import CLOSE_TIMEOUT
    from errandry.worker.stop_signals import StopSignals

    jobs, opening = worker.app, asyncio.ensure_future(open_app())

    def stop() -> None:
        opening.cancel()
        worker.stop()

    _log_start(jobs, worker)
    if pipe is not None:
        pipe.connect(stop, worker.options.grace)
    with StopSignals(stop) if pipe is None else nullcontext():
        await asyncio.wait([opening])
        if opening.cancelled():
            log.info("worker %s was stopped before it had opened the store", worker.id)
            return 0
        try:
            opening.result()
            if pipe is not None:
                pipe.report_ready()
            async with _updating_status(jobs, worker, show):
                await worker.run(is_program=True)
        finally:
            await jobs.close(CLOSE_TIMEOUT)
    return 0


@asynccontextmanager
async def _updating_status(
    jobs: "Errandry", worker: "Worker", show: ShowStatus | None
) -> AsyncIterator[None]:
    """Update the status line while the block runs."""
    task = None if show is None else asyncio.create_task(_update_status(jobs, worker, show))
    try:
        yield
    finally:
        if task is not None:
            task.cancel()


def _log_start(jobs: "Errandry", worker: "Worker") -> None:
    """Log the worker's options, including defaults, and warn about likely mistakes."""
    options = worker.options
    tasks = sorted(set(jobs.tasks) & set(options.tasks) if options.tasks else jobs.tasks)
    if not tasks:
        log.warning("the app declares no task: the worker will release every job that it claims")
    url = os.environ.get("ERRANDRY_URL")
    if url and url != jobs.url:
        why = "the app has its own store: leave out the URL in the app to use this one"
        log.warning("$ERRANDRY_URL is %s, but %s", without_password(url), why)
    log.info(
        "worker %s: %s; tasks %s; queues %s; slots: %d async, %d thread, %d process; lease %g s",
        worker.id,
        store_name(jobs),
        ", ".join(tasks) or "none",
        ", ".join(options.queues) if options.queues else "all",
        options.concurrency,
        options.thread_slots,
        options.process_slots,
        options.lease,
    )


def _supervise(processes: int, grace: float, reload: str | None) -> int:
    from errandry.worker.supervisor import Supervisor

    command = [sys.executable, "-P", "-m", "errandry", *sys.argv[1:]]
    return asyncio.run(Supervisor(command, processes, grace, reload).run())


@contextmanager
def _status_line(has_status: bool, level: str, log_format: str) -> Iterator[ShowStatus | None]:
    """Configure logging and, on a terminal, show a status line below the log."""
    if not has_status:
        configure_logging(level, log_format)
        yield None
        return
    from rich.console import Console
    from rich.status import Status

    status = Status("starting", console=Console(stderr=True), refresh_per_second=2)
    status.start()
    try:
        # Only now: rich has replaced stderr, so that the log goes above the status.
        configure_logging(level, log_format)
        yield status.update
    finally:
        with suppress(OSError):  # the terminal was closed
            status.stop()


async def _update_status(jobs: "Errandry", worker: "Worker", show: ShowStatus) -> None:
    """Update the status line every second."""
    done, at = _finished_count(await jobs.counts()), asyncio.get_running_loop().time()
    while True:
        await asyncio.sleep(STATUS_INTERVAL)
        try:
            counts = await jobs.counts()
        except ErrandryError as error:
            show(clean(f"cannot read the store: {error}"))
            continue
        waiting = sum(states.get("waiting", 0) for states in counts.values())
        now, total = asyncio.get_running_loop().time(), _finished_count(counts)
        rate, done, at = max(0, total - done) / (now - at), total, now
        running = worker.health().running
        show(f"{running:,} running here · {pluralize(waiting, 'job')} waiting · {rate:,.0f} finished/s")


def _finished_count(counts: dict[str, dict[str, int]]) -> int:
    ends = ("completed", "failed", "canceled")
    return sum(states.get(state, 0) for states in counts.values() for state in ends)
