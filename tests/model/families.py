"""Promises about flows: who waits for whom, and when parents are let go (P10)."""

from errandry.core.command import RerunJobs
from errandry.core.event import EventKind
from errandry.core.flow import ChildEnd, EdgeRecord, Policy
from errandry.core.job import JobRecord
from errandry.core.state import State
from tests.model.done import GOING, Pass


class Families:
    """Remembers the edges whose parent has gone on while its child was run again."""

    def __init__(self) -> None:
        self.left: set[tuple[int, int]] = set()

    def check(self, done: Pass) -> None:
        for job in done.after.values():
            links = done.links.get(job.id, ())
            for link in links:
                self._an_edge_is_open_while_its_child_lives(done, job, link)
            is_open = [link for link in links if link.outcome is None]
            if job.state is State.BLOCKED:
                assert job.open_children == len(is_open) > 0, (job, links)
            assert not (job.state in GOING and is_open), (job, links)
        a_parent_is_released_once_and_not_too_early(done)

    def _an_edge_is_open_while_its_child_lives(self, done: Pass, job: JobRecord, link: EdgeRecord) -> None:
        """Who has ended, or is gone, is written down; who lives has not ended.

        A parent that was about to run when its child was run again keeps the result it was released
        with, and goes on: its handler may be reading it.
        """
        edge = job.seq, link.seq
        child = done.after.get(link.child)
        if child is None or child.seq != link.seq:
            assert link.outcome is not None, (job, link)
            return
        if child.finished:
            assert str(link.outcome) == str(child.state), (job, link, child)
            self.left.discard(edge)
            return
        before = done.earlier(job)
        if before is not None and before.finished and not job.finished:
            self.left.discard(edge)  # who runs again waits for all that do
        if _may_be_left(done, job, child):
            self.left.add(edge)
        assert link.outcome is None or edge in self.left, (job, link, child)


def _may_be_left(done: Pass, parent: JobRecord, child: JobRecord) -> bool:
    """Whether the child was run again while its parent was about to run.

    Who is run by name goes on with what its children have left, though one comes back for another parent.
    In a pass of several commands either may have ended, and the parent been released, in between.
    """
    if len(done.commands) > 1:
        return done.has(RerunJobs)
    before, waiting = done.earlier(child), done.earlier(parent)
    if before is None or not before.finished or waiting is None:
        return False
    named = done.moved(RerunJobs)
    return waiting.state in GOING or (parent.id in named and child.id not in named)


def a_parent_is_released_once_and_not_too_early(done: Pass) -> None:
    """When none of its children has ended badly; one that has failed so may be run all the same."""
    run_again = done.moved(RerunJobs)
    for job in done.after.values():
        before = done.earlier(job)
        if before is None or before.state is not State.BLOCKED or job.id in run_again:
            continue
        if job.state in GOING:
            links = done.links[job.id]
            failed = [link for link in links if link.outcome is not ChildEnd.COMPLETED]
            assert all(link.policy in (Policy.IGNORE, Policy.AFTER) for link in failed), (job, links)
            told = [e.event.kind for e in done.events if e.event.job == job.id]
            assert len(done.commands) > 1 or told.count(EventKind.WAITING) <= 1, (job, told)
