"""What a worker and a child process of it say to each other: JSON, each message after its length.

The worker: `Hello` once, then `Do` a call, and on a line of its own `Halt` if jobs of it should stop, and
`Kept` when a step is. The child: `Ready` once, then any number of `Noted`, `Stepped` and `Logged`, and
`Ended` for every call.
"""

import struct
from typing import Generic, TypeVar

import msgspec
from msgspec import Struct

from errandry.core.command import Outcome
from errandry.core.job import JobRecord, LogLine, Progress
from errandry.core.step import Step
from errandry.worker.handler_call import StopReason


class MainProgram(Struct, frozen=True):
    """The program the worker was started with: its file, and the package it belongs to if run with `-m`."""

    file: str
    package: str = ""


class Hello(Struct, frozen=True, tag=True):
    """What a child needs to be ready: who started it, what to import and from where, when to retire.

    `level` is what the worker logs from.
    """

    parent: int
    path: tuple[str, ...]
    argv: tuple[str, ...]
    main: MainProgram | None
    modules: tuple[str, ...]
    level: int
    recycle_jobs: int | None = None
    recycle_memory: int | None = None


class RunCall(Struct, frozen=True, tag=True):
    """The jobs of one call, their payloads unsealed, and where their handler is: `name` in `module`.

    `steps` are those of each job, or none if no job has any.
    """

    number: int
    jobs: tuple[JobRecord, ...]
    module: str
    name: str
    size: int | None = None
    memory: int | None = None
    steps: tuple[tuple[Step, ...], ...] = ()

    @property
    def task(self) -> str:
        return self.jobs[0].task


class StopJobs(Struct, frozen=True, tag=True):
    """Jobs of the call with this number should stop: their places in it, and why."""

    number: int
    stops: tuple[tuple[int, StopReason], ...]


class StepSaved(Struct, frozen=True, tag=True):
    """What a job of the call has done is durable, or why it is not."""

    place: int
    name: str
    error: str = ""


class ChildReady(Struct, frozen=True, tag=True):
    """Everything is imported, or could not be: then the first job is told why."""


class JobNotes(Struct, frozen=True, tag=True):
    """Progress and log lines of the job at this place in the call."""

    place: int
    progress: Progress | None = None
    logs: tuple[LogLine, ...] = ()


class StepResult(Struct, frozen=True, tag=True):
    """The job at this place has done a step, with this result."""

    place: int
    name: str
    result: str


class WorkerLogLine(Struct, frozen=True, tag=True):
    """Something for the log of the worker."""

    logger: str
    level: int
    text: str


class CallEnded(Struct, frozen=True, tag=True):
    """How the call ended for each job; None if nothing may be written. A child takes none after its last."""

    outcomes: list[Outcome | None]
    is_last: bool = False


ToChild = Hello | RunCall | StopJobs | StepSaved
ToWorker = ChildReady | JobNotes | StepResult | WorkerLogLine | CallEnded
M = TypeVar("M")

_LENGTH = struct.Struct("!I")
_encoder = msgspec.json.Encoder()


def framed(message: ToChild | ToWorker) -> bytes:
    body = _encoder.encode(message)
    return _LENGTH.pack(len(body)) + body


class Frames(Generic[M]):
    """Puts messages together from what arrives, however it was cut on its way."""

    def __init__(self, decoder: msgspec.json.Decoder[M]) -> None:
        self._decoder, self._rest = decoder, bytearray()

    def feed(self, data: bytes) -> list[M]:
        """The messages that are complete now."""
        self._rest += data
        rest, start, found = self._rest, 0, []
        while len(rest) >= start + _LENGTH.size:
            end = start + _LENGTH.size + _LENGTH.unpack_from(rest, start)[0]
            if len(rest) < end:
                break
            found.append(self._decoder.decode(rest[start + _LENGTH.size : end]))
            start = end
        del rest[:start]
        return found


def frames_to_child() -> "Frames[ToChild]":
    return Frames(msgspec.json.Decoder(ToChild))


def frames_to_worker() -> "Frames[ToWorker]":
    return Frames(msgspec.json.Decoder(ToWorker))
