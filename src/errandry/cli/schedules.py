"""`errandry schedules`: list, add, change, pause and run schedules."""

from datetime import datetime
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import click
import msgspec

from errandry.api.schedule_options import EVERY_PREFIX
from errandry.cli import table
from errandry.cli.command import CliGroup
from errandry.cli.param_types import (
    DURATION,
    DURATION_OR_NONE,
    TIME,
    WholeNumber,
    parse_arguments,
    without_none,
)
from errandry.cli.pausing import operator, report_pause, report_resume, since_text
from errandry.cli.refused_value import FieldOption
from errandry.cli.session import Session, app_command, app_command_making_store
from errandry.cli.table import Cell, Column
from errandry.cli.text import ago, local_time, pluralize, to_json
from errandry.codec.redaction import redact_arguments
from errandry.core.duration import as_datetime, format_duration
from errandry.core.printable import clean
from errandry.core.rule_info import Source
from errandry.core.schedule import CatchUp, Overlap, ScheduleRecord
from errandry.core.tick import ticks_between
from errandry.errors import InvalidValue, UnknownTask

if TYPE_CHECKING:
    from errandry.api.app import Errandry
    from errandry.api.schedule import Schedule

TICKS_SHOWN = 5
PREVIEW_SECONDS = 100 * 365 * 86_400.0
TIMING_OPTIONS = ("timezone", "start", "end", "limit", "jitter", "overlap", "catch_up")


@click.group(cls=CliGroup)
def schedules() -> None:
    """List, add, change, pause and run schedules."""


def schedule_options(function: Any) -> Any:
    """Add the options of a schedule: its timing, and the job that it enqueues."""
    for option in reversed(  # click lists the option of the last decorator first
        (
            click.option(
                "--timezone", help="Time zone of the cron expression, such as Europe/Vienna; default: UTC"
            ),
            click.option("--start", type=TIME, help="First possible time of a tick"),
            click.option("--end", type=TIME, help="Last possible time of a tick"),
            click.option("--limit", type=WholeNumber(1), metavar="N", help="Maximum number of runs"),
            click.option("--jitter", type=DURATION, help="Maximum random delay of a run after its tick"),
            click.option(
                "--overlap",
                type=click.Choice([overlap.value for overlap in Overlap]),
                help="What to do with a tick while the previous run is not finished",
            ),
            click.option(
                "--catch-up",
                type=click.Choice([catch_up.value for catch_up in CatchUp]),
                help="Which ticks to run that were missed while no worker was running",
            ),
            click.option(
                "--args",
                metavar="OBJECT",
                help='Arguments as JSON, such as {"of": "all"}; - reads stdin',
            ),
            click.option("--queue", help="Queue of the jobs"),
            click.option("--priority", type=int, help="Priority of the jobs; lower runs first"),
            click.option("--max-attempts", type=int, help="Maximum number of attempts, including the first"),
            click.option(
                "--timeout",
                type=DURATION_OR_NONE,
                help="Maximum duration of an attempt; none for no timeout",
            ),
            click.option("--by", help="Name recorded as the operator; default: your user name"),
        )
    ):
        function = option(function)
    return function


@schedules.command("ls")
@app_command
async def ls(session: Session, jobs: "Errandry") -> None:
    """List schedules with their next tick."""
    schedules_, now = await jobs.schedules.list(), await jobs.now()
    if session.json:
        for schedule in schedules_:
            session.print_json(as_data(schedule))
        return
    if not schedules_:
        session.print_message(
            "There are no schedules: declare one with a task, or use errandry schedules add."
        )
        return
    columns = [
        Column("NAME", can_shrink=True),
        Column("WHEN", can_shrink=True),
        Column("TASK", can_shrink=True),
    ]
    columns += [
        Column("NEXT"),
        Column("LAST"),
        Column("RUNS", is_right=True),
        Column("MISSED", is_right=True),
    ]
    rows = [
        (
            schedule.name,
            describe_timing(schedule),
            schedule.task,
            _next_text(schedule, now),
            ago(schedule.last_tick, now),
            f"{schedule.runs:,}",
            Cell(f"{schedule.missed:,}", "red") if schedule.missed else "",
        )
        for schedule in schedules_
    ]
    table.print_table(session, columns, rows)


@schedules.command("show")
@click.argument("name")
@app_command
async def show(session: Session, jobs: "Errandry", name: str) -> None:
    """Print everything known about a schedule, with its next ticks."""
    schedule, now = await jobs.schedules.get(name), await jobs.now()
    ticks = _next_ticks(await jobs.client.schedule(name), now.timestamp())
    if session.json:
        session.print_json(as_data(schedule) | {"ticks": [as_datetime(tick) for tick in ticks]})
        return
    session.print(f"{session.style('schedule', bold=True)} {clean(schedule.name)}")
    for field, value in _facts(schedule, now):
        session.print(f"  {field:<10}{value}")
    if ticks:
        session.print(session.style("Next ticks", bold=True))
        for tick in ticks:
            session.print(f"  {_format_tick(as_datetime(tick), schedule.timezone)}  {ago(tick, now)}")


