"""A job as a program meets it: what is known of it, and what can be asked and done."""

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
    """What a job needs of its app."""

    codec: Codec

    async def record(self, job_id: str) -> JobRecord: ...

    async def finished(self, job_id: str, timeout: float | None) -> JobRecord | None: ...

    async def latest_cursor(self) -> str: ...

    def events(self, after: str, *, job: str) -> AsyncIterator[EventEntry]: ...

    async def cancel(self, *ids: str, force: bool = False) -> Moved: ...

    async def rerun(self, *ids: str, reset_attempts: bool = False, from_start: bool = False) -> Moved: ...

    async def signal(self, job_id: str, name: str, payload: Any = None) -> bool: ...


class Enqueued(NamedTuple):
    """What is known of a job that was just enqueued. Few ask for the record that this makes."""

    job: NewJob
    at: float

    @property
    def id(self) -> str:
        return self.job.id

    def record(self) -> JobRecord:
        return created(self.job, 0, self.at)


class Job(Generic[R_co]):
    """A handle on a job. `record` is the job as it was last read; the methods ask the store.

    From an enqueue, `existed` says that the job had been there, by its id or as the holder of the unique
    key, and `replaced` that it has got the new arguments and the new time to run.
    """

    def __init__(
        self,
        app: JobBackend,
        known: JobRecord | Enqueued,
        read: Callable[[str], Any],
        existed: bool = False,
        replaced: bool = False,
    ) -> None:
        self._app, self._known, self._read = app, known, read
        self.existed, self.replaced = existed, replaced

    @property
    def id(self) -> str:
        return self._known.id

    @property
    def record(self) -> JobRecord:
        if isinstance(self._known, Enqueued):
            self._known = self._known.record()
        return self._known

    @property
    def task(self) -> str:
        return self.record.task

    @property
    def queue(self) -> str:
        return self.record.queue

    @property
    def state(self) -> State:
        """The state when the record was last read."""
        return self.record.state

    def __repr__(self) -> str:
        return f"<job {self.id} {self.task} {self.state}>"

    async def refresh(self) -> Self:
        """Read the record again; UnknownJob if it was removed."""
        self._known = await self._app.record(self.id)
        return self

    async def wait(self, timeout: float | None = None) -> Self:
        """Return when the job has finished, in whatever way; TimeoutError when the time is up first."""
        if not self.record.finished:
            record = await self._app.finished(self.id, timeout)
            if record is None:
                raise UnknownJob(self.id)
            self._known = record
        return self

    async def result(self, timeout: float | None = None) -> R_co:
        """What the handler returned; waits for it. JobFailed or JobCanceled if there is no result to come."""
        await self.wait(timeout)
        match self.record.state:
            case State.COMPLETED:
                return cast("R_co", self._value())
            case State.CANCELED:
                raise JobCanceled(self.id)
            case _:
                last = self.record.errors[-1] if self.record.errors else None
                error = f"{last.type}: {last.message}" if last else ""
                raise JobFailed(self.id, self.record.reason or "", error, last.traceback if last else "")

    async def observe(self) -> AsyncIterator[EventEntry]:
        """What happens to it, until it has ended. Begins with the state it is in, so nobody comes too late.

        What happens at just that moment may be told twice.
        """
        cursor = await self._app.latest_cursor()
        record = (await self.refresh()).record
        state = Event(KIND_OF_STATE[record.state], record.id, record.queue, record.task, record.attempts)
        yield EventEntry(cursor, record.updated_at, state)
        if record.finished:
            return
        async for happened in self._app.events(cursor, job=self.id):
            yield happened
            if happened.event.kind in FINAL_KINDS:
                return

    async def cancel(self) -> None:
        """Stop it: at once where no handler runs, by request where one does."""
        await self._app.cancel(self.id)

    async def signal(self, name: str, payload: Any = None) -> bool:
        """Tell it what it waits for, or will; False if that has been done."""
        return await self._app.signal(self.id, name, payload)

    async def rerun(self, *, reset_attempts: bool = False, from_start: bool = False) -> None:
        """Run it again once it has finished; `result` then waits for what comes of that.

        It goes on after the steps it has done, unless `from_start` has these forgotten.
        """
        await self._app.rerun(self.id, reset_attempts=reset_attempts, from_start=from_start)
        await self.refresh()

    def _value(self) -> Any:
        if self.record.result is None:
            return None
        about = DocumentInfo(self.id, self.record.task, "result")
        return self._read(self._app.codec.unseal(self.record.result, about))
