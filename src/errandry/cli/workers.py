"""`errandry workers`: list, pause and resume workers."""

import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from errandry.api.workers import all_slots, worker_info
from errandry.claims.liveness import is_dead
from errandry.cli import pausing, table
from errandry.cli.command import CliGroup
from errandry.cli.session import Session, app_command, store_time
from errandry.cli.table import Cell, Column
from errandry.cli.text import ago
from errandry.core.command import Beat, WorkerRecord
from errandry.core.gate import GateKind
from errandry.core.why import SILENT_AFTER
from errandry.errors import short_repr

if TYPE_CHECKING:
    from errandry.api.app import Errandry

workers_argument = click.argument("parts", nargs=-1, metavar="[WORKER]...")
NO_WORKERS = "No worker is running."
all_option = click.option("--all", "everyone", is_flag=True, help="All workers")


@click.group(cls=CliGroup)
def workers() -> None:
    """List, pause and resume workers."""


@workers.command("ls")
@app_command
async def ls(session: Session, jobs: "Errandry") -> None:
    """List workers with a recent heartbeat.

    A draining worker is stopping: it claims no more jobs and finishes those it has.
    BUSY is the number of busy slots, as of that heartbeat.
    """
    records, now = await worker_records(jobs), await store_time(jobs)
    if session.json:
        for record in records:
            session.print_json(worker_info(record))
        return
    if not records:
        session.print_message(NO_WORKERS)
        return
    columns = [
        Column("WORKER"),
        Column("STATUS"),
        Column("BUSY", is_right=True),
        Column("QUEUES", can_shrink=True),
    ]
    columns += [Column("TASKS", can_shrink=True), Column("STARTED"), Column("SEEN")]
    rows = [
        (
            record.beat.worker,
            status(record, now),
            busy_text(record.beat),
            "all" if record.beat.queues is None else ", ".join(record.beat.queues),
            "all" if record.beat.tasks is None else ", ".join(record.beat.tasks),
            ago(record.beat.started_at, now),
            ago(record.seen_at, now),
        )
        for record in records
    ]
    table.print_table(session, columns, rows)
    session.print_message("BUSY is as of the last heartbeat, the time under SEEN.")
    for record in records:
        if record.beat.blocked_by and status(record, now).text == "blocked":
            text = f"The event loop of {record.beat.worker} is blocked by {record.beat.blocked_by}."
            session.print_message(text)
    for worker in map(worker_info, records):
        if worker.paused is not None:
            session.print_message(f"{worker.id} was paused {pausing.since_text(worker.paused, now)}.")


async def worker_records(jobs: "Errandry") -> list[WorkerRecord]:
    """The workers as stored, with what `status` needs to tell whether they live."""
    return await jobs.engine.call(jobs.store.workers)


def status(record: WorkerRecord, now: float) -> Cell:
    """The status of a worker in one word: dead, silent, blocked, draining, paused or working."""
    if has_died(record):
        return Cell("dead", "red")
    if now - record.seen_at > SILENT_AFTER:
        return Cell("silent", "red")
    if record.beat.blocked_by:
        return Cell("blocked", "red")
    if record.beat.draining:
        return Cell("draining", "yellow")
    return Cell("working", "green") if record.paused is None else Cell("paused", "yellow")


def has_died(record: WorkerRecord) -> bool:
    """Whether the worker is known to be dead, which only the lock file of a worker on this host can tell."""
    return record.beat.host == socket.gethostname() and is_dead(record.beat.alive)


def busy_text(beat: Beat) -> str:
    """Busy slots and all slots of a worker: "3/10". For a claimer, which has no slots, the jobs it holds."""
    slots = all_slots(beat)
    return f"{beat.running}/{slots}" if slots else f"{beat.running}"


@workers.command("pause")
@workers_argument
@all_option
@click.option("--by", help="Name recorded as the operator; default: your user name")
@app_command
async def pause(
    session: Session, jobs: "Errandry", parts: tuple[str, ...], everyone: bool, by: str | None
) -> None:
    """Pause workers.

    They claim no more jobs until they are resumed. Running jobs continue.
    """
    for worker in await _matching_workers(session, jobs, parts, everyone):
        changed = await jobs.workers.pause(worker, by=pausing.operator(by))
        pausing.report_pause(session, f"worker {worker}", _as_data(worker), changed)


@workers.command("resume")
@workers_argument
@all_option
@app_command
async def resume(session: Session, jobs: "Errandry", parts: tuple[str, ...], everyone: bool) -> None:
    """Resume paused workers."""
    for worker in await _matching_workers(session, jobs, parts, everyone):
        changed = await jobs.workers.resume(worker)
        pausing.report_resume(session, f"worker {worker}", _as_data(worker), changed)


def _as_data(worker: str) -> dict[str, str]:
    return {"kind": str(GateKind.WORKER), "name": worker}


async def _matching_workers(
    session: Session, jobs: "Errandry", parts: Sequence[str], everyone: bool
) -> list[str]:
    """The ids of the workers that these parts name; an error if a part names none, or several."""
    known = [worker.id for worker in await jobs.workers.list()]
    if everyone:
        if not known:
            session.print_message(NO_WORKERS)
        return known
    if not parts:
        raise click.UsageError("No workers given: name them by a part of their id, or add --all.")
    worker_ids = []
    for part in parts:
        matches = [worker for worker in known if part in worker] if part not in known else [part]
        if len(matches) != 1:
            if matches:
                problem = f"matches several workers: {', '.join(matches)}"
            else:
                problem = f"does not exist; known workers: {', '.join(known) or 'none'}"
            raise click.ClickException(f"worker {short_repr(part)} {problem}")
        worker_ids += matches
    return worker_ids
