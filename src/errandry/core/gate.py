"""Gates: the pauses, limits and rates of queues, tasks and groups, and the pauses of workers.

This module has the commands that set them, the records that show them, and the arithmetic of rates.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from math import ceil
from typing import ClassVar

from msgspec import Struct

from errandry.core import check
from errandry.core.once import OnceCommand
from errandry.core.rule import NO_RULE, Rate, Rule
from errandry.core.rule_info import RuleInfo
from errandry.errors import InvalidValue


class GateKind(StrEnum):
    QUEUE = "queue"
    TASK = "task"
    GROUP = "group"
    WORKER = "worker"


class Pause(OnceCommand, frozen=True, gc=False):
    """Allow no claims from this queue or group, of this task, or by this worker, until it is resumed.

    For a group, `name` is the queue and `group` the key. Answer: WRITTEN or ALREADY.
    """

    kind: GateKind
    name: str
    by: str = ""
    group: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check(self.kind, self.name, self.group, self.by)


class Resume(OnceCommand, frozen=True, gc=False):
    """Undo a pause, and open a task or group that a handler has closed with a retry that pauses its group.

    A group stays closed if its queue has the rule `on_return=hold_group`, because it then keeps its order.
    Answer: WRITTEN or ALREADY.
    """

    kind: GateKind
    name: str
    group: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check(self.kind, self.name, self.group)


class PutRule(OnceCommand, frozen=True, gc=False):
    """Set the given `fields` of the rule, or all, as an operator. None as a value removes a field.

    The values are in force until they are reset, whatever code declares. Answer: WRITTEN or ALREADY.
    """

    kind: GateKind
    name: str
    rule: Rule
    group: str = ""
    by: str = ""
    fields: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _check(self.kind, self.name, self.group, self.by)
        check_rule(self.kind, self.rule)
        check_rule_fields(self.kind, self.fields or ())

    @property
    def changed_fields(self) -> tuple[str, ...]:
        return RULE_FIELDS[self.kind] if self.fields is None else self.fields


class ResetRule(OnceCommand, frozen=True, gc=False):
    """Return the given `fields` of the rule, or all, to the values that code declares.

    A field that code does not declare is removed. With `declared` the declared values are removed too, until
    a program declares the rule again. Answer: WRITTEN or ALREADY.
    """

    kind: GateKind
    name: str
    group: str = ""
    by: str = ""
    fields: tuple[str, ...] | None = None
    declared: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        _check(self.kind, self.name, self.group, self.by)
        check_rule_fields(self.kind, self.fields or ())
        check.flag("declared", self.declared)

    @property
    def changed_fields(self) -> tuple[str, ...]:
        return RULE_FIELDS[self.kind] if self.fields is None else self.fields


class DeclareRule(Struct, frozen=True, gc=False):
    """Declare the rule of a queue or task in the code of the program `owner`.

    It replaces what code declared before; fields that an operator has set stay. Programs that
    declare the same rule own it together. With an empty rule, the program no longer owns the declaration,
    which is removed with its last owner. Answer: WRITTEN, or ALREADY if the rule stays as it is.
    """

    kind: GateKind
    name: str
    rule: Rule
    owner: str
    group: ClassVar[str] = ""

    def __post_init__(self) -> None:
        _check(self.kind, self.name, self.group, check.name("owner", self.owner))
        if self.kind is GateKind.GROUP:
            raise InvalidValue("kind", self.kind, "code declares rules of queues and tasks")
        check_rule(self.kind, self.rule)


RULE_FIELDS: Mapping[GateKind, tuple[str, ...]] = {
    GateKind.QUEUE: tuple(field for field in Rule.__struct_fields__ if field != "weight"),
    GateKind.TASK: ("limit", "rate"),
    GateKind.GROUP: ("limit", "rate", "weight"),
}
"""The fields that a rule of each kind of gate may have."""

GateCommand = Pause | Resume | PutRule | ResetRule | DeclareRule


def key_of(command: GateCommand) -> "GateKey":
    """The key of the gate that a command is about."""
    return command.kind, command.name, command.group


def may_create_gate(command: GateCommand) -> bool:
    """Whether the command has an effect on a gate that does not exist."""
    return isinstance(command, Pause) or (
        isinstance(command, PutRule | DeclareRule) and command.rule != NO_RULE
    )


def check_rule(kind: GateKind, rule: Rule) -> None:
    """Raise InvalidValue if a gate of this kind cannot have this rule."""
    for field in rule.given_fields:
        if field not in RULE_FIELDS.get(kind, ()):
            raise InvalidValue(field, getattr(rule, field), _allowed_fields(kind))


def check_rule_fields(kind: GateKind, fields: Iterable[str]) -> None:
    """Raise InvalidValue for a name that is no field of a rule of this kind."""
    for field in fields:
        if field not in RULE_FIELDS.get(kind, ()):
            raise InvalidValue("field", field, _allowed_fields(kind))


def _allowed_fields(kind: GateKind) -> str:
    return f"a rule of a {kind} has {', '.join(RULE_FIELDS.get(kind, ())) or 'nothing'}"


class PauseRecord(Struct, frozen=True, gc=False):
    """When a queue, task, group, worker or schedule was paused, and by which operator."""

    at: float
    by: str


class GateRecord(Struct, frozen=True, gc=False):
    """The stored state of a gate.

    `tat` is the theoretical arrival time of its rate (GCRA): from then on the whole burst is available again.
    No job passes before `closed_until`, which a handler sets with a retry that pauses its group.
    """

    kind: GateKind
    name: str
    group: str = ""
    paused: PauseRecord | None = None
    rule_info: RuleInfo | None = None
    tat: float = 0.0
    closed_until: float = 0.0

    @property
    def rule(self) -> Rule:
        return NO_RULE if self.rule_info is None else self.rule_info.rule

    @property
    def key(self) -> "GateKey":
        return self.kind, self.name, self.group

    def is_default(self, now: float) -> bool:
        """Whether the gate limits nothing at `now`, so that its record can be deleted."""
        is_open = self.paused is None and self.rule_info is None
        return is_open and self.tat <= now and self.closed_until <= now


GateKey = tuple[GateKind, str, str]
"""The kind, the name, and for a group its key."""
LaneKey = tuple[str, str, str]
"""A queue, a task and a group."""


class GateStatus(Struct, frozen=True):
    """A gate that a job has to pass, with its effective limit and rate and its load.

    A group without its own limit or rate has those that its queue sets for groups. `held` is how many jobs
    workers hold. The rate allows the next job in `wait` seconds.
    """

    gate: GateRecord
    limit: int | None
    rate: Rate | None
    held: int
    wait: float


def gate_statuses(
    gates: Iterable[GateRecord], held_counts: Mapping[LaneKey, int], now: float
) -> list[GateStatus]:
    """The status of the gates of one job: its queue, its task and its group, if it has one."""
    statuses: list[GateStatus] = []
    queue_rule = NO_RULE
    for gate in gates:
        rule = gate.rule
        if gate.kind is GateKind.QUEUE:
            queue_rule = rule
        limit, rate = (
            group_limits(rule, queue_rule) if gate.kind is GateKind.GROUP else (rule.limit, rule.rate)
        )
        held = sum(count for lane, count in held_counts.items() if applies_to(gate, lane))
        wait = 0.0 if rate is None else next_allowed_at(rate, gate.tat, now) - now
        statuses.append(GateStatus(gate, limit, rate, held, wait))
    return statuses


def applies_to(gate: GateRecord, lane: LaneKey) -> bool:
    """Whether jobs of this lane have to pass the gate."""
    queue, task, group = lane
    match gate.kind:
        case GateKind.QUEUE:
            return queue == gate.name
        case GateKind.TASK:
            return task == gate.name
        case _:
            return (queue, group) == (gate.name, gate.group)


def group_limits(own: Rule, queue_rule: Rule) -> tuple[int | None, Rate | None]:
    """The limit and the rate of a group: its own, or those that its queue sets for its groups."""
    return (
        queue_rule.group_limit if own.limit is None else own.limit,
        queue_rule.group_rate if own.rate is None else own.rate,
    )


# A rate is enforced by GCRA. Its state is one number, the theoretical arrival time (TAT): the time at which
# the next job would be due if all jobs so far had come evenly.

_TIME_TOLERANCE = 1e-6
"""Seconds of tolerance, so that rounding does not refuse a job at the very time `next_allowed_at` gave."""


def allowed_now(rate: Rate, tat: float, now: float) -> int:
    """How many jobs the rate allows at `now`."""
    ahead = max(0.0, tat - now - _TIME_TOLERANCE)
    return max(0, rate.burst - ceil(ahead / rate.every))


def next_allowed_at(rate: Rate, tat: float, now: float) -> float:
    """When the rate allows the next job: `now` or later."""
    return max(now, tat - (rate.burst - 1) * rate.every)


def tat_after(rate: Rate, tat: float, now: float, count: int) -> float:
    """The theoretical arrival time after `count` more jobs."""
    return max(tat, now) + count * rate.every


def tat_for_new_rate(rate: Rate | None, tat: float, now: float) -> float:
    """The theoretical arrival time after a change to this rate: not beyond a full burst of it.

    Otherwise jobs that started under a slower rate would delay the next one longer than the new rate does.
    """
    return 0.0 if rate is None else min(tat, now + rate.burst * rate.every)


def _check(kind: GateKind, name: str, group: str, by: str = "") -> None:
    if type(kind) is not GateKind:
        raise InvalidValue("kind", kind, f"must be a GateKind: {', '.join(GateKind)}")
    check.name("queue" if kind is GateKind.GROUP else kind, name)
    if kind is GateKind.GROUP:
        check.name("group", group)
    elif group:
        raise InvalidValue("group", group, f"a {kind} has none: leave it out, or use the kind group")
    if by:
        check.name("by", by)
