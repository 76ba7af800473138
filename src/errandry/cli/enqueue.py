"""`errandry enqueue`: a job from the shell."""

from typing import TYPE_CHECKING, Any

import click

from errandry.api.unique_options import UniqueOptions
from errandry.cli import job_view
from errandry.cli.command import CliCommand
from errandry.cli.param_types import AT, LENGTH, arguments, read_document
from errandry.cli.session import Session, maker
from errandry.cli.text import ago
from errandry.core.state import TERMINAL, State
from errandry.core.unique import Conflict
from errandry.errors import UnknownTask

if TYPE_CHECKING:
    from errandry.api.app import Errandry


UNIQUE = {"unique": "key", "unique_for": "scope", "on_conflict": "on_conflict"}


@click.command(cls=CliCommand)
@click.argument("task")
@click.option("--json", "given", metavar="OBJECT", help='The arguments: {"to": "ada"}; - reads stdin.')
@click.option("--queue", help="The queue it goes to.")
@click.option("--priority", type=int, help="Lower is sooner.")
@click.option("--delay", type=LENGTH, help="Run it after so long, such as 5m.")
@click.option(
    "--run-at", type=AT, help="Run it then, such as 2026-01-31T08:00+01:00; UTC if no zone is named."
)
@click.option("--deadline", type=AT, help="Do not begin it after this; it fails then.")
@click.option("--max-attempts", type=int, help="How often it is tried.")
@click.option("--max-crashes", type=int, help="How often its worker may die of it.")
@click.option("--backoff", help="How long before a retry: exponential, linear, fixed, or a duration.")
@click.option("--timeout", type=LENGTH, help="How long an attempt may take.")
@click.option("--keep", type=LENGTH, help="How long it is kept when it has finished.")
@click.option("--keep-last", type=int, help="How many finished jobs of the task are kept, of each state.")
@click.option("--order", type=click.Choice(["fifo", "lifo"]), help="Behind or before others of its priority.")
@click.option("--group", help="The group it belongs to.")
@click.option("--tag", "tags", multiple=True, help="A tag; may be repeated.")
@click.option("--metadata", metavar="OBJECT", help="What else to keep with it, as JSON.")
@click.option("--unique", metavar="KEY", help="Only one job at a time has this key.")
@click.option(
    "--unique-for",
    metavar="SCOPE",
    help="How long: alive, ever, a duration, or hour, day, week, month. A key may be made of the arguments.",
)
@click.option(
    "--on-conflict",
    type=click.Choice([one.value for one in Conflict]),
    help="If there is one: print its id, fail, or have it do this instead.",
)
@click.option("--id", help="Its id: enqueued again under it, it is the same job.")
@maker
async def enqueue(
    session: Session,
    jobs: "Errandry",
    task: str,
    given: str | None,
    tags: tuple[str, ...],
    metadata: str | None,
    **options: Any,
) -> None:
    """Enqueue a job of TASK and print its id.

    With --app the task must be one of the app's, and the arguments are checked as its handler declares
    them. Without an app the job is enqueued by name; the worker checks it. To get the whole record as
    JSON, write `errandry --json enqueue …`.
    """
    if session.app is not None and task not in jobs.tasks:
        raise UnknownTask(task, tuple(sorted(jobs.tasks)))
    chosen = {name: value for name, value in options.items() if value is not None}
    if unique := {name: chosen.pop(option) for option, name in UNIQUE.items() if option in chosen}:
        chosen["unique"] = UniqueOptions(**unique)
    if (last := chosen.pop("keep_last", None)) is not None:
        spans = dict.fromkeys(map(str, TERMINAL), chosen["keep"]) if "keep" in chosen else {}
        chosen["keep"] = {**spans, "last": last}
    if tags:
        chosen["tags"] = tags
    if metadata is not None:
        chosen["metadata"] = read_document("--metadata", metadata)
    job = await jobs.enqueue(task, {} if given is None else arguments(given), **chosen)
    if session.json:
        session.data(job_view.as_data((await job.refresh()).record, jobs.codec))
        return
    session.print(job.id)
    stored = job.record
    due = f", to run {ago(stored.run_at, jobs.clock.time())}" if stored.state is State.SCHEDULED else ""
    known = " It was there already." if job.existed and not job.replaced else ""
    changed = " It was there already, and has got these arguments." if job.replaced else ""
    session.talk(f"{stored.task} is {stored.state} in queue {stored.queue}{due}.{known}{changed}")
