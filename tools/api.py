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
from functools import partial
from itertools import groupby, pairwise

from msgspec import Struct

import errandry
from errandry.api.gates import GateHandle
from errandry.api.job_view import AttemptFailure, JobPage, LogEntry
from errandry.api.queue import Queue
from errandry.api.schedules import Schedules
from errandry.api.workers import Workers
from errandry.core.answer import Moved
from errandry.worker.worker import Health

WIDTH = 88
"""Maximum number of characters in a line of a signature."""
OVERLOADS_MAX = 2
"""Of a function with more overloads than this, only the signature of its implementation is shown."""
INTERNAL = {"client", "clock", "codec", "engine", "store"}
"""Attributes of the app that other modules of Errandry use; programs do not need them."""
OTHER = "More"
"""The heading of members that are in no group."""
LINKS = {
    "TaskOptions": "../options.md#of-tasks-only",
    "BatchOptions": "../options.md#of-tasks-only",
    "JobOptions": "../options.md#of-tasks-and-jobs",
    "UseOptions": "../options.md#of-jobs-only",
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
}
"""Where a name is explained, for the names in code type in docstrings."""

MADE_BY_THE_APP = ("ClaimedJob", "Claimer", "Job", "JobContext", "Task")
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
        "The app: `jobs = Errandry(…)`. Methods that read or write the store are `async`; `jobs.sync` has "
        "blocking ones. `Duration` is a length of time and `Moment` a point in time, as "
        "[Options](../options.md) describes them.",
        (errandry.Errandry, JobPage, Moved),
        ERRANDRY_GROUPS,
    ),
    "task": ApiPage(
        "Task",
        "What `@jobs.task` makes of a function. [Tasks and options](../../guide/tasks.md) shows how to use "
        "it.",
        (errandry.Task, errandry.Call),
    ),
    "job": ApiPage(
        "Job",
        "What `enqueue`, `jobs.get` and other methods return. [Results and waiting](../../guide/results.md) "
        "shows how to use it.",
        (errandry.Job, AttemptFailure, LogEntry),
    ),
    "context": ApiPage(
        "JobContext",
        "The first parameter of a handler that asks for it. "
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
        "Functions that combine calls, for `jobs.enqueue_flow`. [Flows](../../guide/flows.md) shows how to "
        "use them.",
        (errandry.flow, errandry.chain, errandry.parallel, errandry.chord, errandry.result_of),
    ),
    "worker": ApiPage(
        "Worker",
        "Runs handlers inside your own program. Its options are in [Options](../options.md#of-workers).",
        (errandry.Worker, Health),
    ),
    "claimer": ApiPage(
        "Claimer",
        "`jobs.claimer(…)`, for a program that runs jobs itself. "
        "[Claiming jobs by hand](../../guide/claiming.md) shows how to use it.",
        (errandry.Claimer, errandry.ClaimedJob),
    ),
    "queues": ApiPage(
        "Queues and groups",
        "`jobs.queue(name)`, `jobs.queue(name).group(key)` and `jobs.remote_task(name)`. "
        "[Limits, rates, groups](../../guide/limits.md) shows how to use them.",
        (Queue, GateHandle),
    ),
    "schedules": ApiPage(
        "Schedules",
        "`jobs.schedules`. [Schedules](../../guide/schedules.md) shows how to use it.",
        (Schedules,),
    ),
    "workers": ApiPage("Workers", "`jobs.workers`: the workers of all programs on the store.", (Workers,)),
}


def pages() -> dict[str, Callable[[], str]]:
    """The functions that return the text of each page, by its path below `docs/`."""
    return {f"reference/api/{name}.md": partial(text, page) for name, page in PAGES.items()}


def text(page: ApiPage) -> str:
    """The text of a page."""
    intro = f"Written by `make generate` from the docstrings. {page.intro}"
    parts = [f"# {page.title}", intro]
    for item in page.items:
        if not isinstance(item, type):
            parts += _entry(_function(item), 2)
        elif item.__name__ == page.title:
            parts += _class(item, page.groups, 2)
        else:
            parts += [f"## {item.__name__}", *_class(item, {}, 3)]
    return "\n\n".join(parts) + "\n"


