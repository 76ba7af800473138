"""Flows: jobs that wait for other jobs. Their edges, and what makes a graph of them one that can end."""

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
_FED = re.compile(r"[^\W\d]\w*(?:\[\d{1,5}\])?")


class Policy(StrEnum):
    """What becomes of a parent when a child fails, is canceled or is removed before its end.

    fail    it fails too, and its children that nobody has claimed yet are canceled
    ignore  it goes on as if the child had completed
    remove  it is removed, and its children that nobody has claimed yet are canceled
    after   it goes on whatever became of the child, which is not canceled with it either
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

    `feeds` are the arguments of the parent that the child's result is given for: `total`, or `parts[2]` for a
    place in a list.
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
            if _FED.fullmatch(check.name("feeds", path)) is None:
                raise InvalidValue("feeds", path, "must be an argument of the parent: total, or parts[2]")


class AwaitOutcome(Struct, frozen=True, gc=False, tag="await"):
    """Run again when these jobs have ended; this attempt does not count.

    The edges lead from the jobs to each other and to the job that waits, their parent too.
    """

    move: ClassVar[Move] = Move.AWAIT
    jobs: tuple[NewJob, ...] = ()
    edges: tuple[Edge, ...] = ()


class EdgeRecord(Struct, frozen=True, gc=False):
    """An edge as it is stored: `n` counts the children of a parent from 0, `seq` is the child's number.

    `outcome` is None while the child has not ended.
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
        """Whether the parent cannot do without this child, which has failed."""
        return self.has_failed and self.policy in (Policy.FAIL, Policy.REMOVE)


def fed(path: str) -> tuple[str, int | None]:
    """The argument that an edge feeds, and the place in it if that is a list."""
    name, _, place = path.partition("[")
    return name, int(place[:-1]) if place else None


END_OF_STATE = {
    State.COMPLETED: ChildEnd.COMPLETED,
    State.FAILED: ChildEnd.FAILED,
    State.CANCELED: ChildEnd.CANCELED,
}


def check_jobs(jobs: Sequence[NewJob]) -> None:
    if len(jobs) > INSERT_MAX:
        raise InvalidValue("jobs", len(jobs), f"an insert takes 1 to {INSERT_MAX:,} jobs: split it")
    if len(jobs) > 1:
        twice = [job_id for job_id, times in Counter(job.id for job in jobs).items() if times > 1]
        if twice:
            raise InvalidValue("id", twice[0], "stands twice in one insert")


def check_edges(jobs: Sequence[NewJob], edges: Sequence[Edge], awaiting: str | None = None) -> None:
    """Refuse what could never end, or was not meant: strangers, doubles, circles, too many children.

    The jobs are handed in together; `awaiting` is a job that is there and waits for some of them.
    """
    known = {job.id for job in jobs}
    if awaiting in known:
        raise InvalidValue("id", awaiting, "is the job that waits: its children need other ids")
    for edge in edges:
        if edge.parent not in known and edge.parent != awaiting:
            raise InvalidValue("parent", edge.parent, "is not among the jobs handed in with it")
        if edge.child not in known:
            raise InvalidValue("child", edge.child, "is not among the jobs handed in with it")
    pairs = Counter((edge.parent, edge.child) for edge in edges)
    if len(pairs) < len(edges):
        parent, child = next(pair for pair, times in pairs.items() if times > 1)
        raise InvalidValue("child", child, f"stands twice under its parent {parent}")
    for parent, number in Counter(edge.parent for edge in edges).items():
        check_children(parent, number)
    check_circles(edges)


def in_order(jobs: Sequence[NewJob], edges: Sequence[Edge]) -> list[NewJob]:
    """Jobs of a flow, each after all that wait for it."""
    order = _order(edges)
    last = len(order)
    return sorted(jobs, key=lambda job: -order.get(job.id, last))


def check_circles(edges: Sequence[Edge]) -> None:
    order = _order(edges)
    if (stuck := next((edge.child for edge in edges if edge.child not in order), None)) is not None:
        raise InvalidValue("child", stuck, "waits for a circle: jobs of a flow cannot wait for each other")


def check_children(parent: str, number: int) -> None:
    if number > CHILDREN_MAX:
        why = f"a job has at most {CHILDREN_MAX:,} children, not {number:,}: put jobs between them"
        raise InvalidValue("parent", parent, why)


def _order(edges: Iterable[Edge]) -> dict[str, int]:
    """The jobs of some edges, numbered so that children come first; without those that wait for a circle.

    Take away what waits for nobody until nothing is left.
    """
    parents: dict[str, list[str]] = {}
    waits: Counter[str] = Counter()
    for edge in edges:
        parents.setdefault(edge.child, []).append(edge.parent)
        waits[edge.parent] += 1
    free = [child for child in parents if not waits[child]]
    order: dict[str, int] = {}
    while free:
        child = free.pop()
        order[child] = len(order)
        for parent in parents.get(child, ()):
            waits[parent] -= 1
            if not waits[parent]:
                free.append(parent)
    return order
