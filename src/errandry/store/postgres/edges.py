"""The edges of flows in PostgreSQL, and the list of parents that have ended. No rules."""

from collections.abc import Sequence
from typing import Any

from errandry.core.flow import Link
from errandry.core.job import Job
from errandry.core.state import Reason, State
from errandry.store import row as rows
from errandry.store.postgres.array import array, columns
from errandry.store.postgres.talk import Talk

CLOSING = ("canceling", "outlived_flows")
"""What upkeep asks of that list."""


class PostgresEdges(Talk):
    """Part of what `store.tables.Tables` asks for."""

    def clear(self, parents: Sequence[str]) -> None:
        self._unask(*CLOSING)
        for name in ("clear_edges", "clear_closing"):
            self._run(name, (array(parents),))

    def tie(self, links: Sequence[Link]) -> None:
        self._run("tie", columns(map(rows.from_link, links)))
        self.is_dirty = True

    def mark(self, links: Sequence[Link]) -> None:
        marks = [(one.parent, one.n, one.outcome, one.result) for one in links]
        self._run("mark", columns(marks))
        self.is_dirty = True

    def over(self, seqs: Sequence[int]) -> list[Link]:
        return sorted(self._links("over", (array(seqs),)), key=lambda link: (link.parent, link.n))

    def under(self, parent: str) -> list[Link]:
        return self._links("under", (parent,))

    def open_links(self, parent: str) -> int:
        return int(self._all("open_links", (parent,))[0][0])

    def again(self, parent: str) -> list[Link]:
        return self._links("again", (parent,))

    def fatal(self, parent: str) -> Link | None:
        return next(iter(self._links("fatal", (parent,))), None)

    def unended(self, parent: str, states: Sequence[State], limit: int) -> list[Job]:
        return self._jobs("unended", (parent, array(states), limit))

    def has_unended(self, parent: str, states: Sequence[State]) -> bool:
        return bool(self._all("has_unended", (parent, array(states))))

    def enlist(self, parent: str, cancel: Reason | None, expires_at: float | None) -> None:
        self._unask(*CLOSING)
        if expires_at is None:
            self._run("canceled_flow", (parent,))
        else:
            self._run("close_flow", (parent, cancel and cancel.value, expires_at))
        self.is_dirty = True

    def unlist(self, parent: str) -> None:
        self._run("forget_flow", (parent,))
        self.is_dirty = True

    def canceling(self, limit: int) -> list[tuple[str, Reason]]:
        return [(parent, Reason(cancel)) for parent, cancel in self._all("canceling", (limit,))]

    def late(self, limit: int) -> list[Link]:
        links = self._links("late", (limit,))
        self.is_dirty = self.is_dirty or bool(links)
        return links

    def outlived_flows(self, now: float, limit: int) -> list[str]:
        return [parent for (parent,) in self._all("outlived_flows", (now, limit))]

    def untie(self, parent: str, limit: int) -> int:
        self.is_dirty = True
        return len(self._all("untie", {"parent": parent, "limit": limit}))

    def _links(self, name: str, bindings: Any) -> list[Link]:
        return [rows.to_link(row) for row in self._all(name, bindings)]
