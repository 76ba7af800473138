"""What an end means to the rest of a flow, decided in the pass that brings it.

A child's end is told to its parents before anything else looks at them, so a parent is released in the same
step as its last child ends. Work that can be large, canceling children and dropping edges, is bounded: what
is left over stands in the list of closing flows, and upkeep goes on with it.

Parents are locked after their children and in the order of their ids; children of a parent only as far as
nobody else has them.
"""

from collections import Counter
from collections.abc import Collection, Sequence

from msgspec import Struct
from msgspec.structs import replace

from errandry.core import move
from errandry.core.flow import END_OF_STATE, ChildEnd, Edge, EdgeRecord, Policy, check_circles
from errandry.core.job import JobRecord, NewJob
from errandry.core.state import BLOCKED, CANCELED, CLAIMED, FAILED, RUNNING, SCHEDULED, WAITING, Move, Reason
from errandry.errors import InvalidValue
from errandry.store.execute.unit_of_work import FlowEnd, UnitOfWork

UNCLAIMED = (BLOCKED, SCHEDULED, WAITING)
UNFINISHED = (*UNCLAIMED, CLAIMED, RUNNING)


class NewEdges(Struct, frozen=True):
    """The edges of an insert that are new, and how many each job has on either side."""

    edges: tuple[Edge, ...]
    children: Counter[str]
    parents: Counter[str]


def ties(
    ledger: UnitOfWork, jobs: Sequence[NewJob], edges: Sequence[Edge], there: dict[str, str]
) -> NewEdges:
    """What is to be tied of these edges, if others are `there` already in place of some jobs.

    Such a child is waited for like the others, if there is still something to wait for. A parent that was
    there waits for what it waits for: its edges are those of a repeat, and their children are there, or have
    been.
    """
    named = _named(edges, there)
    old = {there[edge.parent] for edge in edges if edge.parent in there}
    repeated = {
        (link.parent, link.child) for parent in sorted(old) for link in ledger.tables.child_edges(parent)
    }
    for edge in named:
        if edge.parent in old and (edge.parent, edge.child) not in repeated:
            why = f"was there before, and does not wait for {edge.child}: hand in a parent with its children"
            raise InvalidValue("parent", edge.parent, why)
    there |= {edge.child: edge.child for edge in named if edge.parent in old}
    made = {new.id for new in jobs if new.id not in there}
    known = [edge for edge in named if edge.child in made or ledger.get(edge.child) is not None]
    fresh = [edge for edge in known if edge.parent not in old]
    return NewEdges(tuple(fresh), Counter(one.parent for one in fresh), Counter(one.child for one in fresh))


def _named(edges: Sequence[Edge], there: dict[str, str]) -> list[Edge]:
    """The edges between those who are there in place of others: each once, for all that it feeds."""
    if there.items() <= {(one, one) for one in there}:
        return list(edges)
    named: dict[tuple[str, str], Edge] = {}
    for edge in edges:
        pair = there.get(edge.parent, edge.parent), there.get(edge.child, edge.child)
        feeds = named[pair].feeds if pair in named else ()
        named[pair] = Edge(*pair, edge.policy, (*feeds, *edge.feeds))
    check_circles(list(named.values()))
    return list(named.values())


def tie(ledger: UnitOfWork, ties: NewEdges, made: Collection[str], first: int) -> None:
    """Write down edges of jobs that are there now; those not `made` just now learn of their new parents.

    The children of a job that awaits are numbered from `first` on.
    """
    if not ties.edges:
        return
    ledger.tables.clear_edges([parent for parent in ties.children if parent in made or not first])
    numbers: Counter[str] = Counter()
    links = []
    children = {child: job for child in ties.parents if (job := ledger.get(child)) is not None}
    for edge in ties.edges:
        n = numbers[edge.parent] + (0 if edge.parent in made else first)
        child = children[edge.child]
        links.append(
            EdgeRecord(edge.parent, n, child.id, child.task, child.seq, edge.policy, feeds=edge.feeds)
        )
        numbers[edge.parent] += 1
    ledger.tables.add_edges(links)
    for one, parents in ties.parents.items():
        if one not in made:
            _wait_for(ledger, children[one], parents)


def _tie_late(ledger: UnitOfWork, limit: int) -> bool:
    """Tell children of parents that came in a transaction of somebody else's; whether there may be more.

    One that is gone by now has been removed.
    """
    late = ledger.tables.take_pending_edges(limit)
    ledger.load(sorted({link.child for link in late}))
    for child, links in _by_child(late).items():
        job = ledger.get(child)
        told = [link for link in links if job is not None and link.seq == job.seq]
        if job is not None and told:
            _wait_for(ledger, job, len(told))
        for link in links:
            if link not in told:
                ledger.tables.update_edges([gone := replace(link, outcome=ChildEnd.REMOVED)])
                ledger.load([gone.parent])
                _count_down(ledger, gone.parent, [gone])
    return len(late) >= limit


