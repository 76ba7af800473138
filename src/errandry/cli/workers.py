"""`errandry workers`: who works, and a halt for one of them."""

import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click
from msgspec import to_builtins

from errandry.cli import pausing, table
from errandry.cli.command import CliGroup
from errandry.cli.session import Session, client
from errandry.cli.table import Cell, Column
from errandry.cli.text import ago
from errandry.core.command import Beat, WorkerInfo
from errandry.core.why import SILENT_AFTER
from errandry.errors import shown
from errandry.worker.liveness import is_dead

if TYPE_CHECKING:
    from errandry.api.app import Errandry

several = click.argument("parts", nargs=-1, metavar="[WORKER]...")
every = click.option("--all", "everyone", is_flag=True, help="All of them.")


@click.group(cls=CliGroup)
def workers() -> None:
    """See who works; pause and resume workers."""


@workers.command("ls")
@client
async def ls(session: Session, jobs: "Errandry") -> None:
    """List the workers that have been heard of lately."""
    found, now = await jobs.workers(), await jobs.now()
    if session.json:
        for info in found:
            session.data(to_builtins(info))
        return
    if not found:
        session.talk("No worker is running.")
        return
    heads = [Column("WORKER"), Column("STATUS"), Column("BUSY", right=True), Column("QUEUES", gives=True)]
    heads += [Column("TASKS", gives=True), Column("STARTED"), Column("SEEN")]
    rows = [
        (
            info.beat.worker,
            status(info, now),
            busy(info.beat),
            "all" if info.beat.queues is None else ", ".join(info.beat.queues),
            "all" if info.beat.tasks is None else ", ".join(info.beat.tasks),
            ago(info.beat.started_at, now),
            ago(info.seen_at, now),
        )
        for info in found
    ]
    table.show(session, heads, rows)
    for info in found:
        if info.paused is not None:
            session.talk(f"{info.beat.worker} was paused {pausing.said(info.paused, now)}.")


def status(info: WorkerInfo, now: float) -> Cell:
    if is_gone(info):
        return Cell("dead", "red")
    if now - info.seen_at > SILENT_AFTER:
        return Cell("silent", "red")
    return Cell("working", "green") if info.paused is None else Cell("paused", "yellow")


def is_gone(info: WorkerInfo) -> bool:
    """Whether it is known to be dead: only of workers on this host, whose lock files can be tried."""
    return info.beat.host == socket.gethostname() and is_dead(info.beat.alive)


def busy(beat: Beat) -> str:
    slots = beat.concurrency + sum(share.slots for share in beat.shares)
    return f"{beat.running}/{slots}"


@workers.command("pause")
@several
@every
@click.option("--by", help="Who wants it; you, without it.")
@client
async def pause(
    session: Session, jobs: "Errandry", parts: tuple[str, ...], everyone: bool, by: str | None
) -> None:
    """Have workers claim no more jobs.

    Until they are resumed. What they run goes on.
    """
    for worker in await _meant(jobs, parts, everyone):
        await pausing.pause(session, jobs.worker(worker), by)


@workers.command("resume")
@several
@every
@client
async def resume(session: Session, jobs: "Errandry", parts: tuple[str, ...], everyone: bool) -> None:
    """Undo a pause."""
    for worker in await _meant(jobs, parts, everyone):
        await pausing.resume(session, jobs.worker(worker))


async def _meant(jobs: "Errandry", parts: Sequence[str], everyone: bool) -> list[str]:
    """The workers with these in their names, one for each."""
    known = [info.beat.worker for info in await jobs.workers()]
    if everyone:
        return known
    if not parts:
        raise click.UsageError("Which? Name workers, by a part of their id, or write --all.")
    found = []
    for part in parts:
        fits = [worker for worker in known if part in worker] if part not in known else [part]
        if len(fits) != 1:
            which = f"may be any of {', '.join(fits)}" if fits else f"is none of {', '.join(known) or 'none'}"
            raise click.ClickException(f"worker {shown(part)} {which}")
        found += fits
    return found
