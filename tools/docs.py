"""Write the generated pages, as `make generate` does. A test fails if a page differs from the code."""

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from errandry import errors
from errandry.api.gates import RuleOptions
from errandry.api.options import (
    BackoffOption,
    BatchOptions,
    DefaultOptions,
    Duration,
    EditOptions,
    EnqueueOptions,
    JobOptions,
    KeepOption,
    Moment,
    TaskOptions,
    UseOptions,
)
from errandry.api.schedule_options import ScheduleOptions
from errandry.api.task import RunRules
from errandry.api.unique_options import UniqueOptions
from errandry.core.event import KINDS_OF_MOVE, EventKind
from errandry.core.job import Keep, NewJob
from errandry.core.retry import Backoff
from errandry.core.state import TABLE, Move, Reason, State, Transition
from errandry.store.contract import StoreLimits
from errandry.store.engine.backlog import WriteLimits
from errandry.worker.options import WorkerOptions
from tools import api, commands, diagram, top_picture

DOCS = Path(__file__).parent.parent / "docs"
EXAMPLES = DOCS.parent / "examples"


def states() -> str:
    """The page of states: the table of moves, a drawing, and the moves from each state to each other."""
    ways = (
        [f"`{source}`" if source else "–", f"`{target}`", moves]
        for source in (None, *State)
        for target in State
        if (moves := _moves_between(source, target))
    )
    return f"""# States and moves

Written by `make generate` from `errandry.core.state`. What the moves mean to a program is in
[the lifecycle](lifecycle.md).

[![The states and the moves between them](states.svg)](states.svg)

The drawing shows where each move normally leads. It leaves out the moves of operators.

## States

{_table(("state", "meaning"), ([f"`{state}`", text] for state, text in descriptions(State, State).items()))}

## Moves

A fenced move needs the fence of the claim and an unexpired lease; a move from a state that is not listed
changes nothing.

{_table(("move", "from", "to", "by", "events"), (_move_row(move, rule) for move, rule in TABLE.items()))}

## From state to state

The moves that can lead from a state to another one.

{_table(("from", "to", "moves"), ways)}

## Reasons

The reason why a job failed or was canceled: `reason` in its record, and `kind` of each of its errors.

{_table(("reason", "meaning"), ([f"`{name}`", text] for name, text in descriptions(Reason, Reason).items()))}
"""


def options() -> str:
    """The page of options: every option of tasks, jobs, workers and stores, with its default."""
    rules = {"name": "the function’s name", "runner": "`async` or `thread`"} | {
        field.name: f"`{_format_default(field.default)}`" for field in msgspec.structs.fields(RunRules)
    }
    return f"""# Options

Written by `make generate` from the code. A length of time is a number of seconds, a `timedelta`, or a text
such as `"90s"`, `"5 minutes"`, `"1h30m"`. A moment is an aware `datetime`, a text such as
`"2026-01-31T08:00Z"`, or seconds since 1970.

## Of tasks and jobs

In `@jobs.task(…)`, for every job of the task; in `task.using(…)`, for the jobs enqueued through it; and in
`jobs.enqueue(name, …)`, for that job.

{_options(JobOptions, _defaults(NewJob) | {"backoff": "`Backoff()`", "keep": "`Keep()`"})}

`Errandry(url, defaults={{…}})` sets {_list(DefaultOptions.__annotations__)} for all tasks of an app.
The options of a task replace these defaults, and the options of `using` replace both.

## Of tasks only

{_options(TaskOptions, rules, without=JobOptions)}

{_first_paragraph(BatchOptions)} See [batches](../guide/batches.md).

{_options(BatchOptions, rules, without=TaskOptions)}

## Of jobs only

{_options(UseOptions, _defaults(NewJob) | {"id": "a new UUIDv7"}, without=JobOptions)}

In `jobs.enqueue(name, …)` only:

{_options(EnqueueOptions, rules, without=UseOptions)}

## Backoff

{_first_paragraph(Backoff)}

{_fields(Backoff)}

The name of a curve, as in `backoff="linear"`, means `Backoff` with this curve. A length of time, as in
`backoff="30s"`, means a fixed delay without jitter. Any other name is a function declared with
`@jobs.backoff`.

## Keep

{_first_paragraph(Keep)}

{_fields(Keep)}

## Of unique jobs

`@jobs.task(unique=UniqueOptions(…))` or `task.using(unique=UniqueOptions(…))`. See
[unique jobs](../guide/uniqueness.md).

{_options(UniqueOptions, _defaults(UniqueOptions))}

## Of schedules

`ScheduleOptions(…)`, or as arguments of `jobs.schedule` and `jobs.schedules.put`. See
[schedules](../guide/schedules.md).

{_options(ScheduleOptions, _defaults(ScheduleOptions))}

## Of edits

`jobs.edit(…)`, for jobs that no worker has claimed.

{_options(EditOptions, {})}

## Rules

`set_rules(…)` of a task, a queue or a group. See [limits, rates, groups](../guide/limits.md).

{_options(RuleOptions, {})}

## Of workers

`jobs.run_worker(…)` or `Worker(jobs, WorkerOptions(…))`. Times are seconds.

{_options(WorkerOptions, _defaults(WorkerOptions) | {"process_slots": "one for each core"})}

## Of stores

`Errandry(store_limits=StoreLimits(…))`. Sizes are bytes, ages are seconds.

{_options(StoreLimits, _defaults(StoreLimits))}

`Errandry(write_limits=WriteLimits(…))`, for every store. Times are seconds, sizes are bytes.

{_options(WriteLimits, _defaults(WriteLimits))}
"""


