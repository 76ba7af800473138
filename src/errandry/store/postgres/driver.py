"""The PostgreSQL driver: each pass is a transaction on the connection and the thread of its track.

The rules are those of `store.execute`, as in every store that runs them in this process. This module makes a
pass atomic, retries it after conflicts, and runs reads.
"""

import asyncio
import os
import random
import secrets
import time
from collections.abc import Callable, Sequence
from concurrent.futures import wait
from contextlib import AbstractContextManager
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
    store_errors,
)
from errandry.store.postgres.health import findings
from errandry.store.postgres.listener import Listener
from errandry.store.postgres.migrate import migrate, schema_exists
from errandry.store.postgres.partitions import Partitions
from errandry.store.postgres.rights import missing_right
from errandry.store.postgres.row_cache import RowCache
from errandry.store.postgres.scan_position import ScanPositions
from errandry.store.postgres.tables import PostgresTables
from errandry.store.postgres.track import LOCK_TIMEOUTS, REPLY_TIMEOUTS, USUAL_TRACK, Track, track_of
from errandry.store.table_store import TableStore, command_failed, reach_failpoints
from errandry.store.tables.protocol import Tables

T = TypeVar("T")
PassResult = tuple[list[Answer], bool]
"""The answers of a pass, and whether it changed anything."""

RETRIES_MAX = 5
"""Maximum number of retries of a pass that conflicts with another transaction."""
KNOWN_LOCK_TIMEOUT = "20ms"
"""Lock timeout of a command whose lock another command has already waited for."""
MANY_LOCKS, MANY_LOCKS_TIMEOUT = 25, "1ms"
"""After this number of lock timeouts in a pass, the lock timeout of its other commands. It is short because
commands in the same pass or behind it have leases to renew."""
LOCKED_NAMES_MAX = 1_000
"""Maximum number of jobs and unique keys that are remembered as locked."""
CLOSE_TIMEOUT = 5.0
"""Seconds that a close waits for running passes and reads before it aborts their connections."""


