"""`errandry migrate`: create the store or upgrade its schema."""

from typing import TYPE_CHECKING

import click

from errandry.cli.command import CliCommand
from errandry.cli.session import Session, app_command_making_store, store_name
from errandry.core.command import Upkeep
from errandry.store.contract import SchemaChange

if TYPE_CHECKING:
    from errandry.api.app import Errandry


@click.command(cls=CliCommand)
@app_command_making_store
async def migrate(session: Session, jobs: "Errandry") -> None:
    """Create the store or upgrade its schema.

    Opening a store does the same; this command also runs upkeep once, and says what was done.
    """
    await jobs.open()
    await jobs.engine.submit(Upkeep(limit=1))  # only the owner of the tables may drop old partitions
    change = jobs.store.schema_change
    if session.json:
        versions = (
            {"from": None, "to": None} if change is None else {"from": change.before, "to": change.after}
        )
        session.print_json({"store": store_name(jobs), "ready": True, **versions})
    else:
        session.print_message(_change_text(change))


def _change_text(change: SchemaChange | None) -> str:
    if change is None:
        return "The store has no schema: there is nothing to migrate."
    if change.before == change.after:
        return f"The store is up to date: schema {change.after}."
    if not change.before:
        return f"The store was created with schema {change.after}."
    return f"The store was upgraded from schema {change.before} to schema {change.after}."
