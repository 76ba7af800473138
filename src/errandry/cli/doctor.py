"""`errandry doctor`: check the installation, and say what is wrong and what to do about it."""

import platform
import time
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

import click

from errandry import __version__
from errandry.cli.command import CliCommand
from errandry.cli.metrics import metrics_text
from errandry.cli.pausing import since_text
from errandry.cli.session import Session, app_command, store_time
from errandry.cli.text import pluralize
from errandry.cli.workers import has_died, worker_records
from errandry.core.command import WorkerRecord
from errandry.core.duration import rough_duration
from errandry.core.job import JobRecord
from errandry.core.printable import one_line
from errandry.core.schedule import SYSTEM_PREFIX
from errandry.core.state import State
from errandry.core.why import SILENT_AFTER
from errandry.errors import ErrandryError
from errandry.store.health import Finding, Grade

if TYPE_CHECKING:
    from errandry.api.app import Errandry
    from errandry.api.gate_info import QueueInfo
    from errandry.api.schedule import Schedule

OVERDUE_AFTER = 60.0
"""Seconds after which an expired lease or a late tick means that no worker does upkeep."""
LONG_WAIT = 900.0
"""Seconds after which a waiting job is reported."""
CLOCK_MIN = 1_700_000_000.0
"""A correct clock shows a later time than this, in seconds since 1970."""

PENDING = (State.WAITING, State.CLAIMED, State.RUNNING)
"""Jobs in these states need a worker now."""

COLORS = {Grade.GOOD: "green", Grade.NOTE: "yellow", Grade.WRONG: "red"}


@click.command(cls=CliCommand)
@click.option("--metrics", is_flag=True, help="Print metrics in the Prometheus text format instead")
@app_command
async def doctor(session: Session, jobs: "Errandry", metrics: bool) -> int:
    """Check the store, its file or server, the clock, workers, queues and schedules.

    Each problem comes with what to do about it. The exit code is 1 if something is wrong.
    """
    if metrics:
        session.print((await metrics_text(jobs)).rstrip())
        return 0
    grades = set()
    async for finding in _findings(jobs):
        grades.add(finding.grade)
        _print(session, finding)
    if not session.json:
        summaries = {Grade.WRONG: "Something is wrong.", Grade.NOTE: "Nothing is wrong; see the notes."}
        worst = max(grades, key=list(Grade).index)
        session.print_message(summaries.get(worst, "Everything is all right."))
    return 1 if Grade.WRONG in grades else 0


def _print(session: Session, finding: Finding) -> None:
    if session.json:
        session.print_json(finding._asdict())
        return
    grade = session.style(f"{finding.grade:<6}", COLORS[finding.grade])
    session.print(f"{grade} {session.style(f'{finding.topic:<11}', bold=True)} {one_line(finding.text)}")
    if finding.todo:
        session.print(f"{'':<18} → {one_line(finding.todo)}")


async def _findings(jobs: "Errandry") -> AsyncIterator[Finding]:
    python = f"Python {platform.python_version()} on {platform.platform()}"
    yield Finding(Grade.GOOD, "errandry", f"{__version__}, {python}")
    if time.time() < CLOCK_MIN:
        yield Finding(Grade.WRONG, "clock", "this host's clock is years behind", "set the clock, and run NTP")
    try:
        await jobs.open()
    except ErrandryError as error:
        yield Finding(Grade.WRONG, "store", str(error), "fix this first: all other checks need the store")
        return
    for check in (_store_findings, _activity_findings):
        try:
            for finding in await check(jobs):
                yield finding
        except ErrandryError as error:
            yield Finding(Grade.WRONG, "store", str(error))


async def _store_findings(jobs: "Errandry") -> list[Finding]:
    """What the store reports about itself."""
    return await jobs.engine.call(jobs.store.diagnose)


async def _activity_findings(jobs: "Errandry") -> list[Finding]:
    """Leases, workers, queues and schedules."""
    now, workers, queues = await store_time(jobs), await worker_records(jobs), await jobs.queues()
    return [
        *_lease_findings([job.record for job in await jobs.held(10_000)], now),
        *_worker_findings(
            workers, sum(info.states.get(state, 0) for info in queues for state in PENDING), now
        ),
        *(finding for info in queues for finding in _queue_findings(info, now)),
        *_schedule_findings(await jobs.schedules.list(), now),
    ]


