"""Concurrency and rate limits, exact and without leaked permits; fairness between groups and queues."""

import pytest

from errandry.core.answer import Claims
from errandry.core.command import (
    STRICT,
    CancelJobs,
    Claim,
    CompleteOutcome,
    Insert,
    ReleaseOutcome,
    RemoveJobs,
    RetryOutcome,
    Settle,
    SnoozeOutcome,
    Upkeep,
)
from errandry.core.gate import GateKind, Pause, PutRule, Resume
from errandry.core.job import JobRecord
from errandry.core.rule import NO_RULE, Rate, Rule
from errandry.core.state import State
from errandry.store.contract import Store
from errandry.testing.clock import FakeClock
from errandry.testing.conformance import requests
from errandry.testing.given import Given, ref

SCOPES = pytest.mark.parametrize(
    ("kind", "group", "rule"),
    [
        (GateKind.QUEUE, "", Rule(limit=2)),
        (GateKind.TASK, "", Rule(limit=2)),
        (GateKind.GROUP, "name", Rule(limit=2)),
        (GateKind.QUEUE, "", Rule(group_limit=2)),
    ],
    ids=["queue", "task", "group", "each-group"],
)
RATES = pytest.mark.parametrize(
    ("kind", "group", "rule"),
    [
        (GateKind.QUEUE, "", Rule(rate=Rate(10, 10.0, 2))),
        (GateKind.TASK, "", Rule(rate=Rate(10, 10.0, 2))),
        (GateKind.GROUP, "name", Rule(rate=Rate(10, 10.0, 2))),
        (GateKind.QUEUE, "", Rule(group_rate=Rate(10, 10.0, 2))),
    ],
    ids=["queue", "task", "group", "each-group"],
)


async def insert_five_jobs(given: Given) -> list[JobRecord]:
    return [await given.waiting(queue="name", task="name", group="name") for _ in range(5)]


def _with_rate(rule: Rule, rate: Rate) -> Rule:
    return Rule(rate=rate) if rule.rate is not None else Rule(group_rate=rate)


