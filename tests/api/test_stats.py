"""`jobs.stats`: outcomes and times of a recent span."""

from datetime import UTC, timedelta

import pytest

from errandry import Errandry
from errandry.errors import InvalidValue
from tests.run_worker import run_burst


async def test_stats_count_outcomes_and_measure_times(live: Errandry) -> None:
    @live.task(queue="mail", max_attempts=1)
    async def send(to: str) -> None:
        if to == "unknown":
            raise LookupError(to)

    @live.task
    async def other() -> None: ...

    await live.enqueue_many([send.new("ada"), send.new("unknown"), other.new()])
    await run_burst(live)
    stats = await live.stats()

    counts = stats.queues["mail"].counts
    assert (counts.inserted, counts.completed, counts.failed) == (2, 1, 1)
    assert stats.tasks["other"].counts.completed == 1
    assert (stats.total.wait.count, stats.total.run.count) == (3, 3)
    assert (stats.total.run.quantile(0.99) or 0.0) < 60
    assert list((await live.stats(timedelta(minutes=5), queue="mail")).tasks) == ["send"]
    assert (await live.stats(60, task="other")).total.counts.inserted == 1
    assert (await live.stats("1 hour", until=1_000_000.0)).total.counts.inserted == 0
    assert stats.until - stats.since == stats.total.span * timedelta(seconds=1) == timedelta(hours=1)
    assert [part.at for part in stats.series(2)] == [stats.since, stats.since + timedelta(minutes=30)]
    assert stats.until.tzinfo is UTC


async def test_a_wrong_time_is_refused(live: Errandry) -> None:
    with pytest.raises(InvalidValue, match="last='soon'"):
        await live.stats("soon")
    with pytest.raises(InvalidValue, match="until=-1"):
        await live.stats(until=-1)
