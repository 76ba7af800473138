"""`Job`: a job that a program has enqueued, or has read from the store."""

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

from errandry.api.events import Event, event_at
from errandry.api.job_view import Enqueued, JobView
from errandry.api.options import Duration
from errandry.api.sync import SyncJob
from errandry.codec.json_codec import Codec
from errandry.core.duration import seconds
from errandry.core.event import FINAL_KINDS, KIND_OF_STATE, EventRecord
from errandry.core.job import JobRecord
from errandry.core.state import State
from errandry.errors import JobCanceled, JobFailed, UnknownJob

if TYPE_CHECKING:
    from errandry.api.client import Client

R_co = TypeVar("R_co", covariant=True)


class Job(JobView[R_co]):
    """A job: read it, wait for its result, cancel or rerun it.

        job = await send.enqueue("ada")
        print(await job.result(timeout=30))

    Its attributes are the job as it was last read; the methods ask the store.
    """

    def __init__(
        self,
        app: "Client",
        source: JobRecord | Enqueued,
        existed: bool = False,
        replaced: bool = False,
        codec: Codec | None = None,
    ) -> None:
        self._app, self._source = app, source
        self._codec = app.codec if codec is None else codec
        self.existed, self.replaced = existed, replaced

    @property
    def id(self) -> str:
        return self._source.id

    @property
    def record(self) -> JobRecord:
        """The job as the store has it, with times as numbers and documents as JSON text."""
        if isinstance(self._source, Enqueued):
            self._source = self._source.record()
        return self._source

    @property
    def sync(self) -> SyncJob[R_co]:
        """The job with blocking methods, for code without an event loop."""
        return SyncJob(self)

    async def refresh(self) -> Self:
        """Read the job again; raises UnknownJob if it was removed."""
        self._set_record(await self._app.client.record(self.id))
        return self

    async def wait(self, timeout: Duration | None = None) -> Self:
        """Wait until the job has completed, failed or been canceled; TimeoutError after `timeout`."""
        limit = None if timeout is None else seconds(timeout, "timeout")
        if not self.finished:
            record = await self._app.client.wait_finished(self.id, limit)
            if record is None:
                raise UnknownJob(self.id)
            self._set_record(record)
        return self

    async def result(self, timeout: Duration | None = None) -> R_co:
        """Wait for the job and return its handler's result; raises JobFailed or JobCanceled otherwise."""
        await self.wait(timeout)
        match self.state:
            case State.COMPLETED:
                return cast("R_co", self._decode_result())
            case State.CANCELED:
                raise JobCanceled(self.id)
            case _:
                last = self.record.errors[-1] if self.record.errors else None
                error = f"{last.type}: {last.message}" if last else ""
                raise JobFailed(self.id, self.reason or "", error, last.traceback if last else "")

    def _set_record(self, record: JobRecord) -> None:
        """Replace the record by one from the store, whose documents the app's codec has sealed."""
        self._source, self._codec = record, self._app.codec

    async def observe(self) -> AsyncIterator[Event]:
        """Yield the events of the job until it has finished.

        The first event is its present state, so a job that has finished already yields one event. An event of
        that very moment may come twice.
        """
        cursor = await self._app.latest_cursor()
        record = (await self.refresh()).record
        kind = KIND_OF_STATE[record.state]
        state = EventRecord(kind, record.id, record.queue, record.task, record.attempts)
        yield event_at(state, record.updated_at, cursor)
        if record.finished:
            return
        async for event in self._app.events(cursor, job=self.id):
            yield event
            if event.kind in FINAL_KINDS:
                return

    async def cancel(self, *, children: bool = True) -> None:
        """Cancel the job: at once if it is not running, else by asking its handler to stop.

        The jobs it waits for are canceled too, unless `children` is False.
        """
        await self._app.cancel(self.id, children=children)

    async def signal(self, name: str, payload: Any = None) -> bool:
        """Send it a signal for `ctx.wait_for(name)`; False if it has got a signal of this name already."""
        return await self._app.signal(self.id, name, payload)

    async def rerun(self, *, reset_attempts: bool = False, from_start: bool = False) -> None:
        """Run a finished job again; `result` then waits for the new run.

        Its stored steps are kept, so that it continues after them; `from_start` deletes them.
        `reset_attempts` sets its attempts to 0.
        """
        await self._app.rerun(self.id, reset_attempts=reset_attempts, from_start=from_start)
        await self.refresh()
