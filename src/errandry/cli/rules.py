"""Set, reset and list rules: `errandry queues limit`, `rate`, `weight`, `max-size`, `reset`, `rules`, …"""

import re
from collections.abc import Callable, Iterator
from datetime import datetime
from math import isfinite
from typing import TYPE_CHECKING, Any

import click
from msgspec import to_builtins

from errandry.cli import table
from errandry.cli.command import CliCommand
from errandry.cli.param_types import WholeNumber
from errandry.cli.pausing import (
    as_data,
    closed_text,
    has_jobs,
    is_stored,
    operator,
    report_unknown,
    since_text,
    time_and_operator,
)
from errandry.cli.session import Session, app_command
from errandry.cli.table import Cell, Column, TableRow
from errandry.core.gate import RULE_FIELDS, GateKind
from errandry.core.rule import OnReturn, Overflow, Rule
from errandry.core.rule_info import Source

if TYPE_CHECKING:
    from errandry.api.app import Errandry
    from errandry.api.gate_info import GateInfo
    from errandry.api.gates import GateHandle

Decorated = Callable[[Any], Any]
_INTEGER = re.compile(r"-?[0-9][0-9_,]*", re.ASCII)
by_option = click.option("--by", help="Name recorded as the operator; default: your user name")


def rule_options(value: str) -> Decorated:
    """Add the arguments of a rule that queues, tasks and groups can have."""

    def add(function: Any) -> Any:
        for option in (
            click.argument("words", nargs=-1, metavar=f"[QUEUE] {value}"),
            click.option("--task", help="Apply to this task in all queues, instead of a queue"),
            click.option("--group", help="Apply to this group of the queue"),
            click.option("--each-group", is_flag=True, help="Apply to each group of the queue separately"),
            by_option,
        ):
            function = option(function)
        return function

    return add


@click.command("limit", cls=CliCommand)
@rule_options("N")
@app_command
async def limit(session: Session, jobs: "Errandry", each_group: bool, by: str | None, **where: Any) -> None:
    """Limit how many jobs may run at once.

    The limit holds across all workers. none removes it.

    \b
    errandry queues limit mail 20
    errandry queues limit mail 2 --group acme
    errandry queues limit mail 1 --each-group
    errandry queues limit 5 --task send
    """
    gate, word = _gate_and_value(jobs, **where)
    name = _rule_name(gate, "limit", each_group)
    await _put_rule(session, gate, by, **{name: None if word == "none" else _parse_int(word)})


@click.command("rate", cls=CliCommand)
@rule_options("RATE")
@click.option(
    "--burst",
    type=WholeNumber(1),
    metavar="N",
    help="Number of jobs that may start at once; default: a tenth of the rate",
)
@app_command
async def rate(
    session: Session, jobs: "Errandry", burst: int | None, each_group: bool, by: str | None, **where: Any
) -> None:
    """Limit how many jobs may start per time.

    The rate, such as 100/minute, holds across all workers. none removes it.
    """
    gate, word = _gate_and_value(jobs, **where)
    name = _rule_name(gate, "rate", each_group)
    if burst is not None and word == "none":
        raise click.UsageError("--burst belongs to a rate: leave it out with none.")
    bursts = {} if burst is None else {name.replace("rate", "burst"): burst}
    await _put_rule(session, gate, by, **{name: None if word == "none" else word}, **bursts)


@click.command("weight", cls=CliCommand)
@click.argument("queue")
@click.argument("group")
@click.argument("weight", metavar="W")
@by_option
@app_command
async def weight(
    session: Session, jobs: "Errandry", queue: str, group: str, weight: str, by: str | None
) -> None:
    """Set the share of a group in its queue.

    The weight is relative to the other groups of the queue. none restores the default.
    """
    await _put_rule(
        session,
        jobs.queue(queue).group(group),
        by,
        weight=None if weight == "none" else _parse_weight(weight),
    )


@click.command("max-size", cls=CliCommand)
@click.argument("queue")
@click.argument("size", metavar="N")
@click.option("--each-group", is_flag=True, help="Apply to each group of the queue separately")
@click.option(
    "--overflow",
    type=click.Choice([str(overflow).replace("_", "-") for overflow in Overflow]),
    help="What to do with new jobs if the queue is full",
)
@by_option
@app_command
async def max_size(
    session: Session,
    jobs: "Errandry",
    queue: str,
    size: str,
    each_group: bool,
    overflow: str | None,
    by: str | None,
) -> None:
    """Limit how many jobs may wait in a queue.

    none removes the limit.
    """
    changes: dict[str, Any] = {} if overflow is None else {"overflow": overflow.replace("-", "_")}
    gate = jobs.queue(queue)
    changes[_rule_name(gate, "max_size", each_group)] = None if size == "none" else _parse_int(size)
    await _put_rule(session, gate, by, **changes)


