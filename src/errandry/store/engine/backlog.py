"""The backlog: accepted commands, and which of them may be written together. Knows no loops or threads.

Every command has keys: the jobs it names, or the worker, gate or schedule it is about. A command is ready
when no earlier command with one of its keys is unanswered. So ready commands never share a key: they can
share a pass, or be written at the same time on different tracks. Commands about one key are written in order.
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
    ReportTrouble,
    ResolveJobs,
    RetryOutcome,
    Settle,
    Start,
    Upkeep,
    touched_ids,
)
from errandry.core.flow import AwaitOutcome
from errandry.core.gate import GateCommand
from errandry.core.schedule import DeclareSchedule, PutSchedule, ScheduleCommand, SchedulePlan
from errandry.core.selection import JobSelection
from errandry.core.step import SendSignal
from errandry.errors import InvalidValue, ReplyLost
from errandry.store.contract import ANSWERS_AGE, RANK

EntryKey = str | tuple[str, ...]
"""The id of a job; or a tuple for other keys, so that these never equal an id."""


class Callback(Struct, frozen=True, eq=False):
    """Takes the place of a future, to call a function with the answer instead."""

    set_result: Callable[[Answer], None]

    def done(self) -> bool:
        return False

    def cancelled(self) -> bool:
        return False


Future = asyncio.Future[Answer] | futures.Future[Answer] | Callback
Replies = list[tuple[Future, Answer]]

_FENCED = frozenset((Start, Renew, Note, PutStep, Settle))


GIVE_UP_MAX = ANSWERS_AGE / 2
"""Maximum of `WriteLimits.give_up_after`: a command must not be sent again after its answer was deleted."""


class WriteLimits(Struct, frozen=True, kw_only=True):
    """Maximum sizes of a pass and of all pending commands, and the time limit for retries.

    pass_rows      maximum number of jobs in one pass
    pass_bytes     maximum size of the payloads and results in one pass, in bytes
    pending_rows   maximum number of jobs that are accepted and not written yet; more commands have to wait
    pending_bytes  maximum size of their payloads and results, in bytes
    give_up_after  seconds for which a command is retried while the store is unavailable, at most 300
    """

    pass_rows: int = 1_000
    pass_bytes: int = 8 * 2**20
    pending_rows: int = 10_000
    pending_bytes: int = 64 * 2**20
    give_up_after: float = 30.0

    def __post_init__(self) -> None:
        for name in ("pass_rows", "pass_bytes", "pending_rows", "pending_bytes"):
            check.whole(name, getattr(self, name), 1, check.INT_MAX)
        if check.span("give_up_after", self.give_up_after) > GIVE_UP_MAX:
            why = f"must be at most {GIVE_UP_MAX:g} seconds: later, a store may apply a command again"
            raise InvalidValue("give_up_after", self.give_up_after, why)


class ReplyPort(Protocol):
    """Delivers answers to the callers on one loop, or on threads."""

    def reply(self, replies: Replies) -> None: ...


class PendingCommand(Struct, eq=False):
    """A command between its caller and the store.

    rows      number of jobs it is about, for the limits
    size      bytes of payloads, results and texts it carries, for the limits
    fenced    True if a worker sends it about a job it holds
    blocked   number of its keys that an earlier command still holds
    accepted  when it was accepted, by the monotonic clock
    lost      the lost reply that made it unknown whether the command was written, if there was one
    """

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
    lost: ReplyLost | None = None


def make_entry(command: Command, future: Future, port: ReplyPort, track: int = 0) -> PendingCommand:
    keys, is_fenced = _keys(command), type(command) in _FENCED
    rows = len(keys) or 1
    if not is_fenced and (
        isinstance(command, Claim) or (isinstance(command, JobSelection) and not command.ids)
    ):
        rows = command.limit
    return PendingCommand(command, future, port, keys, rows, _size(command), is_fenced, track)


class TrackQueue:
    """The ready commands of one track. `owes_others`: the last pass took only workers' commands."""

    def __init__(self) -> None:
        self.fenced: deque[PendingCommand] = deque()
        self.others: deque[PendingCommand] = deque()
        self.owes_others = False


