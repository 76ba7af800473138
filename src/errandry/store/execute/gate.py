"""Commands on gates: pause, resume; set, reset and declare rules."""

from msgspec.structs import replace

from errandry.core.answer import ALREADY, WRITTEN, Ack
from errandry.core.event import EventKind, change_text
from errandry.core.gate import (
    DeclareRule,
    GateCommand,
    GateKind,
    GateRecord,
    Pause,
    PauseRecord,
    PutRule,
    ResetRule,
    Resume,
    group_limits,
    key_of,
    tat_for_new_rate,
)
from errandry.core.job import JobRecord
from errandry.core.rule import NO_RULE, OnReturn, Rate
from errandry.core.rule_info import RuleInfo, change_rule, declare_rule, describe_change, reset_rule
from errandry.store.execute.unit_of_work import UnitOfWork


def pause(work: UnitOfWork, command: Pause) -> Ack:
    gate = _lock_gate(work, command)
    if gate.paused is not None:
        return ALREADY
    _put_gate(work, replace(gate, paused=PauseRecord(work.now, command.by)))
    _emit(work, EventKind.PAUSED, command, command.by)
    return WRITTEN


def resume(work: UnitOfWork, command: Resume) -> Ack:
    gate = _lock_gate(work, command)
    opened = replace(gate, paused=None)
    if gate.closed_until > work.now and not _keeps_order(work, gate):
        opened = replace(opened, closed_until=0.0)  # guard: reopened
    if opened == gate:
        return ALREADY
    _put_gate(work, opened)
    _emit(work, EventKind.RESUMED, command)
    return WRITTEN


def _keeps_order(work: UnitOfWork, gate: GateRecord) -> bool:
    """Return True if the gate may be closed so that no other job of the group overtakes one that returns."""
    return gate.kind is GateKind.GROUP and work.rule(gate.name).on_return is OnReturn.HOLD_GROUP


def put_rule(work: UnitOfWork, command: PutRule) -> Ack:
    gate = _lock_gate(work, command)
    after = change_rule(gate.rule_info, command.rule, command.changed_fields, work.now, command.by)
    return _put_rule_info(work, command, gate, after, command.by)


def reset(work: UnitOfWork, command: ResetRule) -> Ack:
    gate = _lock_gate(work, command)
    after = reset_rule(gate.rule_info, command.changed_fields, work.now, command.by, command.declared)
    return _put_rule_info(work, command, gate, after, command.by)


def declare(work: UnitOfWork, command: DeclareRule) -> Ack:
    gate = _lock_gate(work, command)
    after = declare_rule(gate.rule_info, command.rule, command.owner, work.now)
    return _put_rule_info(work, command, gate, after, f"code of {command.owner}")


def close_gate_of(work: UnitOfWork, job: JobRecord, delay: float) -> None:
    """Close the job's group for `delay` seconds; without a group, close its task."""
    kind = GateKind.GROUP if job.group else GateKind.TASK
    name = job.queue if job.group else job.task
    work.close_gate((kind, name, job.group), work.now + delay)


def forget_worker(work: UnitOfWork, worker: str) -> None:
    """Drop the pause of a worker that has gone: it never comes back, because every start has a new id."""
    if any(gate.name == worker for gate in work.tables.gates(GateKind.WORKER)):
        work.tables.put_gates([GateRecord(GateKind.WORKER, worker)], work.now)
        work.invalidate_gates()


def _lock_gate(work: UnitOfWork, command: GateCommand) -> GateRecord:
    return work.lock_gates()[key_of(command)]


def _put_rule_info(
    work: UnitOfWork, command: GateCommand, gate: GateRecord, rule_info: RuleInfo | None, by: str
) -> Ack:
    if rule_info == gate.rule_info:
        return ALREADY
    after = replace(gate, rule_info=rule_info)
    if not (change := describe_change(gate.rule_info, rule_info)):  # only the owners of the declaration
        _put_gate(work, after)
        return ALREADY
    queue_rule = work.rule(gate.name) if gate.kind is GateKind.GROUP else NO_RULE
    rate = group_limits(after.rule, queue_rule)[1]
    if rate != group_limits(gate.rule, queue_rule)[1]:
        after = replace(after, tat=tat_for_new_rate(rate, gate.tat, work.now))  # guard: rate_changed
    _put_gate(work, after)
    if gate.kind is GateKind.QUEUE and after.rule.group_rate != gate.rule.group_rate:
        _apply_new_group_rate(work, gate.name, after.rule.group_rate)  # guard: group_rate_changed
    _emit(work, EventKind.RULE_CHANGED, command, by, change)
    return WRITTEN


def _apply_new_group_rate(work: UnitOfWork, queue: str, rate: Rate | None) -> None:
    """Limit what the groups without a rate of their own have used up to what the new rate allows."""
    changed = [
        gate.key
        for gate in work.tables.gates(GateKind.GROUP)
        if gate.name == queue and gate.rule.rate is None and gate.tat > work.now
    ]
    if changed:
        gates = work.tables.lock_gates(changed)
        work.put_gates([replace(gate, tat=tat_for_new_rate(rate, gate.tat, work.now)) for gate in gates])


def _put_gate(work: UnitOfWork, gate: GateRecord) -> None:
    work.put_gates([gate])
    if gate.kind is GateKind.GROUP:
        work.tables.unpark_groups([(gate.name, gate.group)])
    elif gate.kind is GateKind.QUEUE:
        work.tables.unpark_queue(gate.name)


def _emit(work: UnitOfWork, kind: EventKind, command: GateCommand, by: str = "", change: str = "") -> None:
    """Emit an event. It has no field for a worker or a group, so the text has their name."""
    match command.kind:
        case GateKind.QUEUE:
            work.emit(kind, queue=command.name, text=change_text("", change, by))
        case GateKind.TASK:
            work.emit(kind, task=command.name, text=change_text("", change, by))
        case GateKind.GROUP:
            work.emit(kind, queue=command.name, text=change_text(f"group {command.group}", change, by))
        case GateKind.WORKER:
            work.emit(kind, text=change_text(f"worker {command.name}", change, by))
