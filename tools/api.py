"""Write the reference pages of the API from signatures and docstrings.

Not with mkdocstrings: it needs four more packages, and its pages exist only in the built site, not in the
repository. Members whose names begin with an underscore are left out, and so are attributes set in `__init__`
that have no docstring after the assignment.
"""

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from functools import partial
from itertools import groupby, pairwise
from types import ModuleType

from msgspec import Struct
from msgspec.structs import replace

import errandry
from errandry import telemetry, testing
from errandry.api.gates import GateHandle
from errandry.api.job_view import AttemptFailure, JobPage, JobView, LogEntry
from errandry.api.queue import Queue
from errandry.api.schedules import Schedules
from errandry.api.workers import Workers
from errandry.core.answer import Moved
from errandry.core.stats import Counts, DurationHistogram, TimeSlice
from errandry.core.why import WhyCode, WhyReason
from errandry.worker.worker import Health

WIDTH = 88
"""Maximum number of characters in a line of a signature."""
OVERLOADS_MAX = 2
"""Of a function with more overloads than this, only the signature of its implementation is shown."""
INTERNAL = {"client", "clock", "codec", "engine", "store"}
"""Attributes of the app that other modules of Errandry use; programs do not need them."""
HIDDEN: Mapping[str, set[str]] = {
    "FakeClock": {"monotonic", "time"},
    "JobContext": {"steps"},
    "Queue": {"old", "query"},
}
"""By class, more members that programs do not need."""
MODELS: Mapping[str, type] = {
    "ClaimedJob": JobView,
    "Encrypted": errandry.Codec,
    "JobContext": JobView,
    "Signed": errandry.Codec,
}
"""By class, the class whose members of the same names mean the same: it provides missing docstrings."""
BRIEF = {
    "Flow",
    "Given",
    "JobFields",
    "MemoryStore",
    "Parallel",
    "SyncClaimedJob",
    "SyncClaimer",
    "SyncJob",
}
"""Classes that are shown without their methods: programs do not call them, or another page has them."""
OTHER = "More"
"""The heading of members that are in no group."""
LINKS = {
    "TaskOptions": "../options.md#of-tasks-only",
    "BatchOptions": "../options.md#of-tasks-only",
    "JobOptions": "../options.md#of-tasks-and-jobs",
    "UseOptions": "../options.md#of-jobs-only",
    "EnqueueOptions": "../options.md#of-jobs-only",
    "WorkerOptions": "../options.md#of-workers",
    "Backoff": "../options.md#backoff",
    "Keep": "../options.md#keep",
    "Errandry": "errandry.md",
    "Task": "task.md",
    "Job": "job.md",
    "JobContext": "context.md",
    "Worker": "worker.md",
    "Claimer": "claimer.md",
    "ClaimedJob": "claimer.md",
    "EditOptions": "../options.md#of-edits",
    "RuleOptions": "../options.md#rules",
    "ScheduleOptions": "../options.md#of-schedules",
    "UniqueOptions": "../options.md#of-unique-jobs",
    "Queue": "queues.md",
    "GateHandle": "queues.md",
    "Schedules": "schedules.md",
    "Workers": "workers.md",
    "Curve": "../options.md#backoff",
    "DefaultOptions": "../options.md#of-tasks-and-jobs",
    "ErrandryError": "../errors.md",
    "EventKind": "../events.md",
    "State": "../../states.md#states",
    "StoreLimits": "../options.md#of-stores",
    "WriteLimits": "../options.md#of-stores",
    "Codec": "codecs.md",
    "Encrypted": "codecs.md#encrypted",
    "Signed": "codecs.md#signed",
    "DocumentInfo": "codecs.md#documentinfo",
    "Event": "reads.md#event",
    "FakeClock": "testing.md#fakeclock",
    "MemoryStore": "testing.md#memorystore",
}
"""Where a name is explained, for the names in code type in docstrings."""

MADE_BY_THE_APP = (
    "ClaimedJob",
    "Claimer",
    "Codec",
    "Job",
    "JobContext",
    "SyncClaimedJob",
    "SyncClaimer",
    "SyncJob",
    "Task",
)
"""Classes that programs name in annotations; only Errandry makes objects of them."""

Groups = Mapping[str, tuple[str, ...]]
Definition = ast.FunctionDef | ast.AsyncFunctionDef


class ApiPage(Struct, frozen=True):
    """A page: the classes and functions on it. `groups` orders the members of the class it is named for."""

    title: str
    intro: str
    items: tuple[Callable[..., object], ...]
    groups: Groups = {}