class PostgresStore(TableStore):
    """A store in `schema` of the database at `url`, which may use every option that libpq knows.

    Its time is the server's, unless it is given a clock.
    """

    tracks = len(LOCK_TIMEOUTS)

    def __init__(
        self, url: str, clock: Clock | None = None, limits: StoreLimits | None = None, schema: str = SCHEMA
    ) -> None:
        super().__init__(clock, limits)
        self.address = address_of(url, schema)
        self.identity = ""
        self._has_servers_clock = clock is None
        self._open: _OpenDatabase | None = None

    def track(self, command: Command) -> int:
        return track_of(command)

    def bind(self, connection: object) -> PostgresBinding:
        return PostgresBinding(connection, self.address, self._store_info)

    async def needs_setup(self) -> str | None:
        return await asyncio.to_thread(self._missing_schema)

    async def open(self) -> None:
        if self._open is not None and self._open.is_forked:
            self._open, self.changes = None, ChangeCounter()  # the parent waits on the old one
        if self._open is None:
            database = _OpenDatabase(self.address)
            try:
                first = database.tracks[USUAL_TRACK]  # a program that only enqueues uses only this one
                await first.run(REPLY_TIMEOUTS[-1], self._migrate, first.connection)
            except BaseException:
                database.close()
                raise
            self._open = database

    async def close(self) -> None:
        database, self._open = self._open, None
        if database is not None and not database.is_forked:
            database.close()
            self.changes.increment()

    async def commit(self, commands: Sequence[Command]) -> list[Answer]:
        database = await self._opened_database()
        number = track_of(commands[0]) if commands else 0
        track = database.free_track(number)
        is_upkeep = Upkeep in {type(command) for command in commands}
        if is_upkeep and database.partitions.are_due:
            await track.run(REPLY_TIMEOUTS[number], self._maintain_partitions, database, track.connection)
            track = database.free_track(number)
        answers, is_dirty = await track.run(
            REPLY_TIMEOUTS[number], self._write, database, track.connection, LOCK_TIMEOUTS[number], commands
        )
        if is_dirty:  # a claim that finds nothing must not wake its own worker
            self.changes.increment()
        return answers

    async def wait_for_change(self, version: int, timeout: float) -> bool:
        database = await self._opened_database()
        database.listener.start(self.changes)
        return await self.changes.wait(version, timeout)

    async def read(self, look: Callable[[Tables, float], T]) -> T:
        database = await self._opened_database()
        return await database.reader.run(REPLY_TIMEOUTS[-1], self._read, database.reader.connection, look)

    async def diagnose(self) -> list[Finding]:
        database = await self._opened_database()
        return await database.reader.run(REPLY_TIMEOUTS[-1], self._diagnose, database.reader.connection)

    async def _opened_database(self) -> "_OpenDatabase":
        if self._open is None:
            raise StoreClosed(self.address.name, "the store is not open")
        if self._open.is_forked:
            await self.open()
        return self._open

    def _store_info(self) -> StoreInfo:
        return StoreInfo(
            self.identity, None if self._has_servers_clock else self.clock.now(), self.limits.payload
        )

    def _errors(self) -> AbstractContextManager[None]:
        """Turns errors of the server and of libpq into errors of this store."""
        return store_errors(self.address.name, lambda message: missing_right(self.address, message))

    # The methods below run on the thread of a track.

    def _missing_schema(self) -> str | None:
        with self._errors(), connect(self.address) as connection:
            if schema_exists(connection, self.address):
                return None
        return f"{self.address.name}, schema {self.address.schema}"

    def _migrate(self, connection: PostgresConnection) -> None:
        with self._errors():
            self.identity, self.schema_change = migrate(connection.raw, self.address)

    def _diagnose(self, connection: PostgresConnection) -> list[Finding]:
        with self._errors():
            return list(findings(connection.raw, self.address))

    def _write(
        self,
        database: "_OpenDatabase",
        connection: PostgresConnection,
        lock_timeout: str,
        commands: Sequence[Command],
    ) -> PassResult:
        """Write a pass. Commands about locked jobs or keys are written one by one after the others.

        The lock timeout of the whole pass is thus not spent again on a lock that is known to be held.
        """
        if not database.locked_names:
            return self._write_together(database, connection, lock_timeout, commands)
        locked = [number for number, command in enumerate(commands) if database.is_locked(command)]
        if not locked:
            return self._write_together(database, connection, lock_timeout, commands)
        others = [command for number, command in enumerate(commands) if number not in locked]
        answers = self._write_together(database, connection, lock_timeout, others)[0] if others else []
        locked_commands = [commands[number] for number in locked]
        locked_answers = self._write_one_by_one(database, connection, KNOWN_LOCK_TIMEOUT, locked_commands)
        for number, answer in zip(locked, locked_answers, strict=True):
            answers.insert(number, answer)
        return answers, True

    def _maintain_partitions(self, database: "_OpenDatabase", connection: PostgresConnection) -> None:
        """Create and drop partitions of `history`, which an upkeep cannot do in its transaction."""

        def maintain() -> None:
            now = self._run_read(connection, lambda _tables, now: now)
            database.partitions.maintain(connection.raw, now)

        with self._errors():
            _with_reconnect(connection, maintain)

    def _write_together(
        self,
        database: "_OpenDatabase",
        connection: PostgresConnection,
        lock_timeout: str,
        commands: Sequence[Command],
    ) -> PassResult:
        try:
            return self._write_with_retries(database, connection, lock_timeout, commands)
        except StoreError:
            raise
        except Exception as error:
            if len(commands) == 1:
                return [self._error_answer(database, commands[0], error)], False
        # One of the commands cannot be written. Write each one alone to find out which.
        return self._write_one_by_one(database, connection, lock_timeout, commands), True

    def _write_one_by_one(
        self,
        database: "_OpenDatabase",
        connection: PostgresConnection,
        lock_timeout: str,
        commands: Sequence[Command],
    ) -> list[Answer]:
        """Write each command in a transaction of its own.

        Of several commands that need the same locked job or unique key, only the first waits for the lock.
        """
        answers: list[Answer] = []
        refusals: dict[str, Answer] = {}
        refused = 0
        for command in commands:
            names = lock_names(command)
            refusal = next((refusals[name] for name in names if name in refusals), None)
            answers.append(refusal or self._write_alone(database, connection, lock_timeout, command))
            if isinstance(answers[-1], StoreUnavailable):
                refused += 1
                lock_timeout = KNOWN_LOCK_TIMEOUT if refused < MANY_LOCKS else MANY_LOCKS_TIMEOUT
                if database.is_locked(command):
                    refusals |= dict.fromkeys(names, answers[-1])
                if not connection.is_up:
                    lost = StoreUnavailable(self.address.name, "the connection was lost before this was sent")
                    answers += [lost] * (len(commands) - len(answers))
                    break
        return answers

    def _write_alone(
        self, database: "_OpenDatabase", connection: PostgresConnection, lock_timeout: str, command: Command
    ) -> Answer:
        try:
            answer = self._write_with_retries(database, connection, lock_timeout, [command])[0][0]
        except Exception as error:
            return self._error_answer(database, command, error)
        database.locked_names.difference_update(lock_names(command))
        return answer

    def _error_answer(self, database: "_OpenDatabase", command: Command, error: Exception) -> Answer:
        """The answer to a command that could not be written, or whose lock another transaction holds."""
        if isinstance(error, LOCKED):
            database.mark_locked(command)
        try:
            with self._errors():
                raise error
        except StoreError as refusal:
            return refusal
        except Exception:
            return command_failed(command, error)

    def _write_with_retries(
        self,
        database: "_OpenDatabase",
        connection: PostgresConnection,
        lock_timeout: str,
        commands: Sequence[Command],
    ) -> PassResult:
        """Run a pass, and retry it after a conflict with another transaction.

        Also retry after a wrong guess of a blind insert, a switched session, a changed schema, and a missing
        partition. None of them has written anything.
        """
        lanes = self._lanes_for_blind_insert(database, commands)
        for _ in range(RETRIES_MAX):
            try:
                return self._run_pass(database, connection, lock_timeout, commands, lanes)
            except STALE_GUESS:
                database.lane_cache.clear()
            except SESSION_SWITCHED:
                connection.stop_preparing()
            except SCHEMA_CHANGED:
                connection.close()
            except NO_PARTITION as error:
                if error.diag.constraint_name is not None:
                    raise
                connection.tables.forget_partitions()
            except CONFLICT:
                time.sleep(random.uniform(0.001, 0.01))
            lanes = None
        return self._run_pass(database, connection, lock_timeout, commands)

    def _lanes_for_blind_insert(
        self, database: "_OpenDatabase", commands: Sequence[Command]
    ) -> dict[LaneKey, int] | None:
        """The cached lanes if this pass can be a blind insert (blind_insert.py), else None."""
        if self.clock.is_ahead or database.scan_positions.parts(time.monotonic()):
            return None
        return database.lane_cache.lanes_for(commands, self.limits.payload)

    def _run_pass(
        self,
        database: "_OpenDatabase",
        connection: PostgresConnection,
        lock_timeout: str,
        commands: Sequence[Command],
        lanes: dict[LaneKey, int] | None = None,
    ) -> PassResult:
        """Run a pass as one transaction. With `lanes`, as a blind insert."""
        try:
            if lanes:
                tables, now = self._begin_blind_pass(connection, lock_timeout, commands, lanes)
            else:
                tables, now = self._begin_pass(database, connection, lock_timeout, commands)
            answers = apply(commands, tables, now, self.limits)
            last: tuple[Any, ...] = ()
            if tables.event_row is not None:
                last = "append_events", (*tables.event_row, database.channel, database.name)
            elif tables.is_dirty and self.clock.is_ahead:
                last = "save_time", (now,)
            elif tables.held_jobs:
                last = ("transaction_id",)
            reach_failpoints("before", commands, answers)
            number = connection.commit(*last)
            if tables.held_jobs:
                database.row_cache.save(number[0][0], tables.held_jobs)
            tables.record_commit()
            if not tables.has_gates:
                database.lane_cache.save(tables.held_lanes)
            reach_failpoints("after", commands, answers)
        except BaseException as error:
            connection.roll_back()
            if connection.is_in_doubt and isinstance(error, psycopg.Error):
                raise ReplyLost(self.address.name, "the connection was lost during a commit") from error
            if isinstance(error, psycopg.Error) and not isinstance(
                error, (*LOCKED, *CONFLICT, *SESSION_SWITCHED, *STALE_GUESS)
            ):
                with self._errors():
                    raise
            raise
        return answers, tables.is_dirty

    def _begin_pass(
        self,
        database: "_OpenDatabase",
        connection: PostgresConnection,
        lock_timeout: str,
        commands: Sequence[Command],
    ) -> tuple[PostgresTables, float]:
        def begin() -> tuple[PostgresTables, float]:
            tables = connection.begin()
            now = self._store_time(
                *tables.begin(
                    lock_timeout, commands, self.limits.payload, database.row_cache, database.scan_positions
                )
            )
            tables.prefetch_upkeep(commands, now)
            return tables, now

        return _with_reconnect(connection, begin)

    def _begin_blind_pass(
        self,
        connection: PostgresConnection,
        lock_timeout: str,
        commands: Sequence[Command],
        lanes: dict[LaneKey, int],
    ) -> tuple[PostgresTables, float]:
        connection.receive_notices()
        tables = connection.begin()
        now = self.clock.estimate() if self._has_servers_clock else self.clock.now()
        tables.begin_blind(lock_timeout, commands, lanes, None if self._has_servers_clock else now)
        return tables, now

    def _read(self, connection: PostgresConnection, look: Callable[[Tables, float], T]) -> T:
        with self._errors():
            return _with_reconnect(connection, lambda: self._run_read(connection, look))

    def _run_read(self, connection: PostgresConnection, look: Callable[[Tables, float], T]) -> T:
        try:
            tables = connection.begin("begin_read")
            result = look(tables, self._store_time(*tables.begin_read()))
            connection.commit()
        except BaseException:
            connection.roll_back()
            raise
        return result

    def _store_time(self, floor: float, servers: float) -> float:
        return self.clock.now(floor, servers if self._has_servers_clock else None)


