"""`errandry schedules`: what runs again and again, and when next."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import click
import msgspec
from msgspec import to_builtins

from errandry.cli import table
from errandry.cli.command import CliGroup
from errandry.cli.param_types import AT, LENGTH, arguments
from errandry.cli.pausing import said, whoever
from errandry.cli.session import Session, client, maker
from errandry.cli.table import Cell, Column
from errandry.cli.text import ago, clean, local, number, to_json
from errandry.codec.redaction import shown
from errandry.core.duration import short
from errandry.core.schedule import CatchUp, Overlap, ScheduleRecord
from errandry.core.tick import ticks_between
from errandry.errors import InvalidValue, UnknownTask

if TYPE_CHECKING:
    from errandry.api.app import Errandry

SHOWN = 5
AHEAD = 100 * 365 * 86_400.0
TIMING = ("timezone", "start", "end", "limit", "jitter", "overlap", "catch_up")


@click.group(cls=CliGroup)
def schedules() -> None:
    """See what runs again and again; add, change, pause and run it."""


def timing(function: Any) -> Any:
    """The options that say when, and with what."""
    for option in (
        click.option("--timezone", help="Whose clocks cron goes by, such as Europe/Vienna; UTC."),
        click.option("--start", type=AT, help="No ticks before this."),
        click.option("--end", type=AT, help="No ticks after this."),
        click.option("--limit", type=click.IntRange(1), help="How often it runs, at most."),
        click.option("--jitter", type=LENGTH, help="How much later than its tick a run may be."),
        click.option(
            "--overlap",
            type=click.Choice([one.value for one in Overlap]),
            help="What a tick does while the last run lives.",
        ),
        click.option(
            "--catch-up",
            type=click.Choice([one.value for one in CatchUp]),
            help="Which ticks run that nobody was there for.",
        ),
        click.option(
            "--json", "given", metavar="OBJECT", help='The arguments: {"of": "all"}; - reads stdin.'
        ),
        click.option("--queue", help="The queue of its jobs."),
        click.option("--priority", type=int, help="Lower is sooner."),
        click.option("--max-attempts", type=int, help="How often a run is tried."),
        click.option("--timeout", type=LENGTH, help="How long an attempt may take."),
        click.option("--by", help="Who wants it; you, without it."),
    ):
        function = option(function)
    return function


@schedules.command("ls")
@client
async def ls(session: Session, jobs: "Errandry") -> None:
    """List schedules with their next tick."""
    found, now = await jobs.schedules.list(), await jobs.now()
    if session.json:
        for one in found:
            session.data(as_data(jobs, one))
        return
    if not found:
        session.talk("There are no schedules: declare one with a task, or see errandry schedules add.")
        return
    heads = [Column("NAME", gives=True), Column("WHEN", gives=True), Column("TASK", gives=True)]
    heads += [Column("NEXT"), Column("LAST"), Column("RUNS", right=True), Column("MISSED", right=True)]
    rows = [
        (
            one.name,
            in_words(one),
            one.plan.job.task,
            _next(one, now),
            ago(one.last, now),
            f"{one.runs:,}",
            Cell(f"{one.missed:,}", "red") if one.missed else "",
        )
        for one in found
    ]
    table.show(session, heads, rows)


@schedules.command("show")
@click.argument("name")
@client
async def show(session: Session, jobs: "Errandry", name: str) -> None:
    """Show a schedule in full, with its next ticks."""
    one, now = await jobs.schedules.get(name), await jobs.now()
    if session.json:
        session.data(as_data(jobs, one) | {"ticks": _ahead(one, now)})
        return
    session.print(f"{session.style('schedule', bold=True)} {clean(one.name)}")
    for field, value in _facts(jobs, one, now):
        session.print(f"  {field:<10}{value}")
    if ticks := _ahead(one, now):
        session.print(session.style("Next ticks", bold=True))
        for tick in ticks:
            session.print(f"  {_moment(tick, one.plan.zone)}  {ago(tick, now)}")


@schedules.command("add")
@click.argument("name")
@click.argument("when")
@click.argument("task")
@timing
@maker
async def add(
    session: Session, jobs: "Errandry", name: str, when: str, task: str, by: str | None, **options: Any
) -> None:
    """Have TASK run again and again; a schedule of this name is replaced.

    \b
    errandry schedules add nightly "0 3 * * *" report --timezone Europe/Vienna
    errandry schedules add poll "every 5 minutes" fetch --json '{"of": "all"}' --overlap skip
    """
    if session.app is not None and task not in jobs.tasks:
        raise UnknownTask(task, tuple(sorted(jobs.tasks)))
    times, chosen, given = _chosen(options)
    call = jobs._named(task, given or {}, chosen)
    put = await jobs.schedules.put(name, call, when, by=_by(by), **times)
    await _report(session, jobs, put)


@schedules.command("edit")
@click.argument("name")
@click.option("--when", help="Cron, or every 5 minutes.")
@timing
@client
async def edit(
    session: Session, jobs: "Errandry", name: str, when: str | None, by: str | None, **options: Any
) -> None:
    """Change what is given of a schedule, at once."""
    times, chosen, given = _chosen(options)
    if when is not None:
        times["when"] = when
    if not times and not chosen and given is None:
        raise click.UsageError("Say what to change: --when, --timezone, --json, --queue, …")
    put = await jobs.schedules.edit(name, arguments=given, options=chosen, by=_by(by), **times)
    await _report(session, jobs, put)


@schedules.command("pause")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("--by", help="Who wants it; you, without it.")
@client
async def pause(session: Session, jobs: "Errandry", names: tuple[str, ...], by: str | None) -> None:
    """Have schedules tick no more until they are resumed. What runs goes on."""
    for name in names:
        changed = await jobs.schedules.pause(name, by=_by(by))
        _became(session, name, changed, "is paused" if changed else "was paused already")


@schedules.command("resume")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@client
async def resume(session: Session, jobs: "Errandry", names: tuple[str, ...]) -> None:
    """Undo a pause; ticks meanwhile are not made up for."""
    for name in names:
        changed = await jobs.schedules.resume(name)
        _became(session, name, changed, "is resumed" if changed else "was not paused")


@schedules.command("run")
@click.argument("name")
@client
async def run(session: Session, jobs: "Errandry", name: str) -> None:
    """Run a schedule now, beside its ticks, and print the id of the job."""
    job = await jobs.schedules.run(name)
    if session.json:
        session.data({"schedule": name, "job": job.id})
    else:
        session.print(job.id)


@schedules.command("backfill")
@click.argument("name")
@click.option("--since", type=AT, required=True, help="The first tick, such as 2026-01-31.")
@click.option("--until", type=AT, help="The last tick; now, without it.")
@client
async def backfill(session: Session, jobs: "Errandry", name: str, since: str, until: str | None) -> None:
    """Run the ticks of a time that has passed, as far as they have no jobs; print the ids."""
    made = await jobs.schedules.backfill(name, since, until)
    for one in made:
        if session.json:
            session.data({"schedule": name, "job": one})
        else:
            session.print(one)
    session.talk(f"{number(len(made), 'tick')} of {name} {'is' if len(made) == 1 else 'are'} made up for.")


@schedules.command("rm")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@client
async def rm(session: Session, jobs: "Errandry", names: tuple[str, ...]) -> int:
    """Remove schedules; what runs goes on."""
    there = [await jobs.schedules.remove(name) for name in names]
    for name, changed in zip(names, there, strict=True):
        _became(session, name, changed, "is removed" if changed else "was not there")
    return 0 if all(there) else 1


def as_data(jobs: "Errandry", schedule: ScheduleRecord) -> dict[str, Any]:
    """Everything that is stored, with the arguments read."""
    data: dict[str, Any] = to_builtins(schedule)
    data["plan"]["job"]["payload"] = _given(jobs, schedule)
    return data | {"job": schedule.job}


def in_words(schedule: ScheduleRecord) -> str:
    """When it ticks, and where that is."""
    plan = schedule.plan
    return plan.words if plan.every is not None or plan.zone == "UTC" else f"{plan.words} ({plan.zone})"


def _facts(jobs: "Errandry", one: ScheduleRecord, now: float) -> "list[tuple[str, str]]":
    plan, job = one.plan, one.plan.job
    facts = [
        ("when", clean(in_words(one))),
        ("task", f"{clean(job.task)} in queue {clean(job.queue)}, priority {job.priority}"),
        ("arguments", clean(to_json(_given(jobs, one)))),
        ("overlap", f"{plan.overlap}, catch-up {plan.catch_up}"),
        ("jitter", short(plan.jitter) if plan.jitter else ""),
        ("start", "" if plan.start is None else _moment(plan.start, plan.zone)),
        ("end", "" if plan.end is None else _moment(plan.end, plan.zone)),
        ("limit", "" if plan.limit is None else number(plan.limit, "run")),
        ("next", _next(one, now) + (f", as job {clean(one.job)}" if one.job is not None else "")),
        ("last", "" if one.last is None else f"{_moment(one.last, plan.zone)}  {ago(one.last, now)}"),
        ("runs", f"{one.runs:,}, and {one.missed:,} missed"),
        ("put", f"{local(one.updated_at)}{f' by {clean(one.by)}' if one.by else ''}"),
        ("owner", clean(one.owner)),
    ]
    return [(name, value) for name, value in facts if value]


def _next(one: ScheduleRecord, now: float) -> str:
    if one.paused is not None:
        return f"paused {said(one.paused, now)}"
    return "over" if one.due_at is None else ago(one.due_at, now)


def _ahead(one: ScheduleRecord, now: float) -> list[float]:
    """The ticks that come next, as far as they can be known."""
    found: list[float] = []
    if one.tick is None:
        return found
    try:
        for tick in ticks_between(one, one.tick, now + AHEAD):
            found.append(tick)
            if len(found) == SHOWN:
                break
    except InvalidValue:  # a zone that is not known here: workers elsewhere may know it
        return [one.tick]
    return found


def _moment(tick: float, zone: str) -> str:
    """By the clocks of its zone, and by UTC."""
    utc = datetime.fromtimestamp(tick, UTC)
    text = utc.strftime("%a %Y-%m-%d %H:%M:%S")
    try:
        there = utc.astimezone(ZoneInfo(zone)).strftime("%a %Y-%m-%d %H:%M:%S %Z")
    except (ZoneInfoNotFoundError, ValueError, OSError):
        there = clean(f"({zone} is not known here)")
    return f"{text} UTC" if zone == "UTC" else f"{there}  {text} UTC"


def _given(jobs: "Errandry", schedule: ScheduleRecord) -> Any:
    """Its arguments; as they are stored where the codec cannot read them, without those not to be shown."""
    job = schedule.plan.job
    try:
        text = jobs.schedules.arguments(schedule)
    except Exception:
        return msgspec.json.decode(job.payload)
    return shown(msgspec.json.decode(text), job.metadata)


def _chosen(options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any] | None]:
    """What was given: of the timing, of its jobs, and their arguments."""
    given = options.pop("given")
    chosen = {name: value for name, value in options.items() if value is not None}
    times = {name: chosen.pop(name) for name in TIMING if name in chosen}
    return times, chosen, None if given is None else arguments(given)


def _by(by: str | None) -> str:
    return whoever() if by is None else by


async def _report(session: Session, jobs: "Errandry", put: ScheduleRecord) -> None:
    if session.json:
        session.data(as_data(jobs, put))
    else:
        next_ = _next(put, await jobs.now())
        session.talk(f"The schedule {put.name} runs {put.plan.job.task} {in_words(put)}: next {next_}.")


def _became(session: Session, name: str, changed: bool, became: str) -> None:
    if session.json:
        session.data({"schedule": name, "became": became.split()[1], "changed": changed})
    else:
        session.talk(f"The schedule {name} {became}.")