def _by_child(links: Sequence[EdgeRecord]) -> dict[str, list[EdgeRecord]]:
    found: dict[str, list[EdgeRecord]] = {}
    for link in links:
        found.setdefault(link.child, []).append(link)
    return found


def _wait_for(ledger: UnitOfWork, child: JobRecord, parents: int) -> None:
    """One that was there gets new parents; if it has ended, they are told."""
    after = ledger.put(child, replace(child, parents=child.parents + parents))
    if after.finished:
        ledger.ended[after.id] = FlowEnd(after, END_OF_STATE[after.state])


def release(ledger: UnitOfWork) -> None:
    """Tell the parents of what has ended, and what that leads to, until nothing follows."""
    while ledger.ended:
        ended, ledger.ended = ledger.ended, {}
        _tell(ledger, [end for end in ended.values() if end.job.parents])
        for end in ended.values():
            if end.job.children:
                _close(ledger, end)


def _tell(ledger: UnitOfWork, ends: Sequence[FlowEnd]) -> None:
    """Write down how children ended, and move each parent once, whatever number of them it has here."""
    if not ends:
        return
    by_seq = {end.job.seq: end for end in ends}
    links = ledger.tables.parent_edges(sorted(by_seq))
    ledger.load_again(sorted({link.parent for link in links}))
    closed: dict[str, list[EdgeRecord]] = {}
    marked = []
    for link in links:
        end = by_seq[link.seq]
        after = replace(link, outcome=end.outcome, result=end.job.result)
        if after == link or ledger.get(link.parent) is None:
            continue
        marked.append(after)
        if link.outcome is None:  # guard: counted_once
            closed.setdefault(link.parent, []).append(after)
    if marked:
        ledger.tables.update_edges(marked)
    for parent in sorted(closed):
        _count_down(ledger, parent, closed[parent])


def _count_down(ledger: UnitOfWork, parent_id: str, closed: Sequence[EdgeRecord]) -> None:
    parent = ledger.get(parent_id)
    if parent is None or parent.state is not BLOCKED:
        return
    now = ledger.now
    fatal = next((link for link in closed if link.is_fatal), None)
    after = replace(parent, open_children=parent.open_children - len(closed), updated_at=now)
    if fatal is None and not after.open_children:
        fatal = ledger.tables.fatal_edge(parent_id)  # a parent may wait again after a child had failed it
    if fatal is None:
        if after.open_children:  # guard: open_children
            ledger.put(parent, after)
        else:
            ledger.move(Move.UNBLOCK, parent, move.unblocked(after, now))
        return
    parent = ledger.put(parent, after)
    if fatal.policy is Policy.REMOVE:
        ledger.remove(Move.CHILD_FAILED, parent, cancel=Reason.CHILD_FAILED)
    else:
        ledger.move(Move.CHILD_FAILED, parent, move.child_failed(parent, fatal.child, now))


def _close(ledger: UnitOfWork, end: FlowEnd) -> None:
    """A parent has ended: cancel the children that have not, and note when its edges go."""
    job, cancel = end.job, end.cancel
    if cancel is not None and not _cancel(ledger, job.id, cancel):
        cancel = None
    expires_at = ledger.now if ledger.get(job.id) is None else job.expires_at
    ledger.tables.close_flow(job.id, cancel, ledger.now if expires_at is None else expires_at)


def _cancel(ledger: UnitOfWork, parent: str, reason: Reason) -> bool:
    """Cancel open children, as many as the pass may; whether there may be more.

    With a parent that was canceled all go that have not ended; with one that failed, those nobody has
    claimed.
    """
    tables, states = ledger.tables, UNCLAIMED if reason is Reason.CHILD_FAILED else UNFINISHED
    ledger.flush()
    while ledger.room > 0 and (jobs := tables.open_children(parent, states, ledger.room)):
        ledger.room -= len(jobs)
        for job in jobs:
            ledger.move(Move.CANCEL, job, move.canceled(job, ledger.now, reason=reason))
        ledger.flush()
        if not tables.has_open_children(parent, states):  # else another child had waited for it
            return False
    return tables.has_open_children(parent, states)


def reopen(ledger: UnitOfWork, job: JobRecord) -> set[str]:
    """`job` runs again: so do parents that failed with a child, and what they wait for. The ids of all."""
    again, ids = [job], set()
    while again:
        job = again.pop()
        ids.add(job.id)
        if job.children:
            ledger.tables.reopen_flow(job.id)
        if job.parents:
            links = ledger.tables.parent_edges([job.seq])
            failed = [link.parent for link in links if _reopened(ledger, link)]
            for parent in failed:  # one of them may be revived with another, and must find its edge open
                again += _run_again(ledger, parent)
    return ids


