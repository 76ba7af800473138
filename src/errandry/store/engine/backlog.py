"""What waits to be written, and what of it may go together. Knows nothing of loops and threads.

Every command has keys: the jobs it names, or the worker, the gate, the upkeep it is about. A command that
holds all its keys is ready; the others stand in line behind whoever does. So whatever is ready
may share a pass, or be written beside it on another track, and commands about one key are written in the
order they came.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Iterable
from concurrent import futures
from typing import Any, Protocol

from msgspec import Struct

from errandry.core import check
from errandry.core.answer import Answer
from errandry.core.command import (
    Beat,
    Claim,
    Command,
    CompleteOutcome,
    EditJobs,
    FailOutcome,
    Insert,
    Note,
    PutStep,
    Renew,
    ResolveJobs,
    RetryOutcome,
    Settle,
    Start,
    Upkeep,
    touched_ids,
)
from errandry.core.flow import AwaitOutcome
from errandry.core.gate import Pause, PutRule, Resume
from errandry.core.schedule import PutSchedule, ScheduleCommand
from errandry.core.selection import JobSelection
from errandry.core.step import SendSignal
from errandry.store.contract import RANK

EntryKey = str | tuple[str, ...]
"""A job's id, or a tuple for all else, so that no id can be mistaken for it."""


class Callback(Struct, frozen=True, eq=False):
    """What waits for an answer, as a future does, where it is to be called with it and nobody awaits."""

    set_result: Callable[[Answer], None]

    def done(self) -> bool:
        return False

    def cancelled(self) -> bool:
        return False


Future = asyncio.Future[Answer] | futures.Future[Answer] | Callback
Replies = list[tuple[Future, Answer]]

_FENCED = frozenset((Start, Renew, Note, PutStep, Settle))


class WriteLimits(Struct, frozen=True, kw_only=True):
    """How much is written at a time, how much may be pending, and for how long a command is sent again.

    pass_rows      how many jobs one pass is about
    pass_bytes     how large what it carries may be
    pending_rows   how many jobs may wait to be written; who brings more waits
    pending_bytes  how large what they carry may be
    give_up_after  how long a command waits for a store that is away before it raises `StoreUnavailable`
    """

    pass_rows: int = 1_000
    pass_bytes: int = 8 * 2**20
    pending_rows: int = 10_000
    pending_bytes: int = 64 * 2**20
    give_up_after: float = 30.0

    def __post_init__(self) -> None:
        for name in ("pass_rows", "pass_bytes", "pending_rows", "pending_bytes"):
            check.whole(name, getattr(self, name), 1, check.INT_MAX)
        check.span("give_up_after", self.give_up_after)


class ReplyPort(Protocol):
    """The way back to whoever submitted."""

    def reply(self, replies: Replies) -> None: ...


class PendingCommand(Struct, eq=False):
    """A command on its way: how much it weighs, what it is about, and who waits for its answer."""

    command: Command
    future: Future
    port: ReplyPort
    keys: Collection[EntryKey]
    rows: int
    size: int
    fenced: bool
    track: int = 0
    blocked: int = 0
    accepted: float = 0.0


def entry_of(command: Command, future: Future, port: ReplyPort, track: int = 0) -> PendingCommand:
    keys, is_fenced = _keys(command), type(command) in _FENCED
    rows = len(keys) or 1
    if not is_fenced and (
        isinstance(command, Claim) or (isinstance(command, JobSelection) and not command.ids)
    ):
        rows = command.limit
    return PendingCommand(command, future, port, keys, rows, _size(command), is_fenced, track)


class TrackQueue:
    """What is ready on one track."""

    def __init__(self) -> None:
        self.fenced: deque[PendingCommand] = deque()
        self.others: deque[PendingCommand] = deque()
        self.owed = False


