"""Maintains the partitions of finished jobs, one for each day on which jobs expire.

Creates them ahead of time, and drops them when the day is over and they are empty. No pass waits for it: a
partition is detached while other transactions read and write. A long read of a partition only delays its
drop.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import psycopg
from psycopg import errors

from errandry.core.job import DAY
from errandry.store.postgres.error_mapping import LOCKED

LONG_TERM = 0
"""The partition of jobs that are kept for long: a partition per day would hold very few of them."""
LONG_TERM_AFTER = 60 * DAY
"""Seconds of retention above which a job goes to that partition."""
DROP_DELAY = 3_600.0
"""Seconds after its day before a partition is dropped. No pass that still writes to it can take this long."""
LOCK_TIMEOUT = "500ms"
"""Lock timeout for a partition that is to be dropped and that another transaction reads."""
MAINTENANCE_INTERVAL = 60.0
"""Seconds between two runs of the maintenance. A run retries what the last one could not drop."""

_IN_USE = (*LOCKED, errors.ObjectNotInPrerequisiteState)
"""Another transaction reads the partition, or another process is detaching one."""


class Partition(NamedTuple):
    day: int
    name: str
    is_detaching: bool


def day_of(finished_at: float, expires_at: float) -> int:
    """The day that names the partition of a finished job."""
    return LONG_TERM if expires_at - finished_at > LONG_TERM_AFTER else int(expires_at // DAY)


def is_over(day: int, now: float) -> bool:
    return day != LONG_TERM and (day + 1) * DAY + DROP_DELAY <= now


class Partitions:
    """Runs the maintenance from time to time, over a connection that is not in a transaction."""

    def __init__(self, sql: Mapping[str, str]) -> None:
        self._sql = sql
        self._maintained_at: float | None = None

    @property
    def are_due(self) -> bool:
        return self._maintained_at is None or time.monotonic() >= self._maintained_at + MAINTENANCE_INTERVAL

    def maintain(self, connection: psycopg.Connection[Any], now: float) -> None:
        self._maintained_at = time.monotonic()
        partitions = [Partition(*row) for row in self._rows(connection, "partitions")]
        self._create_ahead(connection, {partition.day for partition in partitions}, now)
        over = [
            partition for partition in partitions if partition.is_detaching or is_over(partition.day, now)
        ]
        if (over or self._rows(connection, "detached_partitions")) and self._may_drop(connection):
            with suppress(*_IN_USE):  # the next run retries
                self._drop_partitions(connection, over)

    def _create_ahead(self, connection: psycopg.Connection[Any], days: set[int], now: float) -> None:
        """Create the partition after each one with jobs: jobs with the same retention expire there next."""
        for day in days - {LONG_TERM}:
            if day + 1 not in days and not is_over(day, now) and self._has_jobs(connection, day):
                try:
                    with connection.transaction():
                        self._rows(connection, "set_lock_timeout", (LOCK_TIMEOUT,))
                        self._rows(connection, "create_partition", (day + 1,))
                except LOCKED:
                    return  # there is a day left to create it

    def _has_jobs(self, connection: psycopg.Connection[Any], day: int) -> bool:
        return bool(self._rows(connection, "partition_has_jobs", (day,)))

    def _may_drop(self, connection: psycopg.Connection[Any]) -> bool:
        """Whether this user owns the table and the session is not shared: it can then get a lock timeout."""
        [(is_owner, pid)] = self._rows(connection, "may_drop_partitions")
        return bool(is_owner) and pid == connection.info.backend_pid

    def _drop_partitions(self, connection: psycopg.Connection[Any], over: list[Partition]) -> None:
        if not self._rows(connection, "lock_partitions")[0][0]:
            return
        try:
            self._rows(connection, "set_session_lock_timeout", (LOCK_TIMEOUT,))
            for partition in sorted(
                over, key=lambda partition: not partition.is_detaching
            ):  # only one at a time can be detached
                if partition.is_detaching:
                    self._alter(connection, "finish_detach", partition.name)
                elif not self._has_jobs(connection, partition.day):
                    self._alter(connection, "detach_partition", partition.name)
            for name in self._empty_detached(connection):
                self._alter(connection, "drop_partition", name)
        finally:
            if not connection.closed:
                self._rows(connection, "reset_session_lock_timeout")
                self._rows(connection, "unlock_partitions")

    def _empty_detached(self, connection: psycopg.Connection[Any]) -> Iterator[str]:
        """The detached partitions without jobs. One with jobs was detached by an operator, so it stays."""
        for (name,) in self._rows(connection, "detached_partitions"):
            if not connection.execute(
                self._sql["detached_has_jobs"].replace("history_partition", name)
            ).fetchone():
                yield name

    def _alter(self, connection: psycopg.Connection[Any], statement: str, name: str) -> None:
        """Run a statement on a partition. Its name cannot be a parameter; it comes from the catalog."""
        connection.execute(self._sql[statement].replace("history_partition", name), prepare=False)

    def _rows(self, connection: psycopg.Connection[Any], name: str, params: Any = None) -> list[Any]:
        return connection.execute(self._sql[name], params).fetchall()
