"""Write `errandry/api/sync.py`: for each public async class of the API a class with blocking methods.

`python -m tools.sync` writes the file; a test checks that it is up to date. A blocking class has the public
methods and properties of its class. `SyncErrandry` has the async methods, and those that return such a class.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

from msgspec import Struct

API = Path(__file__).parent.parent / "src" / "errandry" / "api"
TARGET = API / "sync.py"


class Mirror(Struct, frozen=True):
    """An async class that gets a blocking one.

    sources  the classes whose methods are mirrored, by module of the API: more than one for base classes
    client   its `StoreClient`, where `mirrored` is the async object
    types    its type parameters
    bases    the base classes of the blocking class
    skip     public methods that the blocking class does not have
    fields   instance attributes with their types
    """

    name: str
    sources: dict[str, str]
    client: str
    types: str = ""
    bases: str = "Blocking"
    skip: tuple[str, ...] = ()
    fields: dict[str, str] = {}


MIRRORS = (
    Mirror(
        "Job",
        {"job": "Job"},
        "mirrored._app.client",
        types="[R_co]",
        bases="JobView[R_co], Blocking",
        skip=("sync", "id"),
    ),
    Mirror(
        "GateHandle",
        {"gates": "GateHandle"},
        "mirrored._client.client",
        fields={"kind": "GateKind", "name": "str", "group_key": "str"},
    ),
    Mirror("Queue", {"queue": "Queue"}, "mirrored._client.client", bases="SyncGateHandle"),
    Mirror("Schedules", {"schedules": "Schedules"}, "mirrored._app.client"),
    Mirror("Workers", {"workers": "Workers"}, "mirrored._client.client"),
    Mirror("ClaimedJob", {"claimed_job": "ClaimedJob"}, "mirrored._app.client"),
    Mirror("Claimer", {"claimer": "Claimer"}, "mirrored._app.client"),
    Mirror(
        "Task",
        {"task": "Task"},
        "mirrored.app.client",
        types="[P, R_co]",
        bases="Blocking, Generic[P, R_co]",
        skip=("sync", "upgrade"),
        fields={"name": "str"},
    ),
    Mirror(
        "Errandry",
        {"operations": "Operations", "client": "Client", "app": "Errandry"},
        "mirrored.client",
        skip=("task", "engine", "store", "clock", "codec"),
        fields={"schedules": "Schedules", "workers": "Workers"},
    ),
)
"""The mirrored classes, base classes first."""
ASYNC_ONLY = {"Errandry"}
"""Classes whose plain methods are mirrored only if they return a mirrored class; others are decorators."""
PLAIN = {"Errandry.schedule"}
"""Plain methods of these classes that are mirrored too."""
BODIES = {
    "Job.refresh": """
        self._wait(self._mirrored.refresh())
        self._codec = self._mirrored._codec
        return self""",
    "Task.enqueue": """
        [job] = self._mirrored.app.sync.enqueue_many([self._mirrored.new(*args, **kwargs)])
        return job""",
    "Task.bind": "return self._mirrored.bind(connection).sync",
    "Errandry.bind": "return self._mirrored.bind(connection).sync",
    "Errandry.open": "self._mirrored.client.open_sync()",
    "Errandry.__aenter__": """
        self.open()
        return self""",
    "Errandry.close": "self._mirrored.client.close_sync(timeout)",
    "Errandry.run_worker": """
        self._refuse_running_loop("await jobs.run_worker(…)")
        event_loop.run(self._mirrored.run_worker(signals=signals, **options))""",
    "Errandry.__aexit__": "self.close()",
    "Claimer.__aexit__": """
        try:
            self._wait(self._mirrored.__aexit__(kind, error, trace))
        except StoreClosed as closed:
            self._mirrored._abandon(closed)""",
    "Errandry.enqueue": """
        [job] = self._wait(self._mirrored._insert_jobs(self._mirrored._named_job(task, arguments, options)))
        return SyncJob(job)""",
    "Errandry.enqueue_many": """
        jobs = self._wait(self._mirrored._insert_jobs(self._mirrored._single_jobs(calls)))
        return [SyncJob(job) for job in jobs]""",
    "Errandry.enqueue_flow": """
        jobs = self._wait(self._mirrored._insert_jobs(self._mirrored._flow_jobs(flow)))
        final = self._mirrored._final_jobs(flow, jobs)
        return [SyncJob(job) for job in final] if isinstance(final, list) else SyncJob(final)""",
}
"""Bodies of methods that do more than call the async method: enqueue hooks run in the caller's thread."""
RENAMED = {mirror.name: f"Sync{mirror.name}" for mirror in MIRRORS} | {"BoundApp": "SyncBoundApp"}
SPECIAL = {"__aenter__": "__enter__", "__aexit__": "__exit__", "__str__": "__str__", "__repr__": "__repr__"}
HEADER = '''"""`jobs.sync`, `task.sync` and `job.sync`: blocking methods for code without an event loop.

Scripts, threads, Flask and Django views use them. Every call runs the async method on the engine's thread and
waits for it. `python -m tools.sync` writes this module from the async classes: change those.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Literal,
    ParamSpec,
    Self,
    SupportsFloat,
    TypeVar,
    Unpack,
    overload,
)

from errandry import event_loop
from errandry.api.blocking import Blocking
from errandry.api.job_view import JobPage, JobView
from errandry.core.command import DEFAULT_LEASE
from errandry.errors import StoreClosed

if TYPE_CHECKING:
    from errandry.api.app import Errandry
    from errandry.api.claimed_job import ClaimedJob
    from errandry.api.claimer import Claimer
    from errandry.api.context import Child
    from errandry.api.events import Event
    from errandry.api.flow import Flow, Parallel
    from errandry.api.gate_info import GateInfo, GroupInfo, PauseInfo, QueueInfo
    from errandry.api.gates import GateHandle, RuleOptions
    from errandry.api.job import Job
    from errandry.api.options import Duration, EditOptions, EnqueueOptions, Moment, UseOptions
    from errandry.api.queue import Queue
    from errandry.api.schedule import Schedule
    from errandry.api.run_options import RunWorkerOptions
    from errandry.api.schedule_options import TimingChanges, TimingOptions
    from errandry.api.schedules import Schedulable, Schedules, ScheduleTiming
    from errandry.api.steps import Step
    from errandry.api.task import Call, Task
    from errandry.api.transaction import SyncBoundApp
    from errandry.api.workers import WorkerInfo, Workers
    from errandry.core.answer import Moved
    from errandry.core.event import EventKind, EventName
    from errandry.core.gate import GateKind
    from errandry.core.job import JobRecord
    from errandry.core.rule import Rule
    from errandry.core.stats import Stats
    from errandry.core.why import Why

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

'''

