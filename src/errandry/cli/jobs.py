"""`errandry jobs`: list, inspect and change jobs."""

import shutil
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from errandry.cli import job_view
from errandry.cli.bulk_action import Action, apply_action, confirm_options, rerun_options
from errandry.cli.command import CliGroup
from errandry.cli.job_arguments import parse_target, query, resolve_id, resolve_ids
from errandry.cli.param_types import DURATION, TIME, WholeNumber, parse_arguments, parse_json
from errandry.cli.session import Session, app_command, store_time
from errandry.cli.text import pluralize
from errandry.core.duration import as_datetime
from errandry.core.event import EventKind
from errandry.core.job import JobRecord

if TYPE_CHECKING:
    from errandry.api.app import Errandry
    from errandry.api.job import Job

PAGE_MAX = 1_000
"""Maximum number of jobs read at once."""

jobs_argument = click.argument("jobs_or_query", nargs=-1, metavar="ID... | QUERY...")


flow_option = click.option("--flow", is_flag=True, help="Include all jobs that they wait for")


@click.group(cls=CliGroup)
def jobs() -> None:
    """List, inspect and change jobs.

    Name jobs by id, by the unique beginning or end of an id, or select many of them by a query:

    \b
      errandry jobs ls state:failed task:send since:2h
      errandry jobs rerun state:failed 'error~connection reset'
      errandry jobs cancel queue:bulk -tag:urgent
    """


limit_option = click.option(
    "--limit",
    type=WholeNumber(1),
    metavar="N",
    default=50,
    show_default=True,
    help="Maximum number of jobs",
)
all_option = click.option("--all", "everything", is_flag=True, help="No limit")


@jobs.command("ls")
@click.argument("terms", nargs=-1, metavar="[QUERY]...")
@limit_option
@all_option
@app_command
async def ls(session: Session, app: "Errandry", terms: tuple[str, ...], limit: int, everything: bool) -> None:
    """List jobs, newest first."""
    await print_jobs(session, app, query(terms), None if everything else limit)


async def print_jobs(session: Session, app: "Errandry", text: str, limit: int | None) -> None:
    """Print the newest jobs that match the query, at most `limit`."""
    columns, now = shutil.get_terminal_size().columns, await store_time(app)

    def show(jobs: "Sequence[Job[Any]]", titles: bool) -> None:
        if session.json:
            for job in jobs:
                session.print_json(job_view.as_data(job))
        else:
            job_view.print_jobs(session, [job.record for job in jobs], now, columns, titles)

    if not await print_pages(session, app, text, limit, show, "job"):
        session.print_message("No job matches." if text else "There are no jobs.")


async def print_pages(
    session: Session,
    app: "Errandry",
    text: str,
    limit: int | None,
    show: "Callable[[Sequence[Job[Any]], bool], None]",
    noun: str,
) -> int:
    """Call `show` with pages of the newest matching jobs, the first with titles. Return their number."""
    cursor, shown = None, 0
    while True:
        size = PAGE_MAX if limit is None else min(PAGE_MAX, limit - shown)
        page = await app.list(text, cursor=cursor, limit=size)
        if page.jobs:
            show(page.jobs, not shown)
        cursor, shown = page.cursor, shown + len(page.jobs)
        if cursor is None or shown == limit:
            break
    if cursor is not None:
        session.print_message(f"Showing the newest {pluralize(shown, noun)}; for more, use --limit or --all.")
    return shown


@jobs.command("show")
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@app_command
async def show(session: Session, app: "Errandry", ids: tuple[str, ...]) -> None:
    """Print everything known about jobs.

    Prints times, attempts with tracebacks, progress, arguments, result and log.
    """
    for index, job_id in enumerate(await resolve_ids(app, ids)):
        job = await app.get(job_id)
        if session.json:
            session.print_json(job_view.as_data(job))
            continue
        if index:
            session.print()
        job_view.print_job(session, job.record, app.codec, await store_time(app))


