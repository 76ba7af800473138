"""`errandry queues drain`, `clean`, `rerun`, `promote`, `move` and `obliterate`: all jobs of a queue at once.

Each goes slice by slice. One that was interrupted is begun again, and goes on with what is left.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import click

from errandry.api.queue import FINISHED, UNTAKEN
from errandry.cli.bulk_action import Action, asking, bar, confirm, operate, report, rerunning
from errandry.cli.command import CliCommand
from errandry.cli.job_arguments import JobTarget, query
from errandry.cli.param_types import LENGTH
from errandry.cli.session import Session, client
from errandry.cli.text import number
from errandry.core.state import State
from errandry.errors import QueueInUse

if TYPE_CHECKING:
    from errandry.api.app import Errandry

F = TypeVar("F", bound=Callable[..., Any])
queue = click.argument("name", metavar="QUEUE")
terms = click.argument("terms", nargs=-1, metavar="[QUERY]...")


def in_states(choice: tuple[State, ...]) -> Callable[[F], F]:
    names = click.Choice([str(state) for state in choice])
    return click.option("--state", "states", multiple=True, type=names, help="Only these; may be repeated.")


@click.command("drain", cls=CliCommand)
@queue
@in_states(UNTAKEN)
@asking
@client
async def drain(session: Session, jobs: "Errandry", name: str, states: tuple[str, ...], **asked: bool) -> int:
    """Delete the jobs of a queue that no worker has taken.

    Those that wait, are scheduled or are blocked. What runs goes on.
    """
    meant = JobTarget(query=jobs.queue(name).query(*(states or UNTAKEN)))
    return await operate(session, jobs, meant, Action(jobs.remove, "removed"), **asked)


@click.command("clean", cls=CliCommand)
@queue
@in_states((*FINISHED, *UNTAKEN))
@click.option("--older", type=LENGTH, default="0", help="Only what finished so long ago, such as 7d.")
@asking
@client
async def clean(
    session: Session, jobs: "Errandry", name: str, states: tuple[str, ...], older: str, **asked: bool
) -> int:
    """Delete the finished jobs of a queue.

    With states that are not finished, jobs that were created so long ago.
    """
    meant = JobTarget(query=await jobs.queue(name).old(*(states or FINISHED), older=older))
    return await operate(session, jobs, meant, Action(jobs.remove, "removed"), **asked)


@click.command("rerun", cls=CliCommand)
@queue
@terms
@rerunning
@asking
@client
async def rerun(
    session: Session,
    jobs: "Errandry",
    name: str,
    terms: tuple[str, ...],
    yes: bool,
    dry_run: bool,
    **options: Any,
) -> int:
    """Run the failed jobs of a queue again, all or those that match."""
    meant = JobTarget(query=jobs.queue(name).query(State.FAILED, more=query(terms)))
    action = Action(partial(jobs.rerun, **options), "enqueued again")
    return await operate(session, jobs, meant, action, yes=yes, dry_run=dry_run)


@click.command("promote", cls=CliCommand)
@queue
@terms
@asking
@client
async def promote(
    session: Session, jobs: "Errandry", name: str, terms: tuple[str, ...], **asked: bool
) -> int:
    """Run the scheduled jobs of a queue now, all or those that match."""
    meant = JobTarget(query=jobs.queue(name).query(State.SCHEDULED, more=query(terms)))
    return await operate(session, jobs, meant, Action(jobs.promote, "put in line"), **asked)


@click.command("move", cls=CliCommand)
@click.argument("name", metavar="FROM")
@click.argument("to", metavar="TO")
@terms
@asking
@client
async def move(
    session: Session, jobs: "Errandry", name: str, to: str, terms: tuple[str, ...], **asked: bool
) -> int:
    """Put jobs that no worker has taken into another queue, all or those that match.

    They keep their priority and their place in line, by age.
    """
    meant = JobTarget(query=jobs.queue(name).query(*UNTAKEN, more=query(terms)))
    action = Action(partial(jobs.edit, queue=to), f"moved to {to}")
    return await operate(session, jobs, meant, action, **asked)


@click.command("obliterate", cls=CliCommand)
@queue
@click.option("--force", is_flag=True, help="Though workers have jobs of it: their claims are void.")
@asking
@client
async def obliterate(
    session: Session, jobs: "Errandry", name: str, force: bool, yes: bool, dry_run: bool
) -> int:
    """Delete a queue with all its jobs and rules.

    Refused while workers have jobs of it. It is paused meanwhile; if this is interrupted it stays paused, and
    the same command goes on.
    """
    one = jobs.queue(name)
    held, total = await one.held(), sum((await jobs.counts()).get(name, {}).values())
    if held and not force:
        raise QueueInUse(name, held)
    if dry_run:
        action = Action(partial(jobs.remove, force=force), "removed")
        return await operate(session, jobs, JobTarget(query=one.query()), action, yes=yes, dry_run=True)
    await confirm(session, f"The queue {name} and its {number(total, 'job')} will be removed.", yes)
    with bar(session, total) as advance:
        moved = await one.obliterate(force=force, progress=advance)
    return report(session, moved, "removed", len(moved.moved))


BULK = (drain, clean, rerun, promote, move, obliterate)
