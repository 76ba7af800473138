"""Limits and rates: never one too many, nothing leaked, and what is held back is in nobody's way."""

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


async def five(given: Given) -> list[JobRecord]:
    return [await given.waiting(queue="name", task="name", group="name") for _ in range(5)]


class Limiting:
    @SCOPES
    async def test_no_more_are_held_than_the_limit_says(
        self, store: Store, given: Given, kind: GateKind, group: str, rule: Rule
    ) -> None:
        await requests.one(store, PutRule(kind, "name", rule, group))
        jobs = [job.id for job in await five(given)]

        first = await requests.claim(store, limit=10)
        assert [job.id for job in first] == jobs[:2]
        assert await requests.order(store) == []
        await requests.settle(store, first[0], CompleteOutcome())
        assert await requests.order(store) == [jobs[2]]
        assert await requests.order(store) == []

    @SCOPES
    @pytest.mark.parametrize("start", [True, False], ids=["running", "claimed"])
    async def test_a_permit_comes_back_however_the_job_ends(
        self,
        store: Store,
        clock: FakeClock,
        given: Given,
        kind: GateKind,
        group: str,
        rule: Rule,
        start: bool,
    ) -> None:
        await requests.one(store, PutRule(kind, "name", rule, group))
        for _ in range(20):
            await given.waiting(queue="name", task="name", group="name")
        others: list[str] = []
        for end in ("release", "cancel", "remove", "expire", "dead"):
            one, two = await requests.claim(store, limit=10, start=start, lease=30.0)
            assert await requests.order(store) == []
            for job in (one, two):
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
                await requests.one(store, Upkeep(dead=("worker",)))
            others += [one.id, two.id]
        assert len(await requests.order(store)) == 2

    @SCOPES
    async def test_a_limit_holds_across_claims_of_one_pass(
        self, store: Store, given: Given, kind: GateKind, group: str, rule: Rule
    ) -> None:
        await requests.one(store, PutRule(kind, "name", rule, group))
        await five(given)
        held = await requests.claim(store, limit=1)

        answers = await store.commit(
            [
                Settle(ref(held[0]), CompleteOutcome()),
                *(Claim(worker=name, nonce=name, limit=10) for name in ("ann", "bob")),
            ]
        )

        taken = [len(answer.jobs) for answer in answers if isinstance(answer, Claims)]
        assert taken == [2, 0]

    @SCOPES
    async def test_a_limit_is_changed_while_jobs_run(
        self, store: Store, given: Given, kind: GateKind, group: str, rule: Rule
    ) -> None:
        await requests.one(store, PutRule(kind, "name", rule, group))
        await five(given)
        assert len(await requests.order(store)) == 2
        more = Rule(group_limit=4) if rule.group_limit else Rule(limit=4)
        await requests.one(store, PutRule(kind, "name", more, group))
        assert len(await requests.order(store)) == 2
        assert await requests.order(store) == []

        await requests.one(store, PutRule(kind, "name", NO_RULE, group))

        assert len(await requests.order(store)) == 1

    async def test_what_is_full_is_in_nobodys_way(self, store: Store, given: Given) -> None:
        await requests.one(store, PutRule(GateKind.QUEUE, "full", Rule(limit=1)))
        await requests.one(store, PutRule(GateKind.TASK, "full", Rule(limit=1)))
        await requests.one(store, PutRule(GateKind.QUEUE, "q", Rule(group_limit=1)))
        for _ in range(3):
            await given.waiting(queue="full", priority=-1)
            await given.waiting(task="full", priority=-1)
            await given.waiting(queue="q", group="full", priority=-1)
        job, other = (
            await given.waiting(priority=5),
            await given.waiting(queue="q", group="other", priority=5),
        )

        taken = await requests.order(store, limit=6)

        assert len(taken) == 5
        assert {job.id, other.id} <= set(taken)

    async def test_the_limit_of_a_task_counts_all_its_queues_and_groups(
        self, store: Store, given: Given
    ) -> None:
        await requests.one(store, PutRule(GateKind.TASK, "t", Rule(limit=3)))
        for number in range(6):
            await given.waiting(task="t", queue=f"q{number % 2}", group="g" * (number % 3))

        assert len(await requests.order(store)) == 3
        assert await requests.order(store) == []

    async def test_a_group_without_a_limit_of_its_own_has_that_of_its_queue(
        self, store: Store, given: Given
    ) -> None:
        await requests.one(store, PutRule(GateKind.QUEUE, "q", Rule(group_limit=1)))
        await requests.one(store, PutRule(GateKind.GROUP, "q", Rule(limit=3), "large"))
        for group in ("large", "small", ""):
            for _ in range(4):
                await given.waiting(queue="q", group=group)

        held = [job.group for job in await requests.claim(store, limit=20)]

        assert {group: held.count(group) for group in held} == {"large": 3, "small": 1, "": 4}

    async def test_a_repeated_claim_needs_no_permit(self, store: Store, given: Given) -> None:
        await requests.one(store, PutRule(GateKind.QUEUE, "q", Rule(limit=1)))
        job = await given.waiting(queue="q")
        first = await requests.claims(store, nonce="same")
        again = await requests.claims(store, nonce="same")

        assert [one.id for one in first.jobs] == [one.id for one in again.jobs] == [job.id]

    async def test_a_group_that_was_full_and_is_paused_stays_closed(self, store: Store, given: Given) -> None:
        await requests.one(store, PutRule(GateKind.QUEUE, "name", Rule(group_limit=2)))
        await five(given)
        held = await requests.claim(store, limit=10)
        assert await requests.order(store) == []
        await requests.one(store, Pause(GateKind.GROUP, "name", group="name"))
        await requests.settle(store, held[0], CompleteOutcome())
        assert await requests.order(store) == []

        await requests.one(store, Resume(GateKind.GROUP, "name", "name"))

        assert len(await requests.order(store)) == 1


