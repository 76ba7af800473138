"""The PostgreSQL driver: passes as transactions, each on the connection and the thread of its track.

What decides is the same as for every store that decides in this process; here is how a pass is made
atomic, what is tried again, and where reads run.
"""

import asyncio
import os
import random
import secrets
import time
from collections.abc import Callable, Sequence
from concurrent.futures import wait
from typing import Any, TypeVar

import psycopg

from errandry.clock import Clock
from errandry.core.answer import Answer
from errandry.core.command import Command, Insert, Upkeep, touched_ids
from errandry.core.gate import LaneKey
from errandry.errors import ReplyLost, StoreClosed, StoreError, StoreUnavailable
from errandry.store.contract import StoreLimits
from errandry.store.engine.change_counter import ChangeCounter
from errandry.store.execute.apply import apply
from errandry.store.health import Finding
from errandry.store.postgres.address import SCHEMA, Address, address_of
from errandry.store.postgres.binding import PostgresBinding, StoreInfo
from errandry.store.postgres.blind_insert import LaneCache
from errandry.store.postgres.connection import PostgresConnection, connect
from errandry.store.postgres.error_mapping import (
    CONFLICT,
    LOCKED,
    NO_PARTITION,
    SCHEMA_CHANGED,
    SESSION_SWITCHED,
    STALE_GUESS,
    explained,
)
from errandry.store.postgres.health import examined
from errandry.store.postgres.listener import Listener
from errandry.store.postgres.migrate import is_made, migrate
from errandry.store.postgres.partitions import Partitions
from errandry.store.postgres.row_cache import RowCache
from errandry.store.postgres.scan_position import ScanPositions
from errandry.store.postgres.tables import PostgresTables
from errandry.store.postgres.track import LIMITS, TIMEOUTS, USUAL, Track, track_of
from errandry.store.table_store import TableStore, failed, reach
from errandry.store.tables.protocol import Tables

T = TypeVar("T")
PassResult = tuple[list[Answer], bool]
"""The answers of a pass, and whether it changed anything."""

TRIES = 5
"""So often is a pass tried again when it clashes with another transaction."""
KNOWN = "20ms"
"""So long is waited for a lock that has been waited for before."""
MANY, BRIEF = 25, "1ms"
"""After so many such locks in a pass, so long: others in that pass, or behind it, have leases to renew."""
LOCKED_MAX = 1_000
PATIENCE = 5.0
"""So long does a close wait for what is under way before it breaks it off."""