class _OpenDatabase:
    """The connections, threads and caches of an open store."""

    def __init__(self, address: Address) -> None:
        self._pid = os.getpid()
        self.name = secrets.token_hex(8)
        self.channel = f"errandry_{address.schema}"
        self.tracks = [Track(address, f"write-{number}") for number in range(len(LOCK_TIMEOUTS))]
        self.reader = Track(address, "read", writes=False)
        self.listener = Listener(address, self.channel, self.name)
        self.partitions = Partitions(address.statements())
        self.row_cache, self.scan_positions, self.lane_cache = RowCache(), ScanPositions(), LaneCache()
        self.locked_names: set[str] = set()

    @property
    def is_forked(self) -> bool:
        return self._pid != os.getpid()

    def free_track(self, number: int) -> Track:
        """The track for a pass: an idle track with a connection, else its own or another idle one.

        At most one pass runs per track number, so there is always an idle track. The choice keeps the
        number of connections low in a program that writes one pass at a time.
        """
        own = self.tracks[number]
        idle = [track for track in (own, *self.tracks) if not track.is_busy]
        return next((track for track in idle if track.connection.is_up), next(iter(idle), own))

    def is_locked(self, command: Command) -> bool:
        """Whether a pass has found a job or a unique key of the command locked by another transaction."""
        return not self.locked_names.isdisjoint(lock_names(command))

    def mark_locked(self, command: Command) -> None:
        """Remember that the command waited for a lock in vain, unless it names several jobs.

        With several jobs, the error does not tell which of them is locked.
        """
        if len(touched_ids(command)) == 1:
            if len(self.locked_names) >= LOCKED_NAMES_MAX:
                self.locked_names.clear()  # a pass finds those that are still locked again
            self.locked_names.update(lock_names(command))

    def close(self) -> None:
        self.listener.stop()
        tracks = {track.close(): track for track in (*self.tracks, self.reader)}
        _, running = wait(tracks, CLOSE_TIMEOUT)
        for closed in running:
            tracks[closed].connection.abort()
        wait(running, CLOSE_TIMEOUT)


def lock_names(command: Command) -> tuple[str, ...]:
    """The ids and the unique keys of a command. Keys get a leading tab, which no id contains."""
    keys = (
        () if type(command) is not Insert else [f"\t{job.unique.key}" for job in command.jobs if job.unique]
    )
    return (*touched_ids(command), *keys)


def _with_reconnect(connection: PostgresConnection, work: Callable[[], T]) -> T:
    """Call `work`, which writes nothing. Call it again if the connection was lost while it was idle."""
    was_up = connection.is_up
    try:
        return work()
    except psycopg.OperationalError:
        if not was_up or connection.is_up:
            raise
    except SESSION_SWITCHED:
        connection.roll_back()  # a pooler discards a session that is left in a transaction
        connection.stop_preparing()
    except SCHEMA_CHANGED:
        connection.close()
    return work()
