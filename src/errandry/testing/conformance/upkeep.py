"""Upkeep: what is due moves on, in bounded steps that anyone may repeat."""

import pytest

from errandry.core.answer import Claims, UpkeepResult
from errandry.core.command import Beat, Claim, Upkeep
from errandry.core.job import Keep, NewJob
from errandry.core.state import Reason, State
from errandry.store.contract import Store, StoreLimits
from errandry.testing.clock import FakeClock
from errandry.testing.conformance import requests
from errandry.testing.conformance.fixtures import MakeStore
from errandry.testing.given import Given


class Upkeeping:
    async def test_everything_that_is_due_moves_on(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        claimed, running = await given.claimed(lease=10.0), await given.running(lease=10.0)
        due, lapsing = await given.scheduled(delay=10.0), await given.waiting(deadline=clock.time() + 10)
        ended = await given.completed(keep=Keep(completed=10.0))
        untouched = [await given.scheduled(delay=10.25), await given.blocked(), await given.failed()]
        clock.advance(10)

        kept = await requests.upkeep(store)

        assert kept == UpkeepResult(expired=2, promoted=1, lapsed=1, pruned=1)
        for job in (claimed, running, due):
            assert (await requests.current(store, job)).state is State.WAITING
        assert (await requests.current(store, lapsing)).reason is Reason.DEADLINE
        assert await requests.is_gone(store, ended)
        assert [await requests.current(store, job) for job in untouched] == untouched

    async def test_nothing_is_due_a_moment_early(self, store: Store, clock: FakeClock, given: Given) -> None:
        await given.claimed(lease=10.0)
        await given.running(lease=10.0)
        await given.scheduled(delay=10.0)
        await given.waiting(deadline=clock.time() + 10)
        await given.completed(keep=Keep(completed=10.0))
        clock.advance(9.75)
        before = await requests.everything(store)

        assert await requests.upkeep(store) == UpkeepResult()
        assert await requests.everything(store) == before

    async def test_a_second_upkeep_has_nothing_to_do(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        await given.running(lease=10.0)
        await given.scheduled(delay=10.0)
        await given.completed(keep=Keep(completed=10.0))
        clock.advance(10)
        await requests.upkeep(store)
        before = await requests.everything(store)

        assert await requests.upkeep(store) == UpkeepResult()
        assert await requests.everything(store) == before

    async def test_an_idle_store_is_left_alone(self, store: Store) -> None:
        before = await requests.everything(store)

        assert await requests.upkeep(store) == UpkeepResult()
        assert await requests.everything(store) == before

    @pytest.mark.parametrize("field", ["expired", "promoted", "lapsed", "pruned"])
    async def test_each_kind_of_work_is_bounded(
        self, store: Store, clock: FakeClock, given: Given, field: str
    ) -> None:
        for _ in range(5):
            match field:
                case "expired":
                    await given.running(lease=10.0)
                case "promoted":
                    await given.scheduled(delay=10.0)
                case "lapsed":
                    await given.waiting(deadline=clock.time() + 10)
                case _:
                    await given.completed(keep=Keep(completed=10.0))
        clock.advance(10)

        done = [await requests.upkeep(store, limit=2)]
        while done[-1].more:
            assert len(done) < 10, "upkeep does not end"
            done.append(await requests.upkeep(store, limit=2))

        assert [getattr(kept, field) for kept in done] == [2, 2, 1]
        assert await requests.upkeep(store) == UpkeepResult()

    async def test_the_earliest_go_first(self, store: Store, clock: FakeClock, given: Given) -> None:
        late, early = await given.scheduled(delay=20.0), await given.scheduled(delay=10.0)
        clock.advance(30)
        await requests.upkeep(store, limit=1)

        assert (await requests.current(store, early)).state is State.WAITING
        assert (await requests.current(store, late)).state is State.SCHEDULED

    async def test_a_claim_after_a_bounded_upkeep_misses_no_due_job(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        await given.inserted(*(given.job(delay=10.0) for _ in range(5)))
        clock.advance(10)

        kept, taken = await store.commit([Upkeep(limit=2), Claim(worker="w", nonce="n", limit=10)])

        assert isinstance(kept, UpkeepResult)
        assert (kept.promoted, kept.more) == (2, True)
        assert isinstance(taken, Claims)
        assert len(taken.jobs) == 5

    async def test_the_leases_of_dead_workers_expire_at_once(self, store: Store, given: Given) -> None:
        started, unstarted = await given.running("dead"), await given.claimed("dead too")
        alive = await given.running("alive")

        kept = await requests.upkeep(store, dead=("dead", "dead too", "never seen"))

        assert kept == UpkeepResult(expired=2)
        one, other = await requests.current(store, started), await requests.current(store, unstarted)
        assert (one.state, one.attempts, one.crashes) == (State.WAITING, 1, 1)
        assert (other.state, other.attempts, other.releases) == (State.WAITING, 0, 1)
        assert await requests.current(store, alive) == alive

    async def test_there_is_more_where_the_leases_of_the_dead_alone_reach_the_bound(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        await given.running("slow", lease=10.0)
        for _ in range(3):
            await given.running("dead", lease=60.0)
        clock.advance(10)

        kept = await requests.upkeep(store, limit=2, dead=("dead",))

        assert kept.more
        assert (await requests.upkeep(store, dead=("dead",))).expired == 4 - kept.expired

    async def test_old_events_are_trimmed(self, open_store: MakeStore, clock: FakeClock) -> None:
        store = await open_store(clock, StoreLimits(events_age=60.0))
        await Given(store).waiting(id="old")
        clock.advance(30)
        await Given(store).waiting(id="new")
        clock.advance(30)

        kept = await requests.upkeep(store)

        assert kept.trimmed > 0
        assert [event.job for event in await requests.events(store)] == ["new"]
        assert await requests.upkeep(store) == UpkeepResult()

    async def test_too_many_events_are_trimmed_oldest_first(
        self, open_store: MakeStore, clock: FakeClock
    ) -> None:
        store = await open_store(clock, StoreLimits(events=5))
        given = Given(store)
        jobs = [await given.waiting() for _ in range(12)]

        await _trimmed(store)

        assert [event.job for event in await requests.events(store)] == [job.id for job in jobs[-5:]]

    async def test_the_counters_outlive_the_events(self, open_store: MakeStore, clock: FakeClock) -> None:
        store = await open_store(clock, StoreLimits(events_age=60.0))
        await Given(store).completed()
        await Given(store).gone(id="gone")
        counts, totals = await store.counts(), await store.totals()
        clock.advance(60)

        await _trimmed(store)

        assert await requests.events(store) == []
        assert (await store.counts(), await store.totals()) == (counts, totals)

    async def test_workers_that_no_longer_beat_are_forgotten(
        self, open_store: MakeStore, clock: FakeClock
    ) -> None:
        store = await open_store(clock, StoreLimits(workers_age=60.0))
        await requests.one(store, Beat(worker="old"))
        clock.advance(30)
        await requests.one(store, Beat(worker="new"))
        clock.advance(30)

        await requests.upkeep(store)

        assert [info.beat.worker for info in await store.workers()] == ["new"]

    async def test_a_claim_that_is_forgotten_is_a_new_one_at_once(
        self, open_store: MakeStore, clock: FakeClock
    ) -> None:
        """In the very pass that forgets what it had brought, and gives that back."""
        store = await open_store(clock, StoreLimits(workers_age=60.0))
        await requests.insert(store, NewJob(id="job", task="task", payload="{}"))
        claim = Claim(worker="worker", nonce="once", lease=10.0)
        await requests.one(store, claim)
        clock.advance(60)

        kept, claims = await store.commit([Upkeep(), claim])

        assert isinstance(kept, UpkeepResult)
        assert kept.expired == 1
        assert isinstance(claims, Claims)
        assert [(one.id, one.attempts) for one in claims.jobs] == [("job", 2)]


async def _trimmed(store: Store) -> None:
    """Upkeep until it has nothing left to trim."""
    for _ in range(20):
        if not (await requests.upkeep(store)).trimmed:
            return
    raise AssertionError("trimming does not end")
