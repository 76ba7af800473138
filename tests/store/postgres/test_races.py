"""Commits of other processes during a pass on PostgreSQL: the pass sees them, or is tried again."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import psycopg
import pytest

from errandry import Errandry
from errandry.core.answer import WRITTEN, Answer, Claims, Inserted, Moved
from errandry.core.command import (
    CancelJobs,
    Claim,
    Command,
    CompleteOutcome,
    EditJobs,
    Insert,
    Ref,
    RemoveJobs,
    RerunJobs,
    RetryOutcome,
    Settle,
)
from errandry.core.event import EventKind
from errandry.core.flow import Edge
from errandry.core.gate import GateKind, Pause, PutRule
from errandry.core.job import Failure, Keep
from errandry.core.rule import Rule
from errandry.core.rule_info import Source
from errandry.core.schedule import DeclareSchedule, PutSchedule, SchedulePlan
from errandry.core.state import Reason, State
from errandry.errors import QueueFull
from errandry.store import table_store
from errandry.store.contract import Store
from errandry.store.postgres.driver import PostgresStore
from errandry.store.postgres.lanes import JOBS_WITHOUT_LANE_MAX
from errandry.store.postgres.pipeline import PendingResult, Pipeline, StatementParams
from errandry.store.postgres.tables import PARKED_AGE_MAX
from errandry.testing.clock import FakeClock
from errandry.testing.conformance import requests
from tests.faults.process import wait_until
from tests.machine_load import WAIT_TIMEOUT
from tests.new_jobs import new_job
from tests.run_worker import run_burst
from tests.store.postgres.test_blind_insert import wait_until_blocking
from tests.store.server import server


def run_before(monkeypatch: pytest.MonkeyPatch, name: str, action: Callable[[], Awaitable[Any]]) -> None:
    """Run `action` just before the statement `name` is sent for the first time."""
    loop, send, has_run = asyncio.get_running_loop(), Pipeline.send, list[str]()

    async def run() -> None:
        await action()

    def sending(self: Pipeline, sent: str, params: StatementParams = ()) -> PendingResult:
        if sent == name and not has_run:
            has_run.append(name)
            asyncio.run_coroutine_threadsafe(run(), loop).result(WAIT_TIMEOUT)
        return send(self, sent, params)

    monkeypatch.setattr(Pipeline, "send", sending)


async def drained_queues(store: Store) -> list[str]:
    page = await store.events(None, 10_000)
    return [entry.event.queue for entry in page.entries if entry.event.kind is EventKind.DRAINED]


async def test_a_paused_group_inserted_during_a_claim_is_parked_once(
    store: PostgresStore, other: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await requests.send(store, Pause(GateKind.GROUP, "default", "", "g"))
    await requests.insert(store, new_job("a"))
    run_before(monkeypatch, "open_lanes", lambda: requests.insert(other, new_job("b", group="g")))

    async with asyncio.timeout(WAIT_TIMEOUT):
        assert await requests.claim_ids(store) == ["a"]


@pytest.mark.parametrize(
    "command",
    [RemoveJobs(ids=("a",)), RerunJobs(ids=("a",)), Insert((new_job("a"),))],
    ids=["remove", "rerun", "insert"],
)
async def test_a_finished_job_whose_row_is_rewritten_is_found(
    store: PostgresStore, db: psycopg.Connection[Any], command: Command
) -> None:
    await requests.insert(store, new_job("a"))
    [a] = await requests.claim(store)
    await requests.settle(store, a, CompleteOutcome("1"))
    with db.transaction():  # like a forced cancel
        db.execute(
            "CREATE TEMP TABLE jobs AS SELECT * FROM history;"
            "CREATE TEMP TABLE ids AS SELECT * FROM finished_ids"
        )
        db.execute("DELETE FROM history; DELETE FROM finished_ids")
        db.execute("INSERT INTO history SELECT * FROM jobs; INSERT INTO finished_ids SELECT * FROM ids")
        commit = asyncio.create_task(store.commit([command]))
        await wait_until_blocking(db)
    [answer] = await commit

    assert "Unknown" not in str(answer)
    assert not isinstance(answer, Inserted) or answer.existed
    [(number,)] = db.execute("SELECT count(*) FROM job WHERE id = 'a'").fetchall()
    assert number == (type(command) is not RemoveJobs)


async def test_a_command_sent_again_while_its_first_transaction_still_commits_is_applied_once(
    store: PostgresStore, db: psycopg.Connection[Any]
) -> None:
    """The connection was lost, so the command comes again on another, and waits for the job."""
    await requests.insert(store, new_job("a", priority=5))
    edit = EditJobs(ids=("a",), priority=7, nonce="nonce")
    with db.transaction():
        db.execute("UPDATE live SET priority = 6 WHERE id = 'a'")
        db.execute("INSERT INTO answers VALUES ('nonce', 0, '{\"moved\":[\"a\"]}')")
        commit = asyncio.create_task(store.commit([edit]))
        await wait_until_blocking(db)

    assert await commit == [Moved(("a",))]
    [job] = await store.get(["a"])
    assert job is not None
    assert job.priority == 6


async def test_a_blind_insert_sent_again_is_answered_as_before(store: PostgresStore) -> None:
    await requests.insert(store, new_job("a"))  # the next insert knows the lane
    inserts = [Insert((new_job(name),), nonce=name) for name in ("b", "c")]
    assert await store.commit(inserts) == [Inserted(("b",)), Inserted(("c",))]
    await requests.send(store, RemoveJobs(ids=("b",)))

    assert await store.commit(inserts) == [Inserted(("b",)), Inserted(("c",))]
    assert await store.get(["b"]) == [None]


async def test_a_parent_inserted_during_the_pass_learns_of_its_failed_child(
    store: PostgresStore, other: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although the same pass has searched for it before."""
    await requests.send(store, Pause(GateKind.WORKER, "nobody"))
    flow = Insert((new_job("parent"), new_job("child", deadline=1.0)), (Edge("parent", "child"),))
    run_before(monkeypatch, "due_times", lambda: other.commit([flow]))
    await store.commit([CancelJobs(ids=("parent",)), Claim(worker="w", nonce="n")])
    await requests.run_upkeep(other)

    jobs = await store.get(["parent", "child"])
    assert [job.state for job in jobs if job is not None] == [State.FAILED, State.FAILED]


