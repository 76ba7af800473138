"""Flows inside a pass: insert edges, tell parents how their children ended, cancel and rerun the rest.

A pass updates the parents of an ended job before it applies another command to them, so a parent is unblocked
in the pass in which its last child ends. Canceling children and deleting edges can be much work, so each pass
does a bounded part of it. The rest is listed in the closing flows, and upkeep continues with it.

To avoid deadlocks, parents are locked after their children and in the order of their ids. Children that
another pass has locked are skipped.
"""

from collections import Counter
from collections.abc import Collection, Sequence

from msgspec import Struct
from msgspec.structs import replace

from errandry.core import move
from errandry.core.flow import END_OF_STATE, ChildEnd, Edge, EdgeRecord, Policy, check_cycles
from errandry.core.job import JobRecord, NewJob
from errandry.core.state import BLOCKED, CANCELED, CLAIMED, FAILED, RUNNING, SCHEDULED, WAITING, Move, Reason
from errandry.errors import InvalidValue
from errandry.store.execute.unit_of_work import FlowEnd, UnitOfWork

UNCLAIMED = (BLOCKED, SCHEDULED, WAITING)
UNFINISHED = (*UNCLAIMED, CLAIMED, RUNNING)


class NewEdges(Struct, frozen=True):
    """The new edges of an insert; and for each job the number of its new children, and of its new parents."""

    edges: tuple[Edge, ...]
    children: Counter[str]
    parents: Counter[str]


def new_edges(
    work: UnitOfWork, jobs: Sequence[NewJob], edges: Sequence[Edge], existing: dict[str, str]
) -> NewEdges:
    """Return the edges to insert. `existing` has for ids of new jobs the existing jobs in their place.

    A new parent waits for an existing child as for any other, if that still exists. An existing parent gets
    no new children: its edges must be those of its first insert, whose children are not inserted again.
    """
    resolved = _resolve_edges(edges, existing)
    old_parents = {existing[edge.parent] for edge in edges if edge.parent in existing}
    known_pairs = {
        (edge.parent, edge.child)
        for parent in sorted(old_parents)
        for edge in work.tables.child_edges(parent)
    }
    for edge in resolved:
        if edge.parent in old_parents and (edge.parent, edge.child) not in known_pairs:
            why = f"exists and does not wait for {edge.child}: insert a parent together with its children"
            raise InvalidValue("parent", edge.parent, why)
    existing |= {edge.child: edge.child for edge in resolved if edge.parent in old_parents}
    inserted = {new.id for new in jobs if new.id not in existing}
    with_child = [edge for edge in resolved if edge.child in inserted or work.get(edge.child) is not None]
    new = [edge for edge in with_child if edge.parent not in old_parents]
    return NewEdges(tuple(new), Counter(edge.parent for edge in new), Counter(edge.child for edge in new))


def _resolve_edges(edges: Sequence[Edge], existing: dict[str, str]) -> list[Edge]:
    """Return the edges with the ids of existing jobs put in; edges that become equal are merged."""
    if all(job_id == existing_id for job_id, existing_id in existing.items()):
        return list(edges)
    merged: dict[tuple[str, str], Edge] = {}
    for edge in edges:
        pair = existing.get(edge.parent, edge.parent), existing.get(edge.child, edge.child)
        feeds = merged[pair].feeds if pair in merged else ()
        merged[pair] = Edge(*pair, edge.policy, (*feeds, *edge.feeds))
    check_cycles(list(merged.values()))
    return list(merged.values())


def add_edges(work: UnitOfWork, new: NewEdges, inserted: Collection[str], first: int) -> None:
    """Insert edges. Children that are not `inserted` by this command get the new parents counted.

    The new children of a parent that existed before are numbered from `first` on.
    """
    if not new.edges:
        return
    work.tables.clear_edges([parent for parent in new.children if parent in inserted or not first])
    numbers: Counter[str] = Counter()
    records = []
    children = {child: job for child in new.parents if (job := work.get(child)) is not None}
    for edge in new.edges:
        n = numbers[edge.parent] + (0 if edge.parent in inserted else first)
        child = children[edge.child]
        records.append(
            EdgeRecord(edge.parent, n, child.id, child.task, child.seq, edge.policy, feeds=edge.feeds)
        )
        numbers[edge.parent] += 1
    work.tables.add_edges(records)
    for child_id, parents in new.parents.items():
        if child_id not in inserted:
            _add_parents(work, children[child_id], parents)


def _add_pending_edges(work: UnitOfWork, limit: int) -> bool:
    """Count the parents that callers' transactions gave to existing children; True if there may be more.

    A child that no longer exists counts as removed.
    """
    pending = work.tables.take_pending_edges(limit)
    work.load(sorted({edge.child for edge in pending}))
    for child, edges in _group_by_child(pending).items():
        job = work.get(child)
        current = [edge for edge in edges if job is not None and edge.seq == job.seq]
        if job is not None and current:
            _add_parents(work, job, len(current))
        for edge in edges:
            if edge not in current:
                work.tables.update_edges([removed := replace(edge, outcome=ChildEnd.REMOVED)])
                work.load([removed.parent])
                _count_down(work, removed.parent, [removed])
    return len(pending) >= limit


