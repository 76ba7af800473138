"""Bad connections: cut, slow, silent, or lost before the reply to a commit. Nothing is lost or done twice."""

import random
import signal
import time

import pytest

from errandry import Errandry
from errandry.core.answer import Ack, Claims, Inserted, Renewed
from errandry.core.command import Claim, CompleteOutcome, Note, Ref, Renew, Settle
from errandry.core.job import JobRecord, LogLine, Progress
from errandry.core.state import State
from errandry.errors import StoreUnavailable
from errandry.store.engine.backlog import WriteLimits
from errandry.store.engine.engine import Engine
from errandry.store.url import store_at
from tests.faults.history import EnqueueAcked, violations
from tests.faults.postgres.conftest import Mortal
from tests.faults.postgres.proxy import Proxy
from tests.faults.process import wait_until
from tests.faults.scene import Scene
from tests.machine_load import MachineLoad
from tests.new_jobs import insert

pytestmark = pytest.mark.slow("waits for timeouts")


@pytest.fixture
def url(mortal: Mortal, proxy: Proxy) -> str:
    return proxy.url(mortal.schema())


async def test_commands_whose_reply_was_lost_are_not_applied_twice(proxy: Proxy, url: str) -> None:
    async with Engine(store_at(url)) as engine:
        for number in range(3):
            proxy.replies_to_lose = 1
            assert isinstance(await engine.submit(insert(f"job-{number}")), Inserted)
        claims: list[JobRecord] = []
        for number in range(2):
            proxy.replies_to_lose = 1
            answer = await engine.submit(Claim(worker="w", nonce=str(number), limit=1))
            assert isinstance(answer, Claims)
            claims += answer.jobs
        proxy.replies_to_lose = 1
        ref = Ref(claims[0].id, claims[0].fence)
        assert await engine.submit(Settle(ref, CompleteOutcome())) is Ack.ALREADY

        assert proxy.lost_replies == 6
        assert [(job.id, job.attempts) for job in claims] == [("job-0", 1), ("job-1", 1)]
        assert await engine.call(engine.store.counts) == {
            "default": {"completed": 1, "running": 1, "waiting": 1}
        }
        assert (await engine.call(engine.store.totals))["default"] == {"completed": 1, "inserted": 3}


async def test_callers_hear_what_the_write_did_whose_reply_was_lost(proxy: Proxy, url: str) -> None:
    async with Errandry(url) as jobs:
        proxy.replies_to_lose = 1
        mine = await jobs.enqueue("send", id="mail-1")
        proxy.replies_to_lose = 1
        again = await jobs.enqueue("send", id="mail-1")
        proxy.replies_to_lose = 1
        canceled = await jobs.cancel(mine.id, "unknown")
        proxy.replies_to_lose = 1
        rerun = await jobs.rerun(mine.id)
        proxy.replies_to_lose = 1
        removed = await jobs.remove(mine.id)

        assert proxy.lost_replies == 5
        assert (mine.existed, again.existed) == (False, True)
        assert [answer.moved for answer in (canceled, rerun, removed)] == [("mail-1",)] * 3
        assert [job for job, _ in canceled.refused] == ["unknown"]


async def test_all_claims_of_a_pass_are_answered_again_after_its_reply_was_lost(
    proxy: Proxy, url: str
) -> None:
    """A worker with two runners claims for both in one pass."""
    store = store_at(url)
    async with Engine(store) as engine:
        await engine.submit(insert("one", "two", "three"))
        claims = [Claim(worker="w", nonce=nonce, limit=1) for nonce in ("a", "b")]
        proxy.replies_to_lose = 1
        with pytest.raises(StoreUnavailable):
            await engine.call(store.commit, claims)

        answers = await engine.call(store.commit, claims)

        assert [[job.id for job in answer.jobs] for answer in answers if isinstance(answer, Claims)] == [
            ["one"],
            ["two"],
        ]
        assert await engine.call(store.counts) == {"default": {"running": 2, "waiting": 1}}