@schedules.command("add")
@click.argument("name")
@click.argument("when")
@click.argument("task")
@schedule_options
@app_command_making_store
async def add(
    session: Session, jobs: "Errandry", name: str, when: str, task: str, by: str | None, **options: Any
) -> None:
    """Add or replace a schedule.

    The schedule NAME runs TASK; WHEN is a cron expression or an interval.

    \b
    errandry schedules add nightly "0 3 * * *" report --timezone Europe/Vienna
    errandry schedules add poll "every 5 minutes" fetch --args '{"of": "all"}' --overlap skip
    """
    if session.app is not None and task not in jobs.tasks:
        raise UnknownTask(task, tuple(sorted(jobs.tasks)))
    timing, chosen, arguments = _split_options(options)
    call = jobs._job_by_name(task, arguments or {}, chosen)
    schedule = await jobs.schedules.put(name, call, when, by=operator(by), **timing)
    _report(session, schedule, await jobs.now())


@schedules.command("edit")
@click.argument("name")
@click.option(
    "--when", cls=FieldOption, field="cron", help="Cron expression, or an interval such as every 5 minutes"
)
@schedule_options
@app_command
async def edit(
    session: Session, jobs: "Errandry", name: str, when: str | None, by: str | None, **options: Any
) -> None:
    """Change a schedule.

    Only the given options are changed. The change takes effect at once.
    """
    timing, chosen, arguments = _split_options(options)
    if when is not None:
        timing["when"] = when
    if not timing and not chosen and arguments is None:
        raise click.UsageError("Nothing to change: give --when, --timezone, --args, --queue, …")
    schedule = await jobs.schedules.edit(name, arguments=arguments, options=chosen, by=operator(by), **timing)
    _report(session, schedule, await jobs.now())


@schedules.command("reset")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("--by", help="Name recorded as the operator; default: your user name")
@app_command
async def reset(session: Session, jobs: "Errandry", names: tuple[str, ...], by: str | None) -> None:
    """Return schedules to what the code declares.

    This drops what add and edit have changed.
    """
    for name in names:
        changed = await jobs.schedules.reset(name, by=operator(by))
        if session.json:
            session.print_json({"schedule": name, "changed": changed})
        elif changed:
            _report(session, await jobs.schedules.get(name), await jobs.now())
        else:
            session.print_message(f"The schedule {name} has no change to reset.")


@schedules.command("pause")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("--by", help="Name recorded as the operator; default: your user name")
@app_command
async def pause(session: Session, jobs: "Errandry", names: tuple[str, ...], by: str | None) -> None:
    """Pause schedules.

    They have no ticks until they are resumed. Running jobs continue.
    """
    for name in names:
        changed = await jobs.schedules.pause(name, by=operator(by))
        report_pause(session, f"schedule {name}", {"schedule": name}, changed)


@schedules.command("resume")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@app_command
async def resume(session: Session, jobs: "Errandry", names: tuple[str, ...]) -> None:
    """Resume paused schedules.

    Ticks during the pause are not made up for.
    """
    for name in names:
        changed = await jobs.schedules.resume(name)
        report_resume(session, f"schedule {name}", {"schedule": name}, changed)


@schedules.command("run")
@click.argument("name")
@app_command
async def run(session: Session, jobs: "Errandry", name: str) -> None:
    """Run a schedule now and print the job's id.

    The run is in addition to the ticks of the schedule.
    """
    job = await jobs.schedules.run(name)
    if session.json:
        session.print_json({"schedule": name, "job": job.id})
    else:
        session.print(job.id)


@schedules.command("backfill")
@click.argument("name")
@click.option("--since", type=TIME, required=True, help="Time of the first tick, such as 2026-01-31")
@click.option("--until", type=TIME, help="Time of the last tick; default: now")
@app_command
async def backfill(session: Session, jobs: "Errandry", name: str, since: str, until: str | None) -> None:
    """Enqueue jobs for past ticks and print their ids.

    Ticks that have a job are left out.
    """
    job_ids = await jobs.schedules.backfill(name, since, until)
    for job_id in job_ids:
        if session.json:
            session.print_json({"schedule": name, "job": job_id})
        else:
            session.print(job_id)
    session.print_message(f"Enqueued {pluralize(len(job_ids), 'job')} for past ticks of {name}.")


@schedules.command("rm")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@app_command
async def rm(session: Session, jobs: "Errandry", names: tuple[str, ...]) -> int:
    """Remove schedules. Running jobs continue."""
    removed = [await jobs.schedules.remove(name) for name in names]
    for name, changed in zip(names, removed, strict=True):
        if session.json:
            session.print_json({"schedule": name, "changed": changed, "removed": changed})
        else:
            session.print_message(f"The schedule {name} {'is removed' if changed else 'does not exist'}.")
    return 0 if all(removed) else 1