def _group_by_child(edges: Sequence[EdgeRecord]) -> dict[str, list[EdgeRecord]]:
    by_child: dict[str, list[EdgeRecord]] = {}
    for edge in edges:
        by_child.setdefault(edge.child, []).append(edge)
    return by_child


def _add_parents(work: UnitOfWork, child: JobRecord, parents: int) -> None:
    """Count new parents of an existing child. If it has ended already, its end is propagated to them."""
    after = work.update(child, replace(child, parents=child.parents + parents))
    if after.finished:
        work.flow_ends[after.id] = FlowEnd(after, END_OF_STATE[after.state])


def propagate_ends(work: UnitOfWork) -> None:
    """Update the parents of ended jobs, and close the flows of ended parents, until no further job ends."""
    while work.flow_ends:
        ends, work.flow_ends = work.flow_ends, {}
        _record_child_ends(work, [end for end in ends.values() if end.job.parents])
        for end in ends.values():
            if end.job.children:
                _close_flow(work, end)


def _record_child_ends(work: UnitOfWork, ends: Sequence[FlowEnd]) -> None:
    """Save how children ended. Each parent is moved once, even if several of its children have ended."""
    if not ends:
        return
    by_seq = {end.job.seq: end for end in ends}
    edges = work.tables.parent_edges(sorted(by_seq))
    work.reload_missing(sorted({edge.parent for edge in edges}))
    newly_closed: dict[str, list[EdgeRecord]] = {}
    changed = []
    for edge in edges:
        end = by_seq[edge.seq]
        after = replace(edge, outcome=end.outcome, result=end.job.result)
        if after == edge or work.get(edge.parent) is None:
            continue
        changed.append(after)
        if edge.outcome is None:  # guard: counted_once
            newly_closed.setdefault(edge.parent, []).append(after)
    if changed:
        work.tables.update_edges(changed)
    for parent in sorted(newly_closed):
        _count_down(work, parent, newly_closed[parent])


def _count_down(work: UnitOfWork, parent_id: str, closed: Sequence[EdgeRecord]) -> None:
    parent = work.get(parent_id)
    if parent is None or parent.state is not BLOCKED:
        return
    now = work.now
    fatal = next((edge for edge in closed if edge.is_fatal), None)
    after = replace(parent, open_children=parent.open_children - len(closed), updated_at=now)
    if fatal is None and not after.open_children:
        fatal = work.tables.fatal_edge(parent_id)  # an earlier failure counts if the parent was rerun since
    if fatal is None:
        if after.open_children:  # guard: open_children
            work.update(parent, after)
        else:
            work.move(Move.UNBLOCK, parent, move.unblocked(after, now))
        return
    parent = work.update(parent, after)
    if fatal.policy is Policy.REMOVE:
        work.remove(Move.CHILD_FAILED, parent, cancel=Reason.CHILD_FAILED)
    else:
        work.move(Move.CHILD_FAILED, parent, move.child_failed(parent, fatal.child, now))


def _close_flow(work: UnitOfWork, end: FlowEnd) -> None:
    """After the end of a parent: cancel its open children if need be, and save when its edges are deleted."""
    job, cancel = end.job, end.cancel
    if cancel is not None and not _cancel_children(work, job.id, cancel):
        cancel = None
    expires_at = work.now if work.get(job.id) is None else job.expires_at
    work.tables.close_flow(job.id, cancel, work.now if expires_at is None else expires_at)


def _cancel_children(work: UnitOfWork, parent: str, reason: Reason) -> bool:
    """Cancel open children within the pass's budget; return True if there may be more.

    If the parent was canceled, running children are canceled too; if it failed, only unclaimed ones.
    """
    tables, states = work.tables, UNCLAIMED if reason is Reason.CHILD_FAILED else UNFINISHED
    work.flush()
    while work.cancel_budget > 0 and (jobs := tables.open_children(parent, states, work.cancel_budget)):
        work.cancel_budget -= len(jobs)
        for job in jobs:
            work.move(Move.CANCEL, job, move.canceled(job, work.now, reason=reason))
        work.flush()
        if not tables.has_open_children(parent, states):  # a canceled child may have been another's parent
            return False
    return tables.has_open_children(parent, states)


def reopen_parents(work: UnitOfWork, job: JobRecord) -> set[str]:
    """After a rerun of `job`: rerun parents that failed because of a child too. Return the ids of all."""
    reruns, ids = [job], set()
    while reruns:
        job = reruns.pop()
        ids.add(job.id)
        if job.children:
            work.tables.reopen_flow(job.id)
        if job.parents:
            edges = work.tables.parent_edges([job.seq])
            failed = [edge.parent for edge in edges if _reopen_edge(work, edge)]
            for parent in failed:  # after all edges are open: a rerun of one parent may rerun another
                reruns += _rerun_parent(work, parent)
    return ids