class Member(Struct, frozen=True):
    """A public method or attribute, or a function."""

    name: str
    signatures: list[str]
    docstring: str
    is_property: bool = False


ERRANDRY_GROUPS: Groups = {
    "Declare": (
        "task",
        "declare_queue",
        "schedule",
        "backoff",
        "middleware",
        "on",
        "on_enqueue",
        "archive",
    ),
    "Enqueue": ("enqueue", "enqueue_many", "enqueue_flow", "bind"),
    "Read": (
        "get",
        "list",
        "why",
        "counts",
        "totals",
        "stats",
        "events",
        "latest_cursor",
        "steps",
        "ids",
        "children",
        "subtree",
        "held",
        "now",
    ),
    "Operate on jobs": (
        "cancel",
        "rerun",
        "edit",
        "postpone",
        "promote",
        "resolve",
        "remove",
        "prune",
        "signal",
    ),
    "Queues, tasks, groups, workers": (
        "queue",
        "queues",
        "remote_task",
        "rules",
        "groups",
        "paused",
        "workers",
        "schedules",
    ),
    "Run and close": ("run_worker", "claimer", "put_declared", "open", "close", "sync"),
}

PAGES: Mapping[str, ApiPage] = {
    "errandry": ApiPage(
        "Errandry",
        "An app is made with `jobs = Errandry(…)`. Methods that read or write the store are `async`; "
        "`jobs.sync` has "
        "blocking ones. `Duration` is a length of time and `Moment` a point in time, as "
        "[Options](../options.md) describes them.",
        (errandry.Errandry, JobPage, Moved),
        ERRANDRY_GROUPS,
    ),
    "task": ApiPage(
        "Task",
        "`@jobs.task` turns a function into a task. [Tasks and options](../../guide/tasks.md) shows how "
        "to use "
        "it. In signatures, here and on the other pages, `P` stands for the parameters of the function and "
        "`R_co` for the type of its result.",
        (errandry.Task, errandry.Call),
    ),
    "job": ApiPage(
        "Job",
        "`enqueue`, `jobs.get` and other methods return jobs. [Results and waiting](../../guide/results.md) "
        "shows how to use them.",
        (errandry.Job, errandry.SyncJob, AttemptFailure, LogEntry, errandry.Progress),
    ),
    "context": ApiPage(
        "JobContext",
        "A handler gets it if its first parameter is a `JobContext`. "
        "[Context, progress and logs](../../guide/context.md) shows how to use it.",
        (errandry.JobContext, errandry.Child, errandry.current),
    ),
    "outcomes": ApiPage(
        "Outcomes",
        "A handler raises or returns one of these, as an instance or a class. "
        "[Retries and outcomes](../../guide/retries.md) shows how to use them.",
        (errandry.Retry, errandry.Snooze, errandry.Fail, errandry.Cancel),
    ),
    "flows": ApiPage(
        "Flows",
        "These functions combine calls for `jobs.enqueue_flow`. [Flows](../../guide/flows.md) shows how to "
        "use them.",
        (
            errandry.flow,
            errandry.chain,
            errandry.parallel,
            errandry.chord,
            errandry.child,
            errandry.result_of,
            errandry.Flow,
            errandry.Parallel,
        ),
    ),
    "worker": ApiPage(
        "Worker",
        "A worker can also run inside your own program. Its options are in "
        "[Options](../options.md#of-workers).",
        (errandry.Worker, Health),
    ),
    "claimer": ApiPage(
        "Claimer",
        "`jobs.claimer(…)` opens a claimer, for a program that runs jobs itself. "
        "[Claiming jobs by hand](../../guide/claiming.md) shows how to use it.",
        (errandry.Claimer, errandry.ClaimedJob, errandry.SyncClaimer, errandry.SyncClaimedJob),
    ),
    "queues": ApiPage(
        "Queues and groups",
        "`jobs.queue(name)`, `jobs.queue(name).group(key)` and `jobs.remote_task(name)` return these "
        "objects. "
        "[Limits, rates, groups](../../guide/limits.md) shows how to use them.",
        (Queue, GateHandle),
    ),
    "schedules": ApiPage(
        "Schedules",
        "`jobs.schedules` is this object. [Schedules](../../guide/schedules.md) shows how to use it.",
        (Schedules,),
    ),
    "workers": ApiPage(
        "Workers",
        "`jobs.workers` is this object; it knows the workers of all programs on the store.",
        (Workers,),
    ),
    "reads": ApiPage(
        "Results of reads",
        "Methods that read the store return these records. Times are `datetime`s in UTC, lengths of "
        "time are seconds.",
        (
            errandry.Event,
            errandry.Why,
            WhyReason,
            WhyCode,
            errandry.Stats,
            TimeSlice,
            Counts,
            DurationHistogram,
            errandry.QueueInfo,
            errandry.GroupInfo,
            errandry.GateInfo,
            errandry.GateKind,
            errandry.OperatorChangeInfo,
            errandry.PauseInfo,
            errandry.Rule,
            errandry.Rate,
            errandry.Source,
            errandry.WorkerInfo,
            errandry.Schedule,
            errandry.Step,
            errandry.StepKind,
        ),
    ),
    "codecs": ApiPage(
        "Codecs",
        "`Errandry(codec=…)` takes a codec. [Encryption and redaction](../../guide/sealing.md) shows "
        "how to use them.",
        (errandry.Encrypted, errandry.Signed, errandry.new_key, errandry.Codec, errandry.DocumentInfo),
    ),
    "testing": ApiPage(
        "Testing",
        "These names are in the module `errandry.testing`. [Testing your jobs](../../testing.md) shows "
        "how to use them. `Given` "
        "and `ref` are for tests of [stores](../../store.md).",
        (
            testing.in_memory,
            testing.drain,
            testing.assert_enqueued,
            testing.assert_not_enqueued,
            testing.FakeClock,
            testing.MemoryStore,
            testing.Given,
            testing.ref,
        ),
    ),
    "telemetry": ApiPage(
        "Telemetry",
        "These names are in the module `errandry.telemetry`. "
        "[Traces, metrics, logs](../../guide/telemetry.md) shows how to use them.",
        (telemetry.instrument, telemetry.JobFields),
    ),
}


