"""Raw writes: single durable writes of one row to the store's disk or server, the upper bound for a store.

They are measured between the parts of a run, so that a noisy machine affects both equally.
"""

import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, cast
from urllib.parse import urlsplit

from errandry.store.contract import Store

if TYPE_CHECKING:
    from errandry.store.postgres.driver import PostgresStore
    from errandry.store.sqlite.driver import SqliteStore


class RawWrites:
    """Timed single durable writes. `seconds` has those of all rounds so far."""

    def __init__(self, write: Callable[[str], object], close: Callable[[], object]) -> None:
        self.seconds: list[float] = []
        self._insert, self.close = write, close

    def measure(self, count: int) -> float:
        """Make `count` writes one right after the other; return the median seconds."""
        times = [self._write(number) for number in range(count)]
        self.seconds += times
        return median(times)

    def measure_at_rest(self, count: int, pause: float) -> float:
        """The same with pauses, after which a write takes longer. These are not added to `seconds`."""
        times = []
        for number in range(count):
            time.sleep(pause)
            times.append(self._write(number))
        return median(times)

    def _write(self, number: int) -> float:
        began = time.perf_counter()
        self._insert(f'{{"i":{number}}}')
        return time.perf_counter() - began


def raw_writes_for(url: str, store: Store, folder: Path) -> RawWrites | None:
    """Raw writes as durable as the store's and to the same disk or server; None for other kinds of store."""
    make = _FACTORIES.get(urlsplit(url).scheme)
    return None if make is None else make(store, folder)


def _sqlite(store: Store, folder: Path) -> RawWrites:
    import apsw

    durability = cast("SqliteStore", store).durability
    db = apsw.Connection(str(folder / "raw.db"))
    db.pragma("journal_mode", "wal")
    db.pragma("synchronous", {"power": "full", "process": "normal"}[durability])
    db.execute("CREATE TABLE row (number INTEGER PRIMARY KEY, payload TEXT)")
    return RawWrites(lambda text: db.execute("INSERT INTO row (payload) VALUES (?)", (text,)), db.close)


def _postgres(store: Store, _folder: Path) -> RawWrites:
    import psycopg
    from psycopg.sql import SQL, Identifier

    address = cast("PostgresStore", store).address
    db, table = psycopg.connect(address.conninfo, autocommit=True), Identifier(address.schema, "bench_raw")
    db.execute(SQL("DROP TABLE IF EXISTS {}").format(table))
    db.execute(SQL("CREATE TABLE {} (number bigserial PRIMARY KEY, payload text)").format(table))
    insert = SQL("INSERT INTO {} (payload) VALUES (%s)").format(table)

    def close() -> None:
        db.execute(SQL("DROP TABLE {}").format(table))
        db.close()

    return RawWrites(lambda text: db.execute(insert, (text,)), close)


_FACTORIES: dict[str, Callable[[Store, Path], RawWrites]] = {
    "sqlite": _sqlite,
    "postgres": _postgres,
    "postgresql": _postgres,
}
