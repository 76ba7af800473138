"""`errandry prune`: finished jobs go now, not at the next upkeep."""

from typing import TYPE_CHECKING

import click

from errandry.api.archive import OVER
from errandry.cli.bulk_action import Action, asking, operate
from errandry.cli.command import CliCommand
from errandry.cli.job_arguments import JobTarget, query
from errandry.cli.session import Session, client

if TYPE_CHECKING:
    from errandry.api.app import Errandry


@click.command(cls=CliCommand)
@click.argument("terms", nargs=-1, metavar="[QUERY]...")
@asking
@client
async def prune(session: Session, jobs: "Errandry", terms: tuple[str, ...], **asked: bool) -> int:
    """Delete finished jobs that match or, without a query, whose time is over.

    Workers do the latter by themselves. With --app, what the app archives is archived first.

    \b
      errandry prune --dry-run
      errandry prune state:completed finished<1d
      errandry prune expires<+1w
    """
    meant = JobTarget(query=query(terms) if terms else OVER)
    return await operate(session, jobs, meant, Action(jobs.prune, "removed"), **asked)