Method = ast.FunctionDef | ast.AsyncFunctionDef


def source() -> str:
    """The text of the module, formatted."""
    text = HEADER + "\n\n".join("\n".join(_class_lines(mirror)) for mirror in MIRRORS) + "\n"
    for command in (("check", "--fix-only", "--select", "F401,I"), ("format",)):
        arguments = [sys.executable, "-m", "ruff", *command, "--quiet", "--stdin-filename", str(TARGET), "-"]
        text = subprocess.run(arguments, input=text, capture_output=True, text=True, check=True).stdout
    return text


def _class_lines(mirror: Mirror) -> Iterator[str]:
    yield f"class Sync{mirror.name}({mirror.bases}):"
    yield f'    """`{mirror.name}` with blocking methods."""'
    yield ""
    yield f"    _mirrored: {mirror.name}{mirror.types}"
    yield ""
    yield f"    def __init__(self, mirrored: {mirror.name}{mirror.types}) -> None:"
    yield f"        self._mirrored, self._client = mirrored, {mirror.client}"
    if mirror.bases.startswith("JobView"):
        yield "        self._app, self._codec = mirrored._app, mirrored._codec"
        yield "        self.existed, self.replaced = mirrored.existed, mirrored.replaced"
    for name, kind in mirror.fields.items():
        yield from ("", "    @property", f"    def {name}(self) -> {_renamed(kind)}:")
        yield f"        return {_converted(f'self._mirrored.{name}', kind)}"
    for module, name in mirror.sources.items():
        for method in _public_methods(module, name):
            if method.name not in mirror.skip:
                yield from _method_lines(mirror, method)