@click.command("ageing", cls=CliCommand)
@click.argument("queue")
@click.argument("span", metavar="TIME")
@by_option
@app_command
async def ageing(session: Session, jobs: "Errandry", queue: str, span: str, by: str | None) -> None:
    """Run long-waiting jobs first.

    Jobs that have waited for this time run before all others of the queue. none turns this off.
    """
    await _put_rule(session, jobs.queue(queue), by, ageing=None if span == "none" else span)


@click.command("on-return", cls=CliCommand)
@click.argument("queue")
@click.argument(
    "effect", type=click.Choice([*(str(effect).replace("_", "-") for effect in OnReturn), "none"])
)
@by_option
@app_command
async def on_return(session: Session, jobs: "Errandry", queue: str, effect: str, by: str | None) -> None:
    """Set the place of jobs that return to the queue.

    This is about jobs of groups that return, for example for a retry. With keep-place, a job takes its old
    place; with hold-group, its group also waits for it; with none, it goes to the end.
    """
    value = None if effect == "none" else effect.replace("-", "_")
    await _put_rule(session, jobs.queue(queue), by, on_return=value)


@click.command("reset", cls=CliCommand)
@click.argument("words", nargs=-1, metavar="[QUEUE] [RULE]...")
@click.option("--task", help="Reset the rules of this task, instead of a queue")
@click.option("--group", help="Reset the rules of this group of the queue")
@click.option("--declared", is_flag=True, help="Drop also what code declares, until it is declared again")
@by_option
@app_command
async def reset(
    session: Session,
    jobs: "Errandry",
    words: tuple[str, ...],
    task: str | None,
    group: str | None,
    declared: bool,
    by: str | None,
) -> int:
    """Return rules to what the code declares.

    This drops the values that operators have set: of the named rules, such as limit or max-size, or of all. A
    rule that the code does not declare is removed. With --declared, what code has declared is dropped too,
    until a program that declares it starts again. A pause stays. The exit code is 1 if the store knows
    nothing of the name.

    \b
    errandry queues reset mail
    errandry queues reset mail limit rate
    errandry queues reset --task send
    errandry queues reset mail --declared
    """
    if task is not None:
        if group is not None:
            raise click.UsageError("Give either --task or --group.")
        gate, fields = jobs.remote_task(task), words
    elif words:
        queue = jobs.queue(words[0])
        gate, fields = (queue if group is None else queue.group(group)), words[1:]
    else:
        raise click.UsageError("Give a queue, or --task.")
    names = [_field_name(gate.kind, field) for field in fields]
    infos = await jobs.rules()
    rule = await gate.reset_rules(*names, declared=declared, by=operator(by))
    is_known = is_stored(gate, infos) or await has_jobs(jobs, gate)
    if is_known or session.json:
        key = gate.kind, gate.name, gate.group_key
        is_paused = any(info.paused for info in infos if (info.kind, info.name, info.group) == key)
        _report(session, gate, rule, "; it stays paused" if is_paused else "")
    if not is_known:
        report_unknown(session, gate)
    return 0 if is_known else 1


@click.command("rules", cls=CliCommand)
@app_command
async def rules(session: Session, jobs: "Errandry") -> None:
    """List the rules and pauses of queues, tasks and groups.

    Each rule has a line, with its source: code or operator. A pause has a line too.
    """
    infos, now = await jobs.rules(), await jobs.now()
    if session.json:
        for info in infos:
            session.print_json(info)
        return
    if not infos:
        session.print_message("There are no rules, and nothing is paused.")
        return
    gates = [info for info in infos if info.kind is not GateKind.WORKER]
    has_groups = any(info.group for info in gates)
    columns = [Column("KIND"), Column("NAME", can_wrap=True)]
    columns += [Column("GROUP", can_wrap=True)] if has_groups else []
    columns += [Column("RULE", can_wrap=True), Column("SOURCE", can_wrap=True)]
    rows: list[TableRow] = []
    for info in gates:
        names = [info.kind, info.name, info.group] if has_groups else [info.kind, info.name]
        rows += [(*names, *cells) for cells in _rule_cells(info, now)]
    table.print_table(session, columns, rows)


