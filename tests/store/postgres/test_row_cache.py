"""The row cache of a PostgreSQL store: it returns no stale job, and its size is bounded."""

import asyncio
import threading
from collections.abc import Callable
from itertools import count
from typing import Any

import psycopg
import pytest
from msgspec.structs import replace

from errandry.core import move
from errandry.core.answer import WRITTEN, Ack, Answer, Claims, LossCause, Lost, Moved, Renewed
from errandry.core.command import (
    CancelJobs,
    Claim,
    Command,
    CompleteOutcome,
    FailOutcome,
    Note,
    PutStep,
    Ref,
    ReleaseOutcome,
    RemoveJobs,
    Renew,
    RetryOutcome,
    Settle,
    SnoozeOutcome,
    Start,
    Upkeep,
    touched_ids,
)
from errandry.core.job import AttemptError, JobRecord, LogLine, NewJob, Progress
from errandry.core.state import Reason, State
from errandry.errors import CommandFailed
from errandry.store.postgres import driver, row_cache
from errandry.store.postgres.driver import PostgresStore
from errandry.store.postgres.row_cache import JOB_OVERHEAD_BYTES, RowCache, size_of
from errandry.testing.clock import FakeClock
from tests.faults.process import wait_until
from tests.new_jobs import insert
from tests.store.server import server

LOCK_STATEMENT = "lock_live"
"""The statement that reads the whole rows of unfinished jobs."""

_nonces = count()

BLANK = move.claimed(
    move.created(NewJob(id="job", task="task", payload="{}"), 1, 0.0), "w", 30.0, start=True, now=0.0
)


def ref(job: JobRecord) -> Ref:
    return Ref(job.id, job.fence)


def row_cache_of(store: PostgresStore) -> RowCache:
    assert store._open is not None
    return store._open.row_cache


def cached_jobs(store: PostgresStore, *ids: str) -> list[JobRecord]:
    entries = row_cache_of(store)._entries
    return [entries[job_id][1] for job_id in ids if job_id in entries]


async def insert_and_claim(store: PostgresStore, *ids: str, **fields: Any) -> tuple[JobRecord, ...]:
    await store.commit([insert(*ids, **fields)])
    return await claim(store, len(ids))


async def claim(
    store: PostgresStore, limit: int, worker: str = "w", start: bool = True
) -> tuple[JobRecord, ...]:
    nonce = str(next(_nonces))
    [answer] = await store.commit([Claim(worker=worker, nonce=nonce, limit=limit, start=start)])
    assert isinstance(answer, Claims)
    return answer.jobs


async def send(store: PostgresStore, command: Command) -> Answer:
    [answer] = await store.commit([command])
    return answer


async def current(store: PostgresStore, job: JobRecord) -> JobRecord:
    [current] = await store.get([job.id])
    assert current is not None
    return current


def waits_for_a_lock() -> bool:
    with psycopg.connect(server().url()) as db:
        return bool(db.execute("SELECT 1 FROM pg_locks WHERE NOT granted").fetchall())


async def test_a_claimed_job_is_not_read_again(store: PostgresStore, sent: list[str]) -> None:
    jobs = await insert_and_claim(store, "a", "b", "c")
    assert cached_jobs(store, "a", "b", "c") == list(jobs)
    sent.clear()

    answers = await store.commit([Settle(ref(job), CompleteOutcome("1")) for job in jobs])

    assert answers == [WRITTEN] * 3
    assert LOCK_STATEMENT not in sent
    assert [(await current(store, job)).state for job in jobs] == [State.COMPLETED] * 3
    assert len(row_cache_of(store)) == row_cache_of(store).size == 0


