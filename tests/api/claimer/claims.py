"""Steps and values that the tests of claimers share."""

from collections.abc import Awaitable, Callable

from errandry import ClaimedJob, Claimer, Errandry

Verb = Callable[[ClaimedJob], Awaitable[None]]

LEASE = 30.0
BOOM = RuntimeError("boom")


async def claim_one(claimer: Claimer) -> ClaimedJob:
    [job] = await claimer.claim()
    assert isinstance(job, ClaimedJob)
    return job


async def snapshot(jobs: Errandry) -> tuple[object, ...]:
    """Everything that a refused verb could have changed."""
    page = await jobs.engine.call(jobs.store.list)
    return page.jobs, await jobs.counts(), await jobs.totals(), await jobs.latest_cursor()
