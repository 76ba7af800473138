"""The gates of a PostgreSQL store. A pass locks those whose permits it counts."""

from collections.abc import Collection, Mapping, Sequence

from errandry.core.gate import GateKey, GateKind, GateRecord
from errandry.store.postgres.array import array, columns
from errandry.store.postgres.edges import PostgresEdges
from errandry.store.tables import rows


class PostgresGates(PostgresEdges):
    """Part of the `Tables` protocol (store/tables/protocol.py)."""

    has_gates = False
    _writes = True

    def gate(self, key: GateKey) -> GateRecord:
        gate_rows = self._rows("gate", (key[0].value, *key[1:]))
        return rows.to_gate(gate_rows[0]) if gate_rows else GateRecord(*key)

    def put_gates(self, gates: Sequence[GateRecord], now: float) -> None:
        self._send("put_gates", columns(map(rows.from_gate, gates)))
        if idle := [gate.key for gate in gates if gate.is_default(now)]:
            self._send("drop_gates", columns((kind.value, *rest) for kind, *rest in idle))
        self.is_dirty = self.has_gates = True

    def gates(self, *kinds: GateKind) -> list[GateRecord]:
        if not self.has_gates:
            return []
        gates = [rows.to_gate(row) for row in self._rows("gates", (array(kind.value for kind in kinds),))]
        return sorted(gates, key=lambda gate: kinds.index(gate.kind))

    def group_gates(self, groups: Sequence[tuple[str, str]]) -> tuple[list[GateRecord], list[GateKey]]:
        queues, names = columns(groups)
        gate_rows = self._rows("group_gates", {"queues": queues, "groups": names})
        gates = [rows.to_gate(row[:-1]) for row in gate_rows]
        return gates, [gate.key for gate, row in zip(gates, gate_rows, strict=True) if not row[-1]]

    def lock_gates(self, keys: Sequence[GateKey], created: Collection[GateKey] = ()) -> list[GateRecord]:
        wanted = columns((kind.value, *rest) for kind, *rest in keys)
        if not created:
            return [rows.to_gate(row) for row in self._rows("lock_gates", wanted)]
        is_created = array(key in created for key in keys)
        return [rows.to_gate(row) for row in self._rows("create_gates", (*wanted, is_created))]

    def close_gates(self, until: Mapping[GateKey, float]) -> None:
        self._send("close_gates", columns((kind.value, *rest, at) for (kind, *rest), at in until.items()))
        self.is_dirty = self.has_gates = True

    def put_rate_state(self, tats: Mapping[GateKey, float]) -> None:
        self._send("put_rate_state", columns((kind.value, *rest, tat) for (kind, *rest), tat in tats.items()))
        self.is_dirty = self.has_gates = True

    def group_sizes(self, queue: str | None, limit: int, max_count: int) -> list[tuple[str, str, int]]:
        sizes = self._rows("group_sizes", {"queue": queue, "limit": limit, "bound": max_count})
        return [(name, group, min(count, max_count)) for name, group, count in sizes]

    def held_counts(self) -> dict[tuple[str, str, str], int]:
        return {(queue, task, group): held for queue, task, group, held in self._rows("held_counts")}
