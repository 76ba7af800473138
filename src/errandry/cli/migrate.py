"""`errandry migrate`: create the store or upgrade its schema."""

from typing import TYPE_CHECKING

import click

from errandry.cli.command import CliCommand
from errandry.cli.session import Session, app_command_making_store, store_name
from errandry.core.command import Upkeep

if TYPE_CHECKING:
    from errandry.api.app import Errandry


@click.command(cls=CliCommand)
@app_command_making_store
async def migrate(session: Session, jobs: "Errandry") -> None:
    """Create the store or upgrade its schema.

    Opening a store does the same; this command also runs upkeep once.
    """
    await jobs.open()
    await jobs.engine.submit(Upkeep(limit=1))  # only the owner of the tables may drop old partitions
    if session.json:
        session.print_json({"store": store_name(jobs), "ready": True})
    else:
        session.print_message("The store is ready and up to date.")
