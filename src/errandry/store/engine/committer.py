"""The committer gathers commands in front of a store and writes them in passes.

Commands that arrive while a pass is being written share the next pass. There is no timer: if the store is
idle, a command is written at once, and under load passes grow. A store with several tracks gets one pass per
track at a time.

The states of a command (a `PendingCommand`):

    handed in    in `_inbox`: the loop has not read it yet
    unaccepted   in `_unaccepted`: too much is pending, so its caller waits
    accepted     in the backlog: it waits for a pass
    writing      in `_writing`: taken from the backlog for a pass
    in doubt     the reply to its pass was lost, so the same pass is sent again
    rejected     the store was unavailable for this one command, or only its reply was lost: it is put back
                 after RETRY_REJECTED_AFTER
    answered     its future has the answer or the error

A piggyback claim skips these states. It is made when a pass is about to be written, shares that one pass, and
is never retried by itself.

A committer belongs to one event loop: the engine's or, inline, the caller's own. Two things cross threads,
each once per pass: commands, into `_inbox`, and answers, through the port of their loop.
"""

import asyncio
import random
import threading
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from concurrent import futures
from contextlib import suppress
from functools import partial
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from errandry.clock import Clock, SystemClock
from errandry.core.answer import Answer, Inserted
from errandry.core.command import (
    Beat,
    Claim,
    Command,
    Insert,
    Note,
    PutStep,
    Renew,
    ReportTrouble,
    Start,
    touched_ids,
)
from errandry.core.gate import Pause
from errandry.errors import (
    CommandFailed,
    ErrandryError,
    ReplyLost,
    StoreClosed,
    StoreFull,
    StoreUnavailable,
)
from errandry.store.contract import Store
from errandry.store.engine.backlog import Backlog, Callback, Future, PendingCommand, WriteLimits, make_entry
from errandry.store.engine.reply import THREADS, LoopPort, answer_or_raise, reply

FIRST_BACKOFF, BACKOFF_MAX = 0.05, 2.0
"""Seconds between two attempts to write a pass: at first, and at most. Each wait is varied by ±50 %."""
RETRY_REJECTED_AFTER = 0.25
"""Seconds before a single rejected command is put back, while the rest of its pass was written."""
_MAKES_NO_JOB_READY = frozenset((Start, Renew, Note, PutStep, Pause, Beat, ReportTrouble, Claim))
"""Commands that never make a job ready to be claimed."""

PiggybackClaims = Callable[[], Iterable[tuple[Claim, Future]]]
"""A function that is called right before a pass is written, and returns claims to add to the pass."""


class WriteWatcher(Protocol):
    """Learns, on the committer's loop, that a pass cannot be written yet, and that one was written again."""

    def report_failure(self, error: BaseException) -> None: ...

    def report_recovery(self) -> None: ...


class CommitterStats(Struct, frozen=True):
    """Statistics for health checks.

    age           seconds since the store last answered a pass, None if it never has
    passes        number of passes written
    commands      number of commands written
    largest       number of commands in the largest pass
    pending_rows  size of the accepted commands that are not answered yet, in rows
    waiting       number of commands that are not accepted yet
    """

    age: float | None
    passes: int
    commands: int
    largest: int
    pending_rows: int
    waiting: int