async def test_a_parent_that_is_rerun_while_upkeep_drops_its_edges_is_not_left_blocked(
    store: PostgresStore, other: PostgresStore, monkeypatch: pytest.MonkeyPatch, clock: FakeClock
) -> None:
    parent = new_job("parent", keep=Keep(completed=30.0, failed=30.0, canceled=30.0))
    await store.commit([Insert((parent, new_job("child")), (Edge("parent", "child"),))])
    await requests.operate(store, CancelJobs(ids=("parent",), children=False))
    clock.advance(60.0)
    run_before(monkeypatch, "reopen_flow", lambda: requests.run_upkeep(other))
    await requests.operate(store, RerunJobs(ids=("parent",)))
    [child] = await requests.claim(store)
    await requests.settle(store, child, CompleteOutcome("1"))

    [after] = await store.get(["parent"])
    assert child.id == "child"
    assert after is not None
    assert after.state is not State.BLOCKED


@pytest.mark.parametrize("group", ["", "g"], ids=["alone", "grouped"])
@pytest.mark.parametrize("limit", [1, 2])
@pytest.mark.parametrize("has_rule", [False, True], ids=["free", "with a rule"])
async def test_locked_jobs_do_not_hide_jobs_of_other_lanes(
    store: PostgresStore, db: psycopg.Connection[Any], group: str, limit: int, has_rule: bool
) -> None:
    if has_rule:
        await requests.send(store, PutRule(GateKind.QUEUE, "default", Rule(limit=50)))
    locked = [new_job(f"locked-{number}", task="first", group=group) for number in range(limit)]
    await requests.insert(store, *locked, new_job("other", task="second"))
    with db.transaction():
        db.execute("SELECT 1 FROM live WHERE task = 'first' FOR NO KEY UPDATE")
        assert await requests.claim_ids(store, limit=limit) == ["other"]

    assert len(await requests.claim_ids(store, limit=10)) == limit


@pytest.mark.parametrize("group", ["", "g"])
@pytest.mark.parametrize("has_rule", [False, True])
async def test_a_claim_takes_other_jobs_in_place_of_locked_ones(
    store: PostgresStore, db: psycopg.Connection[Any], group: str, has_rule: bool
) -> None:
    if has_rule:
        await requests.send(store, PutRule(GateKind.QUEUE, "default", Rule(limit=50)))
    first = [new_job(f"first-{number}", task="first", group=group) for number in range(5)]
    second = [new_job(f"second-{number}", task="second") for number in range(9)]
    await requests.insert(store, *first, *second)
    with db.transaction():
        db.execute("SELECT 1 FROM live WHERE id < 'first-3' FOR NO KEY UPDATE")
        claimed = await requests.claim_ids(store, limit=6)

    assert len(claimed) == 6
    assert {"first-3", "first-4"} < set(claimed)


