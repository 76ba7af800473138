"""The edges of flows in PostgreSQL, and the list of parents that have ended."""

from collections.abc import Sequence
from typing import Any

from errandry.core.flow import EdgeRecord
from errandry.core.job import JobRecord
from errandry.core.state import Reason, State
from errandry.store.postgres.array import array, columns
from errandry.store.postgres.statements import StatementRunner
from errandry.store.tables import rows

CLOSING_FLOW_STATEMENTS = ("flows_to_cancel", "prunable_flows")
"""The statements by which upkeep reads that list."""


class PostgresEdges(StatementRunner):
    """Part of the `Tables` protocol (store/tables/protocol.py)."""

    def clear_edges(self, parents: Sequence[str]) -> None:
        self._discard(*CLOSING_FLOW_STATEMENTS)
        for name in ("clear_edges", "clear_closing_flows"):
            self._send(name, (array(parents),))

    def add_edges(self, edges: Sequence[EdgeRecord]) -> None:
        self._send("add_edges", columns(map(rows.from_edge, edges)))
        self.is_dirty = True

    def update_edges(self, edges: Sequence[EdgeRecord]) -> None:
        outcomes = [(edge.parent, edge.n, edge.outcome, edge.result) for edge in edges]
        self._send("update_edges", columns(outcomes))
        self.is_dirty = True

    def parent_edges(self, seqs: Sequence[int]) -> list[EdgeRecord]:
        return sorted(self._edges("parent_edges", (array(seqs),)), key=lambda edge: (edge.parent, edge.n))

    def child_edges(self, parent: str) -> list[EdgeRecord]:
        return self._edges("child_edges", (parent,))

    def open_child_count(self, parent: str) -> int:
        return int(self._rows("open_child_count", (parent,))[0][0])

    def reopened_edges(self, parent: str) -> list[EdgeRecord]:
        return self._edges("reopened_edges", (parent,))

    def fatal_edge(self, parent: str) -> EdgeRecord | None:
        return next(iter(self._edges("fatal_edge", (parent,))), None)

    def open_children(self, parent: str, states: Sequence[State], limit: int) -> list[JobRecord]:
        return self._jobs("open_children", (parent, array(states), limit))

    def has_open_children(self, parent: str, states: Sequence[State]) -> bool:
        return bool(self._rows("has_open_children", (parent, array(states))))

    def close_flow(self, parent: str, cancel: Reason | None, expires_at: float | None) -> None:
        self._discard(*CLOSING_FLOW_STATEMENTS)
        if expires_at is None:
            self._send("end_flow_cancel", (parent,))
        else:
            self._send("close_flow", (parent, cancel and cancel.value, expires_at))
        self.is_dirty = True

    def reopen_flow(self, parent: str) -> None:
        self._send("reopen_flow", (parent,))
        self.is_dirty = True

    def flows_to_cancel(self, limit: int) -> list[tuple[str, Reason]]:
        return [(parent, Reason(cancel)) for parent, cancel in self._rows("flows_to_cancel", (limit,))]

    def take_pending_edges(self, limit: int) -> list[EdgeRecord]:
        edges = self._edges("take_pending_edges", (limit,))
        self.is_dirty = self.is_dirty or bool(edges)
        return edges

    def prunable_flows(self, now: float, limit: int) -> list[str]:
        return [parent for (parent,) in self._rows("prunable_flows", (now, limit))]

    def drop_edges(self, parent: str, limit: int) -> int:
        self.is_dirty = True
        return len(self._rows("drop_edges", {"parent": parent, "limit": limit}))

    def _edges(self, name: str, bindings: Any) -> list[EdgeRecord]:
        return [rows.to_edge(row) for row in self._rows(name, bindings)]