async def test_after_a_lost_reply_the_row_is_read_again(proxy: Proxy, url: str) -> None:
    """The row cache still has the job as it was before."""
    store = store_at(url)
    async with Engine(store) as engine:
        await engine.submit(insert("one"))
        answer = await engine.submit(Claim(worker="w", nonce="n", lease=60.0))
        assert isinstance(answer, Claims)
        [ref] = [Ref(job.id, job.fence) for job in answer.jobs]
        proxy.replies_to_lose = 1
        with pytest.raises(StoreUnavailable):
            await engine.call(store.commit, [Note(ref, Progress(0.5), (LogLine(1.0, "lost"),))])
        await engine.call(store.commit, [Note(ref, None, (LogLine(2.0, "not lost"),))])
        proxy.replies_to_lose = 1
        assert await engine.submit(Renew((ref,), 60.0)) == Renewed((Ack.HELD,))
        proxy.replies_to_lose = 1
        assert await engine.submit(Settle(ref, CompleteOutcome())) is Ack.ALREADY

        [job] = await engine.call(store.get, ["one"])
        assert proxy.lost_replies == 3
        assert job is not None
        assert (job.state, job.progress) == (State.COMPLETED, Progress(0.5))
        assert [log.text for log in job.logs] == ["lost", "not lost"]


@pytest.mark.timeout(300)
async def test_no_job_is_lost_under_load_with_cut_connections_and_lost_replies(
    scene: Scene, proxy: Proxy
) -> None:
    dice = random.Random(1)
    workers = [await scene.worker(lease=3.0, concurrency=20) for _ in range(2)]
    producers = [scene.start("produce", {"seed": seed}) for seed in range(2)]
    proxy.delay = 0.001
    for times in range(1, 16):
        await wait_until(lambda: acked_count(scene) > 20 * times)  # noqa: B023 - it is called here
        if dice.random() < 0.3:
            proxy.cut()
        else:
            proxy.replies_to_lose += 2
    for process in producers:
        process.signal(signal.SIGTERM)
        assert await process.wait_for_end() == 0, process.log()

    found = await scene.all_finished()

    assert proxy.lost_replies > 10
    assert violations(scene.journal.read(), found) == []
    assert not any(process.has_ended for process in workers)


async def test_a_silent_server_is_noticed_within_ten_seconds(proxy: Proxy, url: str) -> None:
    """Its connections stay open and accept data: only the missing replies show that the server is gone."""
    async with Engine(store_at(url)) as engine:
        await engine.submit(insert("one"))
        answer = await engine.submit(Claim(worker="w", nonce="n", lease=60.0))
        assert isinstance(answer, Claims)
        [ref] = [Ref(job.id, job.fence) for job in answer.jobs]
        await engine.submit(Renew((ref,), 60.0))
        proxy.silence()
        proxy.is_silent = False  # the server is back, but existing connections stay silent
        began = time.monotonic()

        with MachineLoad() as load:
            assert await engine.submit(Settle(ref, CompleteOutcome())) is Ack.WRITTEN

        assert 1.0 < time.monotonic() - began < load.scaled(10.0)


async def test_a_caller_that_gives_up_gets_the_reason(proxy: Proxy, url: str) -> None:
    async with Engine(store_at(url), WriteLimits(give_up_after=0.2)) as engine:
        await engine.submit(insert("one"))
        proxy.refuses = True
        proxy.cut()

        began = time.monotonic()
        # The cut is noticed before the pass is sent, or after.
        why = "closed the connection|lost during a commit"
        with pytest.raises(StoreUnavailable, match=why):
            await engine.submit(insert("two"))
        assert time.monotonic() - began < 30.0

        proxy.refuses = False
        assert isinstance(await engine.submit(insert("two")), Inserted)


def acked_count(scene: Scene) -> int:
    return sum(isinstance(fact, EnqueueAcked) for fact in scene.journal.read())
