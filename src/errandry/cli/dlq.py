"""`errandry dlq`: the jobs that failed for good, which wait for somebody to look at them."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from errandry.cli.bulk_action import Action, asking, operate, rerunning
from errandry.cli.command import CliGroup
from errandry.cli.job_arguments import JobTarget, ids_of, query, target
from errandry.cli.jobs import limited, print_jobs, unlimited
from errandry.cli.session import Session, client
from errandry.core.state import State

if TYPE_CHECKING:
    from errandry.api.app import Errandry

some = click.argument("jobs_or_query", nargs=-1, metavar="[ID... | QUERY...]")
whole = click.option("--query", "text", metavar="QUERY", help="The query in one piece.")


@click.group(cls=CliGroup)
def dlq() -> None:
    """See to the jobs that failed for good, the dead letters.

    Without ids or a query, all of them are meant.
    """


@dlq.command("ls")
@click.argument("terms", nargs=-1, metavar="[QUERY]...")
@whole
@limited
@unlimited
@client
async def ls(
    session: Session,
    app: "Errandry",
    terms: tuple[str, ...],
    text: str | None,
    limit: int,
    everything: bool,
) -> None:
    """List jobs that failed, newest first."""
    await print_jobs(session, app, _failed([*terms, *filter(None, [text])]), None if everything else limit)


@dlq.command("rerun")
@some
@whole
@rerunning
@asking
@client
async def rerun(
    session: Session,
    app: "Errandry",
    jobs_or_query: tuple[str, ...],
    text: str | None,
    yes: bool,
    dry_run: bool,
    **options: Any,
) -> int:
    """Run failed jobs again."""
    meant = await _meant(app, jobs_or_query, text)
    action = Action(partial(app.rerun, **options), "enqueued again")
    return await operate(session, app, meant, action, yes=yes, dry_run=dry_run)


@dlq.command("purge")
@some
@whole
@asking
@client
async def purge(
    session: Session, app: "Errandry", jobs_or_query: tuple[str, ...], text: str | None, **asked: bool
) -> int:
    """Delete the records of failed jobs."""
    meant = await _meant(app, jobs_or_query, text)
    return await operate(session, app, meant, Action(app.remove, "removed"), **asked)


async def _meant(app: "Errandry", words: Sequence[str], text: str | None) -> JobTarget:
    """Failed jobs only, whatever else is said of them."""
    meant = target([*words, *filter(None, [text])]) if words or text else JobTarget(query="")
    if meant.query is not None:
        return JobTarget(query=_failed([meant.query] if meant.query else []))
    ids = await ids_of(app, meant.ids)
    for job in await app.engine.call(app.store.get, list(ids)):
        if job is not None and job.state is not State.FAILED:
            raise click.ClickException(f"job {job.id} is {job.state}, not failed: see errandry jobs")
    return JobTarget(ids=ids)


def _failed(terms: Sequence[str]) -> str:
    return f"state:failed {query(terms)}".rstrip()
