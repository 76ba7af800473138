"""What operators do to gates: pause and resume them, and give them rules."""

from msgspec.structs import replace

from errandry.core.answer import ALREADY, WRITTEN, Ack
from errandry.core.event import EventKind
from errandry.core.gate import GateKind, GateRecord, Pause, PauseInfo, PutRule, Resume, RuleInfo
from errandry.core.job import JobRecord
from errandry.core.rule import NO_RULE
from errandry.store.execute.unit_of_work import UnitOfWork

GateCommand = Pause | Resume | PutRule


def pause(ledger: UnitOfWork, command: Pause) -> Ack:
    gate = _gate(ledger, command)
    if gate.paused is not None:
        return ALREADY
    _put(ledger, replace(gate, paused=PauseInfo(ledger.now, command.by)))
    _tell(ledger, EventKind.PAUSED, command, command.by)
    return WRITTEN


def resume(ledger: UnitOfWork, command: Resume) -> Ack:
    gate = _gate(ledger, command, make=False)
    if gate.paused is None:
        return ALREADY
    _put(ledger, replace(gate, paused=None))
    _tell(ledger, EventKind.RESUMED, command)
    return WRITTEN


def put_rule(ledger: UnitOfWork, command: PutRule) -> Ack:
    gate = _gate(ledger, command, make=command.rule != NO_RULE)
    if gate.rule == command.rule:
        return ALREADY
    ruling = None if command.rule == NO_RULE else RuleInfo(command.rule, ledger.now, command.by)
    _put(ledger, replace(gate, ruling=ruling))
    _tell(ledger, EventKind.RULE_CHANGED, command, command.by)
    return WRITTEN


def close_for(ledger: UnitOfWork, job: JobRecord, delay: float) -> None:
    """Nothing else of the job's group is claimed for so long; without a group, nothing else of its task."""
    kind = GateKind.GROUP if job.group else GateKind.TASK
    name = job.queue if job.group else job.task
    ledger.shut((kind, name, job.group), ledger.now + delay)


def forget_worker(ledger: UnitOfWork, worker: str) -> None:
    """A worker that is gone is not paused either: every start has an id of its own."""
    if any(gate.name == worker for gate in ledger.tables.gates(GateKind.WORKER)):
        _put(ledger, GateRecord(GateKind.WORKER, worker))


def _gate(ledger: UnitOfWork, command: GateCommand, make: bool = True) -> GateRecord:
    return ledger.tables.gate((command.kind, command.name, command.group), make)


def _put(ledger: UnitOfWork, gate: GateRecord) -> None:
    ledger.tables.put_gates([gate], ledger.now)
    ledger.forget_gates()
    if gate.kind is GateKind.GROUP:
        ledger.tables.unpark_groups([(gate.name, gate.group)])
    elif gate.kind is GateKind.QUEUE:
        ledger.tables.unpark_queue(gate.name)


def _tell(ledger: UnitOfWork, kind: EventKind, command: GateCommand, by: str = "") -> None:
    """An event has no field for a worker or a group: its name is the text."""
    match command.kind:
        case GateKind.QUEUE:
            ledger.tell(kind, queue=command.name, text=by)
        case GateKind.TASK:
            ledger.tell(kind, task=command.name, text=by)
        case GateKind.GROUP:
            ledger.tell(kind, queue=command.name, text=command.group)
        case GateKind.WORKER:
            ledger.tell(kind, text=command.name)