def pages() -> dict[str, Callable[[], str]]:
    """The functions that return the text of each page, by its path below `docs/`."""
    return {f"reference/api/{name}.md": partial(text, page) for name, page in PAGES.items()}


def text(page: ApiPage) -> str:
    """The text of a page."""
    first, *others = page.items
    parts = [f"# {page.title}", "<!-- Written by `make generate` from the docstrings. -->"]
    if isinstance(first, type) and first.__name__ == page.title:
        parts += [_description(first), page.intro, *_class(first, page.groups, 2)]
    else:
        parts.append(page.intro)
        others = [first, *others]
    for item in others:
        if isinstance(item, type):
            parts += [f"## {item.__name__}", _description(item), *_class(item, {}, 3)]
        else:
            parts += _entry(_function(item), 2)
    return "\n\n".join(parts) + "\n"


def markdown(docstring: str) -> str:
    """A docstring as Markdown: examples become code blocks, lists of names tables, names of classes links."""
    paragraphs = inspect.cleandoc(docstring).split("\n\n")
    parts = []
    for is_example, group in groupby(paragraphs, _is_example):
        lines = "\n\n".join(group)
        parts.append(_code_block([textwrap.dedent(lines)]) if is_example else _prose(lines))
    return "\n\n".join(parts)


_CODE_NAME = re.compile(r"`(\w+)`")
_DESCRIBED_NAME = re.compile(r"^(\w+) {2,}(\S.*(?:\n +\S.*)*)$", re.MULTILINE)


def _prose(text: str) -> str:
    """Paragraphs; those of names with their descriptions become tables."""
    parts = []
    for paragraph in _CODE_NAME.sub(_link, text).split("\n\n"):
        rows = _DESCRIBED_NAME.findall(paragraph)
        if rows and not _DESCRIBED_NAME.sub("", paragraph).strip():
            lines = [f"| `{name}` | {' '.join(words.split())} |" for name, words in rows]
            parts.append("\n".join(["| name | meaning |", "| --- | --- |", *lines]))
        else:
            parts.append(paragraph)
    return "\n\n".join(parts)


def _is_example(paragraph: str) -> bool:
    """Whether a paragraph is an example: indented, or Python, as prose never is."""
    if paragraph.startswith("    "):
        return True
    try:
        ast.parse(paragraph)
    except SyntaxError:
        return False
    return True


def _link(name: re.Match[str]) -> str:
    return f"[{name[0]}]({LINKS[name[1]]})" if name[1] in LINKS else name[0]