def markdown(docstring: str) -> str:
    """A docstring as Markdown: its examples become code blocks, the names of classes links."""
    paragraphs = inspect.cleandoc(docstring).split("\n\n")
    parts = []
    for is_example, group in groupby(paragraphs, _is_example):
        lines = "\n\n".join(group)
        parts.append(_code_block([textwrap.dedent(lines)]) if is_example else _CODE_NAME.sub(_link, lines))
    return "\n\n".join(parts)


_CODE_NAME = re.compile(r"`(\w+)`")


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
    """The description of a class, its constructor or fields, and its members."""
    yield markdown(inspect.getdoc(kind) or "")
    members = _members(kind)
    constructor = members.pop("__init__", None)
    if issubclass(kind, Struct):
        yield _code_block(_fields(kind))
    elif constructor is not None and not _is_made_by_the_app(kind):
        yield _code_block(constructor.signatures)
    for title, names in _grouped(kind, members, groups):
        if title:
            yield f"{'#' * level} {title}"
        for name in names:
            yield from _entry(members[name], level + bool(title))


def _is_made_by_the_app(kind: type) -> bool:
    """Whether programs get objects of this class and never make them."""
    return not hasattr(errandry, kind.__name__) or kind.__name__ in MADE_BY_THE_APP


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


def _members(kind: type) -> dict[str, Member]:
    """The public members and the constructor, inherited ones included.

    A method without a docstring has that of the method it overrides.
    """
    members: dict[str, Member] = {}
    for base in kind.__mro__:
        if not base.__module__.startswith("errandry"):
            continue
        [tree] = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        body = tree.body if isinstance(tree, ast.ClassDef) else []
        for member in [*_functions(body), *_attributes(body)]:
            if member.name in INTERNAL:
                continue
            overriding = members.get(member.name)
            if overriding is None:
                members[member.name] = member
            elif not overriding.docstring:
                members[member.name] = Member(member.name, overriding.signatures, member.docstring)
    return members


def _functions(body: list[ast.stmt]) -> Iterator[Member]:
    """The public functions of a class or a module, and a constructor."""
    nodes = [node for node in body if isinstance(node, Definition)]
    for name, group in groupby(nodes, lambda node: node.name):
        if name == "__init__" or not name.startswith("_"):
            *overloads, implementation = group
            shown = overloads if 0 < len(overloads) <= OVERLOADS_MAX else [implementation]
            docstring = ast.get_docstring(implementation) or ""
            yield Member(name, [_signature(node) for node in shown], docstring)


def _attributes(body: list[ast.stmt]) -> Iterator[Member]:
    """The attributes that the constructor sets and describes: a docstring follows the assignment."""
    for function in body:
        if isinstance(function, ast.FunctionDef) and function.name == "__init__":
            for node, after in pairwise(function.body):
                match node, after:
                    case (
                        ast.Assign([ast.Attribute(attr=name)], ast.Call(func=kind)),
                        ast.Expr(ast.Constant(str(docstring))),
                    ):
                        yield Member(name, [f"{name}: {ast.unparse(kind)}"], docstring)


def _function(function: Callable[..., object]) -> Member:
    """A function of a module."""
    module = inspect.getmodule(function)
    if module is None:
        raise LookupError(f"{function!r} is in no module")
    functions = _functions(ast.parse(inspect.getsource(module)).body)
    return next(member for member in functions if member.name == function.__name__)


def _signature(node: Definition) -> str:
    """A function without its body, as in a stub file."""
    returns, decorators = _type(node.returns), [ast.unparse(each) for each in node.decorator_list]
    if "property" in decorators:
        return f"{node.name}: {returns}"
    head = "@contextmanager\n" if "contextmanager" in decorators else ""
    head += f"{'async def' if isinstance(node, ast.AsyncFunctionDef) else 'def'} {node.name}"
    parameters, tail = list(_parameters(node.args)), f" -> {returns}: ..."
    line = f"{head}({', '.join(parameters)}){tail}"
    if len(line.splitlines()[-1]) <= WIDTH:
        return line
    lines = "".join(f"    {parameter},\n" for parameter in parameters)
    return f"{head}(\n{lines}){tail}"


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
    """The fields of a record with their types and defaults."""
    [tree] = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    body = tree.body if isinstance(tree, ast.ClassDef) else []
    return [
        f"{_code(node.target)}: {_type(node.annotation)}{f' = {_code(node.value)}' if node.value else ''}"
        for node in body
        if isinstance(node, ast.AnnAssign)
    ]


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
