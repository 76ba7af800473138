"""The edges of flows in PostgreSQL, and the list of parents that have ended. No rules."""

from collections.abc import Sequence
from typing import Any

from errandry.core.flow import EdgeRecord
from errandry.core.job import JobRecord
from errandry.core.state import Reason, State
from errandry.store.postgres.array import array, columns
from errandry.store.postgres.statements import StatementRunner
from errandry.store.tables import rows

CLOSING = ("canceling", "outlived_flows")
"""What upkeep asks of that list."""


class PostgresEdges(StatementRunner):
    """Part of what `store.tables.Tables` asks for."""

    def clear_edges(self, parents: Sequence[str]) -> None:
        self._unask(*CLOSING)
        for name in ("clear_edges", "clear_closing"):
            self._run(name, (array(parents),))

    def add_edges(self, links: Sequence[EdgeRecord]) -> None:
        self._run("tie", columns(map(rows.from_link, links)))
        self.is_dirty = True

    def update_edges(self, links: Sequence[EdgeRecord]) -> None:
        marks = [(one.parent, one.n, one.outcome, one.result) for one in links]
        self._run("mark", columns(marks))
        self.is_dirty = True

    def parent_edges(self, seqs: Sequence[int]) -> list[EdgeRecord]:
        return sorted(self._links("over", (array(seqs),)), key=lambda link: (link.parent, link.n))

    def child_edges(self, parent: str) -> list[EdgeRecord]:
        return self._links("under", (parent,))

    def open_child_count(self, parent: str) -> int:
        return int(self._all("open_links", (parent,))[0][0])

    def reopened_edges(self, parent: str) -> list[EdgeRecord]:
        return self._links("again", (parent,))

    def fatal_edge(self, parent: str) -> EdgeRecord | None:
        return next(iter(self._links("fatal", (parent,))), None)

    def open_children(self, parent: str, states: Sequence[State], limit: int) -> list[JobRecord]:
        return self._jobs("unended", (parent, array(states), limit))

    def has_open_children(self, parent: str, states: Sequence[State]) -> bool:
        return bool(self._all("has_unended", (parent, array(states))))

    def close_flow(self, parent: str, cancel: Reason | None, expires_at: float | None) -> None:
        self._unask(*CLOSING)
        if expires_at is None:
            self._run("canceled_flow", (parent,))
        else:
            self._run("close_flow", (parent, cancel and cancel.value, expires_at))
        self.is_dirty = True

    def reopen_flow(self, parent: str) -> None:
        self._run("forget_flow", (parent,))
        self.is_dirty = True

    def flows_to_cancel(self, limit: int) -> list[tuple[str, Reason]]:
        return [(parent, Reason(cancel)) for parent, cancel in self._all("canceling", (limit,))]

    def take_pending_edges(self, limit: int) -> list[EdgeRecord]:
        links = self._links("late", (limit,))
        self.is_dirty = self.is_dirty or bool(links)
        return links

    def prunable_flows(self, now: float, limit: int) -> list[str]:
        return [parent for (parent,) in self._all("outlived_flows", (now, limit))]

    def drop_edges(self, parent: str, limit: int) -> int:
        self.is_dirty = True
        return len(self._all("untie", {"parent": parent, "limit": limit}))

    def _links(self, name: str, bindings: Any) -> list[EdgeRecord]:
        return [rows.to_link(row) for row in self._all(name, bindings)]