RULE_COMMANDS = (limit, rate, weight, max_size, ageing, on_return, reset, rules)


def describe_rule(rule: Rule) -> str:
    """The rule in words: "limit 20, rate 100/minute (burst 5)"."""
    return ", ".join(map(rule.describe, rule.given_fields))


def _rule_cells(info: "GateInfo", now: datetime) -> Iterator[tuple[Cell, Cell]]:
    """Each rule of the gate with its source, such as "limit 50" and "operator, 2 h ago by ada"; its pause."""
    for field, source in info.sources.items():
        yield Cell(info.rule.describe(field)), Cell(_source_text(info, field, source, now))
    if info.paused is not None:
        yield Cell("paused", "yellow"), Cell(since_text(info.paused, now), "yellow")
    if closed := closed_text(info.closed_until, now):
        yield Cell(closed, "yellow"), Cell("a retry of a handler")


def _source_text(info: "GateInfo", field: str, source: Source, now: datetime) -> str:
    """Where the value in force comes from, and what code declares instead."""
    change = info.operators.get(field)
    at = "" if change is None else f", {time_and_operator(change.at, change.by, now)}"
    return f"{source}{at}{_declared_text(info, field)}"


def _declared_text(info: "GateInfo", field: str) -> str:
    """What code declares in place of the operator's value; empty if that is the same, or nothing."""
    if info.sources[field] is Source.CODE or getattr(info.declared, field) is None:
        return ""
    is_same = getattr(info.declared, field) == getattr(info.rule, field)
    return "" if is_same else f"; code: {info.declared.describe(field)}"


async def _put_rule(session: Session, gate: "GateHandle", by: str | None, **changes: Any) -> None:
    _report(session, gate, await gate.set_rules(by=operator(by), **changes))


def _report(session: Session, gate: "GateHandle", rule: Rule, pause: str = "") -> None:
    if session.json:
        session.print_json({**as_data(gate), "rule": to_builtins(rule)})
    else:
        session.print_message(f"The {gate}: {describe_rule(rule) or 'no rules'}{pause}.")


def _gate_and_value(
    jobs: "Errandry", words: tuple[str, ...], task: str | None, group: str | None
) -> "tuple[GateHandle, str]":
    """The gate that the rule applies to, and the value of the rule."""
    if task is not None:
        if len(words) != 1 or group is not None:
            raise click.UsageError("With --task, give only the value: neither a queue nor --group.")
        return jobs.remote_task(task), words[0]
    if len(words) != 2:
        raise click.UsageError("Give a queue and a value, or a value and --task.")
    queue = jobs.queue(words[0])
    return (queue if group is None else queue.group(group)), words[1]


def _rule_name(gate: "GateHandle", name: str, each_group: bool) -> str:
    """The name of the rule: of the gate itself, or with `each_group` of each of its groups."""
    if each_group and gate.kind is not GateKind.QUEUE:
        raise click.UsageError("--each-group is for a queue: leave out --task and --group.")
    return f"group_{name}" if each_group else name


def _field_name(kind: GateKind, word: str) -> str:
    """The field of the rule that the user wrote as `max-size`."""
    fields = {field.replace("_", "-"): field for field in RULE_FIELDS[kind]}
    if word in fields:
        return fields[word]
    if word.endswith("burst"):
        rate = word.removesuffix("burst") + "rate"
        raise click.UsageError(f"{word!r} belongs to the {rate.replace('-', ' ')}: reset {rate}.")
    raise click.UsageError(f"{word!r} is no rule of a {kind}: it has {', '.join(fields)}.")


def _parse_int(word: str) -> int:
    if _INTEGER.fullmatch(word) is None:
        raise click.UsageError(f"{word!r} is not a whole number; none removes the rule.")
    return int(word.replace("_", "").replace(",", ""))


def _parse_weight(word: str) -> float:
    try:
        number = float(word)
    except ValueError:
        raise click.UsageError(f"{word!r} is not a number; none removes the rule.") from None
    if not isfinite(number) or number <= 0:
        raise click.UsageError(f"{word!r} is not a weight: it is from 0.001 to 1,000, usually 1.")
    return number