async def test_after_a_very_large_bound_insert_the_rest_is_due_at_once_and_the_queue_is_not_drained(
    store: PostgresStore,
) -> None:
    with psycopg.connect(server().url()) as caller:
        jobs = tuple(new_job(f"j-{number}") for number in range(JOBS_WITHOUT_LANE_MAX + 1))
        store.bind(caller).insert_sync(Insert(jobs))
    claims = await requests.send_claim(store, limit=JOBS_WITHOUT_LANE_MAX)

    assert (len(claims.jobs), claims.due_in, await drained_queues(store)) == (JOBS_WITHOUT_LANE_MAX, 0.0, [])


async def test_a_queue_is_drained_by_the_cancel_of_its_last_bound_job_although_another_queue_has_one(
    store: PostgresStore,
) -> None:
    with psycopg.connect(server().url()) as caller:
        jobs = new_job("a", queue="q"), new_job("b", queue="q"), new_job("c", queue="other")
        store.bind(caller).insert_sync(Insert(jobs))
    await requests.operate(store, CancelJobs(ids=("a",)))
    assert await drained_queues(store) == []

    await requests.operate(store, CancelJobs(ids=("b",)))
    assert await drained_queues(store) == ["q"]


@pytest.mark.parametrize("first", ["put", "declared"])
async def test_a_schedule_that_is_declared_and_put_at_once_keeps_the_plan_of_the_operator(
    store: PostgresStore, other: PostgresStore, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    job = new_job("-")
    put = PutSchedule("nightly", SchedulePlan(job=job, cron="0 5 * * *"), "ada")
    declare = DeclareSchedule("nightly", SchedulePlan(job=job, cron="0 3 * * *"), "app")
    earlier, later = (put, declare) if first == "put" else (declare, put)
    run_before(monkeypatch, "lock_new_schedule", lambda: requests.send(other, earlier))

    await requests.send(store, later)

    schedule = await store.schedule("nightly")
    assert schedule is not None
    assert (schedule.plan.cron, schedule.owners, schedule.source) == ("0 5 * * *", ("app",), Source.OPERATOR)
    assert schedule.declared == declare.plan


async def test_a_full_queue_is_full_while_upkeep_folds_counters(
    store: PostgresStore, other: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await requests.send(store, PutRule(GateKind.QUEUE, "default", Rule(max_size=2)))
    await requests.insert(store, new_job("a"), new_job("b"))
    run_before(monkeypatch, "unfolded_deltas", lambda: requests.run_upkeep(other))

    [answer] = await store.commit([Insert((new_job("c"),))])
    assert isinstance(answer, QueueFull)


async def test_a_job_is_claimed_in_the_pass_that_inserts_it_after_its_lane_was_parked(
    store: PostgresStore, clock: FakeClock
) -> None:
    await requests.insert(store, new_job("a", group="g"), new_job("b", group="g"))
    [a] = await requests.claim(store)
    await requests.settle(
        store, a, RetryOutcome(Failure(Reason.ERROR, "Error", ""), delay=10.0, pause_group=True)
    )
    assert not await requests.claim(store)
    await requests.operate(store, CancelJobs(ids=("a", "b")))
    await requests.run_upkeep(store)
    clock.advance(20.0)
    await requests.run_upkeep(store)
    assert not await requests.claim(store)

    _, claims = await store.commit([Insert((new_job("c", group="g"),)), Claim(worker="w", nonce="n")])
    assert isinstance(claims, Claims)
    assert [job.id for job in claims.jobs] == ["c"]


async def test_a_group_that_was_parked_by_mistake_is_unparked_within_minutes(
    store: PostgresStore, other: PostgresStore, monkeypatch: pytest.MonkeyPatch, clock: FakeClock
) -> None:
    """By a claim that counts a job as held, while the pass that settles it does not know the rule yet."""
    await requests.insert(store, new_job("a", group="g"), new_job("b", group="g"))
    [a] = await requests.claim(store)
    is_settling, may_go_on, reach = threading.Event(), threading.Event(), table_store.reach_failpoints

    def delayed_reach(when: str, commands: Sequence[Command], answers: Sequence[Answer]) -> None:
        if when == "before" and type(commands[0]) is Settle:
            is_settling.set()
            assert may_go_on.wait(WAIT_TIMEOUT)
        reach(when, commands, answers)

    monkeypatch.setattr("errandry.store.postgres.driver.reach_failpoints", delayed_reach)
    settling = asyncio.create_task(requests.settle(store, a, CompleteOutcome("1")))
    assert await asyncio.to_thread(is_settling.wait, WAIT_TIMEOUT)
    await requests.send(other, PutRule(GateKind.QUEUE, "default", Rule(group_limit=1)))
    assert not await requests.claim(other)
    may_go_on.set()
    await settling
    clock.advance(PARKED_AGE_MAX + 1.0)
    await requests.run_upkeep(other)

    assert await requests.claim_ids(other) == ["b"]


async def wait_until_blocked(db: psycopg.Connection[Any]) -> None:
    """Wait until a session waits for a lock of another."""
    is_blocked = "SELECT count(*) > 0 FROM pg_stat_activity WHERE cardinality(pg_blocking_pids(pid)) > 0"
    await wait_until(lambda: db.execute(is_blocked).fetchall() == [(True,)])


async def test_two_passes_with_the_same_rules_in_different_orders_do_not_wait_for_each_other(
    store: PostgresStore,
    other: PostgresStore,
    db: psycopg.Connection[Any],
    monkeypatch: pytest.MonkeyPatch,
    sent: list[str],
) -> None:
    """If they did, the lock timeout would end one of them, and its commands would be written one by one."""
    rules = [PutRule(GateKind.QUEUE, name, Rule(limit=1)) for name in "ab"]
    reverse = [PutRule(GateKind.QUEUE, name, Rule(limit=2)) for name in "ba"]
    commits: list[asyncio.Task[Sequence[Answer]]] = []

    async def start_other() -> None:
        commits.append(asyncio.create_task(other.commit(reverse)))
        await wait_until_blocked(db)

    run_before(monkeypatch, "put_gates", start_other)

    assert await store.commit(rules) == [WRITTEN, WRITTEN]
    assert await commits[0] == [WRITTEN, WRITTEN]
    assert {gate.name: gate.rule.limit for gate in await store.rules()} == {"a": 2, "b": 2}
    assert sent.count("create_gates") == 2


async def test_a_pass_that_changes_a_rule_and_claims_does_not_wait_for_a_pass_that_claims(
    store: PostgresStore,
    other: PostgresStore,
    db: psycopg.Connection[Any],
    monkeypatch: pytest.MonkeyPatch,
    sent: list[str],
) -> None:
    await store.commit([PutRule(GateKind.QUEUE, name, Rule(limit=1)) for name in "ab"])
    sent.clear()
    commits: list[asyncio.Task[Sequence[Answer]]] = []

    async def start_other() -> None:
        commits.append(asyncio.create_task(other.commit([Claim(worker="v", nonce="n")])))
        await wait_until_blocked(db)

    run_before(monkeypatch, "put_gates", start_other)
    await store.commit([PutRule(GateKind.QUEUE, "b", Rule(limit=2)), Claim(worker="w", nonce="n")])

    assert await commits[0] == [Claims(())]
    assert (sent.count("create_gates"), sent.count("lock_gates")) == (1, 2)


async def test_a_pass_that_closes_a_gate_and_changes_another_locks_them_in_order(
    store: PostgresStore, other: PostgresStore, db: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The retry closes the gate of the task; the gate of the queue comes before it."""
    rule = Rule(limit=9)
    gates = [(GateKind.QUEUE, "default"), (GateKind.TASK, "send")]
    await store.commit([PutRule(kind, name, rule) for kind, name in gates])
    await requests.insert(store, new_job("a", task="send"))
    [job] = await requests.claim(store)
    retry = RetryOutcome(Failure(Reason.ERROR, "Busy", "later"), 60.0, pause_group=True)
    commits: list[asyncio.Task[Sequence[Answer]]] = []

    async def start_other() -> None:
        commits.append(asyncio.create_task(other.commit([Claim(worker="v", nonce="n")])))
        await wait_until_blocked(db)

    run_before(monkeypatch, "close_gates", start_other)
    ref = Ref(job.id, job.fence)
    answers = await store.commit([Settle(ref, retry), PutRule(GateKind.QUEUE, "default", Rule(limit=8))])

    assert answers == [WRITTEN, WRITTEN]
    assert await commits[0] == [Claims(())]


async def test_a_burst_does_not_end_while_a_due_job_is_locked(url: str, db: psycopg.Connection[Any]) -> None:
    """Its worker has died, and upkeep of another program is about to make it ready."""
    async with Errandry(url) as jobs:

        @jobs.task
        async def send() -> None: ...

        job = await send.enqueue()
        await jobs.engine.submit(Claim(worker="dead", nonce="nonce"))
        db.execute("UPDATE live SET lease_until = 1")
        with db.transaction():
            db.execute("SELECT 1 FROM live FOR NO KEY UPDATE")
            burst = asyncio.create_task(run_burst(jobs))
            await asyncio.wait({burst}, timeout=0.0)
            passes = jobs.engine.stats().passes
            await wait_until(lambda: jobs.engine.stats().passes > passes + 5 or burst.done())
        await burst

        assert (await job.refresh()).state is State.COMPLETED
