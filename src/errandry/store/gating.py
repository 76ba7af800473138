"""What operators do to gates: pause and resume them, and give them rules."""

from msgspec.structs import replace

from errandry.core.answer import ALREADY, WRITTEN, Mark
from errandry.core.event import Kind
from errandry.core.gate import Gate, GateKind, Pause, Pausing, PutRule, Resume, Ruling
from errandry.core.job import Job
from errandry.core.rule import NO_RULE
from errandry.store.ledger import Ledger

Command = Pause | Resume | PutRule


def pause(ledger: Ledger, command: Pause) -> Mark:
    gate = _gate(ledger, command)
    if gate.paused is not None:
        return ALREADY
    _put(ledger, replace(gate, paused=Pausing(ledger.now, command.by)))
    _tell(ledger, Kind.PAUSED, command, command.by)
    return WRITTEN


def resume(ledger: Ledger, command: Resume) -> Mark:
    gate = _gate(ledger, command, make=False)
    if gate.paused is None:
        return ALREADY
    _put(ledger, replace(gate, paused=None))
    _tell(ledger, Kind.RESUMED, command)
    return WRITTEN


def put_rule(ledger: Ledger, command: PutRule) -> Mark:
    gate = _gate(ledger, command, make=command.rule != NO_RULE)
    if gate.rule == command.rule:
        return ALREADY
    ruling = None if command.rule == NO_RULE else Ruling(command.rule, ledger.now, command.by)
    _put(ledger, replace(gate, ruling=ruling))
    _tell(ledger, Kind.RULED, command, command.by)
    return WRITTEN


def close_for(ledger: Ledger, job: Job, delay: float) -> None:
    """Nothing else of the job's group is claimed for so long; without a group, nothing else of its task."""
    kind = GateKind.GROUP if job.group else GateKind.TASK
    name = job.queue if job.group else job.task
    ledger.shut((kind, name, job.group), ledger.now + delay)


def forget_worker(ledger: Ledger, worker: str) -> None:
    """A worker that is gone is not paused either: every start has an id of its own."""
    if any(gate.name == worker for gate in ledger.tables.gates(GateKind.WORKER)):
        _put(ledger, Gate(GateKind.WORKER, worker))


def _gate(ledger: Ledger, command: Command, make: bool = True) -> Gate:
    return ledger.tables.gate((command.kind, command.name, command.group), make)


def _put(ledger: Ledger, gate: Gate) -> None:
    ledger.tables.put_gates([gate], ledger.now)
    ledger.forget_gates()
    if gate.kind is GateKind.GROUP:
        ledger.tables.open_groups([(gate.name, gate.group)])
    elif gate.kind is GateKind.QUEUE:
        ledger.tables.open_queue(gate.name)


def _tell(ledger: Ledger, kind: Kind, command: Command, by: str = "") -> None:
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
