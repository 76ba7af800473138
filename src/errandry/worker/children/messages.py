"""Messages between a worker and its child processes: JSON, each after a header.

The worker sends `Hello` once, then a `RunCall` for each call. On a second socket it sends `StopJobs` if jobs
of the call should stop, and `StepSaved` when a step's result is durable. The child sends `ChildReady` once,
then any number of `JobNotes`, `StepResult` and `WorkerLogLine`, and `CallEnded` for each call.
"""

import struct
from collections.abc import Iterator
from typing import Generic, TypeVar

import msgspec
from msgspec import Struct

from errandry.claims.leases import StopReason
from errandry.core.command import Outcome
from errandry.core.job import JobRecord, LogLine, Progress
from errandry.core.step import StepRecord


class MainProgram(Struct, frozen=True):
    """The program that started the worker: its file, and its package if it was run with `-m`."""

    file: str
    package: str = ""


class Hello(Struct, frozen=True, tag=True):
    """What a child needs to start: its parent's process id, the modules to import, and when it is replaced.

    `level` is the worker's log level.
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
    """The jobs of one call, with unsealed payloads, and their handler: `name` in `module`.

    `steps` has the steps of each job; it is empty if no job has any.
    """

    number: int
    jobs: tuple[JobRecord, ...]
    module: str
    name: str
    size: int | None = None
    memory: int | None = None
    steps: tuple[tuple[StepRecord, ...], ...] = ()

    @property
    def task(self) -> str:
        return self.jobs[0].task


class StopJobs(Struct, frozen=True, tag=True):
    """Stop jobs of the call with this number: their places in it, and the reasons."""

    number: int
    stops: tuple[tuple[int, StopReason], ...]


class StepSaved(Struct, frozen=True, tag=True):
    """A step of the job at this place is durable, or could not be saved because of `error`."""

    place: int
    name: str
    error: str = ""


class ChildReady(Struct, frozen=True, tag=True):
    """The imports are done. If they failed, the first call ends with the failure."""


class JobNotes(Struct, frozen=True, tag=True):
    """Progress and log lines of the job at this place in the call."""

    place: int
    progress: Progress | None = None
    logs: tuple[LogLine, ...] = ()


class StepResult(Struct, frozen=True, tag=True):
    """The job at this place has completed a step with this result."""

    place: int
    name: str
    result: str


class WorkerLogLine(Struct, frozen=True, tag=True):
    """A line for the worker's log; `fields` are those of the job it is about."""

    logger: str
    level: int
    text: str
    traceback: str = ""
    fields: dict[str, str | int] = {}


class CallEnded(Struct, frozen=True, tag=True):
    """The outcome of each job of the call, None if nothing may be written. If `is_last`, the child ends."""

    outcomes: list[Outcome | None]
    is_last: bool = False


ToChild = Hello | RunCall | StopJobs | StepSaved
ToWorker = ChildReady | JobNotes | StepResult | WorkerLogLine | CallEnded
M = TypeVar("M")

_MARK = b"\0err"
"""Begins each message, so that other bytes that the process writes there are not taken for a length."""
_HEADER = struct.Struct("!4sII")
"""The mark, the length of the message, and the complement of the length.

Without the complement, other bytes after the mark could announce a message that never ends.
"""
_LENGTH_MAX = 2**32 - 1
_encoder = msgspec.json.Encoder()


def encode_frame(message: ToChild | ToWorker) -> bytes:
    body = _encoder.encode(message)
    return _HEADER.pack(_MARK, len(body), _LENGTH_MAX - len(body)) + body


class Frames(Generic[M]):
    """Decodes messages from received data, which may end in the middle of a message."""

    def __init__(self, decoder: msgspec.json.Decoder[M]) -> None:
        self._decoder, self._rest = decoder, bytearray()

    def feed(self, data: bytes) -> Iterator[M]:
        """Yield the messages that are complete now; ValueError at bytes that are no message."""
        self._rest += data
        buffer, start = self._rest, 0
        while (length := _body_length(buffer, start)) is not None:
            body, end = start + _HEADER.size, start + _HEADER.size + length
            if len(buffer) < end:
                break
            yield self._decoder.decode(buffer[body:end])
            start = end
        del buffer[:start]


def _body_length(buffer: bytearray, start: int) -> int | None:
    """The length of the message at `start`; None if its header is not complete yet."""
    header = bytes(buffer[start : start + _HEADER.size])
    if header.startswith(_MARK[: len(header)]):
        if len(header) < _HEADER.size:
            return None
        _, length, complement = _HEADER.unpack(header)
        if length + complement == _LENGTH_MAX:
            return int(length)
    raise ValueError(f"no message begins with {bytes(buffer[start : start + 20])!r}")


def frames_to_child() -> "Frames[ToChild]":
    return Frames(msgspec.json.Decoder(ToChild))


def frames_to_worker() -> "Frames[ToWorker]":
    return Frames(msgspec.json.Decoder(ToWorker))
