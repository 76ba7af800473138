"""`errandry enqueue`: enqueue a job from the shell."""

from typing import TYPE_CHECKING, Any

import click

from errandry.api.unique_options import UniqueOptions
from errandry.cli import job_view
from errandry.cli.command import CliCommand
from errandry.cli.param_types import (
    DURATION,
    DURATION_OR_NONE,
    TIME,
    parse_arguments,
    parse_json,
    without_none,
)
from errandry.cli.refused_value import FieldOption
from errandry.cli.session import Session, app_command_making_store
from errandry.cli.text import ago
from errandry.core.state import TERMINAL, State
from errandry.core.unique import Conflict
from errandry.errors import UnknownTask

if TYPE_CHECKING:
    from errandry.api.app import Errandry


UNIQUE_OPTIONS = {"unique": "key", "unique_for": "scope", "on_conflict": "on_conflict"}
"""The command-line options about uniqueness, and their names in `UniqueOptions`."""


@click.command(cls=CliCommand)
@click.argument("task")
@click.option("--args", metavar="OBJECT", help='Arguments as JSON, such as {"to": "ada"}; - reads stdin')
@click.option("--queue", help="Queue of the job")
@click.option("--priority", type=int, help="Priority; lower runs first")
@click.option("--delay", type=DURATION, help="Run after this delay, such as 5m")
@click.option(
    "--run-at", type=TIME, help="Run at this time, such as 2026-01-31T08:00+01:00; UTC if no zone is given"
)
@click.option("--deadline", type=TIME, help="Fail the job if it has not started by this time")
@click.option("--max-attempts", type=int, help="Maximum number of attempts, including the first")
@click.option("--max-crashes", type=int, help="Maximum number of worker crashes while the job runs")
@click.option("--backoff", help="Delay before a retry: exponential, linear, fixed, or a duration")
@click.option("--timeout", type=DURATION_OR_NONE, help="Maximum duration of an attempt; none for no timeout")
@click.option("--keep", type=DURATION, help="How long to keep the finished job")
@click.option(
    "--keep-last",
    cls=FieldOption,
    field="keep.last",
    type=int,
    help="Number of finished jobs of the task to keep, per state",
)
@click.option(
    "--lifo", is_flag=True, default=None, help="Run before the other jobs of its priority, newest first"
)
@click.option("--group", help="Group of the job in its queue")
@click.option("--tag", "tags", multiple=True, help="Tag of the job; may be repeated")
@click.option("--metadata", metavar="OBJECT", help="Metadata as JSON")
@click.option("--unique", metavar="KEY", help="Unique key; only one job at a time can hold it")
@click.option(
    "--unique-for",
    cls=FieldOption,
    field="scope",
    metavar="SCOPE",
    help="How long the key is held: alive, ever, a duration, or second, minute, hour, day, week, month; "
    "without --unique, the key is a hash of the arguments",
)
@click.option(
    "--on-conflict",
    type=click.Choice([conflict.value for conflict in Conflict]),
    help="If the key is held: return that job's id, fail, or replace its arguments",
)
@click.option("--id", help="Id of the job; enqueueing the same id again adds no second job")
@app_command_making_store
async def enqueue(
    session: Session,
    jobs: "Errandry",
    task: str,
    args: str | None,
    tags: tuple[str, ...],
    metadata: str | None,
    **options: Any,
) -> None:
    """Enqueue a job of TASK and print its id.

    With --app, the app must declare the task, and the arguments are checked against its handler. Without an
    app, the worker checks them. --json prints the whole record.
    """
    if session.app is not None and task not in jobs.tasks:
        raise UnknownTask(task, tuple(sorted(jobs.tasks)))
    chosen = without_none({name: value for name, value in options.items() if value is not None})
    if unique := {name: chosen.pop(option) for option, name in UNIQUE_OPTIONS.items() if option in chosen}:
        chosen["unique"] = UniqueOptions(**unique)
    if (last := chosen.pop("keep_last", None)) is not None:
        spans = dict.fromkeys(map(str, TERMINAL), chosen["keep"]) if "keep" in chosen else {}
        chosen["keep"] = {**spans, "last": last}
    if tags:
        chosen["tags"] = tags
    if metadata is not None:
        chosen["metadata"] = parse_json("--metadata", metadata)
    job = await jobs.enqueue(task, {} if args is None else parse_arguments(args), **chosen)
    if session.json:
        session.print_json(job_view.as_data(await job.refresh()))
        return
    session.print(job.id)
    stored = job.record
    due = f", to run {ago(stored.run_at, jobs.clock.time())}" if stored.state is State.SCHEDULED else ""
    known = " The job existed already." if job.existed and not job.replaced else ""
    changed = " The job existed already; its arguments were replaced." if job.replaced else ""
    session.print_message(f"{stored.task} is {stored.state} in queue {stored.queue}{due}.{known}{changed}")
