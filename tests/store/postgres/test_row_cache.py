"""What a PostgreSQL store remembers of the jobs its workers hold: only what is still so, and never much."""

import asyncio
import threading
from collections.abc import Callable
from itertools import count
from typing import Any

import psycopg
import pytest
from msgspec.structs import replace

from errandry.core.answer import WRITTEN, Ack, Answer, Claims, LossCause, Lost, Moved, Renewed
from errandry.core.command import (
    CancelJobs,
    Claim,
    Command,
    CompleteOutcome,
    FailOutcome,
    Insert,
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
from errandry.store.postgres.row_cache import EACH, RowCache, size_of
from errandry.store.tables import rows
from errandry.testing.clock import FakeClock
from tests.faults.process import until
from tests.store.server import server

ROWS = "lock_live"
"""The statement that reads whole rows of jobs that are not finished."""

_nonces = count()

BLANK = rows.to_job(
    [
        *(
            1,
            "job",
            "task",
            "default",
            "",
            "running",
            "fifo",
            None,
            None,
            "{}",
            0,
            None,
            None,
            1,
            5,
            0,
            0,
            3,
            0,
        ),
        *(0, 0, None, None, 1, "w", 30.0, False, None, None, 0.0, 0.0, 0.0, 0.0, None, None),
        *[None] * 8,
    ]
)


def insert(*ids: str, **fields: Any) -> Insert:
    return Insert(tuple(NewJob(**({"id": one, "task": "task", "payload": "{}"} | fields)) for one in ids))


def ref(job: JobRecord) -> Ref:
    return Ref(job.id, job.fence)


def known(store: PostgresStore) -> RowCache:
    assert store._open is not None
    return store._open.known


def remembered(store: PostgresStore, *ids: str) -> list[JobRecord]:
    entries = known(store)._entries
    return [entries[one][1] for one in ids if one in entries]


async def claimed(store: PostgresStore, *ids: str, **fields: Any) -> tuple[JobRecord, ...]:
    await store.commit([insert(*ids, **fields)])
    return await claim(store, len(ids))


async def claim(
    store: PostgresStore, limit: int, worker: str = "w", start: bool = True
) -> tuple[JobRecord, ...]:
    nonce = str(next(_nonces))
    [answer] = await store.commit([Claim(worker=worker, nonce=nonce, limit=limit, start=start)])
    assert isinstance(answer, Claims)
    return answer.jobs


async def one(store: PostgresStore, command: Command) -> Answer:
    [answer] = await store.commit([command])
    return answer


async def current(store: PostgresStore, job: JobRecord) -> JobRecord:
    [found] = await store.get([job.id])
    assert found is not None
    return found


def waits_for_a_lock() -> bool:
    with psycopg.connect(server().url()) as db:
        return bool(db.execute("SELECT 1 FROM pg_locks WHERE NOT granted").fetchall())


async def test_what_was_claimed_here_is_not_read_again(store: PostgresStore, sent: list[str]) -> None:
    jobs = await claimed(store, "a", "b", "c")
    assert remembered(store, "a", "b", "c") == list(jobs)
    sent.clear()

    answers = await store.commit([Settle(ref(job), CompleteOutcome("1")) for job in jobs])

    assert answers == [WRITTEN] * 3
    assert ROWS not in sent
    assert [(await current(store, job)).state for job in jobs] == [State.COMPLETED] * 3
    assert len(known(store)) == known(store).size == 0


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
async def test_it_is_remembered_as_it_was_last_written(
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

        assert remembered(store, "a") == [await current(store, job)]
    sent.clear()
    assert await one(store, Settle(ref(job), CompleteOutcome())) is WRITTEN
    assert ROWS not in sent


async def test_what_is_inserted_and_claimed_in_one_pass_is_remembered_as_claimed(
    store: PostgresStore, sent: list[str]
) -> None:
    _, claims = await store.commit([insert("a"), Claim(worker="w", nonce="n")])
    assert isinstance(claims, Claims)
    [job] = claims.jobs

    assert remembered(store, "a") == [job] == [await current(store, job)]
    sent.clear()
    assert await one(store, Settle(ref(job), CompleteOutcome())) is WRITTEN
    assert ROWS not in sent


async def test_only_what_workers_hold_is_remembered(store: PostgresStore) -> None:
    [job] = await claimed(store, "a")
    await store.commit([insert("b", "c")])
    assert len(known(store)) == 1

    await store.commit([Settle(ref(job), ReleaseOutcome())])

    assert len(known(store)) == 0


# What others have done meanwhile.


async def test_a_cancel_of_another_process_wins(store: PostgresStore, other: PostgresStore) -> None:
    renewed, settled = await claimed(store, "a", "b")
    assert isinstance(await one(other, CancelJobs(ids=("a", "b"))), Moved)

    assert await one(store, Renew((ref(renewed),), 60.0)) == Renewed((Ack.CANCEL,))
    assert await one(store, Settle(ref(settled), CompleteOutcome())) is WRITTEN
    assert (await current(store, settled)).state is State.CANCELED


async def test_a_note_of_another_process_stays(store: PostgresStore, other: PostgresStore) -> None:
    [job] = await claimed(store, "a")
    await other.commit([Note(ref(job), Progress(0.5), (LogLine(1.0, "theirs"),))])

    await store.commit([Note(ref(job), None, (LogLine(2.0, "ours"),))])

    noted = await current(store, job)
    assert (noted.progress, [log.text for log in noted.logs]) == (Progress(0.5), ["theirs", "ours"])
    assert remembered(store, "a") == [noted]


async def test_a_renewal_of_another_process_counts(
    store: PostgresStore, other: PostgresStore, clock: FakeClock
) -> None:
    [job] = await claimed(store, "a")
    await other.commit([Renew((ref(job),), 3_600.0)])
    clock.advance(60.0)

    assert await one(store, Settle(ref(job), CompleteOutcome())) is WRITTEN


async def test_a_job_that_another_process_has_now_is_lost(
    store: PostgresStore, other: PostgresStore, clock: FakeClock
) -> None:
    [job] = await claimed(store, "a")
    clock.advance(31.0)
    await other.commit([Upkeep()])
    clock.advance(3_600.0)
    [again] = await claim(other, 1, "another")
    assert again.fence > job.fence

    assert await one(store, Settle(ref(job), CompleteOutcome())) == Lost(LossCause.OTHER_FENCE)
    assert len(known(store)) == 0
    assert await one(other, Settle(ref(again), CompleteOutcome())) is WRITTEN


async def test_a_job_that_another_process_has_settled_is_found_where_it_is(
    store: PostgresStore, other: PostgresStore
) -> None:
    done, removed = await claimed(store, "a", "b")
    await other.commit([Settle(ref(done), CompleteOutcome()), Settle(ref(removed), CompleteOutcome())])
    await other.commit([RemoveJobs(ids=("b",))])

    assert await store.commit(
        [Settle(ref(done), CompleteOutcome()), Settle(ref(removed), CompleteOutcome())]
    ) == [
        Ack.ALREADY,
        Lost(LossCause.NOT_HELD),
    ]
    assert len(known(store)) == 0


async def test_an_operators_edit_of_the_row_is_seen(
    store: PostgresStore, db: psycopg.Connection[Any]
) -> None:
    [job] = await claimed(store, "a")
    db.execute("UPDATE live SET max_attempts = 1")

    await store.commit([Settle(ref(job), RetryOutcome())])

    assert (await current(store, job)).state is State.FAILED


async def test_what_changes_while_the_lock_is_waited_for_is_seen(
    store: PostgresStore, db: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "TIMEOUTS", ("30s",) * 3)
    [job] = await claimed(store, "a")
    with db.transaction():
        db.execute("UPDATE live SET cancel_requested = true")
        settling = asyncio.create_task(one(store, Settle(ref(job), CompleteOutcome())))
        await until(waits_for_a_lock)

    assert await settling is WRITTEN
    assert (await current(store, job)).state is State.CANCELED


async def test_a_lock_changes_nothing(
    store: PostgresStore, db: psycopg.Connection[Any], sent: list[str]
) -> None:
    [job] = await claimed(store, "a")
    with db.transaction():
        db.execute("SELECT 1 FROM live FOR NO KEY UPDATE")
    sent.clear()

    assert await one(store, Settle(ref(job), CompleteOutcome())) is WRITTEN
    assert ROWS not in sent


async def test_a_number_that_was_given_away_twice_is_not_enough(
    store: PostgresStore, db: psycopg.Connection[Any]
) -> None:
    """As after a crash of a server that does not wait for its disk: the row is of another transaction."""
    [job] = await claimed(store, "a")
    db.execute("UPDATE live SET cancel_requested = true, updated_at = updated_at + 0.001")
    [(number,)] = db.execute("SELECT xmin::text::bigint FROM live").fetchall()
    known(store).learn(int(number).to_bytes(4), {job.id: job})

    await store.commit([Settle(ref(job), CompleteOutcome())])

    assert (await current(store, job)).state is State.CANCELED


async def test_known_unknown_changed_and_new_jobs_in_one_pass(
    store: PostgresStore, other: PostgresStore
) -> None:
    mine, changed = await claimed(store, "d", "c")
    [theirs] = await claimed(other, "b")
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
    found = {job.id: job.state for job in await store.get(["a", "b", "c", "d"]) if job is not None}
    assert found == {
        "a": State.WAITING,
        "b": State.COMPLETED,
        "c": State.CANCELED,
        "d": State.COMPLETED,
    }


# What was not written.


async def test_a_pass_that_was_rolled_back_leaves_nothing(
    store: PostgresStore, db: psycopg.Connection[Any], sent: list[str]
) -> None:
    [job] = await claimed(store, "a")
    db.execute("ALTER TABLE live ADD CONSTRAINT odd CHECK (progress IS NULL)")
    try:
        assert isinstance(await one(store, Note(ref(job), Progress(0.5), ())), CommandFailed)
    finally:
        db.execute("ALTER TABLE live DROP CONSTRAINT odd")

    assert remembered(store, "a") == [job] == [await current(store, job)]
    sent.clear()
    assert await one(store, Renew((ref(job),), 60.0)) == Renewed((Ack.HELD,))
    assert ROWS not in sent


async def test_a_store_that_is_opened_anew_knows_nothing(store: PostgresStore) -> None:
    [job] = await claimed(store, "a")
    await store.close()
    await store.open()

    assert len(known(store)) == 0
    assert await one(store, Settle(ref(job), CompleteOutcome())) is WRITTEN


# Never much.


def job_of(number: int, **fields: Any) -> JobRecord:
    return replace(BLANK, id=f"job-{number}", **fields)


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_cache, "BYTES", 100 * EACH)
    known = RowCache()

    for number in range(1_000):
        known.learn(b"n", {f"job-{number}": job_of(number)})

    assert 80 <= len(known) < 100
    assert known.size <= 100 * EACH
    assert known.unknown(["job-0", "job-999"]) == ["job-0"]


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
def test_large_jobs_take_the_place_of_many(fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_cache, "BYTES", 1_000_000)
    known = RowCache()

    for number in range(100):
        known.learn(b"n", {f"job-{number}": job_of(number, **fields)})

    assert 10 < len(known) < 20
    assert known.size <= 1_000_000


@pytest.mark.parametrize(
    ("command", "is_alone"),
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
def test_who_stands_alone_needs_nothing_but_what_is_known(command: Command, is_alone: bool) -> None:
    known = RowCache()
    known.learn(b"n", {"job-1": job_of(1), "child": job_of(2, parents=1), "parent": job_of(3, children=1)})

    commands = [Settle(Ref("job-1", 1), CompleteOutcome("1")), command]
    ids = [one for command in commands for one in touched_ids(command)]

    assert known.are_alone([], []) is True
    assert known.are_alone(commands, ids) is is_alone


def test_what_is_very_large_takes_no_place_at_all() -> None:
    known = RowCache()
    known.learn(b"n", {"job-1": job_of(1)})

    known.learn(b"m", {"job-2": job_of(2, payload="x" * row_cache.HEAVY)})
    known.learn(b"m", {"job-1": job_of(1, payload="x" * row_cache.HEAVY)})

    assert len(known) == known.size == 0


def test_threads_do_not_spoil_the_size() -> None:
    known = RowCache()
    jobs = {f"job-{number}": job_of(number) for number in range(200)}

    def work() -> None:
        for _ in range(20):
            known.learn(b"n", jobs)
            known.still([("job-1", b"n", 0.0)])
            known.forget(list(jobs)[::2])
            known.learn(b"n", dict.fromkeys(list(jobs)[:50]))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert known.size == sum(size_of(job) for _, job, _ in known._entries.values())