def as_data(schedule: "Schedule") -> dict[str, Any]:
    """The schedule as plain values."""
    public = {
        field: getattr(schedule, field) for field in schedule.__struct_fields__ if not field.startswith("_")
    }
    return public | {"arguments": _read_arguments(schedule)}


def describe_timing(schedule: "Schedule") -> str:
    """When it ticks: the cron expression with its time zone, or the interval."""
    if schedule.when.startswith(EVERY_PREFIX) or schedule.timezone == "UTC":
        return schedule.when
    return f"{schedule.when} ({schedule.timezone})"


def _facts(schedule: "Schedule", now: datetime) -> "list[tuple[str, str]]":
    zone, last = schedule.timezone, schedule.last_tick
    facts = [
        ("when", clean(describe_timing(schedule))),
        ("task", f"{clean(schedule.task)} in queue {clean(schedule.queue)}, priority {schedule.priority}"),
        ("arguments", clean(to_json(_read_arguments(schedule)))),
        ("overlap", f"{schedule.overlap}, catch-up {schedule.catch_up}"),
        ("jitter", format_duration(schedule.jitter) if schedule.jitter else ""),
        ("start", "" if schedule.start is None else _format_tick(schedule.start, zone)),
        ("end", "" if schedule.end is None else _format_tick(schedule.end, zone)),
        ("limit", "" if schedule.limit is None else pluralize(schedule.limit, "run")),
        (
            "next",
            _next_text(schedule, now)
            + (f", as job {clean(schedule.next_job)}" if schedule.next_job is not None else ""),
        ),
        ("last", "" if last is None else f"{_format_tick(last, zone)}  {ago(last, now)}"),
        ("runs", f"{schedule.runs:,}, and {schedule.missed:,} missed"),
        ("updated", f"{local_time(schedule.updated_at)}{f' by {clean(schedule.by)}' if schedule.by else ''}"),
        ("source", _source_text(schedule)),
        ("owners", ", ".join(map(clean, schedule.owners))),
    ]
    return [(name, value) for name, value in facts if value]


def _source_text(schedule: "Schedule") -> str:
    """Where the plan comes from, and what code declares instead."""
    if schedule.source is Source.CODE or not schedule.owners:
        return schedule.source
    declared = ", ".join(f"{name} {value}" for name, value in schedule.declared.items())
    return clean(f"{schedule.source}; the code declares {declared or 'the same'}")


def _next_text(schedule: "Schedule", now: datetime) -> str:
    if schedule.paused is not None:
        return f"paused {since_text(schedule.paused, now)}"
    return "over" if schedule.next_run is None else ago(schedule.next_run, now)


def _next_ticks(schedule: ScheduleRecord, now: float) -> list[float]:
    """The next `TICKS_SHOWN` ticks; only the first if this host does not know the time zone."""
    ticks: list[float] = []
    if schedule.tick is None:
        return ticks
    try:
        for tick in ticks_between(schedule, schedule.tick, now + PREVIEW_SECONDS):
            ticks.append(tick)
            if len(ticks) == TICKS_SHOWN:
                break
    except InvalidValue:  # this host does not know the time zone; workers elsewhere may
        return [schedule.tick]
    return ticks


def _format_tick(tick: datetime, zone: str) -> str:
    """The time of a tick in the schedule's time zone and in UTC."""
    text = tick.strftime("%a %Y-%m-%d %H:%M:%S")
    try:
        local = tick.astimezone(ZoneInfo(zone)).strftime("%a %Y-%m-%d %H:%M:%S %Z")
    except (ZoneInfoNotFoundError, ValueError, OSError):
        local = clean(f"({zone} is unknown on this host)")
    return f"{text} UTC" if zone == "UTC" else f"{local}  {text} UTC"


def _read_arguments(schedule: "Schedule") -> Any:
    """The arguments without redacted ones; the stored form if the codec cannot decode them."""
    try:
        arguments = schedule.arguments
    except Exception:
        return msgspec.json.decode(schedule._payload)
    return redact_arguments(arguments, msgspec.json.encode(schedule.metadata).decode())


def _split_options(options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any] | None]:
    """Split the given options into timing options, job options and the job's arguments."""
    args = options.pop("args")
    chosen = without_none({name: value for name, value in options.items() if value is not None})
    timing = {name: chosen.pop(name) for name in TIMING_OPTIONS if name in chosen}
    return timing, chosen, None if args is None else parse_arguments(args)


def _report(session: Session, schedule: "Schedule", now: datetime) -> None:
    if session.json:
        session.print_json(as_data(schedule))
    else:
        session.print_message(
            f"The schedule {schedule.name} runs {schedule.task} {describe_timing(schedule)}: "
            f"next {_next_text(schedule, now)}."
        )