def _class(kind: type, groups: Groups, level: int) -> Iterator[str]:
    """The constructor or the fields of a class, and its members."""
    if issubclass(kind, StrEnum):
        return
    members = _members(kind)
    constructor = members.pop("__init__", None)
    if issubclass(kind, Struct):
        plain = [name for name, member in members.items() if member.is_property and not member.docstring]
        yield _code_block(_fields(kind) + [line for name in plain for line in members.pop(name).signatures])
    elif constructor is not None and not _is_made_by_the_app(kind):
        yield _code_block(constructor.signatures)
    if kind.__name__ in BRIEF:
        return
    for title, names in _grouped(kind, members, groups):
        if title:
            yield f"{'#' * level} {title}"
        for name in names:
            yield from _entry(members[name], level + bool(title))


def _description(kind: type) -> str:
    """The docstring of a class; of a class of names without a table of them, also the names."""
    own = inspect.cleandoc(vars(kind)["__doc__"] or "")
    parts = [markdown(own)] if own else []
    if issubclass(kind, StrEnum):
        parts.append(f"One of {', '.join(f'`{name}`' for name in kind)}; each equals its text.")
    return "\n\n".join(parts)


def _is_made_by_the_app(kind: type) -> bool:
    """Whether programs get objects of this class and never make them."""
    is_public = hasattr(errandry, kind.__name__) or hasattr(testing, kind.__name__)
    return not is_public or kind.__name__ in MADE_BY_THE_APP


def _grouped(kind: type, members: Iterable[str], groups: Groups) -> Iterator[tuple[str, list[str]]]:
    """The groups of the members, in order. Without groups, all members in one that has no title."""
    grouped = {name for names in groups.values() for name in names}
    if unknown := sorted(grouped - set(members)):
        raise LookupError(f"{kind.__name__} has no public {', '.join(unknown)}: take it out of the groups")
    for title, names in groups.items():
        yield title, [*names]
    if others := [name for name in members if name not in grouped]:
        yield (OTHER if groups else ""), others


def _entry(member: Member, level: int) -> Iterator[str]:
    yield f"{'#' * level} `{member.name}`"
    yield _code_block(member.signatures)
    if member.docstring:
        yield markdown(member.docstring)


def _class_body(kind: type) -> list[ast.stmt]:
    [tree] = _statements(textwrap.dedent(inspect.getsource(kind)), inspect.getmodule(kind))
    return tree.body if isinstance(tree, ast.ClassDef) else []


def _statements(source: str, module: ModuleType | None) -> list[ast.stmt]:
    """The statements of a source, with the values of constants as defaults instead of their names."""
    tree: ast.Module = _ValuesOfConstants(vars(module)).visit(ast.parse(source))
    return tree.body


class _ValuesOfConstants(ast.NodeTransformer):
    """Replaces a default such as `DEFAULT_LEASE`, which readers cannot look up, by its value."""

    def __init__(self, names: Mapping[str, object]) -> None:
        self._names = names

    def visit_arguments(self, node: ast.arguments) -> ast.arguments:
        node.defaults = [self._value(default) for default in node.defaults]
        node.kw_defaults = [
            default if default is None else self._value(default) for default in node.kw_defaults
        ]
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AnnAssign:
        node.value = None if node.value is None else self._value(node.value)
        return node

    def _value(self, default: ast.expr) -> ast.expr:
        value = self._names.get(default.id) if isinstance(default, ast.Name) else None
        return ast.Constant(value) if isinstance(value, str | int | float) else default


def _members(kind: type) -> dict[str, Member]:
    """The public members and the constructor, inherited ones included.

    A method without a docstring has that of the method it overrides, or of the class in `MODELS`.
    """
    model = MODELS.get(kind.__name__)
    members: dict[str, Member] = {}
    for base in kind.__mro__ if model is None else (*kind.__mro__, model):
        if not base.__module__.startswith("errandry"):
            continue
        body = _class_body(base)
        for member in [*_functions(body), *_attributes(body)]:
            if member.name in INTERNAL | HIDDEN.get(kind.__name__, set()):
                continue
            overriding = members.get(member.name)
            if overriding is None and base is not model:
                members[member.name] = member
            elif overriding is not None and not overriding.docstring:
                members[member.name] = replace(overriding, docstring=member.docstring)
    return members


