"""The edges of flows in memory, and the list of parents that have ended. No rules."""

from collections.abc import Sequence
from itertools import islice

from errandry.core.flow import EdgeRecord, Policy
from errandry.core.job import JobRecord
from errandry.core.state import Reason, State


class MemoryEdges:
    """A part of the tables: edges by parent and number, and for each child where its edges are."""

    def __init__(self) -> None:
        self._jobs: dict[str, JobRecord] = {}
        self._links: dict[str, dict[int, EdgeRecord]] = {}
        self._parents: dict[int, dict[str, int]] = {}
        self._closing: dict[str, tuple[Reason | None, float]] = {}

    def clear_edges(self, parents: Sequence[str]) -> None:
        for parent in parents:
            self.drop_edges(parent, len(self._links.get(parent, ())))
            self.reopen_flow(parent)

    def add_edges(self, links: Sequence[EdgeRecord]) -> None:
        for link in links:
            self._links.setdefault(link.parent, {})[link.n] = link
            self._parents.setdefault(link.seq, {})[link.parent] = link.n

    def update_edges(self, links: Sequence[EdgeRecord]) -> None:
        self.add_edges(links)

    def parent_edges(self, seqs: Sequence[int]) -> list[EdgeRecord]:
        found = sorted({spot for seq in seqs for spot in self._parents.get(seq, {}).items()})
        return [self._links[parent][n] for parent, n in found]

    def child_edges(self, parent: str) -> list[EdgeRecord]:
        links = self._links.get(parent, {})
        return [links[n] for n in sorted(links)]

    def open_child_count(self, parent: str) -> int:
        return sum(link.outcome is None for link in self.child_edges(parent))

    def reopened_edges(self, parent: str) -> list[EdgeRecord]:
        ended = [link for link in self.child_edges(parent) if link.outcome is not None]
        return [link for link in ended if self._lives(link)]

    def _lives(self, link: EdgeRecord) -> bool:
        job = self._jobs.get(link.child)
        return job is not None and job.seq == link.seq and not job.finished

    def fatal_edge(self, parent: str) -> EdgeRecord | None:
        return next((link for link in self.child_edges(parent) if link.is_fatal), None)

    def open_children(self, parent: str, states: Sequence[State], limit: int) -> list[JobRecord]:
        # guard: after_cancels
        awaited = (link for link in self.child_edges(parent) if link.policy is not Policy.AFTER)
        seqs = {link.child: link.seq for link in awaited if link.outcome is None}
        children = (job for child, seq in seqs.items() if (job := self._jobs.get(child)) and job.seq == seq)
        meant = (job for job in children if job.state in states and not job.cancel_requested)
        return list(islice((job for job in meant if not self._is_awaited(job, parent)), limit))

    def _is_awaited(self, job: JobRecord, parent: str) -> bool:
        """Whether another parent than this one waits for a job, or may."""
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
        found = sorted((parent, cancel) for parent, (cancel, _) in self._closing.items() if cancel)
        return found[:limit]

    def take_pending_edges(self, limit: int) -> list[EdgeRecord]:  # noqa: ARG002 - what every store is asked
        return []

    def prunable_flows(self, now: float, limit: int) -> list[str]:
        past = ((at, parent) for parent, (cancel, at) in self._closing.items() if not cancel and at <= now)
        return [parent for _, parent in sorted(past)][:limit]

    def drop_edges(self, parent: str, limit: int) -> int:
        gone = self.child_edges(parent)[:limit]
        for link in gone:
            del self._links[parent][link.n], self._parents[link.seq][parent]
            if not self._parents[link.seq]:
                del self._parents[link.seq]
        if not self._links.get(parent):
            self._links.pop(parent, None)
        return len(gone)
