"""`errandry doctor`: is everything all right here, in plain words, and what to do where it is not."""

import platform
import time
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

import click

from errandry import __version__
from errandry.cli.command import CliCommand
from errandry.cli.metrics import exposed
from errandry.cli.session import Session, client
from errandry.cli.text import number, one_line
from errandry.cli.workers import is_gone
from errandry.core.command import WorkerInfo
from errandry.core.duration import rough
from errandry.core.job import JobRecord
from errandry.core.schedule import BY_ITSELF, ScheduleRecord
from errandry.core.state import State
from errandry.core.why import SILENT_AFTER
from errandry.errors import ErrandryError
from errandry.store.contract import QueueInfo
from errandry.store.health import Finding, Grade

if TYPE_CHECKING:
    from errandry.api.app import Errandry

LATE = 60.0
"""So long after its end, a lease should have been noticed by someone."""
WAITED = 900.0
"""Who has waited for so long is mentioned."""
SANE = 1_700_000_000.0
"""No clock that is right shows less."""


PENDING = (State.WAITING, State.CLAIMED, State.RUNNING)
"""Jobs in these states need a worker now."""


COLORS = {Grade.GOOD: "green", Grade.NOTE: "yellow", Grade.WRONG: "red"}


@click.command(cls=CliCommand)
@click.option("--metrics", is_flag=True, help="Print figures for Prometheus instead.")
@client
async def doctor(session: Session, jobs: "Errandry", metrics: bool) -> int:
    """Look at the store, its file or server, the clock and the workers; exit code 1 if something is wrong."""
    if metrics:
        session.print((await exposed(jobs)).rstrip())
        return 0
    grades = set()
    async for finding in _examined(jobs):
        grades.add(finding.grade)
        _print(session, finding)
    if not session.json:
        said = {Grade.WRONG: "Something is wrong.", Grade.NOTE: "Nothing is wrong; see the notes."}
        worst = max(grades, key=list(Grade).index)
        session.talk(said.get(worst, "Everything is all right."))
    return 1 if Grade.WRONG in grades else 0


def _print(session: Session, finding: Finding) -> None:
    if session.json:
        session.data(finding._asdict())
        return
    grade = session.style(f"{finding.grade:<6}", COLORS[finding.grade])
    session.print(f"{grade} {session.style(f'{finding.topic:<11}', bold=True)} {one_line(finding.text)}")
    if finding.todo:
        session.print(f"{'':<18} → {one_line(finding.todo)}")


async def _examined(jobs: "Errandry") -> AsyncIterator[Finding]:
    python = f"Python {platform.python_version()} on {platform.platform()}"
    yield Finding(Grade.GOOD, "errandry", f"{__version__}, {python}")
    if time.time() < SANE:
        yield Finding(
            Grade.WRONG, "clock", "this host's clock is years behind", "set it, and keep it with NTP"
        )
    try:
        await jobs.open()
    except ErrandryError as error:
        yield Finding(Grade.WRONG, "store", str(error), "nothing else can be looked at until it opens")
        return
    for look in (_store, _people):
        try:
            for finding in await look(jobs):
                yield finding
        except ErrandryError as error:
            yield Finding(Grade.WRONG, "store", str(error))


async def _store(jobs: "Errandry") -> list[Finding]:
    """What the store knows of itself."""
    return await jobs.engine.call(jobs.store.diagnose)


async def _people(jobs: "Errandry") -> list[Finding]:
    """Who works, what waits, and what is held."""
    now, infos, queues = await jobs.now(), await jobs.workers(), await jobs.queues()
    return [
        *_leases(await jobs.held(10_000), now),
        *_workers(infos, sum(info.states.get(state, 0) for info in queues for state in PENDING), now),
        *(finding for info in queues for finding in _queue(info, now)),
        *_schedules(await jobs.schedules.list(), now),
    ]


def _workers(infos: list[WorkerInfo], pending: int, now: float) -> Iterator[Finding]:
    lost = [info.beat.worker for info in infos if now - info.seen_at > SILENT_AFTER or is_gone(info)]
    if lost:
        text = f"{number(len(lost), 'worker')} died or fell silent: {', '.join(lost[:5])}"
        yield Finding(Grade.NOTE, "workers", text, "what they ran goes to others; see why they ended")
    if alive := len(infos) - len(lost):
        yield Finding(Grade.GOOD, "workers", f"{number(alive, 'worker')} at work")
    elif pending:
        text = f"nobody works, and {number(pending, 'job waits', 'jobs wait')}"
        yield Finding(Grade.WRONG, "workers", text, "start one: errandry worker MODULE:NAME")
    else:
        yield Finding(Grade.NOTE, "workers", "nobody works; nothing waits either")


def _queue(info: QueueInfo, now: float) -> Iterator[Finding]:
    if info.paused is not None:
        by = f" by {info.paused.by}" if info.paused.by else ""
        text = f"{info.name} was paused {rough(now - info.paused.at)} ago{by}"
        yield Finding(Grade.NOTE, "queue", text, f"errandry queues resume {info.name}")
    elif info.waited is not None and info.waited > WAITED:
        text = f"the job next in line in {info.name} has waited for {rough(info.waited)}"
        yield Finding(Grade.NOTE, "queue", text, "errandry why says what holds it up")


def _schedules(found: list[ScheduleRecord], now: float) -> Iterator[Finding]:
    """Those that tick, and those that do not though nobody wanted that."""
    broken = [one for one in found if one.paused is not None and one.paused.by.startswith(BY_ITSELF)]
    for one in broken:
        text = f"{one.name} was paused: {one.paused.by.removeprefix(BY_ITSELF) if one.paused else ''}"
        yield Finding(Grade.WRONG, "schedule", text, f"see to it, then errandry schedules resume {one.name}")
    late = [one.name for one in found if one.due_at is not None and one.due_at < now - LATE]
    if late:
        text = f"{number(len(late), 'schedule')} over a minute late: {', '.join(late[:5])}"
        yield Finding(Grade.WRONG, "schedules", text, "no worker does upkeep: start one")
    elif ticking := [one for one in found if one.tick is not None]:
        missed = sum(one.missed for one in found)
        more = f", {number(missed, 'tick')} ever missed" if missed else ""
        yield Finding(Grade.GOOD, "schedules", f"{number(len(ticking), 'schedule')} in time{more}")


def _leases(held: list[JobRecord], now: float) -> Iterator[Finding]:
    stuck = [job for job in held if (job.lease_until or now) < now - LATE]
    if stuck:
        text = f"{number(len(stuck), 'job')} held under leases that ran out over a minute ago"
        yield Finding(Grade.WRONG, "leases", text, "no worker does upkeep: start one")
    elif held:
        yield Finding(Grade.GOOD, "leases", f"{number(len(held), 'job')} held, no lease overdue")
