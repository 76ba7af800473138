"""Flows as a program writes them: calls that wait for the results of other calls."""

from collections.abc import Iterable, Iterator
from typing import Any, Generic, Literal, TypeVar

from msgspec import Struct

from errandry.core.flow import Edge, Policy
from errandry.core.job import NewJob
from errandry.errors import InvalidValue
from errandry.options import one_of
from errandry.task import Request

R_co = TypeVar("R_co", covariant=True)
Choice = Literal["fail", "ignore", "remove"]


class Flow(Struct, Generic[R_co], frozen=True):
    """A call that runs when its children have ended. A call that stands in several places is one job."""

    parent: Request[R_co]
    children: "tuple[Flow[Any], ...]" = ()
    policy: Policy = Policy.FAIL

    def requests(self) -> list[Request[Any]]:
        """Every call once, parents first."""
        return list({one.parent.job.id: one.parent for one in self._all()}.values())

    def edges(self) -> tuple[Edge, ...]:
        """Who waits for whom, each pair once."""
        pairs = {
            (one.parent.job.id, child.parent.job.id): one.policy
            for one in self._all()
            for child in one.children
        }
        return tuple(Edge(parent, child, policy) for (parent, child), policy in pairs.items())

    def _all(self) -> "Iterator[Flow[Any]]":
        left: list[Flow[Any]] = [self]
        while left:
            one = left.pop(0)
            yield one
            left += one.children


class Group(Struct, Generic[R_co], frozen=True):
    """Calls that run at the same time. In a chain, the call after them waits for all of them."""

    calls: tuple[Flow[R_co], ...]


Part = Request[Any] | Flow[Any] | Group[Any]


def flow(parent: Request[R_co], *children: Part, policy: Choice = "fail") -> Flow[R_co]:
    """`parent` after its children, which may be flows themselves; it sees their results by `ctx.children()`.

    `policy` is what becomes of it if one of them fails: it fails too, ignores it, or is removed.
    """
    if not children:
        raise InvalidValue("children", children, "give at least one call that the parent waits for")
    chosen = Policy(one_of("policy", policy, tuple(map(str, Policy))))
    return Flow(parent, tuple([one for child in children for one in _flows(child)]), chosen)


def group(*calls: Request[R_co] | Flow[R_co]) -> Group[R_co]:
    """Calls that run at the same time: enqueued together, or all of them before the next call of a chain."""
    if not calls:
        raise InvalidValue("calls", calls, "give at least one call")
    return Group(tuple([one for call in calls for one in _flows(call)]))


def chain(*calls: Part) -> Flow[Any]:
    """Each call after the one before; each sees the result of that one by `ctx.children()`.

    A group in it is several calls at once: each of them after the one before, the next one after all of them.
    """
    if not calls or isinstance(calls[-1], Group):
        raise InvalidValue("calls", calls, "give at least one call; a chain ends with one, not with a group")
    ends: tuple[Flow[Any], ...] = ()
    for call in calls:
        ends = tuple([Flow(one.parent, (*one.children, *ends), one.policy) for one in _flows(call)])
    return ends[0]


def chord(children: Iterable[Part], callback: Request[R_co], policy: Choice = "fail") -> Flow[R_co]:
    """`callback` after all of these; with `policy="ignore"` it runs whatever became of them."""
    return flow(callback, *children, policy=policy)


def spawned(awaiting: str, calls: Iterable[Part], policy: str) -> tuple[tuple[NewJob, ...], tuple[Edge, ...]]:
    """The jobs that one which runs is about to wait for, and all edges."""
    flows = [one for call in calls for one in _flows(call)]
    jobs = {request.job.id: request.job for one in flows for request in one.requests()}
    own = {one.parent.job.id: Edge(awaiting, one.parent.job.id, Policy(policy)) for one in flows}
    inner = {(edge.parent, edge.child): edge for one in flows for edge in one.edges()}
    return tuple(jobs.values()), (*own.values(), *inner.values())


def _flows(part: Part) -> tuple[Flow[Any], ...]:
    if isinstance(part, Group):
        return part.calls
    if isinstance(part, Flow):
        return (part,)
    if isinstance(part, Request):
        return (Flow(part),)
    raise InvalidValue("call", part, "must be a call of a task, task.new(…), or a flow of such calls")