class PostgresStore(TableStore):
    """A store in `schema` of the database at `url`, which may say all that libpq understands.

    Its clock is the server's, unless it is given one.
    """

    tracks = len(TIMEOUTS)

    def __init__(
        self, url: str, clock: Clock | None = None, bounds: StoreLimits | None = None, schema: str = SCHEMA
    ) -> None:
        super().__init__(clock, bounds)
        self.address = address_of(url, schema)
        self.identity = ""
        self._has_servers_clock = clock is None
        self._open: _OpenDatabase | None = None

    def track(self, command: Command) -> int:
        return track_of(command)

    def bind(self, connection: object) -> PostgresBinding:
        return PostgresBinding(connection, self.address, self._said)

    async def needs_setup(self) -> str | None:
        return await asyncio.to_thread(self._missing)

    async def open(self) -> None:
        if self._open is not None and self._open.is_forked:
            self._open, self.bell = None, ChangeCounter()  # who waits on the old one is the parent
        if self._open is None:
            opened = _OpenDatabase(self.address)
            try:
                first = opened.tracks[USUAL]  # a program that only enqueues needs no other
                await first.run(LIMITS[-1], self._migrate, first.link)
            except BaseException:
                opened.close()
                raise
            self._open = opened

    async def close(self) -> None:
        opened, self._open = self._open, None
        if opened is not None and not opened.is_forked:
            opened.close()
            self.bell.increment()

    async def commit(self, commands: Sequence[Command]) -> list[Answer]:
        opened = await self._opened()
        number = track_of(commands[0]) if commands else 0
        track = opened.free_track(number)
        is_upkeep = Upkeep in {type(command) for command in commands}
        if is_upkeep and opened.days.are_due:
            await track.run(LIMITS[number], self._tend, opened, track.link)
            track = opened.free_track(number)
        answers, is_dirty = await track.run(
            LIMITS[number], self._write, opened, track.link, TIMEOUTS[number], commands
        )
        if is_dirty:  # or whoever claims in vain would wake itself by it
            self.bell.increment()
        return answers

    async def wait_for_change(self, pulse: int, timeout: float) -> bool:
        opened = await self._opened()
        opened.listener.start(self.bell)
        return await self.bell.wait(pulse, timeout)

    async def read(self, look: Callable[[Tables, float], T]) -> T:
        opened = await self._opened()
        return await opened.reader.run(LIMITS[-1], self._read, opened.reader.link, look)

    async def diagnose(self) -> list[Finding]:
        opened = await self._opened()
        return await opened.reader.run(LIMITS[-1], self._examined, opened.reader.link)

    async def _opened(self) -> "_OpenDatabase":
        if self._open is None:
            raise StoreClosed(self.address.name, "the store is not open")
        if self._open.is_forked:
            await self.open()
        return self._open

    def _said(self) -> StoreInfo:
        return StoreInfo(
            self.identity, None if self._has_servers_clock else self.clock.now(), self.bounds.payload
        )

    # On the thread of a track.

    def _missing(self) -> str | None:
        with explained(self.address.name), connect(self.address) as connection:
            if is_made(connection, self.address):
                return None
        return f"{self.address.name}, schema {self.address.schema}"

    def _migrate(self, link: PostgresConnection) -> None:
        with explained(self.address.name):
            self.identity = migrate(link.connection, self.address)

    def _examined(self, link: PostgresConnection) -> list[Finding]:
        with explained(self.address.name):
            return list(examined(link.connection, self.address))

    def _write(
        self,
        opened: "_OpenDatabase",
        link: PostgresConnection,
        lock_timeout: str,
        commands: Sequence[Command],
    ) -> PassResult:
        """A pass. What is known to be locked goes apart, so that nobody waits for it twice."""
        if not opened.locked:
            return self._together(opened, link, lock_timeout, commands)
        apart = [number for number, command in enumerate(commands) if opened.is_locked(command)]
        if not apart:
            return self._together(opened, link, lock_timeout, commands)
        rest = [command for number, command in enumerate(commands) if number not in apart]
        answers = self._together(opened, link, lock_timeout, rest)[0] if rest else []
        late = self._one_by_one(opened, link, KNOWN, [commands[number] for number in apart])
        for number, answer in zip(apart, late, strict=True):
            answers.insert(number, answer)
        return answers, True

    def _tend(self, opened: "_OpenDatabase", link: PostgresConnection) -> None:
        """What upkeep cannot do in a transaction."""

        def tend() -> None:
            now = self._looked(link, lambda _tables, now: now)
            opened.days.tend(link.connection, now)

        with explained(self.address.name):
            _again(link, tend)

    def _together(
        self,
        opened: "_OpenDatabase",
        link: PostgresConnection,
        lock_timeout: str,
        commands: Sequence[Command],
    ) -> PassResult:
        try:
            return self._tried(opened, link, lock_timeout, commands)
        except StoreError:
            raise
        except Exception as error:
            if len(commands) == 1:
                return [self._refusal(opened, commands[0], error)], False
        # One of the commands cannot be written. Which one shows when each goes alone.
        return self._one_by_one(opened, link, lock_timeout, commands), True

    def _one_by_one(
        self,
        opened: "_OpenDatabase",
        link: PostgresConnection,
        lock_timeout: str,
        commands: Sequence[Command],
    ) -> list[Answer]:
        """Each in a transaction of its own; of those that want the same unique key, one waits for it."""
        answers: list[Answer] = []
        kept: dict[str, Answer] = {}
        refused = 0
        for command in commands:
            names = names_of(command)
            known = next((kept[name] for name in names if name in kept), None)
            answers.append(known or self._alone(opened, link, lock_timeout, command))
            if isinstance(answers[-1], StoreUnavailable):
                refused += 1
                lock_timeout = KNOWN if refused < MANY else BRIEF
                if opened.is_locked(command):
                    kept |= dict.fromkeys(names, answers[-1])
                if not link.is_up:
                    away = StoreUnavailable(self.address.name, "the connection was lost before this was sent")
                    answers += [away] * (len(commands) - len(answers))
                    break
        return answers

    def _alone(
        self, opened: "_OpenDatabase", link: PostgresConnection, lock_timeout: str, command: Command
    ) -> Answer:
        try:
            answer = self._tried(opened, link, lock_timeout, [command])[0][0]
        except Exception as error:
            return self._refusal(opened, command, error)
        opened.locked.difference_update(names_of(command))
        return answer

    def _refusal(self, opened: "_OpenDatabase", command: Command, error: Exception) -> Answer:
        """The answer to a command that could not be written, or that somebody else's lock keeps waiting."""
        if isinstance(error, LOCKED):
            opened.found_locked(command)
        try:
            with explained(self.address.name):
                raise error
        except StoreError as refusal:
            return refusal
        except Exception:
            return failed(command, error)

    def _tried(
        self,
        opened: "_OpenDatabase",
        link: PostgresConnection,
        lock_timeout: str,
        commands: Sequence[Command],
    ) -> PassResult:
        """A pass, again if it and another transaction were in each other's way."""
        lanes = self._lanes_unseen(opened, commands)
        for _ in range(TRIES):
            try:
                return self._pass(opened, link, lock_timeout, commands, lanes)
            except STALE_GUESS:
                opened.news.forget()
            except SESSION_SWITCHED:
                link.forget_prepared()
            except SCHEMA_CHANGED:
                link.close()
            except NO_PARTITION as error:
                if error.diag.constraint_name is not None:
                    raise
                link.tables.forget_days()
            except CONFLICT:
                time.sleep(random.uniform(0.001, 0.01))
            lanes = None
        return self._pass(opened, link, lock_timeout, commands)

    def _lanes_unseen(
        self, opened: "_OpenDatabase", commands: Sequence[Command]
    ) -> dict[LaneKey, int] | None:
        """The lanes for a pass that need not look before it writes; None for one that has to."""
        if self.clock.is_ahead or opened.trail.parts(time.monotonic()):
            return None
        return opened.news.lanes(commands, self.bounds.payload)

    def _pass(
        self,
        opened: "_OpenDatabase",
        link: PostgresConnection,
        lock_timeout: str,
        commands: Sequence[Command],
        lanes: dict[LaneKey, int] | None = None,
    ) -> PassResult:
        """One transaction: all of it durable, or nothing written. With `lanes`, it is sent without a look."""
        try:
            if lanes:
                tables, now = self._begun_unseen(link, lock_timeout, commands, lanes)
            else:
                tables, now = self._begun(opened, link, lock_timeout, commands)
            answers = apply(commands, tables, now, self.bounds)
            last: tuple[Any, ...] = ()
            if tables.event_row is not None:
                last = "append", (*tables.event_row, opened.channel, opened.name)
            elif tables.is_dirty and self.clock.is_ahead:
                last = "keep_time", (now,)
            elif tables.held:
                last = ("number_of_pass",)
            reach("before", commands, answers)
            number = link.commit(*last)
            if tables.held:
                opened.known.learn(number[0][0], tables.held)
            tables.committed()
            if not tables.has_gates:
                opened.news.learn(tables.held_lanes)
            reach("after", commands, answers)
        except BaseException as error:
            link.roll_back()
            if link.is_in_doubt and isinstance(error, psycopg.Error):
                raise ReplyLost(self.address.name, "the connection was lost during a commit") from error
            if isinstance(error, psycopg.Error) and not isinstance(
                error, (*LOCKED, *CONFLICT, *SESSION_SWITCHED, *STALE_GUESS)
            ):
                with explained(self.address.name):
                    raise
            raise
        return answers, tables.is_dirty

    def _begun(
        self,
        opened: "_OpenDatabase",
        link: PostgresConnection,
        lock_timeout: str,
        commands: Sequence[Command],
    ) -> tuple[PostgresTables, float]:
        def begin() -> tuple[PostgresTables, float]:
            tables = link.begin()
            now = self._now(
                *tables.begin(lock_timeout, commands, self.bounds.payload, opened.known, opened.trail)
            )
            tables.foresee_upkeep(commands, now)
            return tables, now

        return _again(link, begin)

    def _begun_unseen(
        self,
        link: PostgresConnection,
        lock_timeout: str,
        commands: Sequence[Command],
        lanes: dict[LaneKey, int],
    ) -> tuple[PostgresTables, float]:
        link.notice()
        tables = link.begin()
        now = self.clock.guess() if self._has_servers_clock else self.clock.now()
        tables.begin_unseen(lock_timeout, commands, lanes, None if self._has_servers_clock else now)
        return tables, now

    def _read(self, link: PostgresConnection, look: Callable[[Tables, float], T]) -> T:
        with explained(self.address.name):
            return _again(link, lambda: self._looked(link, look))

    def _looked(self, link: PostgresConnection, look: Callable[[Tables, float], T]) -> T:
        try:
            tables = link.begin("begin_read")
            found = look(tables, self._now(*tables.look()))
            link.commit()
        except BaseException:
            link.roll_back()
            raise
        return found

    def _now(self, floor: float, servers: float) -> float:
        return self.clock.now(floor, servers if self._has_servers_clock else None)


