"""What tests ask of a store: one command for one answer of its kind, and everything there is to see."""

from itertools import count
from typing import Any

from errandry.core.answer import Answer, Claims, Inserted, Moved, Renewed, UpkeepResult
from errandry.core.command import Claim, Command, Insert, OperatorCommand, Outcome, Ref, Renew, Settle, Upkeep
from errandry.core.event import Event, EventKind
from errandry.core.job import JobRecord, NewJob
from errandry.core.query import Query
from errandry.core.stats import COUNTED
from errandry.store.contract import Store

_nonces = count(1)
FOREVER = 1e11


async def one(store: Store, command: Command) -> Answer:
    [answer] = await store.commit([command])
    return answer


async def insert(store: Store, *jobs: NewJob) -> Inserted:
    answer = await one(store, Insert(jobs))
    assert isinstance(answer, Inserted), answer
    return answer


async def claims(store: Store, **wanted: Any) -> Claims:
    """A claim with a nonce of its own, unless one is given."""
    answer = await one(store, Claim(**({"worker": "worker", "nonce": f"asked-{next(_nonces)}"} | wanted)))
    assert isinstance(answer, Claims), answer
    return answer


async def claim(store: Store, **wanted: Any) -> tuple[JobRecord, ...]:
    return (await claims(store, **wanted)).jobs


async def order(store: Store, limit: int = 100, **wanted: Any) -> list[str]:
    """The ids of what a claim takes, in its order."""
    return [job.id for job in await claim(store, limit=limit, **wanted)]


async def renew(store: Store, *refs: Ref, lease: float = 30.0) -> tuple[object, ...]:
    answer = await one(store, Renew(refs, lease))
    assert isinstance(answer, Renewed), answer
    return answer.acks


async def settle(store: Store, job: JobRecord, outcome: Outcome) -> Answer:
    return await one(store, Settle(Ref(job.id, job.fence), outcome))


async def operate(store: Store, command: OperatorCommand) -> Moved:
    answer = await one(store, command)
    assert isinstance(answer, Moved), answer
    return answer


async def upkeep(store: Store, limit: int = 1_000, dead: tuple[str, ...] = ()) -> UpkeepResult:
    answer = await one(store, Upkeep(limit, dead))
    assert isinstance(answer, UpkeepResult), answer
    return answer


async def current(store: Store, job: JobRecord) -> JobRecord:
    """The job as it is stored now."""
    [found] = await store.get([job.id])
    assert found is not None, f"there is no job {job.id}"
    return found


async def is_gone(store: Store, job: JobRecord) -> bool:
    return await store.get([job.id]) == [None]


async def jobs(store: Store, query: Query | None = None, page: int = 10_000) -> list[JobRecord]:
    """All jobs, newest first, read page by page."""
    found: list[JobRecord] = []
    cursor = None
    while True:
        part = await store.list(query or Query(), cursor, page)
        found += part.jobs
        cursor = part.cursor
        if cursor is None:
            return found


async def events(store: Store, after: str | None = None) -> list[Event]:
    found: list[Event] = []
    while True:
        part = await store.events(after)
        found += [entry.event for entry in part.entries]
        if not part.entries:
            return found
        after = part.cursor


async def kinds(store: Store, after: str | None = None) -> list[EventKind]:
    return [event.kind for event in await events(store, after)]


async def everything(store: Store) -> tuple[object, ...]:
    """All that a command which changes nothing must leave as it is."""
    return (
        await jobs(store),
        await store.counts(),
        await store.totals(),
        await store.paused(),
        await store.rules(),
        [(queue.name, queue.paused) for queue in await store.queues()],
        await store.schedules(),
        [await store.steps(job.id) for job in await jobs(store) if job.steps],
        await store.latest_cursor(),
    )


async def figures(store: Store, prefix: str = COUNTED) -> dict[str, dict[str, int]]:
    """All that was ever counted by time, added up by queue: outcomes, or times."""
    sums: dict[str, dict[str, int]] = {}
    for one in await store.stats(0.0, FOREVER):
        if one.name.startswith(prefix):
            own, name = sums.setdefault(one.queue, {}), one.name.removeprefix(prefix)
            own[name] = own.get(name, 0) + one.value
    return sums


async def conserved(store: Store) -> None:
    """P8: counters equal a recount, and what came into a queue is there or has left it."""
    recount: dict[str, dict[str, int]] = {}
    for job in await jobs(store):
        states = recount.setdefault(job.queue, {})
        states[job.state] = states.get(job.state, 0) + 1
    counts = {queue: states for queue, states in (await store.counts()).items() if states}
    assert counts == recount
    assert {info.name: info.states for info in await store.queues() if info.states} == recount
    told = {queue: totals for queue, totals in (await store.totals()).items() if totals}
    assert await figures(store) in (told, {})  # figures are forgotten in the end
    for queue, totals in (await store.totals()).items():
        there = sum(recount.get(queue, {}).values())
        came = totals.get("inserted", 0) + totals.get("moved_in", 0)
        left = totals.get("removed", 0) + totals.get("moved_out", 0)
        assert came == there + left, (queue, totals, recount)
