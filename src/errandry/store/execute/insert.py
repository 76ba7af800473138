"""Insert jobs, except those whose id exists already or whose unique key another job holds."""

from collections.abc import Iterator, Mapping, Sequence

from msgspec.structs import replace

from errandry.core import check, move
from errandry.core.answer import Inserted
from errandry.core.command import Command, Insert, inserted_jobs, touched_ids
from errandry.core.flow import AwaitOutcome, check_child_count
from errandry.core.job import JobRecord, NewJob
from errandry.core.state import TABLE, Move
from errandry.core.unique import Conflict, UniqueKey
from errandry.errors import DuplicateJob
from errandry.store.execute import flow
from errandry.store.execute.capacity import make_room
from errandry.store.execute.unit_of_work import UnitOfWork

FLUSH_BATCH = 250
"""Maximum number of new jobs per write, where each write costs a round trip."""
FIRST_FLUSH = 50
"""Number of new jobs in the first write. It is small, so that the server starts early."""
_EARLY_FLUSHES = frozenset((FIRST_FLUSH, FLUSH_BATCH // 2))


def load(work: UnitOfWork, commands: Sequence[Command]) -> None:
    """Fetch the jobs that the commands name and the holders of the keys they want, in one query each."""
    unique = [
        (new, new.unique) for command in commands for new in inserted_jobs(command) if new.unique is not None
    ]
    work.slots = {new.id: move.slot_of(new, wanted, work.now) for new, wanted in unique}
    work.load_keys(work.slots.values())
    holders = [work.holder(work.slots[new.id]) for new, _ in unique if new.on_conflict is Conflict.REPLACE]
    work.load(
        [job_id for command in commands for job_id in touched_ids(command)]
        + [holder for holder in holders if holder]
    )
    tables = work.tables
    if tables.reserves_numbers and not tables.has_gates:  # with gates, a full queue may refuse jobs
        inserts = [command for command in commands if isinstance(command, Insert)]
        tables.expect_numbers(sum(_certain_inserts(work, inserts)))


def insert(work: UnitOfWork, command: Insert) -> Inserted:
    existing = _existing_jobs(work, command.jobs)
    edges = flow.new_edges(work, command.jobs, command.edges, existing) if command.edges else None
    if work.tables.has_gates:
        fresh = [new for new in command.jobs if new.id not in existing]
        make_room(work, [new for new in fresh if edges is None or not edges.children[new.id]])
    replaced = _create_jobs(work, command.jobs, existing, edges)
    ids = touched_ids(command)
    if not existing:
        return Inserted(ids)
    existed = frozenset(existing.values()) - (set(ids) - existing.keys())
    return Inserted(tuple([existing.get(job_id, job_id) for job_id in ids]), existed, frozenset(replaced))


def insert_awaited_children(work: UnitOfWork, job: JobRecord, outcome: AwaitOutcome) -> JobRecord:
    """Insert children that a running job is about to wait for; return the job with them counted."""
    existing = _existing_jobs(work, outcome.jobs)
    edges = flow.new_edges(work, outcome.jobs, outcome.edges, existing)
    check_child_count(job.id, job.children + edges.children[job.id])
    _create_jobs(work, outcome.jobs, existing, edges, job.children)
    children = edges.children[job.id]
    return replace(job, children=job.children + children, open_children=children)


def _create_jobs(
    work: UnitOfWork,
    jobs: Sequence[NewJob],
    existing: Mapping[str, str],
    edges: flow.NewEdges | None,
    first: int = 0,
) -> list[str]:
    """Insert the jobs that do not exist, and their edges; return the ids of jobs that were replaced."""
    tables, now, insertion = work.tables, work.now, Move.INSERT
    tables.expect_numbers(len(jobs) - len(existing))
    replaced = []
    for count, new in enumerate(jobs, 1):
        if new.id not in existing:
            family = (edges.children[new.id], edges.parents[new.id]) if edges else ()
            work.move(insertion, None, move.created(new, tables.next_number(), now, *family))
        elif new.on_conflict is Conflict.REPLACE and _replace_job(work, existing[new.id], new):
            replaced.append(existing[new.id])
        if tables.has_latency and (count % FLUSH_BATCH == 0 or count in _EARLY_FLUSHES):
            work.write_jobs()
    if edges is not None:
        flow.add_edges(work, edges, {new.id for new in jobs if new.id not in existing}, first)
    return replaced


def _existing_jobs(work: UnitOfWork, jobs: Sequence[NewJob]) -> dict[str, str]:
    """Return the new ids that must not be inserted, each with the id of the existing job in its place."""
    for new in jobs:
        check.size("payload", new.payload, work.limits.payload)
    existing = {new.id: new.id for new in jobs if work.get(new.id) is not None}  # guard: id_idempotence
    if not work.slots:
        return existing
    taken: dict[str, str] = {}
    for new, unique, slot in _jobs_with_slots(work, jobs):
        if new.id in existing:
            continue
        holder = taken.get(slot) or work.holder(slot)  # guard: unique_key
        if holder is None:
            taken[slot] = new.id
        elif new.on_conflict is Conflict.RAISE and holder != new.id:
            raise DuplicateJob(unique.key, holder)
        else:
            existing[new.id] = holder
    return existing


def _replace_job(work: UnitOfWork, holder: str, new: NewJob) -> bool:
    """Give the key's holder the payload and times of `new`; False if a worker has claimed it before."""
    job = work.get(holder)
    if holder == new.id or job is None or job.state not in TABLE[Move.EDIT].leads:
        return False
    work.move(Move.EDIT, job, move.replaced(job, new, work.now))
    return True


def _certain_inserts(work: UnitOfWork, inserts: Sequence[Insert]) -> Iterator[int]:
    """Yield for each insert the number of jobs it is certain to insert."""
    wanted: set[str] = set()
    for command in inserts:
        slots = [slot for *_, slot in _jobs_with_slots(work, command.jobs)]
        is_certain = not slots or (
            wanted.isdisjoint(slots) and len(set(slots)) == len(slots) and not any(map(work.holder, slots))
        )
        wanted.update(slots)
        if (
            is_certain
            and not command.edges
            and all(check.fits(new.payload, work.limits.payload) for new in command.jobs)
        ):
            yield sum(work.get(new.id) is None for new in command.jobs)


def _jobs_with_slots(work: UnitOfWork, jobs: Sequence[NewJob]) -> Iterator[tuple[NewJob, UniqueKey, str]]:
    for new in jobs:
        if new.unique is not None:
            yield new, new.unique, work.slots[new.id]