class _OpenDatabase:
    """Everything that is there only while the store is open."""

    def __init__(self, address: Address) -> None:
        self._pid = os.getpid()
        self.name = secrets.token_hex(8)
        self.channel = f"errandry_{address.schema}"
        self.tracks = [Track(address, f"write-{number}") for number in range(len(TIMEOUTS))]
        self.reader = Track(address, "read", writes=False)
        self.listener = Listener(address, self.channel, self.name)
        self.days = Partitions(address.statements())
        self.known, self.trail, self.news = RowCache(), ScanPositions(), LaneCache()
        self.locked: set[str] = set()

    @property
    def is_forked(self) -> bool:
        return self._pid != os.getpid()

    def free_track(self, number: int) -> Track:
        """Where to write a pass of this number: its own track, or another that rests and has a connection.

        There are as many tracks as passes at a time, so nobody waits for it; and a program that does little
        at a time has few connections.
        """
        own = self.tracks[number]
        resting = [track for track in (own, *self.tracks) if not track.is_busy]
        return next((track for track in resting if track.link.is_up), next(iter(resting), own))

    def is_locked(self, command: Command) -> bool:
        """Whether a job it is about, or a key it wants, was found locked, by who knows whom."""
        return not self.locked.isdisjoint(names_of(command))

    def found_locked(self, command: Command) -> None:
        """Of several jobs nobody knows which one it was."""
        if len(touched_ids(command)) == 1:
            if len(self.locked) >= LOCKED_MAX:
                self.locked.clear()  # those that are locked still will be found again
            self.locked.update(names_of(command))

    def close(self) -> None:
        self.listener.stop()
        ends = {track.end(): track for track in (*self.tracks, self.reader)}
        _, late = wait(ends, PATIENCE)
        for end in late:
            ends[end].link.break_off()
        wait(late, PATIENCE)


def names_of(command: Command) -> tuple[str, ...]:
    """The jobs it is about, and the unique keys it wants: no id has a tab."""
    keys = (
        () if type(command) is not Insert else [f"\t{job.unique.key}" for job in command.jobs if job.unique]
    )
    return (*touched_ids(command), *keys)


def _again(link: PostgresConnection, work: Callable[[], T]) -> T:
    """Do what changes nothing; once more if the connection had been lost while nobody used it."""
    was_up = link.is_up
    try:
        return work()
    except psycopg.OperationalError:
        if not was_up or link.is_up:
            raise
    except SESSION_SWITCHED:
        link.roll_back()  # who leaves in the middle of a transaction costs a pooler its session
        link.forget_prepared()
    except SCHEMA_CHANGED:
        link.close()
    return work()
