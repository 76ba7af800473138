"""`JobView`: the attributes of a job as it was last read, for `Job` and `SyncJob`."""

from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, cast

import msgspec
from msgspec import Struct

from errandry.codec.json_codec import Codec, document_info, from_json
from errandry.core.duration import as_datetime
from errandry.core.job import AttemptError, JobRecord, Keep, NewJob, Progress
from errandry.core.move import created
from errandry.core.retry import Backoff
from errandry.core.state import Reason, State

if TYPE_CHECKING:
    from errandry.api.client import Client

R_co = TypeVar("R_co", covariant=True)
J = TypeVar("J")
K = TypeVar("K")


class Enqueued(NamedTuple):
    """A job that was just inserted. Its record is built only on request: most programs do not read it."""

    job: NewJob
    at: float

    @property
    def id(self) -> str:
        return self.job.id

    def record(self) -> JobRecord:
        return created(self.job, 0, self.at)


class AttemptFailure(Struct, frozen=True, gc=False):
    """A failed attempt of a job: on which worker, when, and the error.

    `kind` is `error` if the handler raised `type` with this message; others are `timeout`, `worker_lost`, ….
    """

    attempt: int
    worker: str | None
    started_at: datetime | None
    ended_at: datetime
    kind: Reason
    type: str
    message: str
    traceback: str


class LogEntry(Struct, frozen=True, gc=False):
    """A line in the log of a job."""

    at: datetime
    text: str
    level: str


