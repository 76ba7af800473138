"""`errandry queues purge`, `clean`, `rerun`, `promote`, `move` and `obliterate`: change all jobs of a queue.

Each works slice by slice. An interrupted command can be run again; it continues with the remaining jobs.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import click

from errandry.api.queue import FINISHED_STATES, UNCLAIMED_STATES, clean_query
from errandry.cli.bulk_action import (
    Action,
    apply_action,
    confirm,
    confirm_options,
    progress_bar,
    report,
    rerun_options,
)
from errandry.cli.command import CliCommand
from errandry.cli.job_arguments import JobTarget, query
from errandry.cli.param_types import DURATION
from errandry.cli.session import Session, app_command
from errandry.cli.text import pluralize
from errandry.core.state import State
from errandry.errors import QueueInUse

if TYPE_CHECKING:
    from errandry.api.app import Errandry

F = TypeVar("F", bound=Callable[..., Any])
queue_argument = click.argument("name", metavar="QUEUE")
query_argument = click.argument("terms", nargs=-1, metavar="[QUERY]...")


def state_option(choice: tuple[State, ...]) -> Callable[[F], F]:
    names = click.Choice([str(state) for state in choice])
    return click.option(
        "--state", "states", multiple=True, type=names, help="Only jobs in this state; may be repeated"
    )


@click.command("purge", cls=CliCommand)
@queue_argument
@state_option(UNCLAIMED_STATES)
@confirm_options
@app_command
async def purge(
    session: Session, jobs: "Errandry", name: str, states: tuple[str, ...], **confirmation: bool
) -> int:
    """Delete the jobs of a queue that no worker has claimed.

    These are waiting, scheduled and blocked jobs. Running jobs continue.
    """
    target = JobTarget(query=jobs.queue(name).query(*(states or UNCLAIMED_STATES)))
    return await apply_action(session, jobs, target, Action(jobs.remove, "removed"), **confirmation)


@click.command("clean", cls=CliCommand)
@queue_argument
@state_option((*FINISHED_STATES, *UNCLAIMED_STATES))
@click.option(
    "--older", type=DURATION, default="0", help="Only jobs that finished before this age, such as 7d"
)
@confirm_options
@app_command
async def clean(
    session: Session, jobs: "Errandry", name: str, states: tuple[str, ...], older: str, **confirmation: bool
) -> int:
    """Delete the finished jobs of a queue.

    --state can also name waiting, scheduled and blocked jobs; for these, --older counts from their creation.
    """
    target = JobTarget(query=clean_query(jobs.queue(name), states, older, await jobs.now()))
    return await apply_action(session, jobs, target, Action(jobs.remove, "removed"), **confirmation)


@click.command("rerun", cls=CliCommand)
@queue_argument
@query_argument
@rerun_options
@confirm_options
@app_command
async def rerun(
    session: Session,
    jobs: "Errandry",
    name: str,
    terms: tuple[str, ...],
    yes: bool,
    dry_run: bool,
    **options: Any,
) -> int:
    """Rerun the failed jobs of a queue.

    With a query, only the matching ones.
    """
    target = JobTarget(query=jobs.queue(name).query(State.FAILED, more=query(terms)))
    action = Action(partial(jobs.rerun, **options), "enqueued again")
    return await apply_action(session, jobs, target, action, yes=yes, dry_run=dry_run)


@click.command("promote", cls=CliCommand)
@queue_argument
@query_argument
@confirm_options
@app_command
async def promote(
    session: Session, jobs: "Errandry", name: str, terms: tuple[str, ...], **confirmation: bool
) -> int:
    """Run the scheduled jobs of a queue now.

    With a query, only the matching ones.
    """
    target = JobTarget(query=jobs.queue(name).query(State.SCHEDULED, more=query(terms)))
    return await apply_action(session, jobs, target, Action(jobs.promote, "promoted"), **confirmation)


@click.command("move", cls=CliCommand)
@click.argument("name", metavar="FROM")
@click.argument("to", metavar="TO")
@query_argument
@confirm_options
@app_command
async def move(
    session: Session, jobs: "Errandry", name: str, to: str, terms: tuple[str, ...], **confirmation: bool
) -> int:
    """Move jobs from one queue to another.

    Moves all jobs that no worker has claimed or, with a query, the matching ones. They keep their priority
    and, by age, their place in the queue.
    """
    target = JobTarget(query=jobs.queue(name).query(*UNCLAIMED_STATES, more=query(terms)))
    action = Action(partial(jobs.edit, queue=to), f"moved to {to}")
    return await apply_action(session, jobs, target, action, **confirmation)


@click.command("obliterate", cls=CliCommand)
@queue_argument
@click.option(
    "--force", is_flag=True, help="Delete claimed and running jobs too; their workers lose the claim"
)
@confirm_options
@app_command
async def obliterate(
    session: Session, jobs: "Errandry", name: str, force: bool, yes: bool, dry_run: bool
) -> int:
    """Delete a queue with all its jobs and rules.

    Refused while workers hold jobs of the queue. The queue is paused during the command. If the command is
    interrupted, the queue stays paused; run the command again to continue.
    """
    queue = jobs.queue(name)
    held, total = await queue.held_count(), sum((await jobs.counts()).get(name, {}).values())
    if held and not force:
        raise QueueInUse(name, held)
    if dry_run:
        action = Action(partial(jobs.remove, force=force), "removed")
        return await apply_action(
            session, jobs, JobTarget(query=queue.query()), action, yes=yes, dry_run=True
        )
    await confirm(session, f"The queue {name} and its {pluralize(total, 'job')} will be removed.", yes)
    with progress_bar(session, total) as advance:
        moved = await queue.obliterate(force=force, progress=advance)
    return report(session, moved, "removed", len(moved.moved))


BULK_COMMANDS = (purge, clean, rerun, promote, move, obliterate)
