"""What every peer's program shares: where its store is, and the mark each handler leaves.

A handler is the same no-op everywhere: it takes a number and the moment it was enqueued, appends both and the
moment it began to a file, and returns the number. Only the standard library: this runs in every environment.
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
"""How many jobs a worker takes at a time, where that is to be said."""
RECORD = struct.Struct("<qdd")

_file: int | None = None


class Mark(NamedTuple):
    """Which job a handler had, when it was enqueued, and when the handler began."""

    number: int
    sent: float
    began: float


def mark(number: int, sent: float) -> int:
    """What the handlers do."""
    global _file  # noqa: PLW0603 - opened once in each worker process
    began = time.time()
    if _file is None:
        _file = os.open(os.environ["PEER_MARKS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(_file, RECORD.pack(number, sent, began))
    return number


def marks(path: Path) -> Iterator[Mark]:
    """Those left so far."""
    if path.exists():
        whole = path.read_bytes()
        yield from (Mark(*fields) for fields in RECORD.iter_unpack(whole[: marked(path) * RECORD.size]))


def marked(path: Path) -> int:
    """How many there are."""
    return path.stat().st_size // RECORD.size if path.exists() else 0


Put = Callable[[int, float], Awaitable[Any] | Any]
PutMany = Callable[[list[int], float], Awaitable[Any]]


class Program(Protocol):
    """What each module in `programs` has."""

    def producer(self) -> AbstractAsyncContextManager[Put]:
        """Makes what is needed, and gives the function that enqueues one job."""

    def work(self) -> None:
        """One worker process, until SIGTERM."""


class BulkProgram(Program, Protocol):
    """One that can also enqueue many jobs in one call."""

    def bulk(self) -> AbstractAsyncContextManager[PutMany]: ...
