"""The partitions of finished jobs, one for each day on which some expire: made ahead, and removed when empty.

Nobody waits for any of it. A partition is detached while others go on reading and writing; a reader that
stays in it for long only puts off its end.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import psycopg
from psycopg import errors

from errandry.core.job import DAY
from errandry.store.postgres.error_mapping import LOCKED

LATER = 0
"""The partition of what is kept for so long that a day of it would hold next to nothing."""
FAR = 60 * DAY
GRACE = 3_600.0
"""So long after its day no pass can be under way that still finds it the right one."""
LOCK = "500ms"
"""So long is waited for who reads in a partition that is to go."""
REST = 60.0
"""Seconds between one look after them and the next; what could not go is tried again then."""

_BUSY = (*LOCKED, errors.ObjectNotInPrerequisiteState)
"""Somebody reads there still, or another program is detaching just now."""


class Partition(NamedTuple):
    day: int
    name: str
    is_detaching: bool


def day_of(finished_at: float, expires_at: float) -> int:
    """The partition of a finished job."""
    return LATER if expires_at - finished_at > FAR else int(expires_at // DAY)


def is_over(day: int, now: float) -> bool:
    return day != LATER and (day + 1) * DAY + GRACE <= now


class Partitions:
    """Tends them now and then, over a connection that is in no transaction."""

    def __init__(self, sql: Mapping[str, str]) -> None:
        self._sql = sql
        self._tended: float | None = None

    @property
    def are_due(self) -> bool:
        return self._tended is None or time.monotonic() >= self._tended + REST

    def tend(self, connection: psycopg.Connection[Any], now: float) -> None:
        self._tended = time.monotonic()
        found = [Partition(*row) for row in self._all(connection, "days")]
        self._make_ahead(connection, {partition.day for partition in found}, now)
        over = [one for one in found if one.is_detaching or is_over(one.day, now)]
        if (over or self._all(connection, "left_days")) and self._may_remove(connection):
            with suppress(*_BUSY):  # there is time for it
                self._remove(connection, over)

    def _make_ahead(self, connection: psycopg.Connection[Any], days: set[int], now: float) -> None:
        """The day after each that has jobs: if these are kept for as long, tomorrow's go there."""
        for day in days - {LATER}:
            if day + 1 not in days and not is_over(day, now) and self._has_jobs(connection, day):
                try:
                    with connection.transaction():
                        self._all(connection, "wait_little", (LOCK,))
                        self._all(connection, "make_day", (day + 1,))
                except LOCKED:
                    return  # there is a day's time for it

    def _has_jobs(self, connection: psycopg.Connection[Any], day: int) -> bool:
        return bool(self._all(connection, "day_has_jobs", (day,)))

    def _may_remove(self, connection: psycopg.Connection[Any]) -> bool:
        """Only the owner may; and only over a session of its own can it be told not to wait."""
        [(is_owner, pid)] = self._all(connection, "may_remove_days")
        return bool(is_owner) and pid == connection.info.backend_pid

    def _remove(self, connection: psycopg.Connection[Any], over: list[Partition]) -> None:
        if not self._all(connection, "hold_days")[0][0]:
            return
        try:
            self._all(connection, "wait_little_always", (LOCK,))
            for partition in sorted(
                over, key=lambda one: not one.is_detaching
            ):  # one at a time may be detaching
                if partition.is_detaching:
                    self._alter(connection, "finish_detaching", partition.name)
                elif not self._has_jobs(connection, partition.day):
                    self._alter(connection, "detach_day", partition.name)
            for name in self._left(connection):
                self._alter(connection, "drop_day", name)
        finally:
            if not connection.closed:
                self._all(connection, "wait_as_before")
                self._all(connection, "release_days")

    def _left(self, connection: psycopg.Connection[Any]) -> Iterator[str]:
        """Those detached and empty. One with jobs in it was detached by a person, for a reason."""
        for (name,) in self._all(connection, "left_days"):
            if not connection.execute(self._sql["left_day_has_jobs"].replace("history_day", name)).fetchone():
                yield name

    def _alter(self, connection: psycopg.Connection[Any], statement: str, name: str) -> None:
        """No parameter can stand for a table; `name` is one that the catalog gave, of letters and digits."""
        connection.execute(self._sql[statement].replace("history_day", name), prepare=False)

    def _all(self, connection: psycopg.Connection[Any], name: str, params: Any = None) -> list[Any]:
        return connection.execute(self._sql[name], params).fetchall()
