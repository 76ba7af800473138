"""Helpers for tests of a store: send one command and check the type of its answer; read the stored jobs."""

from itertools import count
from typing import Any

from errandry.core.answer import Answer, Claims, Inserted, Moved, Renewed, UpkeepResult
from errandry.core.command import Claim, Command, Insert, OperatorCommand, Outcome, Ref, Renew, Settle, Upkeep
from errandry.core.event import EventKind, EventRecord
from errandry.core.job import JobRecord, NewJob
from errandry.core.query import Query
from errandry.core.stats import TOTAL_PREFIX
from errandry.store.contract import Store

_nonces = count(1)
FAR_FUTURE = 1e11
"""A time after the clock of every test, in seconds since 1970."""


async def send(store: Store, command: Command) -> Answer:
    """Commit a pass of this one command."""
    [answer] = await store.commit([command])
    return answer


async def insert(store: Store, *jobs: NewJob) -> Inserted:
    answer = await send(store, Insert(jobs))
    assert isinstance(answer, Inserted), answer
    return answer


async def send_claim(store: Store, **fields: Any) -> Claims:
    """Send a claim, under a new nonce unless `fields` has one."""
    answer = await send(store, Claim(**({"worker": "worker", "nonce": f"nonce-{next(_nonces)}"} | fields)))
    assert isinstance(answer, Claims), answer
    return answer


async def claim(store: Store, **fields: Any) -> tuple[JobRecord, ...]:
    """Send a claim and return its jobs."""
    return (await send_claim(store, **fields)).jobs


async def claim_ids(store: Store, limit: int = 100, **fields: Any) -> list[str]:
    """Claim jobs and return their ids in the order of the answer."""
    return [job.id for job in await claim(store, limit=limit, **fields)]


async def renew(store: Store, *refs: Ref, lease: float = 30.0) -> tuple[object, ...]:
    answer = await send(store, Renew(refs, lease))
    assert isinstance(answer, Renewed), answer
    return answer.acks


async def settle(store: Store, job: JobRecord, outcome: Outcome) -> Answer:
    return await send(store, Settle(Ref(job.id, job.fence), outcome))


async def operate(store: Store, command: OperatorCommand) -> Moved:
    answer = await send(store, command)
    assert isinstance(answer, Moved), answer
    return answer


async def run_upkeep(
    store: Store, limit: int = 1_000, dead: tuple[str, ...] = (), worker: str = ""
) -> UpkeepResult:
    answer = await send(store, Upkeep(limit, dead, worker=worker))
    assert isinstance(answer, UpkeepResult), answer
    return answer


async def current_job(store: Store, job: JobRecord) -> JobRecord:
    """The job as it is stored now."""
    [stored] = await store.get([job.id])
    assert stored is not None, f"there is no job {job.id}"
    return stored


async def is_gone(store: Store, job: JobRecord) -> bool:
    return await store.get([job.id]) == [None]


async def list_jobs(store: Store, query: Query | None = None, page_size: int = 10_000) -> list[JobRecord]:
    """All jobs, newest first, read page by page."""
    result: list[JobRecord] = []
    cursor = None
    while True:
        chunk = await store.list(query or Query(), cursor, page_size)
        result += chunk.jobs
        cursor = chunk.cursor
        if cursor is None:
            return result


async def read_events(store: Store, after: str | None = None) -> list[EventRecord]:
    result: list[EventRecord] = []
    while True:
        chunk = await store.events(after)
        result += [entry.event for entry in chunk.entries]
        if not chunk.entries:
            return result
        after = chunk.cursor


async def event_kinds(store: Store, after: str | None = None) -> list[EventKind]:
    return [event.kind for event in await read_events(store, after)]


async def snapshot(store: Store) -> tuple[object, ...]:
    """Everything that a store shows; two snapshots are equal if no command between them changed anything."""
    return (
        await list_jobs(store),
        await store.counts(),
        await store.totals(),
        await store.paused(),
        await store.rules(),
        [(queue.name, queue.paused) for queue in await store.queues()],
        await store.schedules(),
        [await store.steps(job.id) for job in await list_jobs(store) if job.steps],
        await store.latest_cursor(),
    )


async def sum_stats(store: Store, prefix: str = TOTAL_PREFIX) -> dict[str, dict[str, int]]:
    """The statistics of all time by queue and name, for the names that begin with `prefix`."""
    sums: dict[str, dict[str, int]] = {}
    for stat in await store.stats(0.0, FAR_FUTURE):
        if stat.name.startswith(prefix):
            queue_sums, name = sums.setdefault(stat.queue, {}), stat.name.removeprefix(prefix)
            queue_sums[name] = queue_sums.get(name, 0) + stat.value
    return sums


async def check_counters(store: Store) -> None:
    """Assert that no job is lost from the counters (promise P8 in docs/proof.md).

    The counters equal a recount, and a queue holds as many jobs as entered it minus those that left it.
    """
    recount: dict[str, dict[str, int]] = {}
    for job in await list_jobs(store):
        states = recount.setdefault(job.queue, {})
        states[job.state] = states.get(job.state, 0) + 1
    counts = {queue: states for queue, states in (await store.counts()).items() if states}
    assert counts == recount
    assert {info.name: info.states for info in await store.queues() if info.states} == recount
    nonempty_totals = {queue: totals for queue, totals in (await store.totals()).items() if totals}
    assert await sum_stats(store) in (nonempty_totals, {})  # old statistics are deleted, totals never
    for queue, totals in (await store.totals()).items():
        stored = sum(recount.get(queue, {}).values())
        entered = totals.get("inserted", 0) + totals.get("moved_in", 0)
        left = totals.get("removed", 0) + totals.get("moved_out", 0)
        assert entered == stored + left, (queue, totals, recount)
