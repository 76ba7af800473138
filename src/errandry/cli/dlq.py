"""`errandry dlq`: the failed jobs (dead letters), which wait for an operator to rerun or delete them."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from errandry.cli.bulk_action import Action, apply_action, confirm_options, rerun_options
from errandry.cli.command import CliGroup
from errandry.cli.job_arguments import JobTarget, parse_target, query, resolve_ids
from errandry.cli.jobs import all_option, limit_option, print_jobs
from errandry.cli.session import Session, app_command
from errandry.core.state import State

if TYPE_CHECKING:
    from errandry.api.app import Errandry

jobs_argument = click.argument("jobs_or_query", nargs=-1, metavar="[ID... | QUERY...]")
query_option = click.option("--query", "text", metavar="QUERY", help="The query as one argument")


@click.group(cls=CliGroup)
def dlq() -> None:
    """List, rerun and delete failed jobs, the dead letters.

    Without ids or a query, the commands apply to all failed jobs.
    """


@dlq.command("ls")
@click.argument("terms", nargs=-1, metavar="[QUERY]...")
@query_option
@limit_option
@all_option
@app_command
async def ls(
    session: Session,
    app: "Errandry",
    terms: tuple[str, ...],
    text: str | None,
    limit: int,
    everything: bool,
) -> None:
    """List failed jobs, newest first."""
    await print_jobs(
        session, app, _failed_query([*terms, *filter(None, [text])]), None if everything else limit
    )


@dlq.command("rerun")
@jobs_argument
@query_option
@rerun_options
@confirm_options
@app_command
async def rerun(
    session: Session,
    app: "Errandry",
    jobs_or_query: tuple[str, ...],
    text: str | None,
    yes: bool,
    dry_run: bool,
    **options: Any,
) -> int:
    """Rerun failed jobs."""
    target = await _failed_target(app, jobs_or_query, text)
    action = Action(partial(app.rerun, **options), "enqueued again")
    return await apply_action(session, app, target, action, yes=yes, dry_run=dry_run)


@dlq.command("rm")
@jobs_argument
@query_option
@confirm_options
@app_command
async def rm(
    session: Session, app: "Errandry", jobs_or_query: tuple[str, ...], text: str | None, **confirmation: bool
) -> int:
    """Delete failed jobs."""
    target = await _failed_target(app, jobs_or_query, text)
    return await apply_action(session, app, target, Action(app.remove, "removed"), **confirmation)


async def _failed_target(app: "Errandry", words: Sequence[str], text: str | None) -> JobTarget:
    """The target, restricted to failed jobs; an error if an id names a job that has not failed."""
    target = parse_target([*words, *filter(None, [text])]) if words or text else JobTarget(query="")
    if target.query is not None:
        return JobTarget(query=_failed_query([target.query] if target.query else []))
    ids = await resolve_ids(app, target.ids)
    for job in await app.engine.call(app.store.get, list(ids)):
        if job is not None and job.state is not State.FAILED:
            raise click.ClickException(f"job {job.id} is {job.state}, not failed: use errandry jobs")
    return JobTarget(ids=ids)


def _failed_query(terms: Sequence[str]) -> str:
    return f"state:failed {query(terms)}".rstrip()
