"""Operator commands on gates: pause, resume, and set rules."""

from msgspec.structs import replace

from errandry.core.answer import ALREADY, WRITTEN, Ack
from errandry.core.event import EventKind
from errandry.core.gate import GateKind, GateRecord, Pause, PauseRecord, PutRule, Resume, RuleInfo
from errandry.core.job import JobRecord
from errandry.core.rule import NO_RULE
from errandry.store.execute.unit_of_work import UnitOfWork

GateCommand = Pause | Resume | PutRule


def pause(work: UnitOfWork, command: Pause) -> Ack:
    gate = _lock_gate(work, command)
    if gate.paused is not None:
        return ALREADY
    _put_gate(work, replace(gate, paused=PauseRecord(work.now, command.by)))
    _emit(work, EventKind.PAUSED, command, command.by)
    return WRITTEN


def resume(work: UnitOfWork, command: Resume) -> Ack:
    gate = _lock_gate(work, command, create=False)
    if gate.paused is None:
        return ALREADY
    _put_gate(work, replace(gate, paused=None))
    _emit(work, EventKind.RESUMED, command)
    return WRITTEN


def put_rule(work: UnitOfWork, command: PutRule) -> Ack:
    gate = _lock_gate(work, command, create=command.rule != NO_RULE)
    if gate.rule == command.rule:
        return ALREADY
    ruling = None if command.rule == NO_RULE else RuleInfo(command.rule, work.now, command.by)
    _put_gate(work, replace(gate, ruling=ruling))
    _emit(work, EventKind.RULE_CHANGED, command, command.by)
    return WRITTEN


def close_gate_of(work: UnitOfWork, job: JobRecord, delay: float) -> None:
    """Close the job's group for `delay` seconds; without a group, close its task."""
    kind = GateKind.GROUP if job.group else GateKind.TASK
    name = job.queue if job.group else job.task
    work.close_gate((kind, name, job.group), work.now + delay)


def forget_worker(work: UnitOfWork, worker: str) -> None:
    """Drop the pause of a worker that has gone: it never comes back, because every start has a new id."""
    if any(gate.name == worker for gate in work.tables.gates(GateKind.WORKER)):
        _put_gate(work, GateRecord(GateKind.WORKER, worker))


def _lock_gate(work: UnitOfWork, command: GateCommand, create: bool = True) -> GateRecord:
    return work.tables.gate((command.kind, command.name, command.group), create)


def _put_gate(work: UnitOfWork, gate: GateRecord) -> None:
    work.tables.put_gates([gate], work.now)
    work.invalidate_gates()
    if gate.kind is GateKind.GROUP:
        work.tables.unpark_groups([(gate.name, gate.group)])
    elif gate.kind is GateKind.QUEUE:
        work.tables.unpark_queue(gate.name)


def _emit(work: UnitOfWork, kind: EventKind, command: GateCommand, by: str = "") -> None:
    """Emit an event. It has no field for a worker or a group, so the text has their name."""
    match command.kind:
        case GateKind.QUEUE:
            work.emit(kind, queue=command.name, text=by)
        case GateKind.TASK:
            work.emit(kind, task=command.name, text=by)
        case GateKind.GROUP:
            work.emit(kind, queue=command.name, text=command.group)
        case GateKind.WORKER:
            work.emit(kind, text=command.name)