class JobView(Generic[R_co]):
    """A job as it was last read. `Job` and `SyncJob` have these attributes in common.

    All times are in UTC, all durations in seconds.
    """

    _app: "Client"
    _codec: Codec
    existed: bool
    """True if an enqueue found a job with this id, or one that holds the unique key, and returned it."""
    replaced: bool
    """True if the enqueue gave the existing job the new arguments and time to run."""

    @property
    def id(self) -> str:
        """The id; a UUIDv7 unless the program gave one."""
        return self.record.id

    @property
    def record(self) -> JobRecord:
        """The job as the store has it, with times as numbers and documents as JSON text."""
        raise NotImplementedError

    @property
    def task(self) -> str:
        """The name of the task."""
        return self.record.task

    @property
    def queue(self) -> str:
        """The queue in which it waits."""
        return self.record.queue

    @property
    def group(self) -> str:
        """The fairness, limit and order key in its queue; empty if it has none."""
        return self.record.group

    @property
    def state(self) -> State:
        """Its state; it equals its text, such as `completed`."""
        return self.record.state

    @property
    def reason(self) -> Reason | None:
        """Why it failed or was canceled, or why it waits; None if there is nothing to say."""
        return self.record.reason

    @property
    def finished(self) -> bool:
        """True if it has completed, failed or been canceled."""
        return self.record.finished

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments by name, as plain JSON values; redacted ones are readable here."""
        arguments: dict[str, Any] = from_json(self._unseal("payload", self.record.payload))
        return arguments

    @property
    def metadata(self) -> dict[str, Any]:
        """The metadata given at enqueue; keys that begin with `errandry.` are Errandry's own."""
        metadata: dict[str, Any] = {} if self.record.metadata is None else from_json(self.record.metadata)
        return metadata

    @property
    def stored_result(self) -> R_co | None:
        """The result of the handler if the job has completed; None before. `Job.result` waits for it."""
        return None if self.record.result is None else cast("R_co", self._decode_result())

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags given at enqueue, for queries."""
        return self.record.tags

    @property
    def priority(self) -> int:
        """Jobs with a lower number go first."""
        return self.record.priority

    @property
    def lifo(self) -> bool:
        """True if it goes before the other jobs of its priority, newest first."""
        return self.record.lifo

    @property
    def attempts(self) -> int:
        """The number of attempts so far, a running one included."""
        return self.record.attempts

    @property
    def max_attempts(self) -> int:
        """Maximum number of attempts, the first included."""
        return self.record.max_attempts

    @property
    def crashes(self) -> int:
        """How often a worker died while it ran the job."""
        return self.record.crashes

    @property
    def max_crashes(self) -> int:
        """Number of crashes after which it fails."""
        return self.record.max_crashes

    @property
    def releases(self) -> int:
        """Number of times that a worker has released it."""
        return self.record.releases

    @property
    def timeout(self) -> float | None:
        """Maximum duration of an attempt."""
        return self.record.timeout

    @property
    def backoff(self) -> Backoff | None:
        """The delay before a retry; None: the default."""
        return self.record.backoff

    @property
    def keep(self) -> Keep | None:
        """How long it is kept after it has finished; None: the default."""
        return self.record.keep

    @property
    def unique_key(self) -> str | None:
        """The unique key it was enqueued with; None if it has none."""
        return None if self.record.unique is None else self.record.unique.key

    @property
    def cancel_requested(self) -> bool:
        """True if its handler was asked to stop."""
        return self.record.cancel_requested

    @property
    def awaited_signal(self) -> str | None:
        """The name of the signal it waits for; None if it waits for none."""
        return self.record.awaited_signal

    @property
    def progress(self) -> Progress | None:
        """The progress its handler reported last."""
        return self.record.progress

    @property
    def worker(self) -> str | None:
        """The id of the worker that holds it, or held it last."""
        return self.record.worker

    @property
    def fence(self) -> int:
        """The number of its last claim, of up to 64 bits; it only ever rises."""
        return self.record.fence

    @property
    def errors(self) -> tuple[AttemptFailure, ...]:
        """The failed attempts, oldest first, at most the last 20."""
        return tuple([_attempt_failure(error) for error in self.record.errors])

    @property
    def logs(self) -> tuple[LogEntry, ...]:
        """The lines its handler logged, oldest first, at most the last 200."""
        return tuple([LogEntry(as_datetime(line.at), line.text, line.level) for line in self.record.logs])

    @property
    def created_at(self) -> datetime:
        """When it was enqueued."""
        return as_datetime(self.record.created_at)

    @property
    def updated_at(self) -> datetime:
        """When its record last changed."""
        return as_datetime(self.record.updated_at)

    @property
    def run_at(self) -> datetime | None:
        """The time from which it may run."""
        return as_datetime(self.record.run_at)

    @property
    def deadline(self) -> datetime | None:
        """The time at which it fails if no worker has claimed it."""
        return as_datetime(self.record.deadline)

    @property
    def claimed_at(self) -> datetime | None:
        """When a worker last claimed it; None before that, and after a rerun."""
        return as_datetime(self.record.claimed_at)

    @property
    def started_at(self) -> datetime | None:
        """When its last attempt began."""
        return as_datetime(self.record.started_at)

    @property
    def lease_until(self) -> datetime | None:
        """Until when its worker holds it, unless the worker renews the lease."""
        return as_datetime(self.record.lease_until)

    @property
    def finished_at(self) -> datetime | None:
        """When it completed, failed or was canceled; None before."""
        return as_datetime(self.record.finished_at)

    @property
    def expires_at(self) -> datetime | None:
        """When the finished job is deleted."""
        return as_datetime(self.record.expires_at)

    @property
    def unhandled_since(self) -> datetime | None:
        """Since when workers give it back because they cannot run it: their program seems older than its own.

        None if none has, or a handler has begun since; also once it is finished.
        """
        return as_datetime(self.record.unhandled_since)

    def as_dict(self) -> dict[str, Any]:
        """All attributes as plain values, ready for JSON: times as ISO text, the result under `result`."""
        fields = {name: getattr(self, name) for name in _PLAIN_FIELDS}
        result = None if self.record.result is None else from_json(self._unseal("result", self.record.result))
        plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(fields))
        return plain | {"arguments": self.arguments, "metadata": self.metadata, "result": result}

    def __repr__(self) -> str:
        return f"<job {self.id} {self.task} {self.state}>"

    def _decode_result(self) -> Any:
        if self.record.result is None:
            return None
        declared = self._app.tasks.get(self.task)
        read = from_json if declared is None else declared.signature.read_result
        return read(self._unseal("result", self.record.result))

    def _unseal(self, field: str, text: str) -> str:
        return self._codec.unseal(text, document_info(self.record, field))


class JobPage(Struct, Generic[J], frozen=True):
    """Jobs, newest first. `cursor` reads the next page; None after the last."""

    jobs: tuple[J, ...]
    cursor: str | None

    def map(self, convert: Callable[[J], K]) -> "JobPage[K]":
        """The page with each of its jobs converted."""
        return JobPage(tuple([convert(job) for job in self.jobs]), self.cursor)


def _attempt_failure(error: AttemptError) -> AttemptFailure:
    started_at, ended_at = as_datetime(error.started), as_datetime(error.ended)
    return AttemptFailure(
        error.attempt,
        error.worker,
        started_at,
        ended_at,
        error.kind,
        error.type,
        error.message,
        error.traceback,
    )


_OTHER_FIELDS = ("record", "arguments", "metadata", "stored_result")
_PLAIN_FIELDS = tuple(
    name
    for name, member in vars(JobView).items()
    if isinstance(member, property) and name not in _OTHER_FIELDS
)
"""The attributes of a job that `as_dict` has as they are."""
