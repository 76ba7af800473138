"""Edges of flows in the memory store, and the closing flows."""

from collections.abc import Sequence
from itertools import islice

from errandry.core.flow import EdgeRecord, Policy
from errandry.core.job import JobRecord
from errandry.core.state import Reason, State


class MemoryEdges:
    """The part of the tables with the edges: by parent and number; and for each child, which edges it has."""

    def __init__(self) -> None:
        self._jobs: dict[str, JobRecord] = {}
        self._edges: dict[str, dict[int, EdgeRecord]] = {}
        self._parents: dict[int, dict[str, int]] = {}
        self._closing: dict[str, tuple[Reason | None, float]] = {}

    def clear_edges(self, parents: Sequence[str]) -> None:
        for parent in parents:
            self.drop_edges(parent, len(self._edges.get(parent, ())))
            self.reopen_flow(parent)

    def add_edges(self, edges: Sequence[EdgeRecord]) -> None:
        for edge in edges:
            self._edges.setdefault(edge.parent, {})[edge.n] = edge
            self._parents.setdefault(edge.seq, {})[edge.parent] = edge.n

    def update_edges(self, edges: Sequence[EdgeRecord]) -> None:
        self.add_edges(edges)

    def parent_edges(self, seqs: Sequence[int]) -> list[EdgeRecord]:
        numbers = sorted({pair for seq in seqs for pair in self._parents.get(seq, {}).items()})
        return [self._edges[parent][n] for parent, n in numbers]

    def child_edges(self, parent: str) -> list[EdgeRecord]:
        edges = self._edges.get(parent, {})
        return [edges[n] for n in sorted(edges)]

    def open_child_count(self, parent: str) -> int:
        return sum(edge.outcome is None for edge in self.child_edges(parent))

    def reopened_edges(self, parent: str) -> list[EdgeRecord]:
        ended = [edge for edge in self.child_edges(parent) if edge.outcome is not None]
        return [edge for edge in ended if self._is_unfinished(edge)]

    def _is_unfinished(self, edge: EdgeRecord) -> bool:
        job = self._jobs.get(edge.child)
        return job is not None and job.seq == edge.seq and not job.finished

    def fatal_edge(self, parent: str) -> EdgeRecord | None:
        return next((edge for edge in self.child_edges(parent) if edge.is_fatal), None)

    def open_children(self, parent: str, states: Sequence[State], limit: int) -> list[JobRecord]:
        # guard: after_cancels
        awaited = (edge for edge in self.child_edges(parent) if edge.policy is not Policy.AFTER)
        seqs = {edge.child: edge.seq for edge in awaited if edge.outcome is None}
        children = (job for child, seq in seqs.items() if (job := self._jobs.get(child)) and job.seq == seq)
        selected = (job for job in children if job.state in states and not job.cancel_requested)
        return list(islice((job for job in selected if not self._is_awaited(job, parent)), limit))

    def _is_awaited(self, job: JobRecord, parent: str) -> bool:
        """Return True if another parent of this job is unfinished."""
        others = (self._jobs.get(other) for other in self._parents[job.seq] if other != parent)
        return any(other is not None and not other.finished for other in others)

    def has_open_children(self, parent: str, states: Sequence[State]) -> bool:
        return bool(self.open_children(parent, states, 1))

    def close_flow(self, parent: str, cancel: Reason | None, expires_at: float | None) -> None:
        if expires_at is None:
            expires_at = self._closing[parent][1]
        self._closing[parent] = cancel, expires_at

    def reopen_flow(self, parent: str) -> None:
        self._closing.pop(parent, None)

    def flows_to_cancel(self, limit: int) -> list[tuple[str, Reason]]:
        flows = sorted((parent, cancel) for parent, (cancel, _) in self._closing.items() if cancel)
        return flows[:limit]

    def take_pending_edges(self, limit: int) -> list[EdgeRecord]:  # noqa: ARG002 - inserts always run in a pass
        return []

    def prunable_flows(self, now: float, limit: int) -> list[str]:
        due = ((at, parent) for parent, (cancel, at) in self._closing.items() if not cancel and at <= now)
        return [parent for _, parent in sorted(due)][:limit]

    def drop_edges(self, parent: str, limit: int) -> int:
        dropped = self.child_edges(parent)[:limit]
        for edge in dropped:
            del self._edges[parent][edge.n], self._parents[edge.seq][parent]
            if not self._parents[edge.seq]:
                del self._parents[edge.seq]
        if not self._edges.get(parent):
            self._edges.pop(parent, None)
        return len(dropped)
