"""What reads of queues, groups, rules and pauses return."""

from collections.abc import Mapping
from datetime import datetime

from msgspec import Struct

from errandry.core.duration import as_datetime
from errandry.core.gate import GateKind, GateRecord, PauseRecord
from errandry.core.rule import NO_RULE, Rate, Rule
from errandry.core.rule_info import Source
from errandry.store.contract import GroupRecord, QueueRecord


class PauseInfo(Struct, frozen=True):
    """When a queue, task, group, worker or schedule was paused, and by which operator."""

    at: datetime
    by: str


class OperatorChangeInfo(Struct, frozen=True):
    """When an operator set a field of a rule, and which operator."""

    at: datetime
    by: str


class QueueInfo(Struct, frozen=True, kw_only=True):
    """A queue, for `jobs.queues()`.

    states  the number of its jobs in each state
    waited  seconds that its first waiting job has waited; None if none waits
    paused  when it was paused, and by which operator; None if it is not paused
    """

    name: str
    states: Mapping[str, int]
    waited: float | None
    paused: PauseInfo | None


class GroupInfo(Struct, frozen=True, kw_only=True):
    """A group of a queue, for `jobs.groups()`.

    group         its key
    waiting       number of waiting jobs, counted up to a maximum
    held          number of claimed and running jobs
    limit         the limit in force, which may come from the rule of the queue; so may `rate`
    rule          the rule of the group itself
    paused        when it was paused, and by which operator; None if it is not paused
    closed_until  no job of it starts before this time: a handler paused the group by a retry
    """

    queue: str
    group: str
    waiting: int
    held: int
    limit: int | None
    rate: Rate | None
    rule: Rule
    paused: PauseInfo | None
    closed_until: datetime | None


class GateInfo(Struct, frozen=True, kw_only=True):
    """A queue, task or group that has a rule or is paused or closed, for `jobs.rules()`.

    kind          queue, task or group
    name          the name of the queue or task; of a group, of its queue
    group         the key of a group
    rule          its rule in force, without fields if it has none; `set_at` and `set_by`: its last change
    sources       for each field of the rule whether code or an operator has set it
    operators     for each field that an operator has set, when and by which operator
    declared      the rule that code declares
    owners        the programs that declare it
    paused        when it was paused, and by which operator; None if it is not paused
    closed_until  no job of it starts before this time: a handler asked for a pause by a retry
    """

    kind: GateKind
    name: str
    group: str
    rule: Rule
    set_at: datetime | None
    set_by: str
    sources: Mapping[str, Source]
    operators: Mapping[str, OperatorChangeInfo]
    declared: Rule
    owners: tuple[str, ...]
    paused: PauseInfo | None
    closed_until: datetime | None


def pause_info(record: PauseRecord | None) -> PauseInfo | None:
    return None if record is None else PauseInfo(as_datetime(record.at), record.by)


def queue_info(record: QueueRecord) -> QueueInfo:
    return QueueInfo(
        name=record.name, states=record.states, waited=record.waited, paused=pause_info(record.paused)
    )


def group_info(record: GroupRecord) -> GroupInfo:
    gate = record.gate
    return GroupInfo(
        queue=gate.name,
        group=gate.group,
        waiting=record.waiting,
        held=record.held,
        limit=record.limit,
        rate=record.rate,
        rule=gate.rule,
        paused=pause_info(gate.paused),
        closed_until=_closed_until(gate),
    )


def gate_info(gate: GateRecord) -> GateInfo:
    rule_info = gate.rule_info
    return GateInfo(
        kind=gate.kind,
        name=gate.name,
        group=gate.group,
        rule=gate.rule,
        set_at=None if rule_info is None else as_datetime(rule_info.at),
        set_by="" if rule_info is None else rule_info.by,
        sources={} if rule_info is None else rule_info.sources,
        operators={
            field: OperatorChangeInfo(as_datetime(change.at), change.by)
            for field, change in ({} if rule_info is None else rule_info.operator_fields).items()
        },
        declared=NO_RULE if rule_info is None else rule_info.declared_rule,
        owners=() if rule_info is None or rule_info.declared is None else rule_info.declared.owners,
        paused=pause_info(gate.paused),
        closed_until=_closed_until(gate),
    )


def _closed_until(gate: GateRecord) -> datetime | None:
    return as_datetime(gate.closed_until) if gate.closed_until else None