@pytest.mark.parametrize(
    "commands",
    [
        lambda job: [Renew((ref(job),), 60.0)],
        lambda job: [Note(ref(job), Progress(0.5, "half"), (LogLine(1.0, "line"),))],
        lambda job: [PutStep(ref(job), "step", "1")],
        lambda job: [Renew((ref(job),), 60.0), Note(ref(job), Progress(1), ()), PutStep(ref(job), "step")],
        lambda job: [Start(ref(job))],
        lambda job: [
            Start(ref(job)),
            Note(ref(job), None, (LogLine(1.0, "line"),)),
            Renew((ref(job),), 90.0),
        ],
    ],
)
async def test_a_job_is_cached_as_it_was_last_written(
    store: PostgresStore,
    clock: FakeClock,
    sent: list[str],
    commands: Callable[[JobRecord], list[Command]],
) -> None:
    is_started = not isinstance(commands(BLANK)[0], Start)
    await store.commit([insert("a", metadata="1", tags=("t",), deadline=clock.time() + 1e6)])
    [job] = await claim(store, 1, start=is_started)
    clock.advance(1.0)

    for _ in range(2):
        assert not any(isinstance(answer, Lost | Exception) for answer in await store.commit(commands(job)))

        assert cached_jobs(store, "a") == [await current(store, job)]
    sent.clear()
    assert await send(store, Settle(ref(job), CompleteOutcome())) is WRITTEN
    assert LOCK_STATEMENT not in sent


async def test_a_job_inserted_and_claimed_in_one_pass_is_cached_as_claimed(
    store: PostgresStore, sent: list[str]
) -> None:
    _, claims = await store.commit([insert("a"), Claim(worker="w", nonce="n")])
    assert isinstance(claims, Claims)
    [job] = claims.jobs

    assert cached_jobs(store, "a") == [job] == [await current(store, job)]
    sent.clear()
    assert await send(store, Settle(ref(job), CompleteOutcome())) is WRITTEN
    assert LOCK_STATEMENT not in sent


async def test_only_held_jobs_are_cached(store: PostgresStore) -> None:
    [job] = await insert_and_claim(store, "a")
    await store.commit([insert("b", "c")])
    assert len(row_cache_of(store)) == 1

    await store.commit([Settle(ref(job), ReleaseOutcome())])

    assert len(row_cache_of(store)) == 0


# Changes by other processes.


async def test_a_cancel_by_another_process_wins(store: PostgresStore, other: PostgresStore) -> None:
    renewed, settled = await insert_and_claim(store, "a", "b")
    assert isinstance(await send(other, CancelJobs(ids=("a", "b"))), Moved)

    assert await send(store, Renew((ref(renewed),), 60.0)) == Renewed((Ack.CANCEL,))
    assert await send(store, Settle(ref(settled), CompleteOutcome())) is WRITTEN
    assert (await current(store, settled)).state is State.CANCELED


async def test_a_note_by_another_process_is_kept(store: PostgresStore, other: PostgresStore) -> None:
    [job] = await insert_and_claim(store, "a")
    await other.commit([Note(ref(job), Progress(0.5), (LogLine(1.0, "theirs"),))])

    await store.commit([Note(ref(job), None, (LogLine(2.0, "ours"),))])

    noted = await current(store, job)
    assert (noted.progress, [log.text for log in noted.logs]) == (Progress(0.5), ["theirs", "ours"])
    assert cached_jobs(store, "a") == [noted]


async def test_a_renewal_by_another_process_counts(
    store: PostgresStore, other: PostgresStore, clock: FakeClock
) -> None:
    [job] = await insert_and_claim(store, "a")
    await other.commit([Renew((ref(job),), 3_600.0)])
    clock.advance(60.0)

    assert await send(store, Settle(ref(job), CompleteOutcome())) is WRITTEN


async def test_a_job_that_another_process_has_claimed_is_lost(
    store: PostgresStore, other: PostgresStore, clock: FakeClock
) -> None:
    [job] = await insert_and_claim(store, "a")
    clock.advance(31.0)
    await other.commit([Upkeep()])
    clock.advance(3_600.0)
    [again] = await claim(other, 1, "another")
    assert again.fence > job.fence

    assert await send(store, Settle(ref(job), CompleteOutcome())) == Lost(LossCause.OTHER_FENCE)
    assert len(row_cache_of(store)) == 0
    assert await send(other, Settle(ref(again), CompleteOutcome())) is WRITTEN


