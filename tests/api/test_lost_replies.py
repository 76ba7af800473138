"""Lost replies: what a caller hears is what its write has done, on every store."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from errandry import Errandry, State, UniqueOptions, flow
from errandry.api.task import Task
from errandry.core.answer import WRITTEN, Answer, Claims
from errandry.core.command import Claim, Command, CompleteOutcome, Ref, Settle
from errandry.core.job import JobRecord
from errandry.core.once import OnceCommand
from errandry.errors import ReplyLost, StoreUnavailable
from errandry.store.contract import Store
from errandry.testing import FakeClock
from tests.app_fixtures import STORES

_nonces = count()


class LossyStore:
    """A store behind a bad line.

    replies_to_lose  number of replies to commands of clients that are lost next, after the write
    reads_to_lose    number of reads of jobs that fail next
    between          is called after the next lost reply, before the command is sent again
    """

    def __init__(self, store: Store) -> None:
        self.behind = store
        self.replies_to_lose = self.reads_to_lose = 0
        self.between: Callable[[Store], Awaitable[object]] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.behind, name)

    async def commit(self, commands: Sequence[Command]) -> list[Answer]:
        answers = await self.behind.commit(commands)
        if self.replies_to_lose and any(isinstance(command, OnceCommand) for command in commands):
            self.replies_to_lose -= 1
            if self.between is not None:
                between, self.between = self.between, None
                await between(self.behind)
            raise ReplyLost("line", "the reply was lost")
        return answers

    async def get(self, ids: Sequence[str]) -> list[JobRecord | None]:
        if self.reads_to_lose:
            self.reads_to_lose -= 1
            raise StoreUnavailable("line", "it went dead")
        return await self.behind.get(ids)


async def run_next(store: Store) -> None:
    """Let the worker of another program run the next job to its end."""
    [claims] = await store.commit([Claim(worker="elsewhere", nonce=str(next(_nonces)))])
    assert isinstance(claims, Claims)
    [job] = claims.jobs
    assert await store.commit([Settle(Ref(job.id, job.fence), CompleteOutcome())]) == [WRITTEN]


@pytest.fixture(params=list(STORES))
def line(request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock) -> Any:
    with ExitStack() as stack:
        yield LossyStore(STORES[request.param](tmp_path, clock, stack))


@pytest.fixture
async def jobs(line: Any, clock: FakeClock) -> AsyncIterator[Errandry]:
    async with Errandry(store=line, clock=clock) as jobs:
        yield jobs


@pytest.fixture
def send(jobs: Errandry) -> Task[[str], None]:
    @jobs.task
    async def send(to: str) -> None: ...

    return send


async def test_a_job_of_this_call_did_not_exist_although_it_was_sent_twice(
    jobs: Errandry, line: LossyStore, send: Task[[str], None]
) -> None:
    line.replies_to_lose, line.reads_to_lose = 1, 100

    job = await send.enqueue("ada")

    assert (job.existed, job.replaced, job.state) == (False, False, State.WAITING)
    assert await jobs.counts() == {"default": {"waiting": 1}}


async def test_a_job_with_an_id_of_the_caller_existed_only_if_another_call_made_it(
    line: LossyStore, send: Task[[str], None]
) -> None:
    with_id = send.using(id="mail-1")
    line.replies_to_lose = 1
    assert not (await with_id.enqueue("ada")).existed
    line.replies_to_lose = 1
    assert (await with_id.enqueue("ada")).existed


async def test_a_job_that_is_removed_at_its_end_is_not_inserted_again(
    jobs: Errandry, line: LossyStore, send: Task[[str], None]
) -> None:
    line.replies_to_lose, line.between = 1, run_next

    await send.using(keep=0).enqueue("ada")

    assert await jobs.counts() == {"default": {}}
    assert (await jobs.totals())["default"]["inserted"] == 1


async def test_a_hook_may_give_a_job_an_id_that_exists(
    jobs: Errandry, line: LossyStore, send: Task[[str], None]
) -> None:
    @jobs.on_enqueue
    def with_known_id(job: Any) -> Any:
        return type(job)(**{name: getattr(job, name) for name in job.__struct_fields__} | {"id": "known"})

    assert [(await send.enqueue("ada")).existed for _ in range(2)] == [False, True]
    line.replies_to_lose = 1
    assert (await jobs.enqueue("send", {"to": "ada"})).existed


async def test_many_jobs_and_flows_of_this_call_did_not_exist(
    jobs: Errandry, line: LossyStore, send: Task[[str], None]
) -> None:
    line.replies_to_lose = 1
    many = await jobs.enqueue_many([send.new("ada"), send.using(id="mail-1").new("bob")])
    line.replies_to_lose = 1
    last = await jobs.enqueue_flow(flow(send.new("ada"), send.new("bob")))

    assert [job.existed for job in (*many, last)] == [False] * 3
    assert await jobs.counts() == {"default": {"waiting": 3, "blocked": 1}}


async def test_blocking_calls_hear_the_same(line: LossyStore, send: Task[[str], None]) -> None:
    line.replies_to_lose, line.reads_to_lose = 1, 100

    job = await asyncio.to_thread(send.sync.enqueue, "ada")

    assert not job.existed


async def test_an_enqueue_succeeds_if_the_job_that_existed_cannot_be_read(
    line: LossyStore, send: Task[[str], None], caplog: pytest.LogCaptureFixture
) -> None:
    unique = send.using(unique=UniqueOptions(key="invoice"))
    first = await unique.enqueue("ada")
    line.reads_to_lose = 1

    job = await unique.enqueue("bob")

    assert (job.id, job.existed) == (first.id, True)
    assert "cannot read enqueued jobs that existed" in caplog.text
    await job.refresh()
    assert job.arguments == {"to": "ada"}


async def test_a_job_that_was_replaced_is_not_inserted_after_it_has_run(
    jobs: Errandry, line: LossyStore, send: Task[[str], None]
) -> None:
    unique = send.using(unique=UniqueOptions(key="invoice", on_conflict="replace"))
    first = await unique.enqueue("ada")
    line.replies_to_lose, line.between = 1, run_next

    job = await unique.enqueue("bob")

    assert (job.id, job.existed, job.replaced) == (first.id, True, True)
    assert (job.state, job.arguments) == (State.COMPLETED, {"to": "bob"})
    assert await jobs.counts() == {"default": {"completed": 1}}


async def test_a_job_runs_once_although_its_rerun_was_sent_twice(
    jobs: Errandry, line: LossyStore, send: Task[[str], None]
) -> None:
    job = await send.enqueue("ada")
    await run_next(line.behind)
    line.replies_to_lose, line.between = 1, run_next

    assert (await jobs.rerun(job.id)).moved == (job.id,)

    assert (await job.refresh()).state is State.COMPLETED


async def test_each_slice_of_a_purge_is_deleted_once(
    jobs: Errandry, line: LossyStore, send: Task[[str], None]
) -> None:
    await jobs.enqueue_many([send.new(str(number)) for number in range(1_100)])
    line.replies_to_lose = 2

    removed = await jobs.remove(query="state:waiting")

    assert len(set(removed.moved)) == 1_100
    assert await jobs.counts() == {"default": {}}


async def test_operators_hear_that_they_have_changed_something(
    jobs: Errandry, line: LossyStore, send: Task[[str], None]
) -> None:
    job = await send.enqueue("ada")
    queue = jobs.queue("default")

    line.replies_to_lose = 1
    assert await job.signal("go")
    line.replies_to_lose = 1
    assert await queue.pause()
    line.replies_to_lose = 1
    assert await queue.resume()
    line.replies_to_lose = 1
    assert (await jobs.remove(job.id)).moved == (job.id,)