def events() -> str:
    """The page of events: every kind of event, and the moves that cause it."""
    rows = (
        [f"`{kind}`", text, _moves_of(EventKind(kind))]
        for kind, text in descriptions(EventKind, EventKind).items()
    )
    return f"""# Events

Written by `make generate` from `errandry.core.event`. How to read them is in [the guide](../guide/events.md).

{_table(("event", "meaning", "moves"), rows)}
"""


def error_tree() -> str:
    """The page of errors: the tree of error classes, and a table of them."""
    kinds = [
        kind
        for kind in vars(errors).values()
        if inspect.isclass(kind) and issubclass(kind, Exception) and kind.__module__ == errors.__name__
    ]
    rows = (
        [f"`{kind.__name__}`", _first_paragraph(kind), _parents(kind), _attributes(kind)] for kind in kinds
    )
    return f"""# Errors

Written by `make generate` from `errandry.errors`, which defines all errors. Each keeps its arguments as
attributes.

```text
{_error_tree_text()}
```

{_table(("error", "meaning", "base class", "attributes"), rows)}
"""


def decisions() -> str:
    """The page of decisions: one link for each."""
    paths = sorted((DOCS / "adr").glob("[0-9]*.md"))
    titles = [(path, path.read_text("utf-8").splitlines()[0].removeprefix("# ")) for path in paths]
    lines = "\n".join(f"- [{title}](adr/{path.name})" for path, title in titles)
    return f"""# Decisions

Written by `make generate`. Each of these pages gives a decision, its reasons and its costs.

{lines}
"""


def examples() -> str:
    """The page of examples: the README and the app of each."""
    parts = []
    for folder in sorted(path.parent for path in EXAMPLES.glob("*/README.md")):
        words = (folder / "README.md").read_text("utf-8").replace("](../../docs/", "](").removeprefix("# ")
        app = (folder / "app.py").read_text("utf-8")
        parts.append(f"## {words}\n`examples/{folder.name}/app.py`:\n\n```python\n{app}```\n")
    return f"""# Examples

Written by `make generate` from the folder `examples` of the repository. Each is a small program that runs
without changes. The tests run all of them, with real workers.

{chr(10).join(parts)}"""


def _move_row(move: Move, rule: Transition) -> list[str]:
    sources = ", ".join(rule.sources) or "–"
    plain = [_name(target) for target in dict.fromkeys(rule.leads.values())]
    same = all(source is target for source, target in rule.leads.items())
    targets = ["the same"] if same else plain
    others = [f"{_name(target)} if {why}" for target, why in rule.otherwise.items()]
    by = f"{rule.by}, fenced" if rule.fenced else rule.by
    reached = {*rule.leads.values(), *rule.otherwise} - {None}
    kinds = dict.fromkeys(kind for state in State if state in reached for kind in KINDS_OF_MOVE[move, state])
    events = ["removed"] if move.startswith("remove") else list(kinds)
    return [move, sources, "; ".join([*targets, *others]), by, ", ".join(events) or "–"]


def _moves_between(source: State | None, target: State | None) -> str:
    """The moves that may lead from one state to another; an edit does not unblock a blocked job."""
    moves = [
        move
        for move, rule in TABLE.items()
        if source in rule.leads
        and source is not target
        and (move, source) != (Move.EDIT, State.BLOCKED)
        and (rule.leads[source] is target or target in rule.otherwise)
    ]
    return ", ".join(moves)


def _name(state: State | None) -> str:
    return "gone" if state is None else state


