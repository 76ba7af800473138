"""`errandry jobs`: look at jobs, and do something to them."""

import shutil
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import click
from msgspec import to_builtins

from errandry.cli import job_view
from errandry.cli.bulk_action import Action, asking, operate, rerunning
from errandry.cli.command import CliGroup
from errandry.cli.job_arguments import id_of, ids_of, query, target
from errandry.cli.param_types import AT, LENGTH, arguments, read_document
from errandry.cli.session import Session, client
from errandry.cli.text import number
from errandry.core.event import EventKind
from errandry.core.job import JobRecord

if TYPE_CHECKING:
    from errandry.api.app import Errandry

PAGE_MAX = 1_000

many = click.argument("jobs_or_query", nargs=-1, metavar="ID... | QUERY...")


under = click.option("--flow", is_flag=True, help="And all jobs that they wait for.")


@click.group(cls=CliGroup)
def jobs() -> None:
    """Look at jobs, and do something to them.

    Jobs are named by their id, by the beginning or end of it that no other job has, or all together by a
    query:

    \b
      errandry jobs ls state:failed task:send since:2h
      errandry jobs rerun state:failed 'error~connection reset'
      errandry jobs cancel queue:bulk -tag:urgent
    """


limited = click.option(
    "--limit", type=click.IntRange(1), default=50, show_default=True, help="At most so many."
)
unlimited = click.option("--all", "everything", is_flag=True, help="All of them.")


@jobs.command("ls")
@click.argument("terms", nargs=-1, metavar="[QUERY]...")
@limited
@unlimited
@client
async def ls(session: Session, app: "Errandry", terms: tuple[str, ...], limit: int, everything: bool) -> None:
    """List jobs, newest first."""
    await print_jobs(session, app, query(terms), None if everything else limit)


async def print_jobs(session: Session, app: "Errandry", text: str, limit: int | None) -> None:
    """The newest jobs that match, as many as wanted."""
    columns, now = shutil.get_terminal_size().columns, await app.now()

    def show(jobs: Sequence[JobRecord], titles: bool) -> None:
        if session.json:
            for job in jobs:
                session.data(job_view.as_data(job, app.codec))
        else:
            job_view.listed(session, jobs, now, columns, titles)

    if not await print_pages(session, app, text, limit, show, "job"):
        session.talk("No job matches." if text else "There are no jobs.")


async def print_pages(
    session: Session,
    app: "Errandry",
    text: str,
    limit: int | None,
    show: Callable[[Sequence[JobRecord], bool], None],
    noun: str,
) -> int:
    """Show the newest that match, page by page, the first one with titles; how many there were."""
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
        session.talk(f"The newest {number(shown, noun)}; there are more: --limit or --all.")
    return shown


@jobs.command("show")
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@client
async def show(session: Session, app: "Errandry", ids: tuple[str, ...]) -> None:
    """Print everything known of jobs.

    Times, attempts with tracebacks, progress, arguments, result and log.
    """
    for index, job_id in enumerate(await ids_of(app, ids)):
        job = await app.record(job_id)
        if session.json:
            session.data(job_view.as_data(job, app.codec))
            continue
        if index:
            session.print()
        job_view.in_full(session, job, app.codec, await app.now())


@jobs.command("logs")
@click.argument("job_id", metavar="ID")
@click.option("-f", "--follow", is_flag=True, help="Go on until the job has finished.")
@client
async def logs(session: Session, app: "Errandry", job_id: str, follow: bool) -> None:
    """Print what a job has logged."""
    job_id = await id_of(app, job_id)
    after = await app.latest_cursor()
    job = await app.record(job_id)
    if not job.logs:
        session.talk("Nothing was logged yet." if follow and not job.finished else "Nothing was logged.")
    _print_logs(session, job)
    if not follow or job.finished:
        return
    async for happened in app.events(after=after):
        if happened.event.job != job_id:
            continue
        if happened.event.kind is EventKind.REMOVED:
            return
        before, job = job, await app.record(job_id)
        seen = job.logs.index(before.logs[-1]) + 1 if before.logs and before.logs[-1] in job.logs else 0
        _print_logs(session, job, seen)
        if job.finished:
            session.talk(f"The job is {job.state}.")
            return


@jobs.command("steps")
@click.argument("job_id", metavar="ID")
@client
async def steps(session: Session, app: "Errandry", job_id: str) -> None:
    """Print the steps of a job.

    What it has done and need not do again, its sleeps, and the signals it waits for or was sent.
    """
    found = await app.steps(await id_of(app, job_id))
    if session.json:
        for step in found:
            session.data({**to_builtins(step), "result": job_view.read_result(step)})
    elif found:
        job_view.print_steps(session, found, await app.now())
    else:
        session.talk("It has no steps.")


@jobs.command("signal")
@click.argument("job_id", metavar="ID")
@click.argument("name")
@click.option("--json", "given", metavar="JSON", help="What comes with it; - reads it from stdin.")
@client
async def signal(session: Session, app: "Errandry", job_id: str, name: str, given: str | None) -> None:
    """Tell a job what it waits for, or will.

    The first signal of a name counts: more of them change nothing.
    """
    job_id = await id_of(app, job_id)
    payload = None if given is None else read_document("--json", given)
    is_new = await app.signal(job_id, name, payload)
    if session.json:
        session.data({"id": job_id, "signal": name, "answer": "written" if is_new else "already"})
    else:
        session.print("The job was told." if is_new else "The job had been told before: that stays.")