class Committer:
    """Turns commands from any loop or thread into passes: one command per key at most, in `RANK` order.

    Commands about the same job, worker or gate are written in the order in which they were accepted.

    A pass whose reply was lost, or that failed because the store was unavailable, is sent again until
    `give_up_after` seconds after its last command was accepted. Then its callers get the error. So is a
    single command whose reply was lost, or that the store rejects as unavailable: in later passes, equally
    long. A worker's Start, Renew, Note, PutStep and Settle are not retried after a rejection: the worker gets
    the error at once.

    A committer for the running loop is ready at once. One for another loop only gathers until `begin`.
    """

    def __init__(
        self,
        store: Store,
        write_limits: WriteLimits | None = None,
        clock: Clock | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        loop: asyncio.AbstractEventLoop | None = None,
        watchers: Collection[WriteWatcher] = (),
    ) -> None:
        self._watchers, self._is_retrying = watchers, False
        self._store, self._write_limits = store, write_limits or WriteLimits()
        self._clock, self._sleep = clock or SystemClock(), sleep
        self._loop = loop or asyncio.get_running_loop()
        self._thread_state = threading.local()
        self._port = LoopPort(self._loop, self._hand_in)
        self._piggyback_sources: dict[PiggybackClaims, None] = {}
        self._inbox: deque[PendingCommand] = deque()
        self._unaccepted: OrderedDict[PendingCommand, None] = OrderedDict()
        self._tracks = store.tracks
        self._backlog = Backlog(self._write_limits, self._tracks)
        self._writers: dict[int, asyncio.Task[None]] = {}
        self._writing: set[PendingCommand] = set()
        self._retries: set[asyncio.Task[None]] = set()
        self._has_idle_track = loop is None
        self._closing = self._closed = False
        self._fatal_error: BaseException | None = None
        self._passes = self._commands = self._largest = 0
        self._last_answer_at: float | None = None

    async def submit(self, command: Command) -> Answer:
        """Write a command and return its answer. If the answer is an error, raise it.

        While too much is pending, the command waits to be accepted, in order of arrival. A worker's Start,
        Renew, Note, PutStep and Settle are always accepted. If the caller is canceled before the command is
        accepted, it is not written. If it is canceled later, the command is written all the same, unless the
        committer closes while the store is unavailable.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Answer] = loop.create_future()
        entry = self._hand_in_from_loop(command, future, loop)
        try:
            return answer_or_raise(await future)
        except asyncio.CancelledError:
            self._abandon(entry)
            raise

    def send(
        self, command: Command, on_answer: Callable[[Answer], None], loop: asyncio.AbstractEventLoop
    ) -> None:
        """Like `submit`, but do not wait: call `on_answer` with the answer, on `loop`, the running loop."""
        self._hand_in_from_loop(command, Callback(on_answer), loop)

    async def submit_all(self, commands: Iterable[Command]) -> list[Answer]:
        """Like `submit`, for several commands. Return one answer for each: errors are not raised."""
        loop = asyncio.get_running_loop()
        submitted: list[tuple[PendingCommand, asyncio.Future[Answer]]] = []
        for command in commands:
            future: asyncio.Future[Answer] = loop.create_future()
            submitted.append((self._hand_in_from_loop(command, future, loop), future))
        answers: list[Answer] = []
        try:
            for _, future in submitted:
                answers.append(await future)
        except asyncio.CancelledError:
            for entry, _ in submitted[len(answers) :]:
                self._abandon(entry)
            raise
        return answers

    def _hand_in_from_loop(
        self, command: Command, future: Future, loop: asyncio.AbstractEventLoop
    ) -> PendingCommand:
        """Hand in a command from the loop on which its answer is awaited."""
        self._refuse_if_closing()
        port: LoopPort | None = getattr(self._thread_state, "port", None)
        if port is None or port.loop is not loop:
            port = self._thread_state.port = LoopPort(loop, self._hand_in)
        entry = make_entry(command, future, port, self._store.track(command))
        port.put(entry)
        return entry

    def submit_sync(self, command: Command, timeout: float | None = None) -> Answer:
        """Like `submit`, for a thread without a loop. After a TimeoutError it may still be written."""
        self._refuse_if_closing()
        if asyncio._get_running_loop() is self._loop:
            raise RuntimeError("submit_sync would wait for its own thread: await submit instead")
        future: futures.Future[Answer] = futures.Future()
        entry = make_entry(command, future, THREADS, self._store.track(command))
        self._hand_in([entry])
        try:
            return answer_or_raise(future.result(timeout))
        except BaseException:
            future.cancel()
            self._abandon(entry)
            raise

    def add_piggyback_claims(self, source: PiggybackClaims) -> None:
        """Call `source` before each pass that may make a job ready, and add the claims it returns.

        So a job is inserted and claimed in one pass. Piggyback claims never cause a pass of their own. To be
        called on the committer's loop, like `remove_piggyback_claims`.
        """
        self._refuse_if_closing()
        self._piggyback_sources[source] = None

    def remove_piggyback_claims(self, source: PiggybackClaims) -> None:
        """Stop calling `source`. Its claims in a pass that is being written are still answered."""
        self._piggyback_sources.pop(source, None)

    def begin(self) -> None:
        """Start writing, if an idle track has something to write. To be called on the committer's loop."""
        idle_tracks = (track for track in range(self._tracks) if track not in self._writers)
        if not self._closed and (track := next(idle_tracks, None)) is not None:
            self._start_writer(track)  # it starts the writers of other tracks if need be

    def fail(self, error: BaseException) -> None:
        """Stop writing, and answer all commands with `error`. To be called on the committer's loop."""
        self._fatal_error = error
        self._close_inbox()
        self._refuse(
            [entry for entry in (*self._backlog.entries, *self._unaccepted) if entry not in self._writing]
        )

    async def close(self, timeout: float | None = None) -> None:
        """Accept no more commands; return when all that were handed in are answered.

        After `timeout` seconds the rest is refused: with `ReplyLost` if the store may be writing it, with
        `StoreClosed` if the store never got it. While a store blocks the thread, the timeout has to wait.
        To be called on the committer's loop.
        """
        self._closing = True
        give_up = None if timeout is None else self._loop.time() + timeout
        self.begin()  # the writer reads the inbox in a later iteration, when this one's submits are in it
        while running := {*self._writers.values(), *self._retries}:
            time_left = None if give_up is None else max(0.0, give_up - self._loop.time())
            _, unfinished = await asyncio.wait(running, timeout=time_left)
            for writer in unfinished:
                writer.cancel()
                give_up = None
        self._close_inbox()

    def stats(self) -> CommitterStats:
        """Return statistics. May be called from any thread."""
        age = None if self._last_answer_at is None else self._clock.monotonic() - self._last_answer_at
        waiting = len(self._unaccepted) + len(self._inbox)
        return CommitterStats(age, self._passes, self._commands, self._largest, self._backlog.rows, waiting)

    # The following methods are called from any thread. A caller puts a command into the inbox, then reads
    # `_closed` and `_has_idle_track`. The loop sets these, then reads the inbox. So whatever the timing, one
    # of the two sees what the other did.

    def _hand_in(self, entries: Iterable[PendingCommand]) -> None:
        self._inbox.extend(entries)
        if self._closed:
            self._close_inbox()
        elif self._has_idle_track:
            is_here = asyncio._get_running_loop() is self._loop
            try:
                (self._loop.call_soon if is_here else self._loop.call_soon_threadsafe)(self.begin)
            except RuntimeError:  # the loop was closed before the committer was
                self._close_inbox()

    def _abandon(self, entry: PendingCommand) -> None:
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._remove_unaccepted, entry)

    def _refuse_if_closing(self) -> None:
        if self._closing:
            answer_or_raise(self._refusal())

    def _close_inbox(self) -> None:
        """Stop writing: refuse all commands that are in the inbox or that get there later."""
        self._closing = self._closed = True
        entries: list[PendingCommand] = []
        with suppress(IndexError):  # another thread may be emptying it too
            while True:
                entries.append(self._inbox.popleft())
        self._refuse(entries)

    def _refuse(self, entries: list[PendingCommand]) -> None:
        refusal = self._refusal()
        reply([(entry, refusal) for entry in entries])

    def _refusal(self) -> ErrandryError:
        if isinstance(self._fatal_error, ErrandryError):
            return self._fatal_error
        refusal = StoreClosed("committer", "closed, or closing: this was not written")
        refusal.__cause__ = self._fatal_error
        return refusal

    # The following methods are called on the committer's own loop.

    def _start_writer(self, track: int) -> None:
        if track not in self._writers:
            writer = self._writers[track] = self._loop.create_task(self._write_passes(track))
            writer.add_done_callback(partial(self._writer_ended, track))
            self._has_idle_track = len(self._writers) < self._tracks

    def _writer_ended(self, track: int, writer: asyncio.Task[None]) -> None:
        """Called when the task of a writer ends. If it failed, answer all commands with its error."""
        del self._writers[track]
        if writer.cancelled():
            self.fail(StoreClosed("committer", "stopped before this was written"))
        elif (error := writer.exception()) is not None:
            self.fail(error)
        else:
            self._has_idle_track = True
            if self._inbox or self._backlog.has_ready(track):
                self.begin()

    async def _write_passes(self, track: int) -> None:
        this_task = asyncio.current_task()
        while entries := self._next_pass(track):
            piggyback = self._piggyback_claims(track, entries)
            rejected = await self._write_pass(entries, piggyback)
            self._backlog.remove(
                [entry for entry in entries if entry not in rejected] if rejected else entries
            )
            self._writing.difference_update(entries)
            if rejected:
                retry = self._loop.create_task(self._retry_later(rejected))
                self._retries.add(retry)
                retry.add_done_callback(self._retries.discard)
            if this_task is not None and this_task.cancelling():
                raise asyncio.CancelledError
            await asyncio.sleep(0)  # let reads on this loop run between two passes of a store that blocks

    def _next_pass(self, track: int) -> list[PendingCommand]:
        """Take the next pass of a track from the backlog, and start writers of other tracks that have one."""
        if self._fatal_error is not None or not self._accept():
            return []
        for other in range(self._tracks):
            if other != track and self._backlog.has_ready(other):
                self._start_writer(other)
        entries = self._backlog.take(track)
        self._writing.update(entries)
        return entries

    def _piggyback_claims(self, track: int, entries: list[PendingCommand]) -> list[PendingCommand]:
        """Return the claims to add to a pass, unless it may take long or makes no job ready."""
        if not self._piggyback_sources or self._closing or 0 < track == self._tracks - 1:
            return []
        if all(type(entry.command) in _MAKES_NO_JOB_READY for entry in entries):
            return []
        pairs = [entry for source in list(self._piggyback_sources) for entry in source()]
        return [make_entry(claim, future, self._port) for claim, future in pairs]

    def _accept(self) -> bool:
        """Accept commands from the inbox: always those of workers, others while there is room."""
        now = self._clock.monotonic()
        backlog, unaccepted, inbox = self._backlog, self._unaccepted, self._inbox
        while unaccepted and backlog.has_room:
            entry, _ = unaccepted.popitem(last=False)
            if not entry.future.cancelled():
                backlog.add(entry, now)
        while inbox:
            entry = inbox.popleft()
            if entry.future.cancelled():
                continue
            if entry.fenced or backlog.has_room:
                backlog.add(entry, now)
            else:
                unaccepted[entry] = None
        return bool(backlog.entries)

    def _remove_unaccepted(self, entry: PendingCommand) -> None:
        if not self._closed:
            self._accept()
            self._unaccepted.pop(entry, None)

    async def _retry_later(self, rejected: dict[PendingCommand, Answer]) -> None:
        """Put rejected commands back after a pause. Other passes are written meanwhile."""
        try:
            await self._sleep(RETRY_REJECTED_AFTER * random.uniform(0.5, 1.5))
        except asyncio.CancelledError:
            self._backlog.remove(rejected)
            reply(rejected.items())
            raise
        if self._fatal_error is None:
            self._backlog.put_back(rejected)
            self.begin()

    async def _write_pass(
        self, own: list[PendingCommand], piggyback: list[PendingCommand]
    ) -> dict[PendingCommand, Answer]:
        """Write a pass and answer its commands. Return those of `own` that the store rejected for now.

        If the whole pass fails, it is written again without the piggyback claims, in case they are the cause.
        """
        entries = own + piggyback
        rejected: dict[PendingCommand, Answer] = {}
        try:
            answers: Sequence[Answer] = await self._commit_with_retries(entries)
            if len(answers) != len(entries):
                raise ValueError(f"the store gave {len(answers)} answers to {len(entries)} commands")
        except ErrandryError as error:
            if piggyback and not isinstance(error, ReplyLost | StoreClosed):
                reply([(entry, error) for entry in piggyback])
                return await self._write_pass(own, [])
            answers = [entry.lost or error for entry in entries]
        except Exception as error:
            answers = [entry.lost or _failed(entry.command, error) for entry in entries]
        except BaseException:
            stopped = ReplyLost("committer", "stopped while this was being written")
            reply([(entry, stopped) for entry in entries])
            raise
        else:
            self._passes += 1
            self._commands += len(entries)
            self._largest = max(self._largest, len(entries))
            self._last_answer_at = self._clock.monotonic()
            first_answers = zip(own, answers, strict=False)
            sent_again = {entry for entry, answer in first_answers if self._is_sent_again(entry, answer)}
            answers = [_final_answer(entry, answer) for entry, answer in zip(entries, answers, strict=True)]
            if sent_again:
                final_answers = zip(own, answers, strict=False)
                rejected = {entry: answer for entry, answer in final_answers if entry in sent_again}
        # The claims are answered first: a handler starts before the caller that enqueued its job goes on.
        reply(zip(piggyback, answers[len(own) :], strict=True))
        answered = zip(own, answers, strict=False)
        reply([entry for entry in answered if entry[0] not in rejected] if rejected else answered)
        return rejected

    async def _commit_with_retries(self, entries: list[PendingCommand]) -> Sequence[Answer]:
        """Commit a pass, and retry it while the store is unavailable."""
        commands = [entry.command for entry in entries]
        backoff, lost = FIRST_BACKOFF, None
        while True:
            try:
                answers = await self._store.commit(commands)
                if self._is_retrying:
                    self._is_retrying = False
                    for watcher in tuple(self._watchers):
                        watcher.report_recovery()
                return answers
            except asyncio.CancelledError:
                raise ReplyLost("committer", "stopped while this was being written") from None
            except Exception as error:
                if isinstance(error, ReplyLost):
                    lost = error
                    for entry in entries:
                        entry.lost = lost
                if self._is_final(error, entries):
                    if lost is None or lost is error:
                        raise
                    raise lost from error
                self._is_retrying = True
                for watcher in tuple(self._watchers):
                    watcher.report_failure(error)
            try:
                await self._sleep(backoff * random.uniform(0.5, 1.5))
            except asyncio.CancelledError:
                raise lost or StoreClosed("committer", "stopped before this was written") from None
            backoff = min(2 * backoff, BACKOFF_MAX)

    def _is_sent_again(self, entry: PendingCommand, answer: Answer) -> bool:
        """Return True if a single command is to be written again in a later pass, after this answer."""
        if type(answer) is ReplyLost:
            entry.lost = answer
        elif type(answer) is not StoreUnavailable or entry.fenced:
            return False
        return not self._is_final(answer, [entry])

    def _is_final(self, error: Exception, entries: list[PendingCommand]) -> bool:
        if not isinstance(error, StoreUnavailable) or isinstance(error, StoreFull | StoreClosed):
            return True
        if self._closing and all(entry.future.cancelled() for entry in entries):
            return True
        accepted = max(entry.accepted for entry in entries)
        return self._clock.monotonic() >= accepted + self._write_limits.give_up_after


def _final_answer(entry: PendingCommand, answer: Answer) -> Answer:
    """Return the answer to a command, corrected if an earlier write of it may have succeeded.

    An insert without a nonce is of jobs whose ids are new. If they existed, the earlier write has made them.
    """
    if entry.lost is None:
        return answer
    if isinstance(answer, StoreUnavailable):
        return entry.lost
    if type(answer) is Inserted and type(entry.command) is Insert and entry.command.nonce is None:
        return replace(answer, existed=answer.existed.difference(touched_ids(entry.command)))
    return answer


def _failed(command: Command, error: Exception) -> CommandFailed:
    failed = CommandFailed(type(command).__name__, f"{type(error).__name__}: {error}")
    failed.__cause__ = error
    return failed