def _reopen_edge(work: UnitOfWork, edge: EdgeRecord) -> bool:
    """Let the parent wait for this child again. Return True if the parent has failed because of a child."""
    parent = work.get(edge.parent)
    # guard: running_parent_keeps_result
    if parent is None or edge.outcome is None or not (parent.finished or parent.state is BLOCKED):
        return False
    work.tables.update_edges([replace(edge, outcome=None, result=None)])  # guard: edge_reopened
    if parent.state is BLOCKED:
        work.update(parent, replace(parent, open_children=parent.open_children + 1, updated_at=work.now))
    return parent.state is FAILED and parent.reason is Reason.CHILD_FAILED


def _rerun_parent(work: UnitOfWork, parent_id: str) -> list[JobRecord]:
    """Rerun a parent that failed because of a child, and the children that were canceled because of that."""
    parent = work.get(parent_id)
    if parent is None or parent.state is not FAILED or key_rival(work, parent) is not None:
        return []
    reruns = _rerun_canceled_children(work, parent)
    return [*reruns, work.move(Move.RERUN, parent, rerun(work, parent))]


def _rerun_canceled_children(work: UnitOfWork, parent: JobRecord) -> list[JobRecord]:
    """Rerun children that were canceled only because another child had failed, and their children."""
    edges = [edge for edge in work.tables.child_edges(parent.id) if edge.outcome is ChildEnd.CANCELED]
    work.load([edge.child for edge in edges])
    reruns: list[JobRecord] = []
    for edge in edges:
        child = work.get(edge.child)
        if child is None or child.seq != edge.seq or not _is_collateral(work, child):
            continue
        work.tables.update_edges([replace(edge, outcome=None, result=None)])
        reruns += _rerun_canceled_children(work, child) if child.children else []
        reruns.append(work.move(Move.RERUN, child, rerun(work, child)))
    return reruns


def _is_collateral(work: UnitOfWork, job: JobRecord) -> bool:
    """Return True if a job was canceled only because another child failed, and its unique key is free."""
    is_canceled_with_parent = job.state is CANCELED and job.reason is Reason.CHILD_FAILED
    return is_canceled_with_parent and key_rival(work, job) is None


def rerun(
    work: UnitOfWork, job: JobRecord, run_at: float | None = None, reset_attempts: bool = False
) -> JobRecord:
    """Return `job` as it is after a rerun: it waits for its open children, if it has any."""
    if job.children and job.finished:  # an unfinished job refuses the rerun below, and keeps its edges
        work.tables.reopen_flow(job.id)  # first: another pass may be about to delete the edges
        _reopen_living_edges(work, job.id)
        job = replace(job, open_children=work.tables.open_child_count(job.id))
    return move.rerun(job, run_at, reset_attempts, work.now)


def order_children_first(work: UnitOfWork, ids: Sequence[str]) -> list[str]:
    """Sort these jobs so that children come before their parents: then the parents wait for their rerun."""
    selected, seen = set(ids), set[str]()
    ordered: dict[str, None] = {}
    stack = [(current, False) for current in reversed(ids)]
    while stack:
        current, is_done = stack.pop()
        if is_done:
            ordered[current] = None
        elif current not in seen:
            seen.add(current)
            job = work.get(current)
            edges = [] if job is None or not job.children else work.tables.child_edges(current)
            children = [(edge.child, False) for edge in reversed(edges) if edge.child in selected]
            stack += [(current, True), *children]
    return list(ordered)


def _reopen_living_edges(work: UnitOfWork, parent: str) -> None:
    """Reopen the edges to children that were rerun while this parent did not wait for them."""
    work.flush()
    edges = work.tables.reopened_edges(parent)
    work.load(
        [edge.child for edge in edges]
    )  # this also locks them, so that none can end in another pass meanwhile
    open_edges = [edge for edge in edges if (child := work.get(edge.child)) and not child.finished]
    if open_edges:
        work.tables.update_edges([replace(edge, outcome=None, result=None) for edge in open_edges])


def key_rival(work: UnitOfWork, job: JobRecord) -> str | None:
    """Return the id of an unfinished job that holds the unique key of a job that is to run again."""
    if job.unique is None or job.unique.is_aligned:
        return None
    holder = work.holder(move.slot_of(job, job.unique, work.now))
    if holder is None or holder == job.id:
        return None
    other = work.get(holder)
    return None if other is None or other.finished else holder


def continue_closing_flows(work: UnitOfWork, limit: int) -> tuple[int, bool]:
    """Continue with the closing flows. Return how many edges were deleted, and whether there may be more."""
    tables = work.tables
    more = _add_pending_edges(work, limit)
    propagate_ends(work)
    work.cancel_budget = limit
    for parent, reason in tables.flows_to_cancel(limit):
        if not _cancel_children(work, parent, reason):
            tables.close_flow(parent, None, None)
    propagate_ends(work)
    deleted = 0
    for parent in tables.prunable_flows(work.now, limit):
        deleted += tables.drop_edges(parent, limit - deleted)
        if deleted >= limit:
            return deleted, True
        tables.reopen_flow(parent)
    return deleted, more or work.cancel_budget <= 0
