"""Statistics over time: outcomes, waiting times, running times; old ones are merged and then deleted."""

from errandry.core.command import CompleteOutcome, FailOutcome, RetryOutcome, Start, Upkeep
from errandry.core.stats import (
    BOUNDS,
    DAY,
    HOUR,
    MINUTE,
    RETENTION,
    RUN_PREFIX,
    RUNS,
    WAIT_PREFIX,
    WAITS,
    bucket,
    stats,
)
from errandry.store.contract import Store
from errandry.testing.clock import FakeClock
from errandry.testing.conformance import requests
from errandry.testing.given import Given, ref


class Statistics:
    async def test_waiting_and_running_times_are_counted(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        job = await given.waiting(queue="mail", task="send")
        clock.advance(2.0)
        job = await given.claim(job)
        clock.advance(0.5)
        await requests.settle(store, job, CompleteOutcome())

        assert await requests.sum_stats(store, WAIT_PREFIX) == {"mail": {_bucket_number(WAITS, 2.0): 1}}
        assert await requests.sum_stats(store, RUN_PREFIX) == {"mail": {_bucket_number(RUNS, 0.5): 1}}
        task_stats = stats(await store.stats(0.0, requests.FAR_FUTURE), 0.0, clock.time()).tasks["send"]
        assert (task_stats.counts.inserted, task_stats.counts.completed) == (1, 1)
        assert task_stats.wait.quantile(0.5) == min(bound for bound in BOUNDS if bound >= 2.0)

    async def test_the_waiting_time_of_a_scheduled_job_starts_when_it_is_due(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        job = await given.scheduled(delay=3_600.0)
        clock.advance(3_601.0)
        await given.claim(job)

        assert await requests.sum_stats(store, WAIT_PREFIX) == {"default": {_bucket_number(WAITS, 1.0): 1}}

    async def test_every_attempt_is_counted(self, store: Store, clock: FakeClock, given: Given) -> None:
        job = await given.running()
        clock.advance(4.0)
        await requests.settle(store, job, RetryOutcome(delay=10.0))
        clock.advance(12.0)
        job = await given.claim(job)
        clock.advance(4.0)
        await requests.settle(store, job, FailOutcome())

        assert await requests.sum_stats(store, RUN_PREFIX) == {"default": {_bucket_number(RUNS, 4.0): 2}}
        assert await requests.sum_stats(store, WAIT_PREFIX) == {
            "default": {"0": 1, _bucket_number(WAITS, 2.0): 1}
        }

    async def test_the_waiting_time_of_a_prefetched_job_ends_when_it_starts(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        job = await given.claimed()
        clock.advance(2.0)
        await requests.send(store, Start(ref(job)))

        assert await requests.sum_stats(store, WAIT_PREFIX) == {"default": {_bucket_number(WAITS, 2.0): 1}}

    async def test_an_attempt_of_a_dead_worker_has_no_running_time(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        await given.running(lease=30.0)
        clock.advance(30.0)
        await requests.run_upkeep(store)

        assert await requests.sum_stats(store, RUN_PREFIX) == {}
        assert (await requests.sum_stats(store))["default"]["expired"] == 1

    async def test_a_renewal_is_not_counted_as_a_run(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        job = await given.running()
        clock.advance(1.0)
        await requests.renew(store, ref(job))

        assert await requests.sum_stats(store, WAIT_PREFIX) == {"default": {"0": 1}}
        assert await requests.sum_stats(store, RUN_PREFIX) == {}

    async def test_statistics_are_recorded_by_the_minute(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        clock.advance(MINUTE - clock.time() % MINUTE)
        start = clock.time()
        await given.waiting()
        clock.advance(MINUTE)
        await given.waiting()

        assert {(stat.span, stat.at, stat.value) for stat in await store.stats(0.0, requests.FAR_FUTURE)} == {
            (MINUTE, start, 1),
            (MINUTE, start + MINUTE, 1),
        }
        [first] = await store.stats(start, start + MINUTE)
        assert first.at == start
        assert await store.stats(start + 2 * MINUTE, start + 9 * MINUTE) == []

    async def test_old_statistics_are_merged_into_hours_and_then_into_days(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        clock.advance(DAY - clock.time() % DAY)
        for _ in range(3):
            await given.completed()
            clock.advance(MINUTE)
        before = await requests.sum_stats(store)
        for span, retention in ((HOUR, RETENTION[MINUTE]), (DAY, RETENTION[HOUR])):
            clock.advance(retention + span)
            await requests.send(store, Upkeep(prune=False))

            assert {stat.span for stat in await store.stats(0.0, requests.FAR_FUTURE)} == {span}
            assert await requests.sum_stats(store) == before

    async def test_very_old_statistics_are_deleted(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        await given.waiting()
        for wait in (RETENTION[MINUTE], RETENTION[HOUR] + DAY, RETENTION[DAY] + DAY):
            clock.advance(wait + HOUR)
            await requests.run_upkeep(store)

        assert await store.stats(0.0, clock.time()) == []
        await requests.send(store, Upkeep())
        assert (await store.totals())["default"]["inserted"] == 1


def _bucket_number(names: tuple[str, ...], seconds: float) -> str:
    return bucket(names, seconds).partition(".")[2]
