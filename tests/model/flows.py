"""Promises about flows: the edges of parents, and when a parent continues (P10)."""

from errandry.core.command import RerunJobs
from errandry.core.event import EventKind
from errandry.core.flow import ChildEnd, EdgeRecord, Policy
from errandry.core.job import JobRecord
from errandry.core.state import State
from tests.model.passes import READY_OR_HELD, Pass


class FlowPromises:
    """Remembers the edges whose child was rerun while the parent continued."""

    def __init__(self) -> None:
        self.ignored: set[tuple[int, int]] = set()

    def check(self, pass_: Pass) -> None:
        for job in pass_.after.values():
            edges = pass_.edges.get(job.id, ())
            for edge in edges:
                self._an_edge_is_open_until_its_child_ends(pass_, job, edge)
            is_open = [edge for edge in edges if edge.outcome is None]
            if job.state is State.BLOCKED:
                assert job.open_children == len(is_open) > 0, (job, edges)
            assert not (job.state in READY_OR_HELD and is_open), (job, edges)
        a_parent_is_released_once_and_not_early(pass_)

    def _an_edge_is_open_until_its_child_ends(self, pass_: Pass, job: JobRecord, edge: EdgeRecord) -> None:
        """An edge has an outcome exactly if its child has ended or was removed.

        Exception: if a child is rerun when its parent is ready or held, the parent continues and keeps the
        result of the child, because its handler may already read it.
        """
        key = job.seq, edge.seq
        child = pass_.after.get(edge.child)
        if child is None or child.seq != edge.seq:
            assert edge.outcome is not None, (job, edge)
            return
        if child.finished:
            assert str(edge.outcome) == str(child.state), (job, edge, child)
            self.ignored.discard(key)
            return
        before = pass_.earlier(job)
        if before is not None and before.finished and not job.finished:
            self.ignored.discard(key)  # a parent that is rerun waits for all children that are
        if _may_be_ignored(pass_, job, child):
            self.ignored.add(key)
        assert edge.outcome is None or key in self.ignored, (job, edge, child)


def _may_be_ignored(pass_: Pass, parent: JobRecord, child: JobRecord) -> bool:
    """Whether the child was rerun while its parent was ready or held, so that the parent need not wait.

    A parent that is rerun by id also uses the results of its children, even if one is rerun for another
    parent. In a pass of several commands both may have ended, and the parent may have continued, in between.
    """
    if len(pass_.commands) > 1:
        return pass_.has(RerunJobs)
    before, earlier_parent = pass_.earlier(child), pass_.earlier(parent)
    if before is None or not before.finished or earlier_parent is None:
        return False
    named = pass_.moved(RerunJobs)
    return earlier_parent.state in READY_OR_HELD or (parent.id in named and child.id not in named)


def a_parent_is_released_once_and_not_early(pass_: Pass) -> None:
    """A parent continues, unless it is rerun, only if no child has failed under a fatal policy."""
    rerun = pass_.moved(RerunJobs)
    for job in pass_.after.values():
        before = pass_.earlier(job)
        if before is None or before.state is not State.BLOCKED or job.id in rerun:
            continue
        if job.state in READY_OR_HELD:
            edges = pass_.edges[job.id]
            failed = [edge for edge in edges if edge.outcome is not ChildEnd.COMPLETED]
            assert all(edge.policy in (Policy.IGNORE, Policy.AFTER) for edge in failed), (job, edges)
            kinds = [entry.event.kind for entry in pass_.events if entry.event.job == job.id]
            assert len(pass_.commands) > 1 or kinds.count(EventKind.WAITING) <= 1, (job, kinds)
