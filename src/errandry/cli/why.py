"""`errandry why`: why a job is not running."""

from typing import TYPE_CHECKING

import click
from msgspec import to_builtins

from errandry.cli.command import CliCommand
from errandry.cli.job_arguments import id_of
from errandry.cli.job_view import COLORS
from errandry.cli.session import Session, client
from errandry.cli.text import one_line
from errandry.cli.workers import is_gone
from errandry.core.state import HELD_STATES

if TYPE_CHECKING:
    from errandry.api.app import Errandry


@click.command(cls=CliCommand)
@click.argument("job_id", metavar="ID")
@client
async def why(session: Session, jobs: "Errandry", job_id: str) -> None:
    """Say why a job is not running, or what else it is doing."""
    answer = await jobs.why(await id_of(jobs, job_id))
    if session.json:
        session.data(to_builtins(answer))
        return
    session.print(f"{one_line(answer.job)} is {session.style(answer.state, COLORS[answer.state])}.")
    for because in answer.reasons:
        session.print(one_line(because.text))
    if answer.state in HELD_STATES:
        holder = (await jobs.record(answer.job)).worker
        if any(info.beat.worker == holder and is_gone(info) for info in await jobs.workers()):
            session.print("That worker is dead: the next that looks, every second, gives the job to another.")
