"""The gates of an SQLite store, and the methods that run statements."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import apsw

from errandry.core.gate import GateKey, GateKind, GateRecord
from errandry.core.job import JobRecord
from errandry.store.tables import rows, sql

SQL = sql.statements("errandry.store.sqlite")


class SqliteGates:
    """The part of `SqliteTables` that reads and writes gates."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._db = connection
        self.is_dirty = self.has_gates = False

    def gate(self, key: GateKey) -> GateRecord:
        stored = self._all("gate", key)
        return rows.to_gate(stored[0]) if stored else GateRecord(*key)

    def put_gates(self, gates: Sequence[GateRecord], now: float) -> None:
        self._db.executemany(SQL["put_gates"], [rows.from_gate(gate) for gate in gates])
        self._db.executemany(SQL["drop_gate"], [gate.key for gate in gates if gate.is_default(now)])
        self.is_dirty = self.has_gates = True

    def gates(self, *kinds: GateKind) -> list[GateRecord]:
        gates = [rows.to_gate(row) for row in self._all("gates", (rows.text(kinds),))]
        return sorted(gates, key=lambda gate: kinds.index(gate.kind))

    def group_gates(self, groups: Sequence[tuple[str, str]]) -> tuple[list[GateRecord], list[GateKey]]:
        return self.lock_gates([(GateKind.GROUP, *group) for group in groups]), []

    def lock_gates(
        self,
        keys: Sequence[GateKey],
        created: Collection[GateKey] = (),  # noqa: ARG002 - only one pass runs at a time
    ) -> list[GateRecord]:
        return [rows.to_gate(row) for row in self._all("lock_gates", (rows.text(keys),))] if keys else []

    def close_gates(self, until: Mapping[GateKey, float]) -> None:
        self._db.executemany(SQL["close_gates"], [(*key, at) for key, at in until.items()])
        self.is_dirty = self.has_gates = True

    def put_rate_state(self, tats: Mapping[GateKey, float]) -> None:
        self._db.executemany(SQL["put_rate_state"], [(*key, tat) for key, tat in tats.items()])
        self.is_dirty = self.has_gates = True

    def group_sizes(self, queue: str | None, limit: int, max_count: int) -> list[tuple[str, str, int]]:
        sizes = self._all("group_sizes", (queue, limit, max_count))
        return [(name, group, min(size, max_count)) for name, group, size in sizes]

    def held_counts(self) -> dict[tuple[str, str, str], int]:
        return {(queue, task, group): count for queue, task, group, count in self._all("held_counts")}

    def _jobs(self, name: str, bindings: Any) -> list[JobRecord]:
        return [rows.to_job(row) for row in self._all(name, bindings)]

    def _all(self, name: str, bindings: Any = ()) -> list[Any]:
        return self._db.execute(SQL[name], bindings).fetchall()

    def _run(self, name: str, bindings: Any) -> None:
        self._db.execute(SQL[name], bindings)
