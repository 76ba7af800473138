"""The gates of an SQLite store, and how statements are run. No rules."""

from collections.abc import Mapping, Sequence
from typing import Any

import apsw

from errandry.core.gate import Gate, GateKind, Key
from errandry.core.job import Job
from errandry.store import row as rows
from errandry.store import sql

SQL = sql.statements("errandry.store.sqlite")


class Gates:
    """A part of the tables."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._db = connection
        self.is_dirty = self.has_gates = False

    def gate(self, key: Key, make: bool = False) -> Gate:  # noqa: ARG002 - one pass comes after the other
        found = self._all("gate", key)
        return rows.to_gate(found[0]) if found else Gate(*key)

    def put_gates(self, gates: Sequence[Gate], now: float) -> None:
        self._db.executemany(SQL["put_gate"], [rows.from_gate(gate) for gate in gates])
        self._db.executemany(SQL["drop_gate"], [gate.key for gate in gates if gate.says_nothing(now)])
        self.is_dirty = self.has_gates = True

    def gates(self, *kinds: GateKind) -> list[Gate]:
        found = [rows.to_gate(row) for row in self._all("gates", (rows.text(kinds),))]
        return sorted(found, key=lambda gate: kinds.index(gate.kind))

    def groups(self, groups: Sequence[tuple[str, str]]) -> tuple[list[Gate], list[Key]]:
        return self.lock_gates([(GateKind.GROUP, *group) for group in groups]), []

    def lock_gates(self, keys: Sequence[Key]) -> list[Gate]:
        return [rows.to_gate(row) for row in self._all("named_gates", (rows.text(keys),))] if keys else []

    def shut(self, until: Mapping[Key, float]) -> None:
        self._db.executemany(SQL["shut"], [(*key, at) for key, at in until.items()])
        self.is_dirty = self.has_gates = True

    def spend(self, tats: Mapping[Key, float]) -> None:
        self._db.executemany(SQL["spend"], [(*key, tat) for key, tat in tats.items()])
        self.is_dirty = self.has_gates = True

    def crowds(self, queue: str | None, limit: int, bound: int) -> list[tuple[str, str, int]]:
        found = self._all("crowds", (queue, limit, bound))
        return [(name, group, min(count, bound)) for name, group, count in found]

    def holding(self) -> dict[tuple[str, str, str], int]:
        return {(queue, task, group): held for queue, task, group, held in self._all("holding")}

    def _jobs(self, name: str, bindings: Any) -> list[Job]:
        return [rows.to_job(row) for row in self._all(name, bindings)]

    def _all(self, name: str, bindings: Any = ()) -> list[Any]:
        return self._db.execute(SQL[name], bindings).fetchall()

    def _run(self, name: str, bindings: Any) -> None:
        self._db.execute(SQL[name], bindings)