def _reopened(ledger: UnitOfWork, link: EdgeRecord) -> bool:
    """The child of this edge is waited for again; whether its parent had failed with a child."""
    parent = ledger.get(link.parent)
    # guard: child_of_one_that_goes_on
    if parent is None or link.outcome is None or not (parent.finished or parent.state is BLOCKED):
        return False
    ledger.tables.update_edges([replace(link, outcome=None, result=None)])  # guard: waited_for_again
    if parent.state is BLOCKED:
        ledger.put(parent, replace(parent, open_children=parent.open_children + 1, updated_at=ledger.now))
    return parent.state is FAILED and parent.reason is Reason.CHILD_FAILED


def _run_again(ledger: UnitOfWork, parent_id: str) -> list[JobRecord]:
    """A parent that failed with a child runs again, with the children that were canceled because of it."""
    parent = ledger.get(parent_id)
    if parent is None or parent.state is not FAILED or rival(ledger, parent) is not None:
        return []
    revived = _revived(ledger, parent)
    return [*revived, ledger.move(Move.RERUN, parent, rerun(ledger, parent))]


def _revived(ledger: UnitOfWork, parent: JobRecord) -> list[JobRecord]:
    """Children that were canceled only because another one had failed, and theirs."""
    links = [link for link in ledger.tables.child_edges(parent.id) if link.outcome is ChildEnd.CANCELED]
    ledger.load([link.child for link in links])
    revived: list[JobRecord] = []
    for link in links:
        child = ledger.get(link.child)
        if child is None or child.seq != link.seq or not _is_collateral(ledger, child):
            continue
        ledger.tables.update_edges([replace(link, outcome=None, result=None)])
        revived += _revived(ledger, child) if child.children else []
        revived.append(ledger.move(Move.RERUN, child, rerun(ledger, child)))
    return revived


def _is_collateral(ledger: UnitOfWork, job: JobRecord) -> bool:
    """Canceled only because another child of its parent had failed, and free to run again."""
    is_one = job.state is CANCELED and job.reason is Reason.CHILD_FAILED
    return is_one and rival(ledger, job) is None


def rerun(
    ledger: UnitOfWork, job: JobRecord, run_at: float | None = None, reset_attempts: bool = False
) -> JobRecord:
    """`job` as it runs again, after its open children if it has any."""
    if job.children and job.finished:  # else it is refused, and keeps what its children have left
        ledger.tables.reopen_flow(job.id)  # first: upkeep may be about to drop its edges
        _await_again(ledger, job.id)
        job = replace(job, open_children=ledger.tables.open_child_count(job.id))
    return move.rerun(job, run_at, reset_attempts, ledger.now)


def children_first(ledger: UnitOfWork, ids: Sequence[str]) -> list[str]:
    """These jobs, each after those of them that it waits for: what runs again with them is waited for."""
    wanted, seen = set(ids), set[str]()
    found: dict[str, None] = {}
    left = [(one, False) for one in reversed(ids)]
    while left:
        one, is_done = left.pop()
        if is_done:
            found[one] = None
        elif one not in seen:
            seen.add(one)
            job = ledger.get(one)
            links = [] if job is None or not job.children else ledger.tables.child_edges(one)
            below = [(link.child, False) for link in reversed(links) if link.child in wanted]
            left += [(one, True), *below]
    return list(found)


def _await_again(ledger: UnitOfWork, parent: str) -> None:
    """Children that were rerun while this parent was at work, with what they had left, are open to it now."""
    ledger.flush()
    again = ledger.tables.reopened_edges(parent)
    ledger.load([link.child for link in again])  # and locked: one that just ends has told before
    living = [link for link in again if (child := ledger.get(link.child)) and not child.finished]
    if living:
        ledger.tables.update_edges([replace(link, outcome=None, result=None) for link in living])


def rival(ledger: UnitOfWork, job: JobRecord) -> str | None:
    """The job that lives and holds the unique key of this one, which is to live again."""
    if job.unique is None or job.unique.is_aligned:
        return None
    holder = ledger.holder(move.slot_of(job, job.unique, ledger.now))
    if holder is None or holder == job.id:
        return None
    other = ledger.get(holder)
    return None if other is None or other.finished else holder


def tidy(ledger: UnitOfWork, limit: int) -> tuple[int, bool]:
    """Go on with closing flows: how many edges went, and whether there may be more to do."""
    tables = ledger.tables
    more = _tie_late(ledger, limit)
    release(ledger)
    ledger.room = limit
    for parent, reason in tables.flows_to_cancel(limit):
        if not _cancel(ledger, parent, reason):
            tables.close_flow(parent, None, None)
    release(ledger)
    went = 0
    for parent in tables.prunable_flows(ledger.now, limit):
        went += tables.drop_edges(parent, limit - went)
        if went >= limit:
            return went, True
        tables.reopen_flow(parent)
    return went, more or ledger.room <= 0