@jobs.command("logs")
@click.argument("job_id", metavar="ID")
@click.option("-f", "--follow", is_flag=True, help="Keep printing until the job has finished")
@app_command
async def logs(session: Session, app: "Errandry", job_id: str, follow: bool) -> None:
    """Print the log of a job."""
    job_id = await resolve_id(app, job_id)
    after = await app.latest_cursor()
    job = await app.client.record(job_id)
    if not job.logs:
        session.print_message(
            "The log is empty so far." if follow and not job.finished else "The log is empty."
        )
    _print_logs(session, job)
    if not follow or job.finished:
        return
    async for event in app.events(after=after):
        if event.job != job_id:
            continue
        if event.kind is EventKind.REMOVED:
            return
        before, job = job, await app.client.record(job_id)
        seen = job.logs.index(before.logs[-1]) + 1 if before.logs and before.logs[-1] in job.logs else 0
        _print_logs(session, job, seen)
        if job.finished:
            session.print_message(f"The job is {job.state}.")
            return


@jobs.command("steps")
@click.argument("job_id", metavar="ID")
@app_command
async def steps(session: Session, app: "Errandry", job_id: str) -> None:
    """Print the steps of a job.

    These are completed steps, which a retry does not repeat, sleeps, and signals.
    """
    job_steps = await app.steps(await resolve_id(app, job_id))
    if session.json:
        for step in job_steps:
            session.print_json(step)
    elif job_steps:
        job_view.print_steps(session, job_steps, await app.now())
    else:
        session.print_message("The job has no steps.")


@jobs.command("signal")
@click.argument("job_id", metavar="ID")
@click.argument("name")
@click.option("--payload", metavar="JSON", help="Payload of the signal as JSON; - reads stdin")
@app_command
async def signal(session: Session, app: "Errandry", job_id: str, name: str, payload: str | None) -> None:
    """Send a signal to a job.

    The job may wait for it now or later. Only the first signal of each name counts.
    """
    job_id = await resolve_id(app, job_id)
    value = None if payload is None else parse_json("--payload", payload)
    is_new = await app.signal(job_id, name, value)
    if session.json:
        session.print_json({"id": job_id, "signal": name, "answer": "written" if is_new else "already"})
    else:
        session.print("Signal sent." if is_new else "The job has this signal already; the first one counts.")


def _print_logs(session: Session, job: JobRecord, after: int = 0) -> None:
    if session.json:
        for line in job.logs[after:]:
            session.print_json({"at": as_datetime(line.at), "text": line.text, "level": line.level})
        return
    for text in job_view.log_lines(session, job, after):
        session.print(text)


@jobs.command("cancel")
@jobs_argument
@click.option("--force", is_flag=True, help="Cancel finished jobs too")
@click.option("--no-children", is_flag=True, help="Leave the jobs that they wait for alone")
@flow_option
@confirm_options
@app_command
async def cancel(
    session: Session,
    app: "Errandry",
    jobs_or_query: tuple[str, ...],
    force: bool,
    no_children: bool,
    flow: bool,
    **confirmation: bool,
) -> int:
    """Cancel jobs.

    A job without a running handler is canceled at once; a running handler is asked to stop. The jobs that a
    canceled one waits for are canceled too.
    """
    action = Action(partial(app.cancel, force=force, children=not no_children), "canceled")
    return await apply_action(session, app, parse_target(jobs_or_query, flow), action, **confirmation)


@jobs.command("rerun")
@jobs_argument
@rerun_options
@click.option("--from-start", is_flag=True, help="Repeat completed steps too")
@flow_option
@confirm_options
@app_command
async def rerun(
    session: Session,
    app: "Errandry",
    jobs_or_query: tuple[str, ...],
    flow: bool,
    yes: bool,
    dry_run: bool,
    **options: Any,
) -> int:
    """Rerun finished jobs.

    With --flow, their children run first, and parents wait for them again. Jobs with steps continue after the
    last completed step, unless --from-start is given.
    """
    action = Action(partial(app.rerun, **options), "enqueued again")
    return await apply_action(
        session, app, parse_target(jobs_or_query, flow), action, yes=yes, dry_run=dry_run
    )