def _moves_of(kind: EventKind) -> str:
    """The moves that cause an event; a dash if none does."""
    reached = {move: {*rule.leads.values(), *rule.otherwise} for move, rule in TABLE.items()}
    moves = [
        move
        for move, states in reached.items()
        if any(state is not None and kind in KINDS_OF_MOVE[move, state] for state in states)
    ]
    if kind is EventKind.REMOVED:
        moves = [Move.REMOVE, Move.REMOVE_FORCED]
    return ", ".join(moves) or "–"


def _options(kind: type, defaults: Mapping[str, str], without: type | None = None) -> str:
    """A table of the annotated names of a class, with the description of each from the docstring."""
    left_out = without.__annotations__ if without else {}
    names = [name for name in kind.__annotations__ if name not in left_out]
    hints, words = get_type_hints(kind), descriptions(kind, names)
    rows = ([f"`{name}`", words[name], defaults.get(name, "–"), _type(hints[name])] for name in names)
    return _table(("option", "meaning", "default", "type"), rows)


def _list(names: Iterable[str]) -> str:
    *first, last = (f"`{name}`" for name in names)
    return f"{', '.join(first)} and {last}"


def _fields(kind: type[msgspec.Struct]) -> str:
    hints, defaults = get_type_hints(kind), _defaults(kind)
    rows = ([f"`{name}`", defaults[name], _type(hints[name])] for name in kind.__struct_fields__)
    return _table(("field", "default", "type"), rows)


def _defaults(kind: type[msgspec.Struct]) -> dict[str, str]:
    fields = msgspec.structs.fields(kind)
    return {field.name: "–" if field.required else f"`{_format_default(field.default)}`" for field in fields}


def _format_default(value: Any) -> str:
    if isinstance(value, tuple) and value and isinstance(value[0], type):
        return ", ".join(kind.__name__ for kind in value)
    return str(value) if value and isinstance(value, str) else repr(value)


_TYPES = {
    Duration: "length of time",
    Moment: "moment",
    BackoffOption: "`Backoff`, name or length of time",
    KeepOption: "`Keep`, length of time, or one by state",
}


def _type(hint: Any) -> str:
    """The name of a type in the documentation."""
    for known, words in _TYPES.items():
        if hint in (known, known | None):
            return words
    if get_origin(hint) is Literal:
        return " or ".join(f"`{value}`" for value in get_args(hint))
    if get_origin(hint) in (UnionType, Union):
        return " or ".join(dict.fromkeys(_type(part) for part in get_args(hint) if part is not type(None)))
    return (
        f"`{hint.__name__}`" if isinstance(hint, type) and not get_args(hint) else f"`{_strip_modules(hint)}`"
    )


def _strip_modules(hint: Any) -> str:
    return re.sub(r"(\w+\.)+", "", str(hint))


def descriptions(kind: type, names: Iterable[str]) -> dict[str, str]:
    """The description of each name: the line of the docstring that begins with it, and its continuation."""
    lines = inspect.getdoc(kind) or ""
    found = {name: re.search(rf"^{name}\s+(\S.*(?:\n +\S.*)*)$", lines, re.MULTILINE) for name in names}
    if missing := [name for name, words in found.items() if words is None]:
        raise LookupError(f"the docstring of {kind.__name__} does not describe {', '.join(missing)}")
    return {name: " ".join(words[1].split()) for name, words in found.items() if words is not None}


def _first_paragraph(kind: type) -> str:
    """The first paragraph of a docstring as one line."""
    return " ".join((inspect.getdoc(kind) or "").partition("\n\n")[0].split())


def _parents(kind: type) -> str:
    return ", ".join(f"`{parent.__name__}`" for parent in kind.__bases__)


def _attributes(kind: type) -> str:
    """The parameters of an error's constructor, its own or the inherited one."""
    namespaces = (vars(base) for base in kind.__mro__ if base.__module__ == errors.__name__)
    constructor = next((names["__init__"] for names in namespaces if "__init__" in names), None)
    parameters = list(inspect.signature(constructor).parameters)[1:] if constructor else []
    return ", ".join(f"`{name}`" for name in parameters) or "–"


def _error_tree_text() -> str:
    return inspect.cleandoc((errors.__doc__ or "").split("\n\n")[1])


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    names = list(head)
    lines = chain([names, ["---"] * len(names)], rows)
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


PAGES: Mapping[str, Callable[[], str]] = {
    "states.md": states,
    "states.svg": diagram.states,
    "decisions.md": decisions,
    "examples.md": examples,
    "reference/options.md": options,
    "reference/events.md": events,
    "reference/errors.md": error_tree,
    "reference/cli.md": commands.page,
    "top.svg": top_picture.top,
    **api.pages(),
}


def main() -> None:
    for name, text in PAGES.items():
        path = DOCS / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text(), "utf-8")


if __name__ == "__main__":
    main()
