"""`Job`: the handle a program has on a job."""

from collections.abc import AsyncIterator, Callable
from typing import Any, Generic, NamedTuple, Protocol, Self, TypeVar, cast

from errandry.codec.json_codec import Codec, DocumentInfo
from errandry.core.answer import Moved
from errandry.core.event import FINAL_KINDS, KIND_OF_STATE, Event
from errandry.core.job import JobRecord, NewJob
from errandry.core.move import created
from errandry.core.state import State
from errandry.errors import JobCanceled, JobFailed, UnknownJob
from errandry.store.contract import EventEntry

R_co = TypeVar("R_co", covariant=True)


class JobBackend(Protocol):
    """The methods of the app that a job handle calls."""

    codec: Codec

    async def record(self, job_id: str) -> JobRecord: ...

    async def finished(self, job_id: str, timeout: float | None) -> JobRecord | None: ...

    async def latest_cursor(self) -> str: ...

    def events(self, after: str, *, job: str) -> AsyncIterator[EventEntry]: ...

    async def cancel(self, *ids: str, force: bool = False) -> Moved: ...

    async def rerun(self, *ids: str, reset_attempts: bool = False, from_start: bool = False) -> Moved: ...

    async def signal(self, job_id: str, name: str, payload: Any = None) -> bool: ...


class Enqueued(NamedTuple):
    """A job that was just inserted. Its record is built only on request: most programs do not read it."""

    job: NewJob
    at: float

    @property
    def id(self) -> str:
        return self.job.id

    def record(self) -> JobRecord:
        return created(self.job, 0, self.at)


class Job(Generic[R_co]):
    """A handle on a job: read its record, wait for its result, cancel or rerun it.

        job = await send.enqueue("ada")
        print(await job.result(timeout=30))

    `record` is the job as it was last read; the methods ask the store. `existed` is true if an enqueue found
    a job with this id, or one that holds the unique key, and returned that one. `replaced` is true if the
    enqueue gave the existing job the new arguments and time to run.
    """

    def __init__(
        self,
        app: JobBackend,
        source: JobRecord | Enqueued,
        read_result: Callable[[str], Any],
        existed: bool = False,
        replaced: bool = False,
    ) -> None:
        self._app, self._source, self._read_result = app, source, read_result
        self.existed, self.replaced = existed, replaced

    @property
    def id(self) -> str:
        return self._source.id

    @property
    def record(self) -> JobRecord:
        """The job as it was last read."""
        if isinstance(self._source, Enqueued):
            self._source = self._source.record()
        return self._source

    @property
    def task(self) -> str:
        return self.record.task

    @property
    def queue(self) -> str:
        return self.record.queue

    @property
    def state(self) -> State:
        """The state as it was last read."""
        return self.record.state

    def __repr__(self) -> str:
        return f"<job {self.id} {self.task} {self.state}>"

    async def refresh(self) -> Self:
        """Read the record again; raises UnknownJob if the job was removed."""
        self._source = await self._app.record(self.id)
        return self

    async def wait(self, timeout: float | None = None) -> Self:
        """Wait until the job has completed, failed or been canceled; TimeoutError after `timeout` seconds."""
        if not self.record.finished:
            record = await self._app.finished(self.id, timeout)
            if record is None:
                raise UnknownJob(self.id)
            self._source = record
        return self

    async def result(self, timeout: float | None = None) -> R_co:
        """Wait for the job and return its handler's result; raises JobFailed or JobCanceled otherwise."""
        await self.wait(timeout)
        match self.record.state:
            case State.COMPLETED:
                return cast("R_co", self._decode_result())
            case State.CANCELED:
                raise JobCanceled(self.id)
            case _:
                last = self.record.errors[-1] if self.record.errors else None
                error = f"{last.type}: {last.message}" if last else ""
                raise JobFailed(self.id, self.record.reason or "", error, last.traceback if last else "")

    async def observe(self) -> AsyncIterator[EventEntry]:
        """Yield the events of the job until it has finished.

        The first event is its present state, so a job that has finished already yields one event. An event of
        that very moment may come twice.
        """
        cursor = await self._app.latest_cursor()
        record = (await self.refresh()).record
        state = Event(KIND_OF_STATE[record.state], record.id, record.queue, record.task, record.attempts)
        yield EventEntry(cursor, record.updated_at, state)
        if record.finished:
            return
        async for entry in self._app.events(cursor, job=self.id):
            yield entry
            if entry.event.kind in FINAL_KINDS:
                return

    async def cancel(self) -> None:
        """Cancel the job: at once if it is not running, else by asking its handler to stop."""
        await self._app.cancel(self.id)

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

    def _decode_result(self) -> Any:
        if self.record.result is None:
            return None
        document = DocumentInfo(self.id, self.record.task, "result")
        return self._read_result(self._app.codec.unseal(self.record.result, document))
