"""`errandry why`: explain why a job is not running."""

from typing import TYPE_CHECKING

import click
from msgspec import to_builtins

from errandry.cli.command import CliCommand
from errandry.cli.job_arguments import resolve_id
from errandry.cli.job_view import COLORS
from errandry.cli.session import Session, app_command
from errandry.cli.workers import has_died, worker_records
from errandry.core.printable import one_line
from errandry.core.state import HELD_STATES

if TYPE_CHECKING:
    from errandry.api.app import Errandry


@click.command(cls=CliCommand)
@click.argument("job_id", metavar="ID")
@app_command
async def why(session: Session, jobs: "Errandry", job_id: str) -> None:
    """Explain why a job is not running, or what it is doing."""
    answer = await jobs.why(await resolve_id(jobs, job_id))
    if session.json:
        session.print_json(to_builtins(answer))
        return
    session.print(f"{one_line(answer.job)} is {session.style(answer.state, COLORS[answer.state])}.")
    for reason in answer.reasons:
        session.print(one_line(reason.text))
    if answer.state in HELD_STATES:
        holder = (await jobs.get(answer.job)).worker
        if any(record.beat.worker == holder and has_died(record) for record in await worker_records(jobs)):
            session.print("That worker is dead. Another worker's upkeep, every second, releases the job.")
