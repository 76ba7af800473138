"""Figures by time: what ended how, how long jobs waited and ran, and what becomes of it when it is old."""

from errandry.core.command import CompleteOutcome, FailOutcome, RetryOutcome, Start, Upkeep
from errandry.core.stats import BOUNDS, DAY, HOUR, KEPT, MINUTE, RUN, RUNS, WAIT, WAITS, bucket, stats
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
        job = await given.taken(job)
        clock.advance(0.5)
        await requests.settle(store, job, CompleteOutcome())

        assert await requests.figures(store, WAIT) == {"mail": {_number(WAITS, 2.0): 1}}
        assert await requests.figures(store, RUN) == {"mail": {_number(RUNS, 0.5): 1}}
        found = stats(await store.stats(0.0, requests.FOREVER), 0.0, clock.time()).tasks["send"]
        assert (found.counts.inserted, found.counts.completed) == (1, 1)
        assert found.wait.quantile(0.5) == min(bound for bound in BOUNDS if bound >= 2.0)

    async def test_a_job_waits_from_when_it_is_due(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        job = await given.scheduled(delay=3_600.0)
        clock.advance(3_601.0)
        await given.taken(job)

        assert await requests.figures(store, WAIT) == {"default": {_number(WAITS, 1.0): 1}}

    async def test_every_attempt_counts(self, store: Store, clock: FakeClock, given: Given) -> None:
        job = await given.running()
        clock.advance(4.0)
        await requests.settle(store, job, RetryOutcome(delay=10.0))
        clock.advance(12.0)
        job = await given.taken(job)
        clock.advance(4.0)
        await requests.settle(store, job, FailOutcome())

        assert await requests.figures(store, RUN) == {"default": {_number(RUNS, 4.0): 2}}
        assert await requests.figures(store, WAIT) == {"default": {"0": 1, _number(WAITS, 2.0): 1}}

    async def test_what_is_claimed_ahead_waits_until_it_begins(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        job = await given.claimed()
        clock.advance(2.0)
        await requests.one(store, Start(ref(job)))

        assert await requests.figures(store, WAIT) == {"default": {_number(WAITS, 2.0): 1}}

    async def test_nobody_knows_how_long_a_job_ran_whose_worker_died(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        await given.running(lease=30.0)
        clock.advance(30.0)
        await requests.upkeep(store)

        assert await requests.figures(store, RUN) == {}
        assert (await requests.figures(store))["default"]["expired"] == 1

    async def test_a_renewal_is_no_new_run(self, store: Store, clock: FakeClock, given: Given) -> None:
        job = await given.running()
        clock.advance(1.0)
        await requests.renew(store, ref(job))

        assert await requests.figures(store, WAIT) == {"default": {"0": 1}}
        assert await requests.figures(store, RUN) == {}

    async def test_figures_are_of_their_minute(self, store: Store, clock: FakeClock, given: Given) -> None:
        clock.advance(MINUTE - clock.time() % MINUTE)
        began = clock.time()
        await given.waiting()
        clock.advance(MINUTE)
        await given.waiting()

        assert {(one.span, one.at, one.value) for one in await store.stats(0.0, requests.FOREVER)} == {
            (MINUTE, began, 1),
            (MINUTE, began + MINUTE, 1),
        }
        [first] = await store.stats(began, began + MINUTE)
        assert first.at == began
        assert await store.stats(began + 2 * MINUTE, began + 9 * MINUTE) == []

    async def test_what_is_old_is_kept_by_the_hour_and_then_by_the_day(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        clock.advance(DAY - clock.time() % DAY)
        for _ in range(3):
            await given.completed()
            clock.advance(MINUTE)
        before = await requests.figures(store)
        for span, kept in ((HOUR, KEPT[MINUTE]), (DAY, KEPT[HOUR])):
            clock.advance(kept + span)
            await requests.one(store, Upkeep(prune=False))

            assert {one.span for one in await store.stats(0.0, requests.FOREVER)} == {span}
            assert await requests.figures(store) == before

    async def test_figures_are_forgotten_in_the_end(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        await given.waiting()
        for wait in (KEPT[MINUTE], KEPT[HOUR] + DAY, KEPT[DAY] + DAY):
            clock.advance(wait + HOUR)
            await requests.upkeep(store)

        assert await store.stats(0.0, clock.time()) == []
        await requests.one(store, Upkeep())
        assert (await store.totals())["default"]["inserted"] == 1


def _number(names: tuple[str, ...], seconds: float) -> str:
    return bucket(names, seconds).partition(".")[2]
