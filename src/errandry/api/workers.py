"""`jobs.workers`: list, pause and resume the workers of a store."""

import builtins
from datetime import datetime
from typing import TYPE_CHECKING

from msgspec import Struct

from errandry.api.gate_info import PauseInfo, pause_info
from errandry.api.gates import GateHandle
from errandry.core.command import Beat, WorkerRecord
from errandry.core.duration import as_datetime
from errandry.core.gate import GateKind
from errandry.errors import UnknownWorker

if TYPE_CHECKING:
    from errandry.api.client import Client


class WorkerInfo(Struct, frozen=True, kw_only=True):
    """A worker as it last reported, for `jobs.workers.list()`.

    id          its id, which `jobs.workers.pause` takes
    host        the host it runs on, and there its process `pid`
    queues      the queues it serves; None for all
    tasks       the tasks it runs; None for all
    slots       number of handler calls it can run at once
    running     number of handler calls it ran when it reported
    started_at  when it started
    seen_at     when it reported last
    blocked_by  what blocked its event loop when it reported, so that it claims nothing; None if nothing did
    paused      when it was paused, and by which operator; None if it is not paused
    draining    whether it is stopping: it claims no more jobs and finishes those it has
    """

    id: str
    host: str
    pid: int
    queues: tuple[str, ...] | None
    tasks: tuple[str, ...] | None
    slots: int
    running: int
    started_at: datetime
    seen_at: datetime
    blocked_by: str | None
    paused: PauseInfo | None
    draining: bool


class Workers:
    """The workers of a store, those of other processes and hosts included.

    for worker in await jobs.workers.list():
        print(worker.id, worker.running, worker.seen_at)
    """

    def __init__(self, client: "Client") -> None:
        self._client = client

    async def list(self) -> builtins.list[WorkerInfo]:
        """The workers that have reported recently."""
        records = await self._client.engine.call(self._client.store.workers)
        return [worker_info(record) for record in records]

    async def pause(self, worker_id: str, *, by: str = "") -> bool:
        """Stop the claims of a worker until it is resumed; it finishes the jobs it runs.

        `by` names the operator. Returns False if the worker was paused already. Raises `UnknownWorker` if no
        worker has this id.
        """
        known = tuple(worker.id for worker in await self.list())
        if worker_id not in known:
            raise UnknownWorker(worker_id, known)
        return await self._gate(worker_id).pause(by=by)

    async def resume(self, worker_id: str) -> bool:
        """Allow the claims of a worker again. False if it was not paused.

        A worker that is no longer listed can be resumed too, so that its pause does not stay in the store.
        """
        return await self._gate(worker_id).resume()

    def _gate(self, worker_id: str) -> GateHandle:
        return GateHandle(self._client, GateKind.WORKER, worker_id)


def worker_info(record: WorkerRecord) -> WorkerInfo:
    beat = record.beat
    return WorkerInfo(
        id=beat.worker,
        host=beat.host,
        pid=beat.pid,
        queues=beat.queues,
        tasks=beat.tasks,
        slots=all_slots(beat),
        running=beat.running,
        started_at=as_datetime(beat.started_at),
        seen_at=as_datetime(record.seen_at),
        blocked_by=beat.blocked_by or None,
        paused=pause_info(record.paused),
        draining=beat.draining,
    )


def all_slots(beat: Beat) -> int:
    """The number of handler calls a worker can run at once, in all its slots."""
    return beat.concurrency + sum(share.slots for share in beat.shares)
