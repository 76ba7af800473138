"""The committer: the one object in front of every store. It gathers commands and writes them in passes.

What arrives while a pass is being written goes together into the next one. There is no timer: idle, a
command goes at once; under load passes grow by themselves. A store with several tracks is sent a pass for
each of them at a time.

A committer belongs to one loop: the engine's or, inline, the caller's own. Two things cross threads,
each once per pass: commands, into `_inbox`, and answers, through the port of their loop.
"""

import asyncio
import random
import threading
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent import futures
from contextlib import suppress
from functools import partial

from msgspec import Struct

from errandry.clock import Clock, SystemClock
from errandry.core.answer import Answer, Moved
from errandry.core.command import Beat, Claim, Command, Note, PutStep, Renew, Start
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
from errandry.store.engine.backlog import Backlog, Callback, Future, PendingCommand, WriteLimits, entry_of
from errandry.store.engine.reply import THREADS, LoopPort, reply, returned

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0
PUT_OFF = 0.25
"""How long one command rests that the store could not take while it took the others."""
_BARREN = frozenset((Start, Renew, Note, PutStep, Pause, Beat, Claim))
"""A pass of nothing but these makes no job ready."""

PiggybackClaims = Callable[[], Iterable[tuple[Claim, Future]]]
"""Called right before a pass is written: what to claim in it, each with what waits for its answer."""


class CommitterStats(Struct, frozen=True):
    """For health checks. `age`: seconds since the store last answered a pass, None if it never has.

    `pending_rows` were accepted and are not answered yet; `waiting` commands are not accepted yet.
    """

    age: float | None
    passes: int
    commands: int
    largest: int
    pending_rows: int
    waiting: int


