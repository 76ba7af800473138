"""A bad line to a good server: cut, slow, silent, or deaf after a commit. Nothing is lost or done twice."""

import random
import signal
import time

import pytest

from errandry.core.answer import Ack, Claims, Inserted, Renewed
from errandry.core.command import Claim, CompleteOutcome, Insert, Note, Ref, Renew, Settle
from errandry.core.job import JobRecord, LogLine, NewJob, Progress
from errandry.core.state import State
from errandry.errors import StoreUnavailable
from errandry.store.engine.backlog import WriteLimits
from errandry.store.engine.engine import Engine
from errandry.store.url import store_at
from tests.faults.history import Acked, violations
from tests.faults.postgres.conftest import Mortal
from tests.faults.postgres.proxy import Proxy
from tests.faults.process import until
from tests.faults.scene import Scene
from tests.pace import Pace

pytestmark = pytest.mark.slow("waits for what is lost to be missed")


@pytest.fixture
def url(mortal: Mortal, proxy: Proxy) -> str:
    return proxy.url(mortal.schema())


async def test_what_was_committed_without_a_reply_is_neither_inserted_nor_claimed_twice(
    proxy: Proxy, url: str
) -> None:
    async with Engine(store_at(url)) as engine:
        for number in range(3):
            proxy.deaf = 1
            assert isinstance(await engine.submit(insert(f"job-{number}")), Inserted)
        claims: list[JobRecord] = []
        for number in range(2):
            proxy.deaf = 1
            answer = await engine.submit(Claim(worker="w", nonce=str(number), limit=1))
            assert isinstance(answer, Claims)
            claims += answer.jobs
        proxy.deaf = 1
        ref = Ref(claims[0].id, claims[0].fence)
        assert await engine.submit(Settle(ref, CompleteOutcome())) is Ack.ALREADY

        assert proxy.lost == 6
        assert [(job.id, job.attempts) for job in claims] == [("job-0", 1), ("job-1", 1)]
        assert await engine.call(engine.store.counts) == {
            "default": {"completed": 1, "running": 1, "waiting": 1}
        }
        assert (await engine.call(engine.store.totals))["default"] == {"completed": 1, "inserted": 3}


async def test_all_claims_of_a_pass_are_repeated_when_its_reply_was_lost(proxy: Proxy, url: str) -> None:
    """A worker with handlers of two kinds claims for both at once."""
    store = store_at(url)
    async with Engine(store) as engine:
        await engine.submit(insert("one", "two", "three"))
        claims = [Claim(worker="w", nonce=nonce, limit=1) for nonce in ("a", "b")]
        proxy.deaf = 1
        with pytest.raises(StoreUnavailable):
            await engine.call(store.commit, claims)

        answers = await engine.call(store.commit, claims)

        assert [[job.id for job in answer.jobs] for answer in answers if isinstance(answer, Claims)] == [
            ["one"],
            ["two"],
        ]
        assert await engine.call(store.counts) == {"default": {"running": 2, "waiting": 1}}


async def test_what_was_written_without_a_reply_is_read_before_it_is_decided_upon(
    proxy: Proxy, url: str
) -> None:
    """The process remembers the job as it was before."""
    store = store_at(url)
    async with Engine(store) as engine:
        await engine.submit(insert("one"))
        answer = await engine.submit(Claim(worker="w", nonce="n", lease=60.0))
        assert isinstance(answer, Claims)
        [ref] = [Ref(job.id, job.fence) for job in answer.jobs]
        proxy.deaf = 1
        with pytest.raises(StoreUnavailable):
            await engine.call(store.commit, [Note(ref, Progress(0.5), (LogLine(1.0, "lost"),))])
        await engine.call(store.commit, [Note(ref, None, (LogLine(2.0, "not lost"),))])
        proxy.deaf = 1
        assert await engine.submit(Renew((ref,), 60.0)) == Renewed((Ack.HELD,))
        proxy.deaf = 1
        assert await engine.submit(Settle(ref, CompleteOutcome())) is Ack.ALREADY

        [job] = await engine.call(store.get, ["one"])
        assert proxy.lost == 3
        assert job is not None
        assert (job.state, job.progress) == (State.COMPLETED, Progress(0.5))
        assert [log.text for log in job.logs] == ["lost", "not lost"]


@pytest.mark.timeout(300)
async def test_under_load_lines_are_cut_and_replies_lost_and_the_history_is_whole(
    scene: Scene, proxy: Proxy
) -> None:
    dice = random.Random(1)
    workers = [await scene.worker(lease=3.0, concurrency=20) for _ in range(2)]
    producers = [scene.start("produce", {"seed": seed}) for seed in range(2)]
    proxy.delay = 0.001
    for times in range(1, 16):
        await until(lambda: acked(scene) > 20 * times)  # noqa: B023 - it is called here
        if dice.random() < 0.3:
            proxy.cut()
        else:
            proxy.deaf += 2
    for process in producers:
        process.signal(signal.SIGTERM)
        assert await process.over() == 0, process.log()

    found = await scene.all_finished()

    assert proxy.lost > 10
    assert violations(scene.journal.read(), found) == []
    assert not any(process.is_over for process in workers)


async def test_a_server_gone_without_a_word_is_missed_within_ten_seconds(proxy: Proxy, url: str) -> None:
    """Its connections are still there and take everything: only that nobody answers can be noticed."""
    async with Engine(store_at(url)) as engine:
        await engine.submit(insert("one"))
        answer = await engine.submit(Claim(worker="w", nonce="n", lease=60.0))
        assert isinstance(answer, Claims)
        [ref] = [Ref(job.id, job.fence) for job in answer.jobs]
        await engine.submit(Renew((ref,), 60.0))
        proxy.silence()
        proxy.is_silent = False  # the server is back, but nobody tells those who were connected
        began = time.monotonic()

        with Pace() as pace:
            assert await engine.submit(Settle(ref, CompleteOutcome())) is Ack.WRITTEN

        assert 1.0 < time.monotonic() - began < pace.allowed(10.0)


async def test_who_does_not_want_to_wait_is_told_why(proxy: Proxy, url: str) -> None:
    async with Engine(store_at(url), WriteLimits(give_up_after=0.2)) as engine:
        await engine.submit(insert("one"))
        proxy.refuses = True
        proxy.cut()

        began = time.monotonic()
        why = (
            "closed the connection|lost during a commit"  # as the cut is noticed before it is sent, or after
        )
        with pytest.raises(StoreUnavailable, match=why):
            await engine.submit(insert("two"))
        assert time.monotonic() - began < 30.0

        proxy.refuses = False
        assert isinstance(await engine.submit(insert("two")), Inserted)


def insert(*ids: str) -> Insert:
    return Insert(tuple(NewJob(id=one, task="task", payload="{}") for one in ids))


def acked(scene: Scene) -> int:
    return sum(isinstance(fact, Acked) for fact in scene.journal.read())
