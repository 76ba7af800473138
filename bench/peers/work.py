"""The parts that all peers' programs share: the URL of the store, and the mark that each handler writes.

A handler is the same no-op for every peer: it takes a number and the time of its enqueue, appends both and
the time of its start to a file, and returns the number. This module uses only the standard library, because
it runs in every environment.
"""

import os
import struct
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

URL = os.environ.get("PEER_URL", "")
BATCH = int(os.environ.get("PEER_BATCH", "100"))
"""Number of jobs that a worker takes at a time, for systems with such an option."""
RECORD = struct.Struct("<qdd")

_file: int | None = None


class Mark(NamedTuple):
    """The number of a job, the time of its enqueue, and the time when its handler started."""

    number: int
    sent: float
    began: float


def mark(number: int, sent: float) -> int:
    """The body of every handler: append a mark to the file, and return the number."""
    global _file  # noqa: PLW0603 - opened once in each worker process
    began = time.time()
    if _file is None:
        _file = os.open(os.environ["PEER_MARKS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(_file, RECORD.pack(number, sent, began))
    return number


def read_marks(path: Path) -> Iterator[Mark]:
    """The marks written so far."""
    if path.exists():
        whole = path.read_bytes()
        yield from (Mark(*fields) for fields in RECORD.iter_unpack(whole[: mark_count(path) * RECORD.size]))


def mark_count(path: Path) -> int:
    """The number of marks written so far."""
    return path.stat().st_size // RECORD.size if path.exists() else 0


Put = Callable[[int, float], Awaitable[Any] | Any]
PutMany = Callable[[list[int], float], Awaitable[Any]]


class Program(Protocol):
    """The functions that each module in `programs` has."""

    def producer(self) -> AbstractAsyncContextManager[Put]:
        """Set up the system, and yield the function that enqueues one job."""

    def work(self) -> None:
        """Run one worker process until SIGTERM."""


class BulkProgram(Program, Protocol):
    """A program that can also enqueue many jobs in one call."""

    def bulk(self) -> AbstractAsyncContextManager[PutMany]: ...