def _public_methods(module: str, name: str) -> Iterator[Method]:
    tree = ast.parse((API / f"{module}.py").read_text(encoding="utf-8"))
    [node] = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name]
    for child in node.body:
        if isinstance(child, Method) and (not child.name.startswith("_") or child.name in SPECIAL):
            yield child


def _method_lines(mirror: Mirror, method: Method) -> Iterator[str]:
    returns, is_async = _annotation(method.returns), isinstance(method, ast.AsyncFunctionDef)
    is_plain = not is_async and returns == _renamed(returns)
    if is_plain and mirror.name in ASYNC_ONLY and f"{mirror.name}.{method.name}" not in PLAIN:
        return
    decorators = [ast.unparse(decorator) for decorator in method.decorator_list]
    name, arguments = SPECIAL.get(method.name, method.name), _blocking_arguments(method.args)
    yield ""
    yield from (f"    @{decorator}" for decorator in decorators)
    yield f"    def {name}({ast.unparse(arguments)}) -> {_renamed(returns)}:"
    if "overload" in decorators:
        yield "        ..."
        return
    if docstring := ast.get_docstring(method):
        yield from _docstring_lines(docstring)
    body = BODIES.get(f"{mirror.name}.{method.name}")
    if body is None:
        call = f"self._mirrored.{method.name}"
        if "property" not in decorators:
            call += f"({', '.join(_passed(arguments))})"
        body = _body(call, returns, is_async)
    yield from (f"        {line}" for line in dedent(body).strip().splitlines())


def _docstring_lines(docstring: str) -> list[str]:
    """The first paragraph of the docstring, as a docstring."""
    text = docstring.partition("\n\n")[0]
    return [f"        {line}" for line in f'"""{text}"""'.splitlines()]


def _body(call: str, returns: str, is_async: bool) -> str:
    if returns.startswith("AsyncIterator"):
        return f"yield from self._iterate({call})"
    if is_async:
        call = f"self._wait({call})"
    match returns:
        case "None":
            return call
        case "Self":
            return f"{call}\nreturn self"
        case _:
            return f"return {_converted(call, returns)}"


def _converted(call: str, kind: str) -> str:
    """`call`, with the async objects that it returns turned into blocking ones."""
    outer, _, inner = kind.removeprefix("builtins.").partition("[")
    if outer in RENAMED:
        return f"{RENAMED[outer]}({call})"
    name = re.split(r"\W", inner)[0]
    if name in RENAMED:
        return (
            f"[{RENAMED[name]}(job) for job in {call}]" if outer == "list" else f"{call}.map({RENAMED[name]})"
        )
    return call


def _blocking_arguments(arguments: ast.arguments) -> ast.arguments:
    """The arguments without those that are bound to an event loop."""
    for argument in ast.walk(arguments):
        if isinstance(argument, ast.arg) and argument.annotation is not None:
            argument.annotation = ast.Name(_renamed(_annotation(argument.annotation)))
    names = [arg.arg for arg in arguments.kwonlyargs]
    for place, arg in reversed([*enumerate(arguments.kwonlyargs)]):
        if arg.annotation is not None and "asyncio." in ast.unparse(arg.annotation):
            del arguments.kwonlyargs[place], arguments.kw_defaults[place], names[place]
    return arguments


def _passed(arguments: ast.arguments) -> Iterator[str]:
    """The arguments of a method as it passes them on."""
    yield from [arg.arg for arg in (*arguments.posonlyargs, *arguments.args)][1:]
    if arguments.vararg:
        yield f"*{arguments.vararg.arg}"
    yield from (f"{arg.arg}={arg.arg}" for arg in arguments.kwonlyargs)
    if arguments.kwarg:
        yield f"**{arguments.kwarg.arg}"


def _annotation(node: ast.expr | None) -> str:
    """An annotation as text, without quotes."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    return "" if node is None else ast.unparse(node)


def _renamed(kind: str) -> str:
    """A type with the blocking classes in place of the async ones."""
    kind = re.sub(r"(?<![\w.])list\[", "builtins.list[", kind.replace("AsyncIterator", "Iterator"))
    return re.sub(rf"\b({'|'.join(RENAMED)})\b", lambda match: RENAMED[match[0]], kind)


if __name__ == "__main__":
    TARGET.write_text(source(), encoding="utf-8")
