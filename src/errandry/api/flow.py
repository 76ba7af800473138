"""Flows: calls that wait for other calls, enqueued together."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, get_args, overload

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from errandry.api.context import Child
from errandry.api.job import Job
from errandry.api.options import check_choice
from errandry.api.task import Call, ResultOf
from errandry.codec.json_codec import DocumentInfo, from_json
from errandry.codec.result_use import ResultUse, with_uses
from errandry.core.flow import ChildEnd, Edge, EdgeRecord, Policy, parse_feed
from errandry.core.job import NewJob, copy_job
from errandry.errors import InvalidValue

if TYPE_CHECKING:
    from errandry.api.client import Client

R_co = TypeVar("R_co", covariant=True)
ChildPolicy = Literal["fail", "ignore", "remove"]
_raw_decoder = msgspec.json.Decoder(dict[str, Raw])


class Flow(Struct, Generic[R_co], frozen=True):
    """A call that runs when its children have ended, made with `flow`, `chain` or `chord`.

    A call object that is used in several places of a flow is one job. `policy` is for its children;
    `own_policy` is for the flow itself as a child, in place of the policy of its parent.
    """

    parent: Call[R_co]
    children: "tuple[Flow[Any], ...]" = ()
    policy: Policy = Policy.FAIL
    own_policy: Policy | None = None

    def edges(self) -> tuple[Edge, ...]:
        """One edge for each pair of parent and child, with the parent's arguments that the child fills."""
        policies: dict[tuple[str, str], Policy] = {}
        feeds: dict[tuple[str, str], dict[str, None]] = {}
        for node in self.walk():
            for child, path in node._inputs():
                pair = node.parent.job.id, child.parent.job.id
                if child.own_policy is not None:
                    policies[pair] = child.own_policy
                policies.setdefault(pair, node.policy)
                feeds.setdefault(pair, {}).update({path: None} if path else {})
        return tuple([Edge(*pair, policy, tuple(feeds[pair])) for pair, policy in policies.items()])

    def _inputs(self) -> "Iterator[tuple[Flow[Any], str | None]]":
        """The children, each with the path of the argument that its result fills, or None."""
        yield from ((child, None) for child in self.children)
        yield from self.parent.inputs

    def walk(self) -> "Iterator[Flow[Any]]":
        """This flow and all below it, breadth first; a shared child comes once for each parent."""
        queue: deque[Flow[Any]] = deque([self])
        while queue:
            node = queue.popleft()
            yield node
            queue += [child for child, _ in node._inputs()]


class Parallel(Struct, Generic[R_co], frozen=True):
    """Calls that run at the same time, made with `parallel`."""

    calls: tuple[Flow[R_co], ...]


FlowPart = Call[Any] | Flow[Any] | Parallel[Any]


@overload
def result_of(calls: Parallel[R_co]) -> list[R_co]: ...
@overload
def result_of(calls: Call[R_co] | Flow[R_co]) -> R_co: ...
def result_of(calls: FlowPart) -> Any:
    """Use the future result of a call as an argument: `double.new(result_of(half.new(2)))`.

    The job with the argument waits for the call; type checkers check that the result fits. For `parallel(…)`,
    the argument is the list of the results of its calls.
    """
    return ResultOf(as_flows(calls), isinstance(calls, Parallel))


@overload
def child(call: Parallel[R_co], policy: ChildPolicy) -> Parallel[R_co]: ...
@overload
def child(call: Call[R_co] | Flow[R_co], policy: ChildPolicy) -> Flow[R_co]: ...
def child(call: FlowPart, policy: ChildPolicy) -> Flow[Any] | Parallel[Any]:
    """A child with a policy of its own: `flow(pack.new(), pick.new("tea"), child(card.new(), "ignore"))`.

    The policy decides what its failure means for the jobs that wait for it, in place of their `policy`: see
    `flow`. In a chain or in `result_of`, too. For `parallel(…)` it is the policy of each call.
    """
    own_policy = _read_policy(policy)
    flows = tuple([replace(node, own_policy=own_policy) for node in as_flows(call)])
    return Parallel(flows) if isinstance(call, Parallel) else flows[0]


def flow(parent: Call[R_co], *children: FlowPart, policy: ChildPolicy = "fail") -> Flow[R_co]:
    """Run `parent` when its children have ended; its handler reads their results with `ctx.children()`.

        await jobs.enqueue_flow(flow(pack.new(order), pick.new("tea"), pick.new("cup")))

    Children may be flows themselves. `policy` decides what a failed child means for the parent: it fails too,
    ignores the failure, or is removed. `child` gives one of them another policy.
    """
    if not children and not parent.inputs:
        raise InvalidValue("children", children, "give at least one call that the parent waits for")
    child_policy = _read_policy(policy)
    return Flow(parent, tuple([node for child in children for node in as_flows(child)]), child_policy)


def parallel(*calls: Call[R_co] | Flow[R_co]) -> Parallel[R_co]:
    """Run calls at the same time. In a chain, the call after `parallel(…)` waits for all of its calls.

    chain(fetch.new(), parallel(parse.new("a"), parse.new("b")), report.new())
    """
    if not calls:
        raise InvalidValue("calls", calls, "give at least one call")
    return Parallel(tuple([node for call in calls for node in as_flows(call)]))


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
    """Run calls one after the other; each handler reads the result of the call before with `ctx.children()`.

    await jobs.enqueue_flow(chain(fetch.new(url), parse.new(), store.new()))
    """
    if not calls or isinstance(calls[-1], Parallel):
        raise InvalidValue("calls", calls, "give at least one call; a chain cannot end with parallel(…)")
    previous: tuple[Flow[Any], ...] = ()
    for call in calls:
        previous = tuple([replace(node, children=(*node.children, *previous)) for node in as_flows(call)])
    return previous[0]