def _functions(body: list[ast.stmt]) -> Iterator[Member]:
    """The public functions of a class or a module, and a constructor."""
    nodes = [node for node in body if isinstance(node, Definition)]
    for name, group in groupby(nodes, lambda node: node.name):
        if name == "__init__" or not name.startswith("_"):
            *overloads, implementation = group
            shown = overloads if 0 < len(overloads) <= OVERLOADS_MAX else [implementation]
            docstring = ast.get_docstring(implementation) or ""
            yield Member(name, [_signature(node) for node in shown], docstring, _is_property(implementation))


def _attributes(body: list[ast.stmt]) -> Iterator[Member]:
    """The attributes that the class or its constructor describes: a docstring follows the assignment."""
    constructors = [
        node.body for node in body if isinstance(node, ast.FunctionDef) and node.name == "__init__"
    ]
    for statements in [body, *constructors]:
        for node, after in pairwise(statements):
            match node, after:
                case (
                    ast.Assign([ast.Attribute(attr=name)], ast.Call(func=kind))
                    | ast.AnnAssign(ast.Attribute(attr=name) | ast.Name(id=name), kind),
                    ast.Expr(ast.Constant(str(docstring))),
                ):
                    yield Member(name, [f"{name}: {_type(kind)}"], docstring)


def _function(function: Callable[..., object]) -> Member:
    """A function of a module."""
    module = inspect.getmodule(function)
    if module is None:
        raise LookupError(f"{function!r} is in no module")
    functions = _functions(_statements(inspect.getsource(module), module))
    return next(member for member in functions if member.name == function.__name__)


def _signature(node: Definition) -> str:
    """A function without its body, as in a stub file."""
    returns = _type(node.returns)
    if _is_property(node):
        return f"{node.name}: {returns}"
    head = "@contextmanager\n" if "contextmanager" in _decorators(node) else ""
    head += f"{'async def' if isinstance(node, ast.AsyncFunctionDef) else 'def'} {node.name}"
    parameters, tail = list(_parameters(node.args)), f" -> {returns}: ..."
    line = f"{head}({', '.join(parameters)}){tail}"
    if len(line.splitlines()[-1]) <= WIDTH:
        return line
    lines = "".join(f"    {parameter},\n" for parameter in parameters)
    return f"{head}(\n{lines}){tail}"


def _decorators(node: Definition) -> list[str]:
    return [ast.unparse(decorator) for decorator in node.decorator_list]


def _is_property(node: Definition) -> bool:
    return "property" in _decorators(node)


def _parameters(arguments: ast.arguments) -> Iterator[str]:
    """Each parameter as written, without `self`."""
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(positional) - len(arguments.defaults)) + [*arguments.defaults]
    for number, (parameter, default) in enumerate(zip(positional, defaults, strict=True), 1):
        if parameter.arg != "self":
            yield _parameter(parameter, default)
        if number == len(arguments.posonlyargs) and parameter.arg != "self":
            yield "/"
    if arguments.vararg is not None:
        yield f"*{_parameter(arguments.vararg)}"
    elif arguments.kwonlyargs:
        yield "*"
    for parameter, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        yield _parameter(parameter, default)
    if arguments.kwarg is not None:
        yield f"**{_parameter(arguments.kwarg)}"


def _parameter(parameter: ast.arg, default: ast.expr | None = None) -> str:
    annotated = f"{parameter.arg}: {_type(parameter.annotation)}"
    return annotated if default is None else f"{annotated} = {_code(default)}"


def _fields(kind: type) -> list[str]:
    """The fields of a record with their types and defaults, inherited ones first."""
    lines = []
    for base in reversed(kind.__mro__):
        if base.__module__.startswith("errandry"):
            lines += [_field(node) for node in _class_body(base) if isinstance(node, ast.AnnAssign)]
    return [line for line in lines if not line.startswith("_")]


def _field(node: ast.AnnAssign) -> str:
    annotated = f"{_code(node.target)}: {_type(node.annotation)}"
    return annotated if node.value is None else f"{annotated} = {_code(node.value)}"


def _type(node: ast.expr | None) -> str:
    """A type without the quotes of a forward reference and without the module of a builtin."""
    if node is None:
        return "Any"
    code = _code(node).replace("builtins.", "")
    return code if "Literal[" in code else code.replace('"', "")


def _code(node: ast.expr) -> str:
    """The source of an expression, with the quotes that the code has."""
    return re.sub(r"'([^'\"]*)'", r'"\1"', ast.unparse(node))


def _code_block(lines: list[str]) -> str:
    return "```python\n" + "\n".join(lines) + "\n```"
