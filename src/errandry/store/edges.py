"""The edges of flows in memory, and the list of parents that have ended. No rules."""

from collections.abc import Sequence
from itertools import islice

from errandry.core.flow import Link, Policy
from errandry.core.job import Job
from errandry.core.state import Reason, State


class MemoryEdges:
    """A part of the tables: edges by parent and number, and for each child where its edges are."""

    def __init__(self) -> None:
        self._jobs: dict[str, Job] = {}
        self._links: dict[str, dict[int, Link]] = {}
        self._parents: dict[int, dict[str, int]] = {}
        self._closing: dict[str, tuple[Reason | None, float]] = {}

    def clear(self, parents: Sequence[str]) -> None:
        for parent in parents:
            self.untie(parent, len(self._links.get(parent, ())))
            self.unlist(parent)

    def tie(self, links: Sequence[Link]) -> None:
        for link in links:
            self._links.setdefault(link.parent, {})[link.n] = link
            self._parents.setdefault(link.seq, {})[link.parent] = link.n

    def mark(self, links: Sequence[Link]) -> None:
        self.tie(links)

    def over(self, seqs: Sequence[int]) -> list[Link]:
        found = sorted({spot for seq in seqs for spot in self._parents.get(seq, {}).items()})
        return [self._links[parent][n] for parent, n in found]

    def under(self, parent: str) -> list[Link]:
        links = self._links.get(parent, {})
        return [links[n] for n in sorted(links)]

    def open_links(self, parent: str) -> int:
        return sum(link.outcome is None for link in self.under(parent))

    def again(self, parent: str) -> list[Link]:
        ended = [link for link in self.under(parent) if link.outcome is not None]
        return [link for link in ended if self._lives(link)]

    def _lives(self, link: Link) -> bool:
        job = self._jobs.get(link.child)
        return job is not None and job.seq == link.seq and not job.finished

    def fatal(self, parent: str) -> Link | None:
        return next((link for link in self.under(parent) if link.is_fatal), None)

    def unended(self, parent: str, states: Sequence[State], limit: int) -> list[Job]:
        awaited = (link for link in self.under(parent) if link.policy is not Policy.AFTER)
        seqs = {link.child: link.seq for link in awaited if link.outcome is None}
        children = (job for child, seq in seqs.items() if (job := self._jobs.get(child)) and job.seq == seq)
        meant = (job for job in children if job.state in states and not job.cancel_requested)
        return list(islice((job for job in meant if not self._is_awaited(job, parent)), limit))

    def _is_awaited(self, job: Job, parent: str) -> bool:
        """Whether another parent than this one waits for a job, or may."""
        others = (self._jobs.get(other) for other in self._parents[job.seq] if other != parent)
        return any(other is not None and not other.finished for other in others)

    def has_unended(self, parent: str, states: Sequence[State]) -> bool:
        return bool(self.unended(parent, states, 1))

    def enlist(self, parent: str, cancel: Reason | None, expires_at: float | None) -> None:
        if expires_at is None:
            expires_at = self._closing[parent][1]
        self._closing[parent] = cancel, expires_at

    def unlist(self, parent: str) -> None:
        self._closing.pop(parent, None)

    def canceling(self, limit: int) -> list[tuple[str, Reason]]:
        found = sorted((parent, cancel) for parent, (cancel, _) in self._closing.items() if cancel)
        return found[:limit]

    def late(self, limit: int) -> list[Link]:  # noqa: ARG002 - what every store is asked
        return []

    def outlived_flows(self, now: float, limit: int) -> list[str]:
        past = ((at, parent) for parent, (cancel, at) in self._closing.items() if not cancel and at <= now)
        return [parent for _, parent in sorted(past)][:limit]

    def untie(self, parent: str, limit: int) -> int:
        gone = self.under(parent)[:limit]
        for link in gone:
            del self._links[parent][link.n], self._parents[link.seq][parent]
            if not self._parents[link.seq]:
                del self._parents[link.seq]
        if not self._links.get(parent):
            self._links.pop(parent, None)
        return len(gone)