class Committer:
    """Submits from any loop or thread become passes: at most one command per key, in the order of `RANK`.

    Commands about the same job, worker or gate are written in the order they were accepted. A pass
    whose reply was lost, or that the store could not take just then, is sent again until
    `give_up_after` seconds after the last of it was accepted; then its submitters get the error. The same
    for a single command, with later passes; only a worker's Start, Renew, Note and Settle get it at once.

    Made for the running loop, it is ready at once. Made for another, it gathers until `begin`.
    """

    def __init__(
        self,
        store: Store,
        limits: WriteLimits | None = None,
        clock: Clock | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._store, self._limits = store, limits or WriteLimits()
        self._clock, self._sleep = clock or SystemClock(), sleep
        self._loop = loop or asyncio.get_running_loop()
        self._here = threading.local()
        self._port = LoopPort(self._loop, self._hand_in)
        self._companions: dict[PiggybackClaims, None] = {}
        self._inbox: deque[PendingCommand] = deque()
        self._door: OrderedDict[PendingCommand, None] = OrderedDict()
        self._tracks = store.tracks
        self._backlog = Backlog(self._limits, self._tracks)
        self._work: dict[int, asyncio.Task[None]] = {}
        self._writing: set[PendingCommand] = set()
        self._resting: set[asyncio.Task[None]] = set()
        self._idle = loop is None
        self._closing = self._closed = False
        self._broken: BaseException | None = None
        self._passes = self._commands = self._largest = 0
        self._finished: float | None = None

    async def submit(self, command: Command) -> Answer:
        """Have `command` written and return its answer; an answer that is an error is raised.

        While too much is pending it waits to be accepted, first come, first served; only a worker's
        Start, Renew, Note and Settle are accepted always. Canceled while it waits, it leaves nothing
        behind; canceled later, the command is written all the same, unless the store is away at the end.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Answer] = loop.create_future()
        entry = self._put(command, future, loop)
        try:
            return returned(await future)
        except asyncio.CancelledError:
            self._abandon(entry)
            raise

    def send(self, command: Command, told: Callable[[Answer], None], loop: asyncio.AbstractEventLoop) -> None:
        """`submit` for who goes on meanwhile: `told` gets the answer, on `loop`, where this is called."""
        self._put(command, Callback(told), loop)

    async def submit_all(self, commands: Iterable[Command]) -> list[Answer]:
        """`submit` for several at once: one answer for each, where an error is a value, too."""
        loop = asyncio.get_running_loop()
        put: list[tuple[PendingCommand, asyncio.Future[Answer]]] = []
        for command in commands:
            future: asyncio.Future[Answer] = loop.create_future()
            put.append((self._put(command, future, loop), future))
        answers: list[Answer] = []
        try:
            for _, future in put:
                answers.append(await future)
        except asyncio.CancelledError:
            for entry, _ in put[len(answers) :]:
                self._abandon(entry)
            raise
        return answers

    def _put(self, command: Command, future: Future, loop: asyncio.AbstractEventLoop) -> PendingCommand:
        """Hand in `command`, on the loop where its answer is awaited."""
        self._refuse_if_closing()
        port: LoopPort | None = getattr(self._here, "port", None)
        if port is None or port.loop is not loop:
            port = self._here.port = LoopPort(loop, self._hand_in)
        entry = entry_of(command, future, port, self._store.track(command))
        port.put(entry)
        return entry

    def submit_sync(self, command: Command, timeout: float | None = None) -> Answer:
        """`submit` for a thread without a loop. After a TimeoutError the command may still be written."""
        self._refuse_if_closing()
        if asyncio._get_running_loop() is self._loop:
            raise RuntimeError("submit_sync would wait for its own thread: await submit instead")
        future: futures.Future[Answer] = futures.Future()
        entry = entry_of(command, future, THREADS, self._store.track(command))
        self._hand_in([entry])
        try:
            return returned(future.result(timeout))
        except BaseException:
            future.cancel()
            self._abandon(entry)
            raise

    def join(self, companion: PiggybackClaims) -> None:
        """Have `companion` say with every pass that may make a job ready what to claim in it.

        So a job and its claim share a pass. It makes no pass by itself. Called, like `leave`, on its loop.
        """
        self._refuse_if_closing()
        self._companions[companion] = None

    def leave(self, companion: PiggybackClaims) -> None:
        """It goes along no more; what goes along just now will be answered."""
        self._companions.pop(companion, None)

    def begin(self) -> None:
        """Write what has come, and from now on whatever comes. To be called on its loop, like `close`."""
        resting = (track for track in range(self._tracks) if track not in self._work)
        if not self._closed and (track := next(resting, None)) is not None:
            self._set_to_work(track)  # which sees what has come for the others

    def fail(self, error: BaseException) -> None:
        """Write nothing any more: `error` is what everybody is told. To be called on its loop."""
        self._broken = error
        self._shut()
        self._refuse([entry for entry in (*self._backlog.entries, *self._door) if entry not in self._writing])

    async def close(self, timeout: float | None = None) -> None:
        """Take nothing more; return when everything that was handed in is written or refused.

        After `timeout` seconds the rest is refused: with `ReplyLost` what the store may be writing, with
        `StoreClosed` what it never got. A store that blocks its thread is waited for.
        """
        self._closing = True
        give_up = None if timeout is None else self._loop.time() + timeout
        self.begin()  # it looks into the inbox only after this iteration, when its submits are handed in
        while under_way := {*self._work.values(), *self._resting}:
            left = None if give_up is None else max(0.0, give_up - self._loop.time())
            _, late = await asyncio.wait(under_way, timeout=left)
            for work in late:
                work.cancel()
                give_up = None
        self._shut()

    def stats(self) -> CommitterStats:
        """How it goes; from any thread."""
        age = None if self._finished is None else self._clock.monotonic() - self._finished
        waiting = len(self._door) + len(self._inbox)
        return CommitterStats(age, self._passes, self._commands, self._largest, self._backlog.rows, waiting)

    # From any thread. A submitter fills the inbox, then looks at `_closed` and `_idle`; the loop
    # sets these, then looks into the inbox. Whatever the timing, one of them sees the other.

    def _hand_in(self, entries: Iterable[PendingCommand]) -> None:
        self._inbox.extend(entries)
        if self._closed:
            self._shut()
        elif self._idle:
            is_here = asyncio._get_running_loop() is self._loop
            try:
                (self._loop.call_soon if is_here else self._loop.call_soon_threadsafe)(self.begin)
            except RuntimeError:  # its loop was closed, but not the committer
                self._shut()

    def _abandon(self, entry: PendingCommand) -> None:
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._drop, entry)

    def _refuse_if_closing(self) -> None:
        if self._closing:
            returned(self._refusal())

    def _shut(self) -> None:
        """From now on nothing is written: refuse what is in the inbox, or ever gets there."""
        self._closing = self._closed = True
        left: list[PendingCommand] = []
        with suppress(IndexError):  # others may be emptying it too
            while True:
                left.append(self._inbox.popleft())
        self._refuse(left)

    def _refuse(self, entries: list[PendingCommand]) -> None:
        refusal = self._refusal()
        reply([(entry, refusal) for entry in entries])

    def _refusal(self) -> ErrandryError:
        if isinstance(self._broken, ErrandryError):
            return self._broken
        refusal = StoreClosed("committer", "closed, or closing: this was not written")
        refusal.__cause__ = self._broken
        return refusal

    # On the committer's own loop.

    def _set_to_work(self, track: int) -> None:
        if track not in self._work:
            work = self._work[track] = self._loop.create_task(self._write_passes(track))
            work.add_done_callback(partial(self._ended, track))
            self._idle = len(self._work) < self._tracks

    def _ended(self, track: int, work: asyncio.Task[None]) -> None:
        """Work ends when nothing is left. Ended in any other way, nobody is left without an answer."""
        del self._work[track]
        if work.cancelled():
            self.fail(StoreClosed("committer", "stopped before this was written"))
        elif (error := work.exception()) is not None:
            self.fail(error)
        else:
            self._idle = True
            if self._inbox or self._backlog.has_ready(track):
                self.begin()

    async def _write_passes(self, track: int) -> None:
        me = asyncio.current_task()
        while entries := self._next_pass(track):
            along = self._going_along(track, entries)
            refused = await self._write(entries, along)
            self._backlog.remove([entry for entry in entries if entry not in refused] if refused else entries)
            self._writing.difference_update(entries)
            if refused:
                rest = self._loop.create_task(self._put_off(refused))
                self._resting.add(rest)
                rest.add_done_callback(self._resting.discard)
            if me is not None and me.cancelling():
                raise asyncio.CancelledError
            await asyncio.sleep(0)  # or a store that blocks would keep reads on this loop waiting

    def _next_pass(self, track: int) -> list[PendingCommand]:
        """What to write next on a track; what has come for others that rest sets them to work."""
        if self._broken is not None or not self._accept():
            return []
        for other in range(self._tracks):
            if other != track and self._backlog.has_ready(other):
                self._set_to_work(other)
        entries = self._backlog.take(track)
        self._writing.update(entries)
        return entries

    def _going_along(self, track: int, entries: list[PendingCommand]) -> list[PendingCommand]:
        """The claims that share a pass of `entries`, if it does not take long."""
        if not self._companions or self._closing or 0 < track == self._tracks - 1:
            return []
        if all(type(one.command) in _BARREN for one in entries):
            return []
        claims = [one for companion in list(self._companions) for one in companion()]
        return [entry_of(claim, future, self._port) for claim, future in claims]

    def _accept(self) -> bool:
        """Let in what has come: workers' commands always, the others while there is room."""
        now, backlog, door, inbox = self._clock.monotonic(), self._backlog, self._door, self._inbox
        while door and backlog.has_room:
            entry, _ = door.popitem(last=False)
            if not entry.future.cancelled():
                backlog.add(entry, now)
        while inbox:
            entry = inbox.popleft()
            if entry.future.cancelled():
                continue
            if entry.fenced or backlog.has_room:
                backlog.add(entry, now)
            else:
                door[entry] = None
        return bool(backlog.entries)

    def _drop(self, entry: PendingCommand) -> None:
        if not self._closed:
            self._accept()
            self._door.pop(entry, None)

    async def _put_off(self, refused: dict[PendingCommand, Answer]) -> None:
        """Have these written again after a pause in which nobody waits for them."""
        try:
            await self._sleep(PUT_OFF * random.uniform(0.5, 1.5))
        except asyncio.CancelledError:
            self._backlog.remove(refused)
            reply(refused.items())
            raise
        if self._broken is None:
            self._backlog.put_back(refused)
            self.begin()

    async def _write(
        self, own: list[PendingCommand], along: list[PendingCommand]
    ) -> dict[PendingCommand, Answer]:
        """Write one pass and answer it; returns what of `own` the store refused for now, to be sent again.

        If it is refused it goes again without what goes along: whoever gets on a pass must not cost it.
        """
        entries = own + along
        refused: dict[PendingCommand, Answer] = {}
        try:
            answers: Sequence[Answer] = await self._commit(entries)
            if len(answers) != len(entries):
                raise ValueError(f"the store gave {len(answers)} answers to {len(entries)} commands")
        except ErrandryError as error:
            if along and not isinstance(error, ReplyLost | StoreClosed):
                reply([(entry, error) for entry in along])
                return await self._write(own, [])
            answers = [error] * len(entries)
        except Exception as error:
            answers = [_failed(entry.command, error) for entry in entries]
        except BaseException:
            lost = ReplyLost("committer", "stopped while this was being written")
            reply([(entry, lost) for entry in entries])
            raise
        else:
            self._passes += 1
            self._commands += len(entries)
            self._largest = max(self._largest, len(entries))
            self._finished = self._clock.monotonic()
            refused = {
                entry: answer
                for entry, answer in zip(own, answers, strict=False)
                if type(answer) is StoreUnavailable
                and not entry.fenced
                and not self._is_final(answer, [entry])
            }
        # A handler begins before who enqueued its job goes on.
        reply(zip(along, answers[len(own) :], strict=True))
        answered = zip(own, answers, strict=False)
        reply([one for one in answered if one[0] not in refused] if refused else answered)
        return refused

    async def _commit(self, entries: list[PendingCommand]) -> Sequence[Answer]:
        """The store's answers; sent again while it is away, and once a reply was lost that is the error."""
        commands = [entry.command for entry in entries]
        pause, lost = FIRST_PAUSE, None
        while True:
            try:
                answers = await self._store.commit(commands)
                if lost is None:
                    return answers
                return [lost if _is_doubtful(answer) else answer for answer in answers]
            except asyncio.CancelledError:
                raise ReplyLost("committer", "stopped while this was being written") from None
            except Exception as error:
                lost = error if isinstance(error, ReplyLost) else lost
                if self._is_final(error, entries):
                    if lost is None or lost is error:
                        raise
                    raise lost from error
            try:
                await self._sleep(pause * random.uniform(0.5, 1.5))
            except asyncio.CancelledError:
                raise lost or StoreClosed("committer", "stopped before this was written") from None
            pause = min(2 * pause, LONGEST_PAUSE)

    def _is_final(self, error: Exception, entries: list[PendingCommand]) -> bool:
        if not isinstance(error, StoreUnavailable) or isinstance(error, StoreFull | StoreClosed):
            return True
        if self._closing and all(entry.future.cancelled() for entry in entries):
            return True
        accepted = max(entry.accepted for entry in entries)
        return self._clock.monotonic() >= accepted + self._limits.give_up_after


def _is_doubtful(answer: Answer) -> bool:
    """Whether a command that was sent again may have been done the first time, and be refused for that."""
    return type(answer) is StoreUnavailable or (isinstance(answer, Moved) and bool(answer.refused))


def _failed(command: Command, error: Exception) -> CommandFailed:
    failed = CommandFailed(type(command).__name__, f"{type(error).__name__}: {error}")
    failed.__cause__ = error
    return failed
