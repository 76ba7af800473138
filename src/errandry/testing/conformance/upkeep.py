"""Upkeep: it moves on what is due, in bounded steps, and can be repeated at any time."""

from operator import attrgetter

import pytest

from errandry.core.answer import Claims, Expiry, UpkeepResult
from errandry.core.command import Beat, Claim, Command, Upkeep
from errandry.core.job import JobRecord, Keep, NewJob
from errandry.core.state import Reason, State
from errandry.store.contract import Store, StoreLimits
from errandry.testing.clock import FakeClock
from errandry.testing.conformance import requests
from errandry.testing.conformance.fixtures import MakeStore
from errandry.testing.given import Given


class UpkeepSteps:
    async def test_upkeep_expires_promotes_lapses_and_prunes_what_is_due(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        claimed, running = await given.claimed(lease=10.0), await given.running(lease=10.0)
        due, lapsing = await given.scheduled(delay=10.0), await given.waiting(deadline=clock.time() + 10)
        completed = await given.completed(keep=Keep(completed=10.0))
        untouched = [await given.scheduled(delay=10.25), await given.blocked(), await given.failed()]
        clock.advance(10)

        result = await requests.run_upkeep(store)

        assert isinstance(result, UpkeepResult)
        assert (result.expired, result.promoted, result.lapsed, result.pruned) == (2, 1, 1, 1)
        for job in (claimed, running, due):
            assert (await requests.current_job(store, job)).state is State.WAITING
        assert (await requests.current_job(store, lapsing)).reason is Reason.DEADLINE
        assert await requests.is_gone(store, completed)
        assert [await requests.current_job(store, job) for job in untouched] == untouched

    async def test_upkeep_changes_nothing_a_moment_early(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        await given.claimed(lease=10.0)
        await given.running(lease=10.0)
        await given.scheduled(delay=10.0)
        await given.waiting(deadline=clock.time() + 10)
        await given.completed(keep=Keep(completed=10.0))
        clock.advance(9.75)
        before = await requests.snapshot(store)

        assert await requests.run_upkeep(store) == UpkeepResult()
        assert await requests.snapshot(store) == before

    async def test_a_second_upkeep_has_nothing_to_do(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        await given.running(lease=10.0)
        await given.scheduled(delay=10.0)
        await given.completed(keep=Keep(completed=10.0))
        clock.advance(10)
        await requests.run_upkeep(store)
        before = await requests.snapshot(store)

        assert await requests.run_upkeep(store) == UpkeepResult()
        assert await requests.snapshot(store) == before

    async def test_upkeep_of_an_idle_store_changes_nothing(self, store: Store) -> None:
        before = await requests.snapshot(store)

        assert await requests.run_upkeep(store) == UpkeepResult()
        assert await requests.snapshot(store) == before

    @pytest.mark.parametrize("field", ["expired", "promoted", "lapsed", "pruned"])
    async def test_each_kind_of_upkeep_runs_in_bounded_steps(
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

        results = [await requests.run_upkeep(store, limit=2)]
        while results[-1].more:
            assert len(results) < 10, "upkeep does not end"
            results.append(await requests.run_upkeep(store, limit=2))

        assert [getattr(result, field) for result in results] == [2, 2, 1]
        assert await requests.run_upkeep(store) == UpkeepResult()

    async def test_upkeep_promotes_the_earliest_jobs_first(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        late, early = await given.scheduled(delay=20.0), await given.scheduled(delay=10.0)
        clock.advance(30)
        await requests.run_upkeep(store, limit=1)

        assert (await requests.current_job(store, early)).state is State.WAITING
        assert (await requests.current_job(store, late)).state is State.SCHEDULED

    async def test_a_claim_after_a_bounded_upkeep_misses_no_due_job(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        await given.inserted(*(given.new_job(delay=10.0) for _ in range(5)))
        clock.advance(10)

        result, claims = await store.commit([Upkeep(limit=2), Claim(worker="w", nonce="n", limit=10)])

        assert isinstance(result, UpkeepResult)
        assert (result.promoted, result.more) == (2, True)
        assert isinstance(claims, Claims)
        assert len(claims.jobs) == 5

    async def test_the_leases_of_dead_workers_expire_at_once(self, store: Store, given: Given) -> None:
        started, unstarted = await given.running("dead"), await given.claimed("dead too")
        alive = await given.running("alive")

        result = await requests.run_upkeep(store, dead=("dead", "dead too", "never seen"))

        assert result == UpkeepResult(expired=2, expiries=_expiries(started, unstarted))
        running, other = (
            await requests.current_job(store, started),
            await requests.current_job(store, unstarted),
        )
        assert (running.state, running.attempts, running.crashes) == (State.WAITING, 1, 1)
        assert [error.message for error in running.errors] == ["the process of the worker died"]
        assert (other.state, other.attempts, other.releases) == (State.WAITING, 0, 1)
        assert await requests.current_job(store, alive) == alive

    @pytest.mark.parametrize("by", ["upkeep", "claim"])
    async def test_the_command_that_expires_claims_names_them(
        self, store: Store, clock: FakeClock, given: Given, by: str
    ) -> None:
        unstarted, running = await given.claimed(lease=10.0), await given.running("other", lease=10.0)
        last = await given.running(lease=10.0, max_attempts=1)
        clock.advance(10)

        commands: list[Command] = [Upkeep(), Claim(worker="w", nonce="n")]
        first, second = await store.commit(commands if by == "upkeep" else commands[::-1])

        assert isinstance(first, UpkeepResult | Claims)
        assert first.expiries == _expiries(unstarted, running, last)
        assert [expiry.state for expiry in _expiries(last)] == [State.FAILED]
        assert getattr(second, "expiries", None) == ()

    async def test_upkeep_answers_more_when_the_leases_of_dead_workers_reach_its_limit(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        await given.running("slow", lease=10.0)
        for _ in range(3):
            await given.running("dead", lease=60.0)
        clock.advance(10)

        result = await requests.run_upkeep(store, limit=2, dead=("dead",))

        assert result.more
        assert (await requests.run_upkeep(store, dead=("dead",))).expired == 4 - result.expired

    async def test_old_events_are_trimmed(self, open_store: MakeStore, clock: FakeClock) -> None:
        store = await open_store(clock, StoreLimits(events_age=60.0))
        await Given(store).waiting(id="old")
        clock.advance(30)
        await Given(store).waiting(id="new")
        clock.advance(30)

        result = await requests.run_upkeep(store)

        assert result.trimmed > 0
        assert [event.job for event in await requests.read_events(store)] == ["new"]
        assert await requests.run_upkeep(store) == UpkeepResult()

    async def test_too_many_events_are_trimmed_oldest_first(
        self, open_store: MakeStore, clock: FakeClock
    ) -> None:
        store = await open_store(clock, StoreLimits(events=5))
        given = Given(store)
        jobs = [await given.waiting() for _ in range(12)]

        await _trim_until_done(store)

        assert [event.job for event in await requests.read_events(store)] == [job.id for job in jobs[-5:]]

    async def test_the_counters_outlive_the_events(self, open_store: MakeStore, clock: FakeClock) -> None:
        store = await open_store(clock, StoreLimits(events_age=60.0))
        await Given(store).completed()
        await Given(store).removed(id="gone")
        counts, totals = await store.counts(), await store.totals()
        clock.advance(60)

        await _trim_until_done(store)

        assert await requests.read_events(store) == []
        assert (await store.counts(), await store.totals()) == (counts, totals)

    async def test_workers_that_no_longer_beat_are_removed(
        self, open_store: MakeStore, clock: FakeClock
    ) -> None:
        store = await open_store(clock, StoreLimits(workers_age=60.0))
        await requests.send(store, Beat(worker="old"))
        clock.advance(30)
        await requests.send(store, Beat(worker="new"))
        clock.advance(30)

        await requests.run_upkeep(store)

        assert [info.beat.worker for info in await store.workers()] == ["new"]

    async def test_a_repeated_claim_claims_again_in_the_pass_that_deletes_its_record(
        self, open_store: MakeStore, clock: FakeClock
    ) -> None:
        """Upkeep deletes the record of the claim and expires its job; the repeated claim takes it again."""
        store = await open_store(clock, StoreLimits(workers_age=60.0))
        await requests.insert(store, NewJob(id="job", task="task", payload="{}"))
        claim = Claim(worker="worker", nonce="once", lease=10.0)
        await requests.send(store, claim)
        clock.advance(60)

        result, claims = await store.commit([Upkeep(), claim])

        assert isinstance(result, UpkeepResult)
        assert result.expired == 1
        assert isinstance(claims, Claims)
        assert [(one.id, one.attempts) for one in claims.jobs] == [("job", 2)]


async def _trim_until_done(store: Store) -> None:
    """Run upkeep until it has nothing left to trim."""
    for _ in range(20):
        if not (await requests.run_upkeep(store)).trimmed:
            return
    raise AssertionError("trimming does not end")


def _expiries(*jobs: JobRecord) -> tuple[Expiry, ...]:
    """What upkeep answers about the claims of these jobs; those without attempts left have failed."""
    return tuple(
        Expiry(
            job.id,
            job.task,
            job.queue,
            job.worker,
            job.attempts,
            job.max_attempts,
            job.state is State.RUNNING,
            State.FAILED if job.attempts >= job.max_attempts else State.WAITING,
        )
        for job in sorted(jobs, key=attrgetter("id"))
    )
