"""Flows: jobs that wait for other jobs. Their edges, and the check that the graph has no cycle."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import ClassVar

from msgspec import Struct

from errandry.core import check
from errandry.core.job import INSERT_MAX, NewJob
from errandry.core.state import Move, State
from errandry.errors import InvalidValue

CHILDREN_MAX = 10_000
"""Maximum number of children of a job."""
_FEED_PATH = re.compile(r"[^\W\d]\w*(?:\[\d{1,5}\])?")


class Policy(StrEnum):
    """What happens to a parent when a child fails, is canceled or is removed before it has ended.

    fail    the parent fails too, and its children that no worker has claimed yet are canceled
    ignore  the parent continues as if the child had completed
    remove  the parent is removed, and its children that no worker has claimed yet are canceled
    after   the parent continues however the child ended; canceling the parent does not cancel the child
    """

    FAIL = "fail"
    IGNORE = "ignore"
    REMOVE = "remove"
    AFTER = "after"


class ChildEnd(StrEnum):
    """How a child ended. All but the first count as failed."""

    COMPLETED = "completed"
    FAILED = "failed"
    CANCELED = "canceled"
    REMOVED = "removed"


class Edge(Struct, frozen=True, gc=False):
    """`parent` waits for `child`.

    `feeds` are the arguments of the parent that take the result of the child: `total`, or `parts[2]` for an
    item of a list.
    """

    parent: str
    child: str
    policy: Policy = Policy.FAIL
    feeds: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check.name("parent", self.parent)
        check.name("child", self.child)
        if type(self.policy) is not Policy:
            raise InvalidValue("policy", self.policy, f"must be a Policy: {', '.join(Policy)}")
        for path in self.feeds:
            if _FEED_PATH.fullmatch(check.name("feeds", path)) is None:
                raise InvalidValue("feeds", path, "must be an argument of the parent: total, or parts[2]")


class AwaitOutcome(Struct, frozen=True, gc=False, tag="await"):
    """Insert these jobs and run again when they have ended; this attempt does not count.

    The edges connect the jobs with each other and with the job that waits, which is a parent too.
    """

    move: ClassVar[Move] = Move.AWAIT
    jobs: tuple[NewJob, ...] = ()
    edges: tuple[Edge, ...] = ()


class EdgeRecord(Struct, frozen=True, gc=False):
    """An edge as stored. `n` numbers the children of a parent from 0; `seq` is the `seq` of the child.

    `outcome` is None until the child has ended.
    """

    parent: str
    n: int
    child: str
    task: str
    seq: int
    policy: Policy
    outcome: ChildEnd | None = None
    result: str | None = None
    feeds: tuple[str, ...] = ()

    @property
    def has_failed(self) -> bool:
        return self.outcome is not None and self.outcome is not ChildEnd.COMPLETED

    @property
    def is_fatal(self) -> bool:
        """Whether the child has failed and the parent therefore ends too."""
        return self.has_failed and self.policy in (Policy.FAIL, Policy.REMOVE)


def parse_feed(path: str) -> tuple[str, int | None]:
    """The argument that a path of `feeds` names, and the index if the path names an item of a list."""
    name, _, index = path.partition("[")
    return name, int(index[:-1]) if index else None


END_OF_STATE = {
    State.COMPLETED: ChildEnd.COMPLETED,
    State.FAILED: ChildEnd.FAILED,
    State.CANCELED: ChildEnd.CANCELED,
}


def check_jobs(jobs: Sequence[NewJob]) -> None:
    if len(jobs) > INSERT_MAX:
        raise InvalidValue("jobs", len(jobs), f"an insert takes 1 to {INSERT_MAX:,} jobs: split it")
    if len(jobs) > 1:
        repeated = [job_id for job_id, count in Counter(job.id for job in jobs).items() if count > 1]
        if repeated:
            raise InvalidValue("id", repeated[0], "occurs twice in one insert")


def check_edges(jobs: Sequence[NewJob], edges: Sequence[Edge], awaiting: str | None = None) -> None:
    """Refuse edges with unknown jobs, repeated edges, cycles, and parents with too many children.

    The jobs are inserted together. `awaiting` is a job of the store that waits for some of them.
    """
    ids = {job.id for job in jobs}
    if awaiting in ids:
        raise InvalidValue("id", awaiting, "is the job that waits: its children need other ids")
    for edge in edges:
        if edge.parent not in ids and edge.parent != awaiting:
            raise InvalidValue("parent", edge.parent, "is not among the jobs inserted with it")
        if edge.child not in ids:
            raise InvalidValue("child", edge.child, "is not among the jobs inserted with it")
    pairs = Counter((edge.parent, edge.child) for edge in edges)
    if len(pairs) < len(edges):
        parent, child = next(pair for pair, count in pairs.items() if count > 1)
        raise InvalidValue("child", child, f"occurs twice under its parent {parent}")
    for parent, count in Counter(edge.parent for edge in edges).items():
        check_child_count(parent, count)
    check_cycles(edges)


def parents_first(jobs: Sequence[NewJob], edges: Sequence[Edge]) -> list[NewJob]:
    """The jobs of a flow, each after all its parents."""
    order = _topological_order(edges)
    last = len(order)
    return sorted(jobs, key=lambda job: -order.get(job.id, last))


def check_cycles(edges: Sequence[Edge]) -> None:
    order = _topological_order(edges)
    if (stuck := next((edge.child for edge in edges if edge.child not in order), None)) is not None:
        raise InvalidValue("child", stuck, "is in a circle: jobs of a flow cannot wait for each other")


def check_child_count(parent: str, count: int) -> None:
    if count > CHILDREN_MAX:
        why = f"a job has at most {CHILDREN_MAX:,} children, not {count:,}: put jobs between them"
        raise InvalidValue("parent", parent, why)


def _topological_order(edges: Iterable[Edge]) -> dict[str, int]:
    """The jobs of the edges, numbered so that children come first. Jobs that wait for a cycle are left out.

    Kahn's algorithm: remove jobs without open children until none is left.
    """
    parents: dict[str, list[str]] = {}
    open_children: Counter[str] = Counter()
    for edge in edges:
        parents.setdefault(edge.child, []).append(edge.parent)
        open_children[edge.parent] += 1
    free = [child for child in parents if not open_children[child]]
    order: dict[str, int] = {}
    while free:
        child = free.pop()
        order[child] = len(order)
        for parent in parents.get(child, ()):
            open_children[parent] -= 1
            if not open_children[parent]:
                free.append(parent)
    return order
