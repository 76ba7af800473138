"""`errandry queues limit`, `rate`, `weight`, `max-size`, `ageing`, `order` and `rules`."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click
from msgspec import to_builtins

from errandry.cli import table
from errandry.cli.command import CliCommand
from errandry.cli.pausing import as_data, said, whoever
from errandry.cli.session import Session, client
from errandry.cli.table import Cell, Column
from errandry.core.duration import rough, short
from errandry.core.gate import GateKind
from errandry.core.rule import Comeback, Overflow, Rate, Rule

if TYPE_CHECKING:
    from errandry.api.app import Errandry
    from errandry.api.gates import GateHandle

Decorated = Callable[[Any], Any]
by = click.option("--by", help="Who wants it; you, without it.")


def of(value: str) -> Decorated:
    """The arguments of a rule that queues, tasks and groups can have."""

    def add(function: Any) -> Any:
        for option in (
            click.argument("words", nargs=-1, metavar=f"[QUEUE] {value}"),
            click.option("--task", help="Of a task, in all queues, instead of a queue."),
            click.option("--group", help="Of one group of the queue."),
            click.option("--each-group", is_flag=True, help="Of each group of the queue by itself."),
            by,
        ):
            function = option(function)
        return function

    return add


@click.command("limit", cls=CliCommand)
@of("N")
@client
async def limit(session: Session, jobs: "Errandry", each_group: bool, by: str | None, **where: Any) -> None:
    """Say how many jobs may run at once, across all workers; none for any number.

    \b
    errandry queues limit mail 20
    errandry queues limit mail 2 --group acme
    errandry queues limit mail 1 --each-group
    errandry queues limit 5 --task send
    """
    gate, word = _meant(jobs, **where)
    name = _each(gate, "limit", each_group)
    await _put(session, gate, by, **{name: None if word == "none" else _whole(word)})


@click.command("rate", cls=CliCommand)
@of("RATE")
@click.option("--burst", type=click.IntRange(1), help="How many may begin at once; a tenth of the rate.")
@client
async def rate(
    session: Session, jobs: "Errandry", burst: int | None, each_group: bool, by: str | None, **where: Any
) -> None:
    """Say how many jobs may begin in a time, across all workers: 100/minute; none for any number."""
    gate, word = _meant(jobs, **where)
    name = _each(gate, "rate", each_group)
    bursts = {} if burst is None else {name.replace("rate", "burst"): burst}
    await _put(session, gate, by, **{name: None if word == "none" else word}, **bursts)


@click.command("weight", cls=CliCommand)
@click.argument("queue")
@click.argument("group")
@click.argument("weight", metavar="W")
@by
@client
async def weight(
    session: Session, jobs: "Errandry", queue: str, group: str, weight: str, by: str | None
) -> None:
    """Say how often a group has its turn, compared with others of its queue; none for as often as they."""
    await _put(
        session, jobs.queue(queue).group(group), by, weight=None if weight == "none" else _number(weight)
    )


@click.command("max-size", cls=CliCommand)
@click.argument("queue")
@click.argument("size", metavar="N")
@click.option("--each-group", is_flag=True, help="Of each group of the queue by itself.")
@click.option(
    "--overflow",
    type=click.Choice([str(one).replace("_", "-") for one in Overflow]),
    help="What becomes of jobs beyond that.",
)
@by
@client
async def max_size(
    session: Session,
    jobs: "Errandry",
    queue: str,
    size: str,
    each_group: bool,
    overflow: str | None,
    by: str | None,
) -> None:
    """Say how many jobs may wait in a queue; none for any number."""
    changes: dict[str, Any] = {} if overflow is None else {"overflow": overflow.replace("-", "_")}
    gate = jobs.queue(queue)
    changes[_each(gate, "max_size", each_group)] = None if size == "none" else _whole(size)
    await _put(session, gate, by, **changes)


@click.command("ageing", cls=CliCommand)
@click.argument("queue")
@click.argument("span", metavar="TIME")
@by
@client
async def ageing(session: Session, jobs: "Errandry", queue: str, span: str, by: str | None) -> None:
    """Let jobs that have waited for so long go before all others of the queue; none for no such thing."""
    await _put(session, jobs.queue(queue), by, ageing=None if span == "none" else span)


@click.command("order", cls=CliCommand)
@click.argument("queue")
@click.argument("order", type=click.Choice([*map(str, Comeback), "none"]))
@by
@client
async def order(session: Session, jobs: "Errandry", queue: str, order: str, by: str | None) -> None:
    """Let a job of a group that comes back, as by a retry, take its old place.

    With hold, its group waits for it besides; with none, it goes to the end of its line.
    """
    await _put(session, jobs.queue(queue), by, order=None if order == "none" else order)


@click.command("rules", cls=CliCommand)
@client
async def rules(session: Session, jobs: "Errandry") -> None:
    """List the rules and pauses of queues, tasks and groups."""
    found, now = await jobs.rules(), await jobs.now()
    if session.json:
        for one in found:
            session.data(to_builtins(one))
        return
    if not found:
        session.talk("There are no rules, and nothing is paused.")
        return
    heads = [Column("KIND"), Column("NAME", gives=True), Column("GROUP", gives=True)]
    heads += [Column("RULE", gives=True), Column("SET", gives=True), Column("PAUSED", gives=True)]
    rows = [
        (
            one.kind,
            one.name,
            one.group,
            in_words(one.rule)
            + (f" rests {rough(one.closed_until - now)}" if one.closed_until > now else ""),
            said(one.ruling, now),
            Cell(said(one.paused, now), "yellow"),
        )
        for one in found
        if one.kind is not GateKind.WORKER
    ]
    table.show(session, heads, rows)


RULE_COMMANDS = (limit, rate, weight, max_size, ageing, order, rules)


def in_words(rule: Rule) -> str:
    """All that it says, in short."""
    return ", ".join(f"{name.replace('_', ' ')} {_shown(name, getattr(rule, name))}" for name in rule.given)


def _shown(name: str, value: Any) -> str:
    if isinstance(value, Rate):
        return f"{value} (burst {value.burst:,})"
    if name == "ageing":
        return short(value)
    return (
        f"{value:,}" if isinstance(value, int) else f"{value:g}" if isinstance(value, float) else str(value)
    )


async def _put(session: Session, gate: "GateHandle", by: str | None, **changes: Any) -> None:
    rule = await gate.put(by=whoever() if by is None else by, **changes)
    if session.json:
        session.data({**as_data(gate), "rule": to_builtins(rule)})
    else:
        session.talk(f"The {gate}: {in_words(rule) or 'no rules'}.")


def _meant(
    jobs: "Errandry", words: tuple[str, ...], task: str | None, group: str | None
) -> "tuple[GateHandle, str]":
    """Whose rule it is, and the word that says what it is."""
    if task is not None:
        if len(words) != 1 or group is not None:
            raise click.UsageError("With --task, give the value only: a task has no queue and no group here.")
        return jobs.task_gate(task), words[0]
    if len(words) != 2:
        raise click.UsageError("Give a queue and a value, or a value and --task.")
    queue = jobs.queue(words[0])
    return (queue if group is None else queue.group(group)), words[1]


def _each(gate: "GateHandle", name: str, each_group: bool) -> str:
    """The name of the rule: of the gate itself, or of each group of it."""
    if each_group and gate.kind is not GateKind.QUEUE:
        raise click.UsageError("--each-group is for a queue: leave out --task and --group.")
    return f"group_{name}" if each_group else name


def _whole(word: str) -> int:
    if not word.replace("_", "").replace(",", "").isdigit():
        raise click.UsageError(f"{word!r} is not a whole number; none takes the rule away.")
    return int(word.replace("_", "").replace(",", ""))


def _number(word: str) -> float:
    try:
        return float(word)
    except ValueError:
        raise click.UsageError(f"{word!r} is not a number; none takes the rule away.") from None