@jobs.command("edit")
@jobs_argument
@click.option("--args", metavar="OBJECT", help="Replace all arguments; - reads stdin")
@click.option("--priority", type=int, help="Priority; lower runs first")
@click.option("--run-at", type=TIME, help="Earliest time to run")
@click.option("--max-attempts", type=int, help="Maximum number of attempts, including the first")
@click.option("--queue", help="Move to this queue; jobs keep their place by age")
@click.option("--tag", "tags", multiple=True, help="Replace all tags; may be repeated")
@confirm_options
@app_command
async def edit(
    session: Session,
    app: "Errandry",
    jobs_or_query: tuple[str, ...],
    args: str | None,
    tags: tuple[str, ...],
    yes: bool,
    dry_run: bool,
    **changes: Any,
) -> int:
    """Change jobs that no worker has claimed.

    Only the given options are changed.
    """
    changes = {name: value for name, value in changes.items() if value is not None}
    if args is not None:
        changes["arguments"] = parse_arguments(args)
    if tags:
        changes["tags"] = tags
    if not changes:
        raise click.UsageError(
            "Nothing to change: give --args, --priority, --run-at, --max-attempts, --queue or --tag."
        )
    action = Action(partial(app.edit, **changes), "changed")
    return await apply_action(session, app, parse_target(jobs_or_query), action, yes=yes, dry_run=dry_run)


@jobs.command("postpone")
@jobs_argument
@click.option("--delay", type=DURATION, help="Run after this delay, such as 5m")
@click.option("--run-at", type=TIME, help="Run at this time")
@confirm_options
@app_command
async def postpone(
    session: Session,
    app: "Errandry",
    jobs_or_query: tuple[str, ...],
    delay: str | None,
    run_at: str | None,
    **confirmation: bool,
) -> int:
    """Postpone jobs that no worker has claimed."""
    if (delay is None) == (run_at is None):
        raise click.UsageError("Give either --delay or --run-at.")
    action = Action(partial(app.postpone, delay=delay, run_at=run_at), "postponed")
    return await apply_action(session, app, parse_target(jobs_or_query), action, **confirmation)


@jobs.command("promote")
@jobs_argument
@confirm_options
@app_command
async def promote(
    session: Session, app: "Errandry", jobs_or_query: tuple[str, ...], **confirmation: bool
) -> int:
    """Run scheduled jobs now."""
    action = Action(app.promote, "promoted")
    return await apply_action(session, app, parse_target(jobs_or_query), action, **confirmation)


@jobs.command("resolve")
@jobs_argument
@click.option("--result", "given", metavar="JSON", help="Complete with this result; - reads stdin")
@click.option("--failed", "message", metavar="MESSAGE", help="Mark as failed, with this message")
@confirm_options
@app_command
async def resolve(
    session: Session,
    app: "Errandry",
    jobs_or_query: tuple[str, ...],
    given: str | None,
    message: str | None,
    **confirmation: bool,
) -> int:
    """Mark jobs as completed or failed without running them.

    This works only for jobs that no worker has claimed. They are completed unless --failed is given.
    """
    if given is not None and message is not None:
        raise click.UsageError("Give either --result or --failed.")
    result = None if given is None else parse_json("--result", given)
    options: dict[str, Any] = {"state": "completed" if message is None else "failed"}
    options |= {"result": result, "message": message or ""}
    action = Action(partial(app.resolve, **options), f"resolved as {options['state']}")
    return await apply_action(session, app, parse_target(jobs_or_query), action, **confirmation)


@jobs.command("rm")
@jobs_argument
@click.option(
    "--force", is_flag=True, help="Delete claimed and running jobs too; their workers lose the claim"
)
@flow_option
@confirm_options
@app_command
async def rm(
    session: Session,
    app: "Errandry",
    jobs_or_query: tuple[str, ...],
    force: bool,
    flow: bool,
    **confirmation: bool,
) -> int:
    """Delete jobs."""
    action = Action(partial(app.remove, force=force), "removed")
    return await apply_action(session, app, parse_target(jobs_or_query, flow), action, **confirmation)
