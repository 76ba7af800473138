"""`errandry migrate`: make the store, or bring it up to date."""

from typing import TYPE_CHECKING

import click

from errandry.cli.command import CliCommand
from errandry.cli.session import Session, maker
from errandry.core.command import Upkeep

if TYPE_CHECKING:
    from errandry.api.app import Errandry


@click.command(cls=CliCommand)
@maker
async def migrate(session: Session, jobs: "Errandry") -> None:
    """Make the store, or bring its schema up to date. Opening a store does the same, but for tidying up."""
    await jobs.open()
    await jobs.engine.submit(Upkeep(limit=1))  # the owner of the tables may remove what no worker may
    if session.json:
        session.data({"store": jobs.display_url, "ready": True})
    else:
        session.talk("The store is ready and up to date.")
