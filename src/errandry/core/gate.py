"""Gates: what claims of a queue, a task or a group have to pass, and how workers are paused.

Here are the commands that set them and what is shown of them.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from math import ceil

from msgspec import Struct

from errandry.core import check
from errandry.core.rule import NO_RULE, Rate, Rule
from errandry.errors import InvalidValue


class GateKind(StrEnum):
    QUEUE = "queue"
    TASK = "task"
    GROUP = "group"
    WORKER = "worker"


class Pause(Struct, frozen=True, gc=False):
    """No claims from this queue or group, of this task or by this worker until it is resumed.

    A group is known within its queue: `name` is the queue, `group` its key. Answer: WRITTEN or ALREADY.
    """

    kind: GateKind
    name: str
    by: str = ""
    group: str = ""

    def __post_init__(self) -> None:
        _check(self.kind, self.name, self.group, self.by)


class Resume(Struct, frozen=True, gc=False):
    """Undo a pause. Answer: WRITTEN or ALREADY."""

    kind: GateKind
    name: str
    group: str = ""

    def __post_init__(self) -> None:
        _check(self.kind, self.name, self.group)


class PutRule(Struct, frozen=True, gc=False):
    """This rule holds from now on, whatever held before; an empty one holds nobody. WRITTEN or ALREADY."""

    kind: GateKind
    name: str
    rule: Rule
    group: str = ""
    by: str = ""

    def __post_init__(self) -> None:
        _check(self.kind, self.name, self.group, self.by)
        allowed = RULE_FIELDS.get(self.kind, ())
        for field in self.rule.given:
            if field not in allowed:
                right = f"a rule of a {self.kind} has {', '.join(allowed) or 'nothing'}"
                raise InvalidValue(field, getattr(self.rule, field), right)


RULE_FIELDS: Mapping[GateKind, tuple[str, ...]] = {
    GateKind.QUEUE: tuple(field for field in Rule.__struct_fields__ if field != "weight"),
    GateKind.TASK: ("limit", "rate"),
    GateKind.GROUP: ("limit", "rate", "weight"),
}
"""What a rule of each kind can say."""


class PauseInfo(Struct, frozen=True, gc=False):
    """Since when something is paused, and by whom."""

    at: float
    by: str


class RuleInfo(Struct, frozen=True, gc=False):
    """A rule, since when it holds, and who has put it."""

    rule: Rule
    at: float
    by: str


class GateRecord(Struct, frozen=True, gc=False):
    """What is known of a gate. `tat` is when its rate will have been used up so far (GCRA).

    Nothing passes before `closed_until`, which handlers ask for that are told to slow down.
    """

    kind: GateKind
    name: str
    group: str = ""
    paused: PauseInfo | None = None
    ruling: RuleInfo | None = None
    tat: float = 0.0
    closed_until: float = 0.0

    @property
    def rule(self) -> Rule:
        return NO_RULE if self.ruling is None else self.ruling.rule

    @property
    def key(self) -> "GateKey":
        return self.kind, self.name, self.group

    def says_nothing(self, now: float) -> bool:
        """Whether it would be the same if it were not there."""
        is_open = self.paused is None and self.ruling is None
        return is_open and self.tat <= now and self.closed_until <= now


GateKey = tuple[GateKind, str, str]
"""Which gate: its kind, its name, and the group of a group."""
LaneKey = tuple[str, str, str]
"""A queue, a task and a group."""


class GateStatus(Struct, frozen=True):
    """A gate that a job has to pass, and the numbers behind it.

    `limit` and `rate` are those that hold: a group without its own has those of its queue. `held` jobs have
    passed and are not over. Its rate lets the next one through in `wait` seconds.
    """

    gate: GateRecord
    limit: int | None
    rate: Rate | None
    held: int
    wait: float


def gate_statuses(
    gates: Iterable[GateRecord], holding: Mapping[LaneKey, int], now: float
) -> list[GateStatus]:
    """How it stands with the gates of one job: its queue, its task and its group, if it has one."""
    found: list[GateStatus] = []
    of_queue = NO_RULE
    for gate in gates:
        rule = gate.rule
        if gate.kind is GateKind.QUEUE:
            of_queue = rule
        limit, rate = limits(rule, of_queue) if gate.kind is GateKind.GROUP else (rule.limit, rule.rate)
        held = sum(number for lane, number in holding.items() if applies_to(gate, lane))
        wait = 0.0 if rate is None else next_at(rate, gate.tat, now) - now
        found.append(GateStatus(gate, limit, rate, held, wait))
    return found


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


def limits(own: Rule, of_queue: Rule) -> tuple[int | None, Rate | None]:
    """The limit and the rate of a group: its own, or those its queue has for each of its groups."""
    return (
        of_queue.group_limit if own.limit is None else own.limit,
        of_queue.group_rate if own.rate is None else own.rate,
    )


# A rate is kept by one number (GCRA): the time at which all that was let through would have come one by one.

_GRAIN = 1e-6
"""Times are that exact: who comes at the very moment that was named to him is let through."""


def allowed(rate: Rate, tat: float, now: float) -> int:
    """How many a rate lets through now."""
    ahead = max(0.0, tat - now - _GRAIN)
    return max(0, rate.burst - ceil(ahead / rate.every))


def next_at(rate: Rate, tat: float, now: float) -> float:
    """When a rate lets the next one through: now, or later."""
    return max(now, tat - (rate.burst - 1) * rate.every)


def spent(rate: Rate, tat: float, now: float, number: int) -> float:
    """Where a rate is after so many were let through."""
    return max(tat, now) + number * rate.every


def _check(kind: GateKind, name: str, group: str, by: str = "") -> None:
    if type(kind) is not GateKind:
        raise InvalidValue("kind", kind, f"must be a GateKind: {', '.join(GateKind)}")
    check.name("queue" if kind is GateKind.GROUP else kind, name)
    if kind is GateKind.GROUP:
        check.name("group", group)
    elif group:
        raise InvalidValue("group", group, f"a {kind} has none: leave it out, or say kind group")
    if by:
        check.name("by", by)
