"""What another process does in the middle of a pass on PostgreSQL: it is seen, or the pass begins anew."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import psycopg
import pytest

from errandry.core.answer import Answer, Claims, Inserted
from errandry.core.command import (
    CancelJobs,
    Claim,
    Command,
    CompleteOutcome,
    Insert,
    RemoveJobs,
    RerunJobs,
    RetryOutcome,
    Settle,
)
from errandry.core.event import EventKind
from errandry.core.flow import Edge
from errandry.core.gate import GateKind, Pause, PutRule
from errandry.core.job import Failure, Keep, NewJob
from errandry.core.rule import Rule
from errandry.core.state import Reason, State
from errandry.errors import QueueFull
from errandry.store import table_store
from errandry.store.contract import Store
from errandry.store.postgres.driver import PostgresStore
from errandry.store.postgres.lanes import UNLINED_MAX
from errandry.store.postgres.pipeline import PendingResult, Pipeline, StatementParams
from errandry.store.postgres.tables import PARKED
from errandry.testing.clock import FakeClock
from errandry.testing.conformance import requests
from tests.pace import PATIENCE
from tests.store.postgres.test_blind_insert import until_locked
from tests.store.server import server


def job(name: str, **fields: Any) -> NewJob:
    return NewJob(**({"id": name, "task": "task", "payload": "{}"} | fields))


def meanwhile(monkeypatch: pytest.MonkeyPatch, name: str, what: Callable[[], Awaitable[Any]]) -> None:
    """Have `what` done just before the statement `name` is sent for the first time."""
    loop, send, asked = asyncio.get_running_loop(), Pipeline.send, list[str]()

    async def done() -> None:
        await what()

    def sending(self: Pipeline, sent: str, params: StatementParams = ()) -> PendingResult:
        if sent == name and not asked:
            asked.append(name)
            asyncio.run_coroutine_threadsafe(done(), loop).result(PATIENCE)
        return send(self, sent, params)

    monkeypatch.setattr(Pipeline, "send", sending)


async def drained(store: Store) -> list[str]:
    found = await store.events(None, 10_000)
    return [one.event.queue for one in found.entries if one.event.kind is EventKind.DRAINED]


async def test_a_group_that_comes_meanwhile_is_laid_aside_once(
    store: PostgresStore, other: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await requests.one(store, Pause(GateKind.GROUP, "default", "", "g"))
    await requests.insert(store, job("a"))
    meanwhile(monkeypatch, "open_lanes", lambda: requests.insert(other, job("b", group="g")))

    async with asyncio.timeout(PATIENCE):
        assert await requests.order(store) == ["a"]


@pytest.mark.parametrize(
    "command",
    [RemoveJobs(ids=("a",)), RerunJobs(ids=("a",)), Insert((job("a"),))],
    ids=["remove", "rerun", "insert"],
)
async def test_a_finished_job_that_is_written_anew_is_found(
    store: PostgresStore, db: psycopg.Connection[Any], command: Command
) -> None:
    await requests.insert(store, job("a"))
    [a] = await requests.claim(store)
    await requests.settle(store, a, CompleteOutcome("1"))
    with db.transaction():  # as a forced cancel does it
        db.execute(
            "CREATE TEMP TABLE was AS SELECT * FROM history; CREATE TEMP TABLE ids AS SELECT * FROM ended"
        )
        db.execute("DELETE FROM history; DELETE FROM ended")
        db.execute("INSERT INTO history SELECT * FROM was; INSERT INTO ended SELECT * FROM ids")
        asked = asyncio.create_task(store.commit([command]))
        await until_locked(db)
    [answer] = await asked

    assert "Unknown" not in str(answer)
    assert not isinstance(answer, Inserted) or answer.existed
    [(number,)] = db.execute("SELECT count(*) FROM job WHERE id = 'a'").fetchall()
    assert number == (type(command) is not RemoveJobs)


async def test_a_parent_that_comes_meanwhile_is_told(
    store: PostgresStore, other: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though the same pass has looked for it in vain."""
    await requests.one(store, Pause(GateKind.WORKER, "nobody"))
    flow = Insert((job("parent"), job("child", deadline=1.0)), (Edge("parent", "child"),))
    meanwhile(monkeypatch, "marks", lambda: other.commit([flow]))
    await store.commit([CancelJobs(ids=("parent",)), Claim(worker="w", nonce="n")])
    await requests.upkeep(other)

    jobs = await store.get(["parent", "child"])
    assert [one.state for one in jobs if one is not None] == [State.FAILED, State.FAILED]


