"""What the store's own disk or server can do at best: one row in one durable write, with nothing around it.

It is measured again and again between the parts of a run, so that a noisy machine disturbs both alike.
"""

import time
from pathlib import Path
from statistics import median

import apsw

from errandry.store.contract import Store
from errandry.store.sqlite.driver import SqliteStore
from errandry.store.sqlite.file import Durability

SYNC = {Durability.POWER: "full", Durability.PROCESS: "normal"}


class Raw:
    """Single durable writes, timed. `seconds` has those of all rounds so far."""

    def __init__(self, path: Path, durability: Durability) -> None:
        self.seconds: list[float] = []
        self._db = apsw.Connection(str(path))
        self._db.pragma("journal_mode", "wal")
        self._db.pragma("synchronous", SYNC[durability])
        self._db.execute("CREATE TABLE row (number INTEGER PRIMARY KEY, payload TEXT)")

    def measure(self, count: int) -> float:
        """So many more of them, one right after the other; how long one takes in the middle case."""
        found = [self._write(number) for number in range(count)]
        self.seconds += found
        return median(found)

    def measure_at_rest(self, count: int, pause: float) -> float:
        """The same with pauses: what has slept takes longer to write. These are not added to `seconds`."""
        found = []
        for number in range(count):
            time.sleep(pause)
            found.append(self._write(number))
        return median(found)

    def close(self) -> None:
        self._db.close()

    def _write(self, number: int) -> float:
        began = time.perf_counter()
        self._db.execute("INSERT INTO row (payload) VALUES (?)", (f'{{"i":{number}}}',))
        return time.perf_counter() - began


def raw_of(store: Store, folder: Path) -> Raw | None:
    """Raw writes as durable as the store's and on the same disk; None if nobody has said how."""
    return Raw(folder / "raw.db", store.durability) if isinstance(store, SqliteStore) else None
