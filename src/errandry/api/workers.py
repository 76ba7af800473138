"""`jobs.workers`: list, pause and resume the workers of a store."""

import builtins
from typing import TYPE_CHECKING

from errandry.api.gates import GateHandle
from errandry.core.command import WorkerRecord
from errandry.core.gate import GateKind

if TYPE_CHECKING:
    from errandry.api.client import Client


class Workers:
    """The workers of a store, those of other processes and hosts included.

    for info in await jobs.workers.list():
        print(info.beat.worker, info.beat.running)
    """

    def __init__(self, client: "Client") -> None:
        self._client = client

    async def list(self) -> builtins.list[WorkerRecord]:
        """The workers that have reported recently."""
        return await self._client.engine.call(self._client.store.workers)

    async def pause(self, worker_id: str, *, by: str = "") -> bool:
        """Stop the claims of a worker until it is resumed; it finishes the jobs it runs.

        `by` names the operator. Returns False if the worker was paused already.
        """
        return await self._gate(worker_id).pause(by=by)

    async def resume(self, worker_id: str) -> bool:
        """Allow the claims of a worker again. False if it was not paused."""
        return await self._gate(worker_id).resume()

    def _gate(self, worker_id: str) -> GateHandle:
        return GateHandle(self._client, GateKind.WORKER, worker_id)