class Backlog:
    """Commands that were accepted and are not answered yet.

    Workers' commands come first, so that no lease runs out behind many inserts. If a pass had no room for any
    other command, the first of the others opens the next pass.
    """

    def __init__(self, write_limits: WriteLimits, tracks: int = 1) -> None:
        self.entries: dict[PendingCommand, None] = {}
        self.rows = self.size = 0
        self._write_limits = write_limits
        self._waiting: dict[EntryKey, deque[PendingCommand] | None] = {}
        self._ready = [TrackQueue() for _ in range(tracks)]

    @property
    def has_room(self) -> bool:
        return self.rows < self._write_limits.pending_rows and self.size < self._write_limits.pending_bytes

    def add(self, entry: PendingCommand, now: float) -> None:
        entry.accepted = now
        self.entries[entry] = None
        self.rows += entry.rows
        self.size += entry.size
        waiting = self._waiting
        for key in entry.keys:
            if key not in waiting:
                waiting[key] = None
                continue
            entry.blocked += 1
            if (queue := waiting[key]) is None:
                queue = waiting[key] = deque()
            queue.append(entry)
        if not entry.blocked:
            self._make_ready(entry)

    def has_ready(self, track: int) -> bool:
        ready = self._ready[track]
        return bool(ready.fenced or ready.others)

    def take(self, track: int = 0) -> list[PendingCommand]:
        """Take the next pass of a track: ready commands within the limits, in the order of `RANK`.

        A command that is larger than the limits gets a pass of its own.
        """
        taken: list[PendingCommand] = []
        rows, size = self._write_limits.pass_rows, self._write_limits.pass_bytes
        ready = self._ready[track]
        queues = (ready.fenced, ready.others)
        for queue in (deque([ready.others.popleft()]), *queues) if ready.owes_others else queues:
            while queue:
                entry = queue[0]
                rows_left, size_left = rows - entry.rows, size - entry.size
                if taken and (rows_left < 0 or size_left < 0):
                    break
                taken.append(queue.popleft())
                rows, size = rows_left, size_left
        ready.owes_others = bool(ready.others) and all(entry.fenced for entry in taken)
        taken.sort(key=_rank)
        return taken

    def remove(self, entries: Iterable[PendingCommand]) -> None:
        """Remove answered commands, and unblock the commands that waited for their keys."""
        waiting = self._waiting
        for entry in entries:
            del self.entries[entry]
            self.rows -= entry.rows
            self.size -= entry.size
            for key in entry.keys:
                if not (queue := waiting[key]):
                    del waiting[key]
                    continue
                following = queue.popleft()
                following.blocked -= 1
                if not following.blocked:
                    self._make_ready(following)

    def put_back(self, entries: Iterable[PendingCommand]) -> None:
        """Make commands ready again that were taken but not answered. They keep their keys."""
        for entry in entries:
            self._make_ready(entry)

    def _make_ready(self, entry: PendingCommand) -> None:
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
        case Upkeep():
            return (("upkeep",),)
        case JobSelection():
            return (("query",),)
        case _:
            if isinstance(command, GateCommand):
                return (("gate", command.kind, command.name, command.group),)
            return (("schedule", command.name),) if isinstance(command, ScheduleCommand) else ()


def _size(command: Command) -> int:
    """Return the bytes of payloads, results and texts that a command carries, or an upper bound."""
    carrier = command.outcome if type(command) is Settle else command
    size = _SIZES.get(type(carrier))
    return 0 if size is None else size(carrier)


def _size_of_jobs(command: Insert | AwaitOutcome) -> int:
    return sum([_bytes(job.payload) + _bytes(job.metadata) for job in command.jobs])


def _size_of_plan(plan: SchedulePlan | None) -> int:
    return 0 if plan is None else _bytes(plan.job.payload) + _bytes(plan.job.metadata)


def _size_of_failure(outcome: RetryOutcome | FailOutcome) -> int:
    return _bytes(outcome.failure.message) + _bytes(outcome.failure.traceback)


_SIZES: dict[type, Callable[[Any], int]] = {
    CompleteOutcome: lambda outcome: _bytes(outcome.result),
    RetryOutcome: _size_of_failure,
    FailOutcome: _size_of_failure,
    Insert: _size_of_jobs,
    AwaitOutcome: _size_of_jobs,
    PutSchedule: lambda command: _size_of_plan(command.plan) + _size_of_plan(command.edited),
    DeclareSchedule: lambda command: _size_of_plan(command.plan),
    PutStep: lambda command: _bytes(command.result),
    SendSignal: lambda command: _bytes(command.payload),
    ReportTrouble: lambda command: sum([_bytes(text) for text in command.texts]),
    Note: lambda command: sum([_bytes(line.text) for line in command.logs]),
    EditJobs: lambda command: _bytes(command.payload) * max(1, len(command.ids)),
    ResolveJobs: lambda command: _bytes(command.result) * max(1, len(command.ids)),
}


def _bytes(text: str | None) -> int:
    if not text:
        return 0
    return len(text) if text.isascii() else 4 * len(text)