async def test_a_parent_that_is_rerun_while_upkeep_drops_its_edges_is_not_left_blocked(
    store: PostgresStore, other: PostgresStore, monkeypatch: pytest.MonkeyPatch, clock: FakeClock
) -> None:
    parent = job("parent", keep=Keep(completed=30.0, failed=30.0, canceled=30.0))
    await store.commit([Insert((parent, job("child")), (Edge("parent", "child"),))])
    await requests.operate(store, CancelJobs(ids=("parent",), children=False))
    clock.advance(60.0)
    meanwhile(monkeypatch, "forget_flow", lambda: requests.upkeep(other))
    await requests.operate(store, RerunJobs(ids=("parent",)))
    [child] = await requests.claim(store)
    await requests.settle(store, child, CompleteOutcome("1"))

    [after] = await store.get(["parent"])
    assert child.id == "child"
    assert after is not None
    assert after.state is not State.BLOCKED


@pytest.mark.parametrize("group", ["", "g"], ids=["alone", "grouped"])
@pytest.mark.parametrize("limit", [1, 2])
@pytest.mark.parametrize("is_ruled", [False, True], ids=["free", "ruled"])
async def test_jobs_that_somebody_has_locked_hide_none_in_other_lanes(
    store: PostgresStore, db: psycopg.Connection[Any], group: str, limit: int, is_ruled: bool
) -> None:
    if is_ruled:
        await requests.one(store, PutRule(GateKind.QUEUE, "default", Rule(limit=50)))
    locked = [job(f"locked-{number}", task="first", group=group) for number in range(limit)]
    await requests.insert(store, *locked, job("other", task="second"))
    with db.transaction():
        db.execute("SELECT 1 FROM live WHERE task = 'first' FOR NO KEY UPDATE")
        assert await requests.order(store, limit=limit) == ["other"]

    assert len(await requests.order(store, limit=10)) == limit


async def test_of_very_many_inserted_by_others_the_rest_is_due_at_once_and_nothing_drained(
    store: PostgresStore,
) -> None:
    with psycopg.connect(server().url()) as caller:
        jobs = tuple(job(f"j-{number}") for number in range(UNLINED_MAX + 1))
        store.bind(caller).insert_sync(Insert(jobs))
    found = await requests.claims(store, limit=UNLINED_MAX)

    assert (len(found.jobs), found.due_in, await drained(store)) == (UNLINED_MAX, 0.0, [])


async def test_a_full_queue_is_full_while_upkeep_adds_up(
    store: PostgresStore, other: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await requests.one(store, PutRule(GateKind.QUEUE, "default", Rule(max_size=2)))
    await requests.insert(store, job("a"), job("b"))
    meanwhile(monkeypatch, "unfolded", lambda: requests.upkeep(other))

    [answer] = await store.commit([Insert((job("c"),))])
    assert isinstance(answer, QueueFull)


async def test_a_job_is_claimed_in_its_pass_though_its_lane_was_laid_aside(
    store: PostgresStore, clock: FakeClock
) -> None:
    await requests.insert(store, job("a", group="g"), job("b", group="g"))
    [a] = await requests.claim(store)
    await requests.settle(
        store, a, RetryOutcome(Failure(Reason.ERROR, "Error", ""), delay=10.0, pause_group=True)
    )
    assert not await requests.claim(store)
    await requests.operate(store, CancelJobs(ids=("a", "b")))
    await requests.upkeep(store)
    clock.advance(20.0)
    await requests.upkeep(store)
    assert not await requests.claim(store)

    _, claims = await store.commit([Insert((job("c", group="g"),)), Claim(worker="w", nonce="n")])
    assert isinstance(claims, Claims)
    assert [one.id for one in claims.jobs] == ["c"]


async def test_a_group_that_was_laid_aside_by_mistake_is_looked_at_again_within_minutes(
    store: PostgresStore, other: PostgresStore, monkeypatch: pytest.MonkeyPatch, clock: FakeClock
) -> None:
    """By who counts a job as held, while the pass that ends it does not know of the rule yet."""
    await requests.insert(store, job("a", group="g"), job("b", group="g"))
    [a] = await requests.claim(store)
    settles, goes_on, reach = threading.Event(), threading.Event(), table_store.reach

    def reached(when: str, commands: Sequence[Command], answers: Sequence[Answer]) -> None:
        if when == "before" and type(commands[0]) is Settle:
            settles.set()
            assert goes_on.wait(PATIENCE)
        reach(when, commands, answers)

    monkeypatch.setattr("errandry.store.postgres.driver.reach", reached)
    settling = asyncio.create_task(requests.settle(store, a, CompleteOutcome("1")))
    assert await asyncio.to_thread(settles.wait, PATIENCE)
    await requests.one(other, PutRule(GateKind.QUEUE, "default", Rule(group_limit=1)))
    assert not await requests.claim(other)
    goes_on.set()
    await settling
    clock.advance(PARKED + 1.0)
    await requests.upkeep(other)

    assert await requests.order(other) == ["b"]