async def test_a_job_that_another_process_has_settled_is_found_in_history(
    store: PostgresStore, other: PostgresStore
) -> None:
    done, removed = await insert_and_claim(store, "a", "b")
    await other.commit([Settle(ref(done), CompleteOutcome()), Settle(ref(removed), CompleteOutcome())])
    await other.commit([RemoveJobs(ids=("b",))])

    assert await store.commit(
        [Settle(ref(done), CompleteOutcome()), Settle(ref(removed), CompleteOutcome())]
    ) == [
        Ack.ALREADY,
        Lost(LossCause.NOT_HELD),
    ]
    assert len(row_cache_of(store)) == 0


async def test_a_manual_update_of_the_row_is_seen(store: PostgresStore, db: psycopg.Connection[Any]) -> None:
    [job] = await insert_and_claim(store, "a")
    db.execute("UPDATE live SET max_attempts = 1")

    await store.commit([Settle(ref(job), RetryOutcome())])

    assert (await current(store, job)).state is State.FAILED


async def test_a_change_during_the_wait_for_the_lock_is_seen(
    store: PostgresStore, db: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "LOCK_TIMEOUTS", ("30s",) * 3)
    [job] = await insert_and_claim(store, "a")
    with db.transaction():
        db.execute("UPDATE live SET cancel_requested = true")
        settling = asyncio.create_task(send(store, Settle(ref(job), CompleteOutcome())))
        await wait_until(waits_for_a_lock)

    assert await settling is WRITTEN
    assert (await current(store, job)).state is State.CANCELED


async def test_a_lock_does_not_invalidate_the_cached_row(
    store: PostgresStore, db: psycopg.Connection[Any], sent: list[str]
) -> None:
    [job] = await insert_and_claim(store, "a")
    with db.transaction():
        db.execute("SELECT 1 FROM live FOR NO KEY UPDATE")
    sent.clear()

    assert await send(store, Settle(ref(job), CompleteOutcome())) is WRITTEN
    assert LOCK_STATEMENT not in sent


async def test_a_reused_transaction_id_does_not_validate_a_cached_row(
    store: PostgresStore, db: psycopg.Connection[Any]
) -> None:
    """After a crash, a server with fsync off assigns transaction ids again."""
    [job] = await insert_and_claim(store, "a")
    db.execute("UPDATE live SET cancel_requested = true, updated_at = updated_at + 0.001")
    [(number,)] = db.execute("SELECT xmin::text::bigint FROM live").fetchall()
    row_cache_of(store).save(int(number).to_bytes(4), {job.id: job})

    await store.commit([Settle(ref(job), CompleteOutcome())])

    assert (await current(store, job)).state is State.CANCELED


async def test_one_pass_handles_cached_uncached_changed_and_new_jobs(
    store: PostgresStore, other: PostgresStore
) -> None:
    mine, changed = await insert_and_claim(store, "d", "c")
    [theirs] = await insert_and_claim(other, "b")
    await other.commit([CancelJobs(ids=("c",))])

    answers = await store.commit(
        [
            Settle(ref(mine), CompleteOutcome()),
            Settle(ref(changed), CompleteOutcome()),
            Settle(ref(theirs), CompleteOutcome()),
            insert("a", "b"),
        ]
    )

    assert answers[:3] == [WRITTEN] * 3
    states = {job.id: job.state for job in await store.get(["a", "b", "c", "d"]) if job is not None}
    assert states == {
        "a": State.WAITING,
        "b": State.COMPLETED,
        "c": State.CANCELED,
        "d": State.COMPLETED,
    }


# Passes that were not written.


async def test_a_pass_that_was_rolled_back_does_not_change_the_cache(
    store: PostgresStore, db: psycopg.Connection[Any], sent: list[str]
) -> None:
    [job] = await insert_and_claim(store, "a")
    db.execute("ALTER TABLE live ADD CONSTRAINT odd CHECK (progress IS NULL)")
    try:
        assert isinstance(await send(store, Note(ref(job), Progress(0.5), ())), CommandFailed)
    finally:
        db.execute("ALTER TABLE live DROP CONSTRAINT odd")

    assert cached_jobs(store, "a") == [job] == [await current(store, job)]
    sent.clear()
    assert await send(store, Renew((ref(job),), 60.0)) == Renewed((Ack.HELD,))
    assert LOCK_STATEMENT not in sent