class Backlog:
    """Entries that were accepted and not yet answered.

    Workers' commands come before all others, so that no lease runs out behind a heap of inserts; but
    where that left the others with nothing, the first of them opens the next pass.
    """

    def __init__(self, limits: WriteLimits, tracks: int = 1) -> None:
        self.entries: dict[PendingCommand, None] = {}
        self.rows = self.size = 0
        self._limits = limits
        self._lines: dict[EntryKey, deque[PendingCommand] | None] = {}
        self._ready = [TrackQueue() for _ in range(tracks)]

    @property
    def has_room(self) -> bool:
        return self.rows < self._limits.pending_rows and self.size < self._limits.pending_bytes

    def add(self, entry: PendingCommand, now: float) -> None:
        entry.accepted = now
        self.entries[entry] = None
        self.rows += entry.rows
        self.size += entry.size
        lines = self._lines
        for key in entry.keys:
            if key not in lines:
                lines[key] = None
                continue
            entry.blocked += 1
            if (line := lines[key]) is None:
                line = lines[key] = deque()
            line.append(entry)
        if not entry.blocked:
            self._move_up(entry)

    def has_ready(self, track: int) -> bool:
        ready = self._ready[track]
        return bool(ready.fenced or ready.others)

    def take(self, track: int = 0) -> list[PendingCommand]:
        """The next pass of a track: what is ready, up to the bounds, in the order of `RANK`.

        A single entry that is larger goes alone. Empty only if nothing of the track is ready.
        """
        taken: list[PendingCommand] = []
        rows, size = self._limits.pass_rows, self._limits.pass_bytes
        ready = self._ready[track]
        lanes = (ready.fenced, ready.others)
        for lane in (deque([ready.others.popleft()]), *lanes) if ready.owed else lanes:
            while lane:
                entry = lane[0]
                rows_left, size_left = rows - entry.rows, size - entry.size
                if taken and (rows_left < 0 or size_left < 0):
                    break
                taken.append(lane.popleft())
                rows, size = rows_left, size_left
        ready.owed = bool(ready.others) and all(entry.fenced for entry in taken)
        taken.sort(key=_rank)
        return taken

    def remove(self, entries: Iterable[PendingCommand]) -> None:
        """They were answered: whoever stood behind them moves up."""
        lines = self._lines
        for entry in entries:
            del self.entries[entry]
            self.rows -= entry.rows
            self.size -= entry.size
            for key in entry.keys:
                if not (line := lines[key]):
                    del lines[key]
                    continue
                following = line.popleft()
                following.blocked -= 1
                if not following.blocked:
                    self._move_up(following)

    def put_back(self, entries: Iterable[PendingCommand]) -> None:
        """They were taken and not answered: they are ready again, and keep what they hold."""
        for entry in entries:
            self._move_up(entry)

    def _move_up(self, entry: PendingCommand) -> None:
        ready = self._ready[entry.track]
        (ready.fenced if entry.fenced else ready.others).append(entry)


def _rank(entry: PendingCommand) -> int:
    return RANK[type(entry.command)]


def _keys(command: Command) -> Collection[EntryKey]:
    if ids := touched_ids(command):
        return ids if len(ids) == 1 else frozenset(ids)
    match command:
        case Claim(worker=worker) | Beat(worker=worker):
            return (("worker", worker),)
        case Pause() | Resume() | PutRule():
            return (("gate", command.kind, command.name, command.group),)
        case Upkeep():
            return (("upkeep",),)
        case JobSelection():
            return (("query",),)
        case _:
            return (("schedule", command.name),) if isinstance(command, ScheduleCommand) else ()


def _size(command: Command) -> int:
    """How many bytes of documents and traces it carries, at most."""
    carrier = command.outcome if type(command) is Settle else command
    size = _SIZES.get(type(carrier))
    return 0 if size is None else size(carrier)


def _size_of_jobs(command: Insert | AwaitOutcome) -> int:
    return sum([_bytes(job.payload) + _bytes(job.metadata) for job in command.jobs])


def _size_of_failure(outcome: RetryOutcome | FailOutcome) -> int:
    return _bytes(outcome.failure.message) + _bytes(outcome.failure.traceback)


_SIZES: dict[type, Callable[[Any], int]] = {
    CompleteOutcome: lambda outcome: _bytes(outcome.result),
    RetryOutcome: _size_of_failure,
    FailOutcome: _size_of_failure,
    Insert: _size_of_jobs,
    AwaitOutcome: _size_of_jobs,
    PutSchedule: lambda command: _bytes(command.plan.job.payload) + _bytes(command.plan.job.metadata),
    PutStep: lambda command: _bytes(command.result),
    SendSignal: lambda command: _bytes(command.payload),
    Note: lambda command: sum([_bytes(line.text) for line in command.logs]),
    EditJobs: lambda command: _bytes(command.payload) * max(1, len(command.ids)),
    ResolveJobs: lambda command: _bytes(command.result) * max(1, len(command.ids)),
}


def _bytes(text: str | None) -> int:
    if not text:
        return 0
    return len(text) if text.isascii() else 4 * len(text)