def _print_logs(session: Session, job: JobRecord, after: int = 0) -> None:
    if session.json:
        for line in job.logs[after:]:
            session.data(to_builtins(line))
        return
    for text in job_view.log_lines(session, job, after):
        session.print(text)


@jobs.command("cancel")
@many
@click.option("--force", is_flag=True, help="Jobs that have finished too.")
@under
@asking
@client
async def cancel(
    session: Session, app: "Errandry", jobs_or_query: tuple[str, ...], force: bool, flow: bool, **asked: bool
) -> int:
    """Stop jobs.

    At once where no handler runs, by request where one does.
    """
    action = Action(partial(app.cancel, force=force), "canceled")
    return await operate(session, app, target(jobs_or_query, flow), action, **asked)


@jobs.command("rerun")
@many
@rerunning
@click.option("--from-start", is_flag=True, help="Forget the steps they have done.")
@under
@asking
@client
async def rerun(
    session: Session,
    app: "Errandry",
    jobs_or_query: tuple[str, ...],
    flow: bool,
    yes: bool,
    dry_run: bool,
    **options: Any,
) -> int:
    """Run finished jobs again.

    With --flow their children first: a parent waits for them again. They go on after the steps they have
    done, unless these are forgotten.
    """
    action = Action(partial(app.rerun, **options), "enqueued again")
    return await operate(session, app, target(jobs_or_query, flow), action, yes=yes, dry_run=dry_run)


@jobs.command("edit")
@many
@click.option("--json", "given", metavar="OBJECT", help="All arguments anew; - reads them from stdin.")
@click.option("--priority", type=int, help="Lower is sooner.")
@click.option("--run-at", type=AT, help="When it may run.")
@click.option("--max-attempts", type=int, help="How often it is tried.")
@click.option("--queue", help="Another queue; they keep their place, by age.")
@click.option("--tag", "tags", multiple=True, help="All tags anew; may be repeated.")
@asking
@client
async def edit(
    session: Session,
    app: "Errandry",
    jobs_or_query: tuple[str, ...],
    given: str | None,
    tags: tuple[str, ...],
    yes: bool,
    dry_run: bool,
    **changes: Any,
) -> int:
    """Change jobs that no worker has taken yet.

    What is given is changed, the rest is left alone.
    """
    changes = {name: value for name, value in changes.items() if value is not None}
    if given is not None:
        changes["arguments"] = arguments(given)
    if tags:
        changes["tags"] = tags
    if not changes:
        raise click.UsageError(
            "Nothing to change: give --json, --priority, --run-at, --max-attempts, --queue or --tag."
        )
    action = Action(partial(app.edit, **changes), "changed")
    return await operate(session, app, target(jobs_or_query), action, yes=yes, dry_run=dry_run)


@jobs.command("postpone")
@many
@click.option("--delay", type=LENGTH, help="For how long, such as 5m.")
@click.option("--run-at", type=AT, help="Until when.")
@asking
@client
async def postpone(
    session: Session,
    app: "Errandry",
    jobs_or_query: tuple[str, ...],
    delay: str | None,
    run_at: str | None,
    **asked: bool,
) -> int:
    """Run jobs later that no worker has taken yet."""
    if (delay is None) == (run_at is None):
        raise click.UsageError("Until when? Give either --delay or --run-at.")
    action = Action(partial(app.postpone, delay=delay, run_at=run_at), "postponed")
    return await operate(session, app, target(jobs_or_query), action, **asked)


@jobs.command("promote")
@many
@asking
@client
async def promote(session: Session, app: "Errandry", jobs_or_query: tuple[str, ...], **asked: bool) -> int:
    """Run scheduled jobs now."""
    action = Action(app.promote, "put in line")
    return await operate(session, app, target(jobs_or_query), action, **asked)


@jobs.command("resolve")
@many
@click.option("--result", "given", metavar="JSON", help="What it came to; - reads it from stdin.")
@click.option("--failed", "message", metavar="MESSAGE", help="As failed, and why.")
@asking
@client
async def resolve(
    session: Session,
    app: "Errandry",
    jobs_or_query: tuple[str, ...],
    given: str | None,
    message: str | None,
    **asked: bool,
) -> int:
    """Settle by hand jobs that no worker has taken yet.

    As completed, with --result if they have one, or as --failed.
    """
    if given is not None and message is not None:
        raise click.UsageError("Give either --result or --failed.")
    result = None if given is None else read_document("--result", given)
    options: dict[str, Any] = {"state": "completed" if message is None else "failed"}
    options |= {"result": result, "message": message or ""}
    action = Action(partial(app.resolve, **options), f"resolved as {options['state']}")
    return await operate(session, app, target(jobs_or_query), action, **asked)


@jobs.command("rm")
@many
@click.option("--force", is_flag=True, help="Jobs that workers have, too: their claims are void.")
@under
@asking
@client
async def rm(
    session: Session, app: "Errandry", jobs_or_query: tuple[str, ...], force: bool, flow: bool, **asked: bool
) -> int:
    """Delete the records of jobs."""
    action = Action(partial(app.remove, force=force), "removed")
    return await operate(session, app, target(jobs_or_query, flow), action, **asked)