async def test_the_cache_is_empty_after_the_store_is_opened_again(store: PostgresStore) -> None:
    [job] = await insert_and_claim(store, "a")
    await store.close()
    await store.open()

    assert len(row_cache_of(store)) == 0
    assert await send(store, Settle(ref(job), CompleteOutcome())) is WRITTEN


# The size.


def cached_job(number: int, **fields: Any) -> JobRecord:
    return replace(BLANK, id=f"job-{number}", **fields)


def test_the_row_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_cache, "BYTES_MAX", 100 * JOB_OVERHEAD_BYTES)
    cache = RowCache()

    for number in range(1_000):
        cache.save(b"n", {f"job-{number}": cached_job(number)})

    assert 80 <= len(cache) < 100
    assert cache.size <= 100 * JOB_OVERHEAD_BYTES
    assert cache.missing_ids(["job-0", "job-999"]) == ["job-0"]


@pytest.mark.parametrize(
    "fields",
    [
        {"payload": "x" * 50_000},
        {"metadata": "x" * 50_000},
        {"logs": (LogLine(1.0, "x" * 2_000),) * 25},
        {"errors": (AttemptError(1, "w", 1.0, 2.0, Reason.ERROR, traceback="x" * 50_000),)},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_large_jobs_count_with_their_size(fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_cache, "BYTES_MAX", 1_000_000)
    cache = RowCache()

    for number in range(100):
        cache.save(b"n", {f"job-{number}": cached_job(number, **fields)})

    assert 10 < len(cache) < 20
    assert cache.size <= 1_000_000


@pytest.mark.parametrize(
    ("command", "is_self_contained"),
    [
        (Settle(Ref("job-1", 1), CompleteOutcome("1")), True),
        (Settle(Ref("job-1", 1), FailOutcome()), True),
        (Settle(Ref("job-1", 1), RetryOutcome()), True),
        (Renew((Ref("job-1", 1),), 30.0), True),
        (Settle(Ref("job-1", 1), RetryOutcome(pause_group=True)), False),
        (Settle(Ref("job-1", 1), SnoozeOutcome(1.0)), False),
        (Settle(Ref("child", 1), CompleteOutcome("1")), False),
        (Renew((Ref("job-1", 1), Ref("parent", 1)), 30.0), False),
        (Settle(Ref("unknown", 1), CompleteOutcome("1")), False),
        (CancelJobs(ids=("job-1",)), False),
        (Upkeep(), False),
    ],
)
def test_commands_on_cached_jobs_without_relatives_are_self_contained(
    command: Command, is_self_contained: bool
) -> None:
    cache = RowCache()
    cache.save(
        b"n", {"job-1": cached_job(1), "child": cached_job(2, parents=1), "parent": cached_job(3, children=1)}
    )

    commands = [Settle(Ref("job-1", 1), CompleteOutcome("1")), command]
    ids = [job_id for command in commands for job_id in touched_ids(command)]

    assert cache.are_self_contained([], []) is True
    assert cache.are_self_contained(commands, ids) is is_self_contained


def test_a_very_large_job_is_not_cached() -> None:
    cache = RowCache()
    cache.save(b"n", {"job-1": cached_job(1)})

    cache.save(b"m", {"job-2": cached_job(2, payload="x" * row_cache.JOB_BYTES_MAX)})
    cache.save(b"m", {"job-1": cached_job(1, payload="x" * row_cache.JOB_BYTES_MAX)})

    assert len(cache) == cache.size == 0


def test_the_size_is_right_after_concurrent_use() -> None:
    cache = RowCache()
    jobs = {f"job-{number}": cached_job(number) for number in range(200)}

    def use_cache() -> None:
        for _ in range(20):
            cache.save(b"n", jobs)
            cache.unchanged_jobs([("job-1", b"n", 0.0)])
            cache.discard(list(jobs)[::2])
            cache.save(b"n", dict.fromkeys(list(jobs)[:50]))

    threads = [threading.Thread(target=use_cache) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert cache.size == sum(size_of(job) for _, job, _ in cache._entries.values())