class Rating:
    @RATES
    async def test_a_rate_lets_its_burst_through_and_then_one_by_one(
        self, store: Store, clock: FakeClock, given: Given, kind: GateKind, group: str, rule: Rule
    ) -> None:
        await requests.one(store, PutRule(kind, "name", rule, group))
        jobs = [job.id for job in await five(given)]

        answer = await requests.claims(store, limit=10)
        assert [job.id for job in answer.jobs] == jobs[:2]
        due = answer.due_in or await store.due_in()
        assert (await requests.claims(store, limit=10)).due_in == await store.due_in()
        assert due is not None
        assert 1.0 <= due <= 1.01
        clock.advance(0.5)
        assert await requests.order(store) == []
        clock.advance(due - 0.5)
        assert await requests.order(store) == [jobs[2]]
        clock.advance(60)
        assert await requests.order(store) == jobs[3:]

    @RATES
    async def test_a_rate_holds_whoever_claims_and_settling_gives_nothing_back(
        self, store: Store, given: Given, kind: GateKind, group: str, rule: Rule
    ) -> None:
        await requests.one(store, PutRule(kind, "name", rule, group))
        await five(given)

        [one] = await requests.claim(store, worker="ann")
        await requests.settle(store, one, CompleteOutcome())
        [two] = await requests.claim(store, worker="bob")
        await requests.settle(store, two, ReleaseOutcome())

        assert await requests.order(store) == []

    async def test_when_nothing_waits_behind_a_rate_nothing_is_due(self, store: Store, given: Given) -> None:
        await requests.one(store, PutRule(GateKind.QUEUE, "q", Rule(rate=Rate(1, 60.0, 1))))
        await given.waiting(queue="q")

        assert (await requests.claims(store)).due_in is None
        assert await store.due_in() is None

    async def test_a_slower_rate_holds_from_now_on(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        await requests.one(store, PutRule(GateKind.QUEUE, "name", Rule(rate=Rate(60, 60.0, 1))))
        await five(given)
        assert len(await requests.order(store)) == 1
        await requests.one(store, PutRule(GateKind.QUEUE, "name", Rule(rate=Rate(1, 60.0, 1))))
        clock.advance(1)
        assert len(await requests.order(store)) == 1
        clock.advance(59)
        assert await requests.order(store) == []
        clock.advance(1)
        assert len(await requests.order(store)) == 1

    async def test_a_retry_can_close_its_group_for_all(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        job = await given.running(queue="q", group="acme", task="t")
        other = await given.waiting(queue="q", group="acme", task="u")
        free = await given.waiting(queue="q", group="free", task="t")
        await requests.settle(store, job, RetryOutcome(delay=20.0, pause_group=True))

        assert await requests.order(store) == [free.id]
        assert [(gate.name, gate.group) for gate in await store.rules()] == [("q", "acme")]
        assert await store.due_in() == 20.0
        clock.advance(20)
        assert set(await requests.order(store)) == {job.id, other.id}
        assert await store.rules() == []

    async def test_a_job_that_is_due_where_all_had_left_a_closed_group_is_not_missed(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        job = await given.running(queue="q", group="acme", task="t", max_attempts=1)
        left = await given.waiting(queue="q", group="acme", task="u")
        due = await given.scheduled(queue="q", group="acme", task="u", delay=60.0)
        await requests.settle(store, job, RetryOutcome(delay=20.0, pause_group=True))
        assert await requests.order(store) == []
        await requests.operate(store, CancelJobs(ids=(left.id,)))
        clock.advance(60)

        assert await requests.order(store) == [due.id]

    async def test_a_retry_without_a_group_closes_its_task(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        job = await given.running(task="t")
        other = await given.waiting(task="t", queue="elsewhere")
        free = await given.waiting(task="u")
        await requests.settle(store, job, RetryOutcome(delay=20.0, pause_group=True))
        assert await requests.order(store) == [free.id]
        assert await store.due_in() == 20.0

        clock.advance(20)

        assert await requests.order(store) == [other.id, job.id]

    async def test_a_shorter_closing_does_not_shorten_a_longer_one(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        one, two = await given.running(task="t"), await given.running(task="t")
        await given.waiting(task="t")
        await requests.settle(store, one, RetryOutcome(delay=60.0, pause_group=True))
        await requests.settle(store, two, RetryOutcome(delay=5.0, pause_group=True))
        clock.advance(59)
        assert await requests.order(store) == []
        clock.advance(1)
        assert len(await requests.order(store)) == 3

    async def test_a_closing_holds_for_the_claims_of_its_pass(self, store: Store, given: Given) -> None:
        job = await given.running(task="t", group="g")
        await given.waiting(task="t", group="g")

        answers = await store.commit(
            [
                Settle(ref(job), RetryOutcome(delay=0.0, pause_group=True)),
                Insert((given.job(task="t", group="g"),)),
                Claim(worker="w", nonce="n"),
            ]
        )
        assert isinstance(answers[-1], Claims)
        assert len(answers[-1].jobs) == 1
        [held] = answers[-1].jobs
        closing = Settle(ref(held), RetryOutcome(delay=5.0, pause_group=True))
        *_, answer = await store.commit([closing, Claim(worker="w", nonce="m")])
        assert isinstance(answer, Claims)
        assert answer.jobs == ()


class TakingTurns:
    async def test_groups_are_served_in_turn(self, store: Store, given: Given) -> None:
        for group in ("flood", "flood", "flood", "flood", "a", "b", "b"):
            await given.waiting(queue="q", group=group)

        assert [job.group for job in await requests.claim(store, limit=10)] == [
            *("a", "b", "flood"),
            *("b", "flood"),
            *("flood", "flood"),
        ]

    async def test_turns_go_on_from_claim_to_claim(self, store: Store, given: Given) -> None:
        for _ in range(6):
            for group in ("a", "b", "c"):
                await given.waiting(queue="q", group=group)

        groups = [job.group for _ in range(9) for job in await requests.claim(store, limit=2)]

        assert groups == ["a", "b", "c"] * 6

    async def test_a_flood_lets_others_wait_two_rounds_at_most(self, store: Store, given: Given) -> None:
        await requests.insert(store, *(given.job(queue="q", task="t", group="flood") for _ in range(500)))
        assert len(await requests.claim(store, limit=100)) == 100
        await requests.insert(store, *(given.job(queue="q", task="t", group="other") for _ in range(10)))

        taken = [job.group for _ in range(10) for job in await requests.claim(store, limit=2)]

        assert taken.count("other") >= 9

    async def test_a_group_that_was_idle_is_owed_nothing(self, store: Store, given: Given) -> None:
        for _ in range(12):
            await given.waiting(queue="q", group="busy")
        await given.waiting(queue="q", group="late")
        await requests.claim(store, limit=6)
        for _ in range(6):
            await given.waiting(queue="q", group="late")

        taken = [job.group for job in await requests.claim(store, limit=6)]

        assert taken.count("busy") == taken.count("late") == 3

    async def test_weights_say_how_often_a_group_is_served(self, store: Store, given: Given) -> None:
        await requests.one(store, PutRule(GateKind.GROUP, "q", Rule(weight=3), "heavy"))
        for _ in range(20):
            for group in ("heavy", "light", ""):
                await given.waiting(queue="q", group=group)

        taken = [job.group for _ in range(5) for job in await requests.claim(store, limit=4)]

        assert {group: taken.count(group) for group in ("heavy", "light", "")} == {
            "heavy": 12,
            "light": 4,
            "": 4,
        }

    async def test_inside_a_group_the_most_urgent_goes_first_across_tasks(
        self, store: Store, given: Given
    ) -> None:
        for number in range(12):
            await given.waiting(
                id=f"{number % 2}-{number:02}", priority=number % 2, task=f"t{number % 3}", group="g"
            )

        taken = [*await requests.order(store, limit=5), *await requests.order(store, limit=50)]

        assert taken == sorted(taken)

    async def test_many_paused_groups_are_in_nobodys_way(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        for number in range(40):
            await given.waiting(queue="q", group=f"g{number:02}")
            await requests.one(store, Pause(GateKind.GROUP, "q", group=f"g{number:02}"))
        job = await given.waiting(queue="q", group="z")
        [held] = await requests.claim(store, limit=1)
        assert held.id == job.id
        await requests.settle(store, held, CompleteOutcome())
        await requests.one(store, Resume(GateKind.GROUP, "q", "g07"))
        [held] = await requests.claim(store)
        await requests.settle(store, held, CompleteOutcome())
        clock.advance(100_000)
        await requests.upkeep(store)
        assert await requests.order(store) == []

    async def test_a_lapsed_job_takes_nobodys_turn(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        job = await given.waiting(queue="q", group="a", deadline=clock.time() + 5)
        other = await given.waiting(queue="q", group="a")
        clock.advance(5)

        assert await requests.order(store) == [other.id]
        assert (await requests.current(store, job)).state is State.FAILED

    async def test_queues_in_strict_order(self, store: Store, given: Given) -> None:
        jobs = {queue: await given.waiting(queue=queue, priority=-n) for n, queue in enumerate("abc")}

        taken = await requests.order(store, queues=("b", "empty", "a", "c"), order=STRICT)

        assert taken == [jobs[queue].id for queue in "bac"]

    async def test_weighted_queues_go_first_as_often_as_their_weight_says(
        self, store: Store, given: Given
    ) -> None:
        firsts = []
        for number in range(60):
            for queue in ("often", "seldom"):
                await given.waiting(queue=queue, task="t")
            claim = {
                "queues": ("seldom", "often", "empty"),
                "order": (1.0, 5.0, 100.0),
                "nonce": f"n{number}",
            }
            [first] = await requests.claim(store, limit=1, **claim)
            firsts.append(first.queue)

        assert 40 <= firsts.count("often") < 60

    async def test_a_snoozed_job_frees_its_group(self, store: Store, clock: FakeClock, given: Given) -> None:
        await requests.one(store, PutRule(GateKind.QUEUE, "name", Rule(group_limit=1)))
        jobs = await five(given)
        [held] = await requests.claim(store, limit=3)
        assert await requests.order(store) == []
        await requests.settle(store, held, SnoozeOutcome(5.0))
        assert await requests.order(store) == [jobs[1].id]
        clock.advance(5)
        assert await requests.order(store) == []
