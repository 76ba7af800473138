"""The gates of a PostgreSQL store: kept, locked while they are counted. No rules."""

from collections.abc import Mapping, Sequence

from errandry.core.gate import GateKey, GateKind, GateRecord
from errandry.store.postgres.array import array, columns
from errandry.store.postgres.edges import PostgresEdges
from errandry.store.tables import rows


class PostgresGates(PostgresEdges):
    """Part of what `store.tables.Tables` asks for."""

    has_gates = False
    _writes = True

    def gate(self, key: GateKey, make: bool = False) -> GateRecord:
        if self._writes and not make:
            found = self.lock_gates([key])
            return found[0] if found else GateRecord(*key)
        found_rows = self._all("make_gate" if make else "gate", (key[0].value, *key[1:]))
        return rows.to_gate(found_rows[0]) if found_rows else GateRecord(*key)

    def put_gates(self, gates: Sequence[GateRecord], now: float) -> None:
        self._run("put_gates", columns(map(rows.from_gate, gates)))
        if idle := [gate.key for gate in gates if gate.says_nothing(now)]:
            self._run("drop_gate", columns((kind.value, *rest) for kind, *rest in idle))
        self.is_dirty = self.has_gates = True

    def gates(self, *kinds: GateKind) -> list[GateRecord]:
        if not self.has_gates:
            return []
        found = [rows.to_gate(row) for row in self._all("gates", (array(kind.value for kind in kinds),))]
        return sorted(found, key=lambda gate: kinds.index(gate.kind))

    def group_gates(self, groups: Sequence[tuple[str, str]]) -> tuple[list[GateRecord], list[GateKey]]:
        queues, names = columns(groups)
        found = self._all("lock_groups", {"queues": queues, "groups": names})
        gates = [rows.to_gate(row[:-1]) for row in found]
        return gates, [gate.key for gate, row in zip(gates, found, strict=True) if not row[-1]]

    def lock_gates(self, keys: Sequence[GateKey]) -> list[GateRecord]:
        wanted = columns((kind.value, *rest) for kind, *rest in keys)
        return [rows.to_gate(row) for row in self._all("lock_gates", wanted)]

    def close_gates(self, until: Mapping[GateKey, float]) -> None:
        self._run("shut", columns((kind.value, *rest, at) for (kind, *rest), at in until.items()))
        self.is_dirty = self.has_gates = True

    def put_rate_state(self, tats: Mapping[GateKey, float]) -> None:
        self._run("spend", columns((kind.value, *rest, tat) for (kind, *rest), tat in tats.items()))
        self.is_dirty = self.has_gates = True

    def group_sizes(self, queue: str | None, limit: int, bound: int) -> list[tuple[str, str, int]]:
        found = self._all("crowds", {"queue": queue, "limit": limit, "bound": bound})
        return [(name, group, min(count, bound)) for name, group, count in found]

    def held_counts(self) -> dict[tuple[str, str, str], int]:
        return {(queue, task, group): held for queue, task, group, held in self._all("holding")}
