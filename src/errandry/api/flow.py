"""Flows as a program writes them: calls that wait for the results of other calls."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Generic, Literal, TypeVar, overload

import msgspec
from msgspec import Raw, Struct

from errandry.api.context import Child
from errandry.api.job import Job
from errandry.api.options import one_of
from errandry.api.task import Call, ResultOf
from errandry.core.flow import ChildEnd, Edge, EdgeRecord, Policy, fed
from errandry.core.job import NewJob
from errandry.errors import InvalidValue

R_co = TypeVar("R_co", covariant=True)
ChildPolicy = Literal["fail", "ignore", "remove"]
_raw = msgspec.json.Decoder(dict[str, Raw])


class Flow(Struct, Generic[R_co], frozen=True):
    """A call that runs when its children have ended. A call that stands in several places is one job."""

    parent: Call[R_co]
    children: "tuple[Flow[Any], ...]" = ()
    policy: Policy = Policy.FAIL

    def requests(self) -> list[Call[Any]]:
        """Every call once, parents first."""
        return list({one.parent.job.id: one.parent for one in self._all()}.values())

    def edges(self) -> tuple[Edge, ...]:
        """Who waits for whom and for what argument, each pair once."""
        pairs: dict[tuple[str, str], tuple[Policy, dict[str, None]]] = {}
        for one in self._all():
            for child, path in one._awaited():
                pair = one.parent.job.id, child.parent.job.id
                feeds = pairs[pair][1] if pair in pairs else {}
                pairs[pair] = one.policy, feeds | ({path: None} if path else {})
        return tuple([Edge(*pair, policy, tuple(feeds)) for pair, (policy, feeds) in pairs.items()])

    def _awaited(self) -> "Iterator[tuple[Flow[Any], str | None]]":
        """The children, and what argument each is for, if for one."""
        yield from ((child, None) for child in self.children)
        yield from self.parent.fed

    def _all(self) -> "Iterator[Flow[Any]]":
        left: deque[Flow[Any]] = deque([self])
        while left:
            one = left.popleft()
            yield one
            left += [child for child, _ in one._awaited()]


class Parallel(Struct, Generic[R_co], frozen=True):
    """Calls that run at the same time. In a chain, the call after them waits for all of them."""

    calls: tuple[Flow[R_co], ...]


FlowPart = Call[Any] | Flow[Any] | Parallel[Any]


@overload
def result_of(calls: Parallel[R_co]) -> list[R_co]: ...
@overload
def result_of(calls: Call[R_co] | Flow[R_co]) -> R_co: ...
def result_of(calls: FlowPart) -> Any:
    """What a call will return, as an argument of another: `double.new(result_of(part.new(2)))`.

    That one waits for it, and a type checker sees whether it fits. Of a group, the list of what its calls
    return.
    """
    return ResultOf(flows(calls), isinstance(calls, Parallel))


def flow(parent: Call[R_co], *children: FlowPart, policy: ChildPolicy = "fail") -> Flow[R_co]:
    """`parent` after its children, which may be flows themselves; it sees their results by `ctx.children()`.

    `policy` is what becomes of it if one of them fails: it fails too, ignores it, or is removed.
    """
    if not children and not parent.fed:
        raise InvalidValue("children", children, "give at least one call that the parent waits for")
    chosen = Policy(one_of("policy", policy, tuple(map(str, Policy))))
    return Flow(parent, tuple([one for child in children for one in flows(child)]), chosen)


def parallel(*calls: Call[R_co] | Flow[R_co]) -> Parallel[R_co]:
    """Calls that run at the same time: enqueued together, or all of them before the next call of a chain."""
    if not calls:
        raise InvalidValue("calls", calls, "give at least one call")
    return Parallel(tuple([one for call in calls for one in flows(call)]))


@overload
def chain(last: Call[R_co] | Flow[R_co], /) -> Flow[R_co]: ...
@overload
def chain(a: FlowPart, last: Call[R_co] | Flow[R_co], /) -> Flow[R_co]: ...
@overload
def chain(a: FlowPart, b: FlowPart, last: Call[R_co] | Flow[R_co], /) -> Flow[R_co]: ...
@overload
def chain(a: FlowPart, b: FlowPart, c: FlowPart, last: Call[R_co] | Flow[R_co], /) -> Flow[R_co]: ...
@overload
def chain(*calls: FlowPart) -> Flow[Any]: ...
def chain(*calls: FlowPart) -> Flow[Any]:
    """Each call after the one before; each sees the result of that one by `ctx.children()`.

    A group in it is several calls at once: each of them after the one before, the next one after all of them.
    """
    if not calls or isinstance(calls[-1], Parallel):
        raise InvalidValue("calls", calls, "give at least one call; a chain ends with one, not with a group")
    ends: tuple[Flow[Any], ...] = ()
    for call in calls:
        ends = tuple([Flow(one.parent, (*one.children, *ends), one.policy) for one in flows(call)])
    return ends[0]


def chord(children: Iterable[FlowPart], callback: Call[R_co], policy: ChildPolicy = "fail") -> Flow[R_co]:
    """`callback` after all of these; with `policy="ignore"` it runs whatever became of them."""
    return flow(callback, *children, policy=policy)


def spawned(
    awaiting: str, calls: Iterable[FlowPart], policy: str
) -> tuple[tuple[NewJob, ...], tuple[Edge, ...]]:
    """The jobs that one which runs is about to wait for, and all edges."""
    parts = [one for call in calls for one in flows(call)]
    jobs = {request.job.id: request.job for one in parts for request in one.requests()}
    own = {one.parent.job.id: Edge(awaiting, one.parent.job.id, Policy(policy)) for one in parts}
    inner = {(edge.parent, edge.child): edge for one in parts for edge in one.edges()}
    return tuple(jobs.values()), (*own.values(), *inner.values())


def ends(flow: FlowPart, jobs: list[Job[Any]]) -> list[Job[Any]]:
    """Of the jobs of a flow those that all others lead to: they come first."""
    return jobs[: len({call.parent.job.id for call in flows(flow)})]


def flows(part: FlowPart) -> tuple[Flow[Any], ...]:
    """A call, or each of a group, as a flow."""
    if isinstance(part, Parallel):
        return part.calls
    if isinstance(part, Flow):
        return (part,)
    if isinstance(part, Call):
        return (Flow(part),)
    raise InvalidValue("call", part, "must be a call of a task, task.new(…), or a flow of such calls")


class ChildResults(Struct, frozen=True):
    """The children of a job as its handler gets them: as such, and as arguments."""

    children: tuple[Child, ...]
    feeds: Mapping[str, str]

    def filled(self, payload: str) -> str:
        """The arguments a job was enqueued with, or got by an edit, and those that come from its children."""
        if not self.feeds:
            return payload
        fed = {name: Raw(text.encode()) for name, text in self.feeds.items()}
        return msgspec.json.encode({**fed, **_raw.decode(payload)}).decode()


def fed_by(results: Iterable[tuple[EdgeRecord, str]]) -> dict[str, str]:
    """The arguments that children are the results of, as JSON; what has failed is left out.

    So the default of its argument holds, and a list is shorter.
    """
    values: dict[str, str] = {}
    lists: dict[str, dict[int, str]] = {}
    for link, text in results:
        for name, place in map(fed, link.feeds):
            if place is not None:
                lists.setdefault(name, {})
            if link.outcome is not ChildEnd.COMPLETED:
                continue
            if place is None:
                values[name] = text
            else:
                lists[name][place] = text
    return values | {
        name: f"[{','.join([line[place] for place in sorted(line)])}]" for name, line in lists.items()
    }