class ConcurrencyLimits:
    @SCOPES
    async def test_no_more_jobs_are_claimed_than_the_limit_allows(
        self, store: Store, given: Given, kind: GateKind, group: str, rule: Rule
    ) -> None:
        await requests.send(store, PutRule(kind, "name", rule, group))
        jobs = [job.id for job in await insert_five_jobs(given)]

        first = await requests.claim(store, limit=10)
        assert [job.id for job in first] == jobs[:2]
        assert await requests.claim_ids(store) == []
        await requests.settle(store, first[0], CompleteOutcome())
        assert await requests.claim_ids(store) == [jobs[2]]
        assert await requests.claim_ids(store) == []

    @SCOPES
    @pytest.mark.parametrize("start", [True, False], ids=["running", "claimed"])
    async def test_a_permit_is_freed_however_the_job_ends(
        self,
        store: Store,
        clock: FakeClock,
        given: Given,
        kind: GateKind,
        group: str,
        rule: Rule,
        start: bool,
    ) -> None:
        await requests.send(store, PutRule(kind, "name", rule, group))
        for _ in range(20):
            await given.waiting(queue="name", task="name", group="name")
        for end in ("release", "cancel", "remove", "expire", "dead"):
            first, second = await requests.claim(store, limit=10, start=start, lease=30.0)
            assert await requests.claim_ids(store) == []
            for job in (first, second):
                match end:
                    case "release":
                        await requests.settle(store, job, ReleaseOutcome(60.0))
                    case "cancel":
                        await requests.operate(store, CancelJobs(ids=(job.id,)))
                        await requests.settle(store, job, CompleteOutcome())
                    case "remove":
                        await requests.operate(store, RemoveJobs(ids=(job.id,), force=True))
            if end == "expire":
                clock.advance(30)
            elif end == "dead":
                await requests.send(store, Upkeep(dead=("worker",)))
        assert len(await requests.claim_ids(store)) == 2

    @SCOPES
    async def test_a_limit_holds_across_claims_of_one_pass(
        self, store: Store, given: Given, kind: GateKind, group: str, rule: Rule
    ) -> None:
        await requests.send(store, PutRule(kind, "name", rule, group))
        await insert_five_jobs(given)
        claimed = await requests.claim(store, limit=1)

        answers = await store.commit(
            [
                Settle(ref(claimed[0]), CompleteOutcome()),
                *(Claim(worker=name, nonce=name, limit=10) for name in ("ann", "bob")),
            ]
        )

        job_counts = [len(answer.jobs) for answer in answers if isinstance(answer, Claims)]
        assert job_counts == [2, 0]

    @SCOPES
    async def test_a_changed_limit_takes_effect_while_jobs_run(
        self, store: Store, given: Given, kind: GateKind, group: str, rule: Rule
    ) -> None:
        await requests.send(store, PutRule(kind, "name", rule, group))
        await insert_five_jobs(given)
        assert len(await requests.claim_ids(store)) == 2
        raised = Rule(group_limit=4) if rule.group_limit else Rule(limit=4)
        await requests.send(store, PutRule(kind, "name", raised, group))
        assert len(await requests.claim_ids(store)) == 2
        assert await requests.claim_ids(store) == []

        await requests.send(store, PutRule(kind, "name", NO_RULE, group))

        assert len(await requests.claim_ids(store)) == 1

    async def test_full_queues_tasks_and_groups_do_not_block_other_jobs(
        self, store: Store, given: Given
    ) -> None:
        await requests.send(store, PutRule(GateKind.QUEUE, "full", Rule(limit=1)))
        await requests.send(store, PutRule(GateKind.TASK, "full", Rule(limit=1)))
        await requests.send(store, PutRule(GateKind.QUEUE, "q", Rule(group_limit=1)))
        for _ in range(3):
            await given.waiting(queue="full", priority=-1)
            await given.waiting(task="full", priority=-1)
            await given.waiting(queue="q", group="full", priority=-1)
        job, other = (
            await given.waiting(priority=5),
            await given.waiting(queue="q", group="other", priority=5),
        )

        claimed_ids = await requests.claim_ids(store, limit=6)

        assert len(claimed_ids) == 5
        assert {job.id, other.id} <= set(claimed_ids)

    async def test_a_task_limit_counts_across_queues_and_groups(self, store: Store, given: Given) -> None:
        await requests.send(store, PutRule(GateKind.TASK, "t", Rule(limit=3)))
        for number in range(6):
            await given.waiting(task="t", queue=f"q{number % 2}", group="g" * (number % 3))

        assert len(await requests.claim_ids(store)) == 3
        assert await requests.claim_ids(store) == []

    async def test_a_group_without_its_own_limit_has_the_group_limit_of_its_queue(
        self, store: Store, given: Given
    ) -> None:
        await requests.send(store, PutRule(GateKind.QUEUE, "q", Rule(group_limit=1)))
        await requests.send(store, PutRule(GateKind.GROUP, "q", Rule(limit=3), "large"))
        for group in ("large", "small", ""):
            for _ in range(4):
                await given.waiting(queue="q", group=group)

        groups = [job.group for job in await requests.claim(store, limit=20)]

        assert {group: groups.count(group) for group in groups} == {"large": 3, "small": 1, "": 4}

    async def test_a_repeated_claim_needs_no_permit(self, store: Store, given: Given) -> None:
        await requests.send(store, PutRule(GateKind.QUEUE, "q", Rule(limit=1)))
        job = await given.waiting(queue="q")
        first = await requests.send_claim(store, nonce="same")
        repeated = await requests.send_claim(store, nonce="same")

        assert [one.id for one in first.jobs] == [one.id for one in repeated.jobs] == [job.id]

    async def test_claims_that_expire_in_a_pass_free_their_permits_for_it_also_after_a_repeated_claim(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        await given.inserted(*(given.new_job(queue="q") for _ in range(3)))
        old = Claim(worker="worker", nonce="old", limit=3, start=False, lease=5.0)
        await store.commit([old])
        await requests.send(store, PutRule(GateKind.QUEUE, "q", Rule(limit=2)))
        clock.advance(5)

        repeated, claims = await store.commit([old, Claim(worker="worker", nonce="new", limit=3)])

        assert isinstance(repeated, Claims)
        assert isinstance(claims, Claims)
        assert (len(repeated.jobs), len(claims.jobs)) == (0, 2)

    async def test_a_paused_group_stays_paused_when_a_permit_is_freed(
        self, store: Store, given: Given
    ) -> None:
        await requests.send(store, PutRule(GateKind.QUEUE, "name", Rule(group_limit=2)))
        await insert_five_jobs(given)
        claimed = await requests.claim(store, limit=10)
        assert await requests.claim_ids(store) == []
        await requests.send(store, Pause(GateKind.GROUP, "name", group="name"))
        await requests.settle(store, claimed[0], CompleteOutcome())
        assert await requests.claim_ids(store) == []

        await requests.send(store, Resume(GateKind.GROUP, "name", "name"))

        assert len(await requests.claim_ids(store)) == 1


class RateLimits:
    @RATES
    async def test_a_rate_limit_allows_its_burst_and_then_one_job_at_a_time(
        self, store: Store, clock: FakeClock, given: Given, kind: GateKind, group: str, rule: Rule
    ) -> None:
        await requests.send(store, PutRule(kind, "name", rule, group))
        jobs = [job.id for job in await insert_five_jobs(given)]

        answer = await requests.send_claim(store, limit=10)
        assert [job.id for job in answer.jobs] == jobs[:2]
        due = answer.due_in or await store.due_in()
        assert (await requests.send_claim(store, limit=10)).due_in == await store.due_in()
        assert due is not None
        assert 1.0 <= due <= 1.01
        clock.advance(0.5)
        assert await requests.claim_ids(store) == []
        clock.advance(due - 0.5)
        assert await requests.claim_ids(store) == [jobs[2]]
        clock.advance(60)
        assert await requests.claim_ids(store) == jobs[3:]

    @RATES
    async def test_a_rate_limit_counts_the_claims_of_all_workers_whatever_the_outcome(
        self, store: Store, given: Given, kind: GateKind, group: str, rule: Rule
    ) -> None:
        await requests.send(store, PutRule(kind, "name", rule, group))
        await insert_five_jobs(given)

        [first] = await requests.claim(store, worker="ann")
        await requests.settle(store, first, CompleteOutcome())
        [second] = await requests.claim(store, worker="bob")
        await requests.settle(store, second, ReleaseOutcome())

        assert await requests.claim_ids(store) == []

    async def test_no_due_time_is_given_when_no_job_waits_for_a_rate_limit(
        self, store: Store, given: Given
    ) -> None:
        await requests.send(store, PutRule(GateKind.QUEUE, "q", Rule(rate=Rate(1, 60.0, 1))))
        await given.waiting(queue="q")

        assert (await requests.send_claim(store)).due_in is None
        assert await store.due_in() is None

    async def test_a_slower_rate_applies_from_the_next_claim_on(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        await requests.send(store, PutRule(GateKind.QUEUE, "name", Rule(rate=Rate(60, 60.0, 1))))
        await insert_five_jobs(given)
        assert len(await requests.claim_ids(store)) == 1
        await requests.send(store, PutRule(GateKind.QUEUE, "name", Rule(rate=Rate(1, 60.0, 1))))
        clock.advance(1)
        assert len(await requests.claim_ids(store)) == 1
        clock.advance(59)
        assert await requests.claim_ids(store) == []
        clock.advance(1)
        assert len(await requests.claim_ids(store)) == 1

    @RATES
    @pytest.mark.parametrize("through", ["change", "removal"])
    async def test_a_faster_rate_is_not_delayed_by_the_slower_rate_before_it(
        self,
        store: Store,
        clock: FakeClock,
        given: Given,
        kind: GateKind,
        group: str,
        rule: Rule,
        through: str,
    ) -> None:
        slow, fast = _with_rate(rule, Rate(1, 3_600.0, 1)), _with_rate(rule, Rate(1_000, 1.0, 3))
        await requests.send(store, PutRule(kind, "name", slow, group))
        await insert_five_jobs(given)
        assert len(await requests.claim_ids(store)) == 1
        assert await requests.claim_ids(store) == []

        if through == "removal":
            await requests.send(store, PutRule(kind, "name", NO_RULE, group))
        await requests.send(store, PutRule(kind, "name", fast, group))
        clock.advance(0.0011)

        assert len(await requests.claim_ids(store, limit=1)) == 1
        clock.advance(0.003)
        assert len(await requests.claim_ids(store)) == 3

    async def test_a_group_that_loses_its_own_rate_is_not_delayed_by_it(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        await requests.send(store, PutRule(GateKind.QUEUE, "name", Rule(group_rate=Rate(1_000, 1.0, 1))))
        await requests.send(store, PutRule(GateKind.GROUP, "name", Rule(rate=Rate(1, 3_600.0, 1)), "name"))
        await insert_five_jobs(given)
        assert len(await requests.claim_ids(store)) == 1

        await requests.send(store, PutRule(GateKind.GROUP, "name", NO_RULE, "name"))
        clock.advance(0.0011)

        assert len(await requests.claim_ids(store)) == 1

    async def test_a_changed_group_rate_leaves_the_rates_of_single_groups_alone(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        await requests.send(store, PutRule(GateKind.QUEUE, "name", Rule(group_rate=Rate(1, 60.0, 1))))
        await requests.send(store, PutRule(GateKind.GROUP, "name", Rule(rate=Rate(1, 3_600.0, 1)), "name"))
        await insert_five_jobs(given)
        assert len(await requests.claim_ids(store)) == 1

        await requests.send(store, PutRule(GateKind.QUEUE, "name", Rule(group_rate=Rate(1_000, 1.0, 1))))
        clock.advance(3_599)

        assert await requests.claim_ids(store) == []

    async def test_a_changed_limit_does_not_refill_a_rate(self, store: Store, given: Given) -> None:
        rate = Rate(1, 3_600.0, 1)
        await requests.send(store, PutRule(GateKind.QUEUE, "name", Rule(rate=rate)))
        await insert_five_jobs(given)
        assert len(await requests.claim_ids(store)) == 1

        await requests.send(store, PutRule(GateKind.QUEUE, "name", Rule(rate=rate, limit=5)))

        assert await requests.claim_ids(store) == []

    async def test_a_retry_can_pause_its_whole_group(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        job = await given.running(queue="q", group="acme", task="t")
        other = await given.waiting(queue="q", group="acme", task="u")
        free = await given.waiting(queue="q", group="free", task="t")
        await requests.settle(store, job, RetryOutcome(delay=20.0, pause_group=True))

        assert await requests.claim_ids(store) == [free.id]
        assert [(gate.name, gate.group) for gate in await store.rules()] == [("q", "acme")]
        assert await store.due_in() == 20.0
        clock.advance(20)
        assert set(await requests.claim_ids(store)) == {job.id, other.id}
        assert await store.rules() == []

    async def test_a_job_due_after_the_pause_of_an_emptied_group_is_claimed(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        job = await given.running(queue="q", group="acme", task="t", max_attempts=1)
        remaining = await given.waiting(queue="q", group="acme", task="u")
        due = await given.scheduled(queue="q", group="acme", task="u", delay=60.0)
        await requests.settle(store, job, RetryOutcome(delay=20.0, pause_group=True))
        assert await requests.claim_ids(store) == []
        await requests.operate(store, CancelJobs(ids=(remaining.id,)))
        clock.advance(60)

        assert await requests.claim_ids(store) == [due.id]

    async def test_a_retry_of_a_job_without_a_group_pauses_its_task(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        job = await given.running(task="t")
        other = await given.waiting(task="t", queue="elsewhere")
        free = await given.waiting(task="u")
        await requests.settle(store, job, RetryOutcome(delay=20.0, pause_group=True))
        assert await requests.claim_ids(store) == [free.id]
        assert await store.due_in() == 20.0

        clock.advance(20)

        assert await requests.claim_ids(store) == [other.id, job.id]

    async def test_a_shorter_pause_does_not_shorten_a_longer_one(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        first, second = await given.running(task="t"), await given.running(task="t")
        await given.waiting(task="t")
        await requests.settle(store, first, RetryOutcome(delay=60.0, pause_group=True))
        await requests.settle(store, second, RetryOutcome(delay=5.0, pause_group=True))
        clock.advance(59)
        assert await requests.claim_ids(store) == []
        clock.advance(1)
        assert len(await requests.claim_ids(store)) == 3

    async def test_a_pause_by_a_retry_holds_for_claims_of_the_same_pass(
        self, store: Store, given: Given
    ) -> None:
        job = await given.running(task="t", group="g")
        await given.waiting(task="t", group="g")

        answers = await store.commit(
            [
                Settle(ref(job), RetryOutcome(delay=0.0, pause_group=True)),
                Insert((given.new_job(task="t", group="g"),)),
                Claim(worker="w", nonce="n"),
            ]
        )
        assert isinstance(answers[-1], Claims)
        assert len(answers[-1].jobs) == 1
        [claimed] = answers[-1].jobs
        settle = Settle(ref(claimed), RetryOutcome(delay=5.0, pause_group=True))
        *_, answer = await store.commit([settle, Claim(worker="w", nonce="m")])
        assert isinstance(answer, Claims)
        assert answer.jobs == ()


class Fairness:
    async def test_groups_are_served_round_robin(self, store: Store, given: Given) -> None:
        for group in ("flood", "flood", "flood", "flood", "a", "b", "b"):
            await given.waiting(queue="q", group=group)

        assert [job.group for job in await requests.claim(store, limit=10)] == [
            *("a", "b", "flood"),
            *("b", "flood"),
            *("flood", "flood"),
        ]

    async def test_the_round_robin_continues_across_claims(self, store: Store, given: Given) -> None:
        for _ in range(6):
            for group in ("a", "b", "c"):
                await given.waiting(queue="q", group=group)

        groups = [job.group for _ in range(9) for job in await requests.claim(store, limit=2)]

        assert groups == ["a", "b", "c"] * 6

    async def test_a_flooding_group_delays_other_groups_by_at_most_two_rounds(
        self, store: Store, given: Given
    ) -> None:
        await requests.insert(store, *(given.new_job(queue="q", task="t", group="flood") for _ in range(500)))
        assert len(await requests.claim(store, limit=100)) == 100
        await requests.insert(store, *(given.new_job(queue="q", task="t", group="other") for _ in range(10)))

        groups = [job.group for _ in range(10) for job in await requests.claim(store, limit=2)]

        assert groups.count("other") >= 9

    async def test_an_idle_group_collects_no_credit(self, store: Store, given: Given) -> None:
        for _ in range(12):
            await given.waiting(queue="q", group="busy")
        await given.waiting(queue="q", group="late")
        await requests.claim(store, limit=6)
        for _ in range(6):
            await given.waiting(queue="q", group="late")

        groups = [job.group for job in await requests.claim(store, limit=6)]

        assert groups.count("busy") == groups.count("late") == 3

    async def test_groups_are_served_in_proportion_to_their_weights(self, store: Store, given: Given) -> None:
        await requests.send(store, PutRule(GateKind.GROUP, "q", Rule(weight=3), "heavy"))
        for _ in range(20):
            for group in ("heavy", "light", ""):
                await given.waiting(queue="q", group=group)

        groups = [job.group for _ in range(5) for job in await requests.claim(store, limit=4)]

        assert {group: groups.count(group) for group in ("heavy", "light", "")} == {
            "heavy": 12,
            "light": 4,
            "": 4,
        }

    async def test_within_a_group_the_most_urgent_job_goes_first_across_tasks(
        self, store: Store, given: Given
    ) -> None:
        for number in range(12):
            await given.waiting(
                id=f"{number % 2}-{number:02}", priority=number % 2, task=f"t{number % 3}", group="g"
            )

        claimed_ids = [*await requests.claim_ids(store, limit=5), *await requests.claim_ids(store, limit=50)]

        assert claimed_ids == sorted(claimed_ids)

    async def test_many_paused_groups_do_not_block_other_groups(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        for number in range(40):
            await given.waiting(queue="q", group=f"g{number:02}")
            await requests.send(store, Pause(GateKind.GROUP, "q", group=f"g{number:02}"))
        job = await given.waiting(queue="q", group="z")
        [claimed] = await requests.claim(store, limit=1)
        assert claimed.id == job.id
        await requests.settle(store, claimed, CompleteOutcome())
        await requests.send(store, Resume(GateKind.GROUP, "q", "g07"))
        [claimed] = await requests.claim(store)
        await requests.settle(store, claimed, CompleteOutcome())
        clock.advance(100_000)
        await requests.run_upkeep(store)
        assert await requests.claim_ids(store) == []

    async def test_a_lapsed_job_does_not_use_up_the_turn_of_its_group(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        job = await given.waiting(queue="q", group="a", deadline=clock.time() + 5)
        other = await given.waiting(queue="q", group="a")
        clock.advance(5)

        assert await requests.claim_ids(store) == [other.id]
        assert (await requests.current_job(store, job)).state is State.FAILED

    async def test_with_strict_order_queues_are_served_in_the_order_given(
        self, store: Store, given: Given
    ) -> None:
        jobs = {queue: await given.waiting(queue=queue, priority=-n) for n, queue in enumerate("abc")}

        claimed_ids = await requests.claim_ids(store, queues=("b", "empty", "a", "c"), queue_order=STRICT)

        assert claimed_ids == [jobs[queue].id for queue in "bac"]

    async def test_weighted_queues_go_first_in_proportion_to_their_weights(
        self, store: Store, given: Given
    ) -> None:
        firsts = []
        for number in range(60):
            for queue in ("often", "seldom"):
                await given.waiting(queue=queue, task="t")
            claim = {
                "queues": ("seldom", "often", "empty"),
                "queue_order": (1.0, 5.0, 100.0),
                "nonce": f"n{number}",
            }
            [first] = await requests.claim(store, limit=1, **claim)
            firsts.append(first.queue)

        assert 40 <= firsts.count("often") < 60

    async def test_a_snoozed_job_frees_the_permit_of_its_group(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        await requests.send(store, PutRule(GateKind.QUEUE, "name", Rule(group_limit=1)))
        jobs = await insert_five_jobs(given)
        [claimed] = await requests.claim(store, limit=3)
        assert await requests.claim_ids(store) == []
        await requests.settle(store, claimed, SnoozeOutcome(5.0))
        assert await requests.claim_ids(store) == [jobs[1].id]
        clock.advance(5)
        assert await requests.claim_ids(store) == []