def chord(children: Iterable[FlowPart], callback: Call[R_co], policy: ChildPolicy = "fail") -> Flow[R_co]:
    """Run `callback` when all children have ended; with `policy="ignore"` also if some have failed."""
    return flow(callback, *children, policy=policy)


def spawned_jobs(
    awaiting: str, calls: Iterable[FlowPart], policy: str
) -> tuple[tuple[NewJob, ...], tuple[Edge, ...]]:
    """The jobs and edges to insert when the running job `awaiting` spawns these calls."""
    child_policy = _read_policy(policy)
    parts = [part for call in calls for part in as_flows(call)]
    own_edges = {
        part.parent.job.id: Edge(awaiting, part.parent.job.id, part.own_policy or child_policy)
        for part in parts
    }
    inner_edges = {(edge.parent, edge.child): edge for part in parts for edge in part.edges()}
    jobs = tuple([call.job for call in calls_of(parts).values()])
    return jobs, (*own_edges.values(), *inner_edges.values())


def calls_of(flows: Sequence[Flow[Any]]) -> dict[str, Call[Any]]:
    """Every call of these flows once, by the id of its job; those that no other waits for come first.

    The jobs note which arguments take their results.
    """
    calls: dict[str, Call[Any]] = {flow.parent.job.id: flow.parent for flow in flows}
    uses: dict[str, dict[ResultUse, None]] = {}
    for flow in flows:
        for node in flow.walk():
            parent = node.parent
            calls.setdefault(parent.job.id, parent)
            for child, path in parent.inputs:
                use = ResultUse(parent.task.name, parent.task.run_rules.version, path)
                uses.setdefault(child.parent.job.id, {})[use] = None
    for job_id, own_uses in uses.items():
        job = calls[job_id].job
        noted = copy_job(job, metadata=with_uses(job.metadata, own_uses))
        calls[job_id] = replace(calls[job_id], job=noted)
    return calls


def _read_policy(policy: str) -> Policy:
    return Policy(check_choice("policy", policy, get_args(ChildPolicy)))


def final_jobs(flow: FlowPart, jobs: list[Job[Any]]) -> list[Job[Any]]:
    """The jobs of a flow that no other job of it waits for; `jobs` begins with them."""
    return jobs[: len({call.parent.job.id for call in as_flows(flow)})]


def as_flows(part: FlowPart) -> tuple[Flow[Any], ...]:
    """The part as flows: one, or one for each call of `parallel(…)`."""
    if isinstance(part, Parallel):
        return part.calls
    if isinstance(part, Flow):
        return (part,)
    if isinstance(part, Call):
        return (Flow(part),)
    raise InvalidValue("call", part, "must be a call of a task, task.new(…), or a flow of such calls")


class ChildResults(Struct, frozen=True):
    """The children of a job, and the arguments of its handler that their results fill (name to JSON text)."""

    children: tuple[Child, ...]
    arguments: Mapping[str, str]

    def fill_payload(self, payload: str) -> str:
        """The payload with the children's results added. Arguments it has already, by an edit, stay."""
        if not self.arguments:
            return payload
        results = {name: Raw(text.encode()) for name, text in self.arguments.items()}
        return msgspec.json.encode({**results, **_raw_decoder.decode(payload)}).decode()


async def read_child_results(app: "Client", job_id: str) -> ChildResults:
    """The children of a job and the arguments that their results fill, for its handler."""
    edges = [edge for edge in await app.client.edges(job_id) if edge.policy is not Policy.AFTER]
    results = [(edge, _result_text(app, edge)) for edge in edges]
    children = tuple([_new_child(app, edge, text) for edge, text in results])
    return ChildResults(children, _result_arguments(results))


def _result_text(app: "Client", edge: EdgeRecord) -> str:
    if edge.result is None:
        return "null"
    return app.codec.unseal(edge.result, DocumentInfo(edge.child, edge.task, "result"))


def child_of_edge(app: "Client", edge: EdgeRecord) -> Child:
    return _new_child(app, edge, _result_text(app, edge))


def _new_child(app: "Client", edge: EdgeRecord, text: str) -> Child:
    task = app.tasks.get(edge.task)
    read = task.signature.read_result if task and edge.result is not None else from_json
    return Child(edge.child, edge.task, edge.outcome, read(text))


def _result_arguments(results: Iterable[tuple[EdgeRecord, str]]) -> dict[str, str]:
    """The arguments that the children's results fill, as JSON text by name.

    Failed children are left out: the argument keeps its default, and a list of results is shorter.
    """
    values: dict[str, str] = {}
    lists: dict[str, dict[int, str]] = {}
    for edge, text in results:
        for name, place in map(parse_feed, edge.feeds):
            if place is not None:
                lists.setdefault(name, {})
            if edge.outcome is not ChildEnd.COMPLETED:
                continue
            if place is None:
                values[name] = text
            else:
                lists[name][place] = text
    return values | {
        name: f"[{','.join([items[place] for place in sorted(items)])}]" for name, items in lists.items()
    }
