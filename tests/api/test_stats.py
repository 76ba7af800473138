"""`jobs.stats`: what happened lately."""

from datetime import timedelta

import pytest

from errandry import Errandry
from errandry.errors import InvalidValue
from tests.working import burst


async def test_jobs_tell_how_they_ended_and_how_long_they_took(live: Errandry) -> None:
    @live.task(queue="mail", max_attempts=1)
    async def send(to: str) -> None:
        if to == "nobody":
            raise LookupError(to)

    @live.task
    async def other() -> None: ...

    await live.enqueue_many([send.new("ada"), send.new("nobody"), other.new()])
    await burst(live)
    found = await live.stats()

    counts = found.queues["mail"].counts
    assert (counts.inserted, counts.completed, counts.failed) == (2, 1, 1)
    assert found.tasks["other"].counts.completed == 1
    assert (found.total.wait.count, found.total.run.count) == (3, 3)
    assert (found.total.run.quantile(0.99) or 0.0) < 60
    assert list((await live.stats(timedelta(minutes=5), queue="mail")).tasks) == ["send"]
    assert (await live.stats(60, task="other")).total.counts.inserted == 1
    assert (await live.stats("1 hour", until=1_000_000.0)).total.counts.inserted == 0


async def test_a_time_that_is_none_is_refused(live: Errandry) -> None:
    with pytest.raises(InvalidValue, match="last='soon'"):
        await live.stats("soon")
    with pytest.raises(InvalidValue, match="until=-1"):
        await live.stats(until=-1)