def _worker_findings(workers: list[WorkerRecord], pending: int, now: float) -> Iterator[Finding]:
    lost = [
        worker.beat.worker for worker in workers if now - worker.seen_at > SILENT_AFTER or has_died(worker)
    ]
    if lost:
        text = f"{pluralize(len(lost), 'worker')} died or sent no heartbeat: {', '.join(lost[:5])}"
        todo = "find out why they ended; other workers take over their jobs"
        yield Finding(Grade.NOTE, "workers", text, todo)
    blocked = [worker.beat for worker in workers if worker.beat.blocked_by and worker.beat.worker not in lost]
    for beat in blocked:
        text = f"{beat.worker} claims nothing while its event loop is blocked by {beat.blocked_by}"
        todo = "make the handler a plain function, which runs in a thread, or await; its log names the line"
        yield Finding(Grade.WRONG, "workers", text, todo)
    draining = [worker for worker in workers if worker.beat.draining and worker.beat.worker not in lost]
    more = f", {len(draining)} draining" if draining else ""
    if running := len(workers) - len(lost) - len(draining):
        yield Finding(Grade.GOOD, "workers", f"{pluralize(running, 'worker')} running{more}")
    elif pending:
        text = f"no worker is running{more}, and {pluralize(pending, 'job waits', 'jobs wait')}"
        yield Finding(Grade.WRONG, "workers", text, "start one: errandry worker MODULE:NAME")
    else:
        yield Finding(Grade.NOTE, "workers", f"no worker is running{more}; no job waits")


def _queue_findings(info: "QueueInfo", now: float) -> Iterator[Finding]:
    if info.paused is not None:
        text = f"{info.name} was paused {since_text(info.paused, now)}"
        yield Finding(Grade.NOTE, "queue", text, f"to resume it: errandry queues resume {info.name}")
    elif info.waited is not None and info.waited > LONG_WAIT:
        text = f"the next job of {info.name} has waited for {rough_duration(info.waited)}"
        yield Finding(Grade.NOTE, "queue", text, "to find the reason: errandry why ID")


def _schedule_findings(schedules: "list[Schedule]", now: float) -> Iterator[Finding]:
    """Schedules that paused themselves, late schedules, and the number of those on time."""
    for schedule in schedules:
        if schedule.paused is not None and schedule.paused.by.startswith(SYSTEM_PREFIX):
            text = f"{schedule.name} paused itself: {schedule.paused.by.removeprefix(SYSTEM_PREFIX)}"
            todo = f"fix that, then errandry schedules resume {schedule.name}"
            yield Finding(Grade.WRONG, "schedule", text, todo)
    late = [
        schedule.name
        for schedule in schedules
        if schedule.next_run is not None and schedule.next_run.timestamp() < now - OVERDUE_AFTER
    ]
    if late:
        text = f"{pluralize(len(late), 'schedule')} over a minute late: {', '.join(late[:5])}"
        yield Finding(Grade.WRONG, "schedules", text, "no worker does upkeep: start a worker")
    elif ticking := [schedule for schedule in schedules if schedule.next_tick is not None]:
        missed = sum(schedule.missed for schedule in schedules)
        more = f", {pluralize(missed, 'tick')} missed so far" if missed else ""
        yield Finding(Grade.GOOD, "schedules", f"{pluralize(len(ticking), 'schedule')} on time{more}")


def _lease_findings(held: list[JobRecord], now: float) -> Iterator[Finding]:
    stuck = [job for job in held if (job.lease_until or now) < now - OVERDUE_AFTER]
    if stuck:
        text = f"{pluralize(len(stuck), 'job')} with a lease that expired over a minute ago"
        yield Finding(Grade.WRONG, "leases", text, "no worker does upkeep: start a worker")
    elif held:
        yield Finding(Grade.GOOD, "leases", f"{pluralize(len(held), 'lease')} held by workers, none overdue")
