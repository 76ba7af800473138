"""`errandry prune`: delete finished jobs now, not at the next upkeep."""

from typing import TYPE_CHECKING

import click

from errandry.api.archive import PRUNABLE_QUERY
from errandry.cli.bulk_action import Action, apply_action, confirm_options
from errandry.cli.command import CliCommand
from errandry.cli.job_arguments import JobTarget, query
from errandry.cli.session import Session, app_command

if TYPE_CHECKING:
    from errandry.api.app import Errandry


@click.command(cls=CliCommand)
@click.argument("terms", nargs=-1, metavar="[QUERY]...")
@confirm_options
@app_command
async def prune(session: Session, jobs: "Errandry", terms: tuple[str, ...], **confirmation: bool) -> int:
    """Delete finished jobs that match a query or, without one, whose retention has expired.

    Workers delete expired jobs by themselves. With --app, the app's archive function gets the jobs first.

    \b
      errandry prune --dry-run
      errandry prune state:completed 'finished<1d'
      errandry prune 'expires<+1w'
    """
    target = JobTarget(query=query(terms) if terms else PRUNABLE_QUERY)
    return await apply_action(session, jobs, target, Action(jobs.prune, "removed"), **confirmation)
