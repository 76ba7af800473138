"""Inserts: what is new becomes a job; what is there already, or whose unique key is held, does not."""

from collections.abc import Iterator, Mapping, Sequence

from msgspec.structs import replace

from errandry.core import check, move
from errandry.core.answer import Inserted
from errandry.core.command import Command, Insert, inserted_jobs, touched_ids
from errandry.core.flow import AwaitOutcome, check_children
from errandry.core.job import JobRecord, NewJob
from errandry.core.state import TABLE, Move
from errandry.core.unique import Conflict, UniqueKey
from errandry.errors import DuplicateJob
from errandry.store.execute import flow
from errandry.store.execute.capacity import make_room
from errandry.store.execute.unit_of_work import UnitOfWork

SENT = 250
"""So many new jobs are on their way to a store that is far, and written there, while the next are made."""
FEW = 50
"""So many go first, and 75 after them: the server has something to do, and takes longer for it than we do."""
_EARLY = frozenset((FEW, SENT // 2))


def load(ledger: UnitOfWork, commands: Sequence[Command]) -> None:
    """Fetch for a pass in one go the jobs it names, and who holds the unique keys it wants."""
    unique = [
        (new, new.unique) for command in commands for new in inserted_jobs(command) if new.unique is not None
    ]
    ledger.slots = {new.id: move.slot_of(new, wanted, ledger.now) for new, wanted in unique}
    ledger.load_keys(ledger.slots.values())
    holders = [
        ledger.holder(ledger.slots[new.id]) for new, _ in unique if new.on_conflict is Conflict.REPLACE
    ]
    ledger.load(
        [one for command in commands for one in touched_ids(command)] + [one for one in holders if one]
    )
    tables = ledger.tables
    if tables.reserves_numbers and not tables.has_gates:  # which may refuse some: their queue is full
        tables.expect_numbers(sum(_sure(ledger, [one for one in commands if isinstance(one, Insert)])))


def insert(ledger: UnitOfWork, command: Insert) -> Inserted:
    there = _there(ledger, command.jobs)
    ties = flow.ties(ledger, command.jobs, command.edges, there) if command.edges else None
    if ledger.tables.has_gates:
        fresh = [new for new in command.jobs if new.id not in there]
        make_room(ledger, [new for new in fresh if ties is None or not ties.children[new.id]])
    replaced = _made(ledger, command.jobs, there, ties)
    ids = touched_ids(command)
    if not there:
        return Inserted(ids)
    existed = frozenset(there.values()) - (set(ids) - there.keys())
    return Inserted(tuple([there.get(one, one) for one in ids]), existed, frozenset(replaced))


def awaited(ledger: UnitOfWork, job: JobRecord, outcome: AwaitOutcome) -> JobRecord:
    """`job`, which runs, with more children that it is about to wait for."""
    there = _there(ledger, outcome.jobs)
    ties = flow.ties(ledger, outcome.jobs, outcome.edges, there)
    check_children(job.id, job.children + ties.children[job.id])
    _made(ledger, outcome.jobs, there, ties, job.children)
    children = ties.children[job.id]
    return replace(job, children=job.children + children, open_children=children)


def _made(
    ledger: UnitOfWork,
    jobs: Sequence[NewJob],
    there: Mapping[str, str],
    ties: flow.NewEdges | None,
    first: int = 0,
) -> list[str]:
    """Make what is not there, and tie it; the jobs that were replaced."""
    tables, now, made = ledger.tables, ledger.now, Move.INSERT
    tables.expect_numbers(len(jobs) - len(there))
    replaced = []
    for count, new in enumerate(jobs, 1):
        if new.id not in there:
            family = (ties.children[new.id], ties.parents[new.id]) if ties else ()
            ledger.move(made, None, move.created(new, tables.next_number(), now, *family))
        elif new.on_conflict is Conflict.REPLACE and _replaced(ledger, there[new.id], new):
            replaced.append(there[new.id])
        if tables.has_latency and (count % SENT == 0 or count in _EARLY):
            ledger.send()
    if ties is not None:
        flow.tie(ledger, ties, {new.id for new in jobs if new.id not in there}, first)
    return replaced


def _there(ledger: UnitOfWork, jobs: Sequence[NewJob]) -> dict[str, str]:
    """The jobs that are not to be made, by their ids: for each the id of the one there in its place."""
    for new in jobs:
        check.sized("payload", new.payload, ledger.bounds.payload)
    there = {new.id: new.id for new in jobs if ledger.get(new.id) is not None}  # guard: id_idempotence
    if not ledger.slots:
        return there
    taken: dict[str, str] = {}
    for new, unique, slot in _slots(ledger, jobs):
        if new.id in there:
            continue
        holder = taken.get(slot) or ledger.holder(slot)  # guard: unique_key
        if holder is None:
            taken[slot] = new.id
        elif new.on_conflict is Conflict.RAISE and holder != new.id:
            raise DuplicateJob(unique.key, holder)
        else:
            there[new.id] = holder
    return there


def _replaced(ledger: UnitOfWork, holder: str, new: NewJob) -> bool:
    """Have the holder of a unique key do what `new` was to do, unless a worker has it, or has had it."""
    job = ledger.get(holder)
    if holder == new.id or job is None or job.state not in TABLE[Move.EDIT].leads:
        return False
    ledger.move(Move.EDIT, job, move.replaced(job, new, ledger.now))
    return True


def _sure(ledger: UnitOfWork, inserts: Sequence[Insert]) -> Iterator[int]:
    """How many jobs each of these is going to make, at least."""
    wanted: set[str] = set()
    for command in inserts:
        slots = [slot for *_, slot in _slots(ledger, command.jobs)]
        is_sure = not slots or (
            wanted.isdisjoint(slots) and len(set(slots)) == len(slots) and not any(map(ledger.holder, slots))
        )
        wanted.update(slots)
        if (
            is_sure
            and not command.edges
            and all(check.fits(new.payload, ledger.bounds.payload) for new in command.jobs)
        ):
            yield sum(ledger.get(new.id) is None for new in command.jobs)


def _slots(ledger: UnitOfWork, jobs: Sequence[NewJob]) -> Iterator[tuple[NewJob, UniqueKey, str]]:
    for new in jobs:
        if new.unique is not None:
            yield new, new.unique, ledger.slots[new.id]
