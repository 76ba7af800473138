"""The committer: claims that share the pass of other commands."""

import asyncio

import pytest

from errandry.core.answer import WRITTEN, Claims, Inserted
from errandry.core.command import Beat, Claim, Insert, ReportTrouble
from errandry.core.gate import GateKind, Pause
from errandry.errors import ReplyLost, SchemaTooNew, StoreClosed, StoreFull, StoreUnavailable
from errandry.store.engine.backlog import GIVE_UP_MAX, Callback, WriteLimits
from errandry.store.engine.committer import Committer
from errandry.testing.clock import FakeClock
from tests.new_jobs import insert
from tests.store.engine.committer_kit import (
    REJECTED,
    ClaimSource,
    FakeSleep,
    RecordingStore,
    ScriptedStore,
    claim,
    outcomes,
)


async def test_a_piggyback_claim_takes_a_job_in_the_pass_that_inserts_it() -> None:
    store, source = RecordingStore(), ClaimSource()
    committer = Committer(store)
    committer.add_piggyback_claims(source)

    await committer.submit(insert("a"))

    assert [[type(command) for command in commands] for commands in store.passes] == [[Insert, Claim]]
    claims = source.answers[0].result()
    assert isinstance(claims, Claims)
    assert [job.id for job in claims.jobs] == ["a"]


async def test_a_pass_that_makes_no_job_ready_gets_no_piggyback_claim() -> None:
    store, source = RecordingStore(), ClaimSource()
    committer = Committer(store)
    committer.add_piggyback_claims(source)

    await committer.submit(Beat(worker="w"))
    await committer.submit(ReportTrouble("w", ("text",)))
    await committer.submit(claim("other"))
    await committer.submit(Pause(GateKind.QUEUE, "q"))

    assert [len(commands) for commands in store.passes] == [1, 1, 1, 1]
    assert source.answers == []


async def test_a_removed_source_adds_no_more_piggyback_claims() -> None:
    store, source = RecordingStore(), ClaimSource()
    committer = Committer(store)
    committer.add_piggyback_claims(source)
    committer.remove_piggyback_claims(source)

    await committer.submit(insert("a"))

    assert store.passes == [[insert("a")]]


async def test_a_piggyback_claim_gets_the_error_of_a_pass_that_fails() -> None:
    error = SchemaTooNew("file", "it is newer")
    store, source = ScriptedStore(error, error), ClaimSource()
    committer = Committer(store)
    committer.add_piggyback_claims(source)

    with pytest.raises(SchemaTooNew):
        await committer.submit(insert("a"))

    assert isinstance(source.answers[0].result(), SchemaTooNew)


async def test_a_pass_that_fails_is_written_again_without_its_piggyback_claim() -> None:
    store, source = ScriptedStore(StoreFull("file", "no space left")), ClaimSource()
    committer = Committer(store)
    committer.add_piggyback_claims(source)

    assert await committer.submit(insert("a")) == WRITTEN

    assert [[type(command) for command in commands] for commands in store.passes] == [
        [Insert, Claim],
        [Insert],
    ]
    assert isinstance(source.answers[0].result(), StoreFull)


async def test_a_rejected_piggyback_claim_is_not_retried() -> None:
    clock = FakeClock()
    store, source = ScriptedStore([WRITTEN, REJECTED]), ClaimSource()
    committer = Committer(store, WriteLimits(give_up_after=GIVE_UP_MAX), clock, FakeSleep(clock))
    committer.add_piggyback_claims(source)

    assert await committer.submit(insert("a")) is WRITTEN
    await committer.close()

    assert source.answers[0].result() is REJECTED
    assert len(store.passes) == 1


async def test_a_piggyback_claim_is_answered_before_the_commands_of_its_pass() -> None:
    answered: list[str] = []
    committer = Committer(RecordingStore())
    committer.add_piggyback_claims(lambda: [(claim(), Callback(lambda _: answered.append("claim")))])

    committer.send(insert("a"), lambda _: answered.append("insert"), asyncio.get_running_loop())
    await committer.submit(insert("b"))

    assert answered == ["claim", "insert"]


async def test_a_pass_whose_reply_was_lost_is_not_written_again_without_its_piggyback_claim() -> None:
    """Whether it was written is not known, and it was sent again for as long as it may be."""
    store, source = ScriptedStore(ReplyLost("server", "gone")), ClaimSource()
    committer = Committer(store, WriteLimits(give_up_after=0.0))
    committer.add_piggyback_claims(source)

    with pytest.raises(ReplyLost):
        await committer.submit(insert("a"))

    assert len(store.passes) == 1
    assert isinstance(source.answers[0].result(), ReplyLost)


async def test_a_closing_committer_adds_no_piggyback_claims() -> None:
    store, source = RecordingStore(), ClaimSource()
    committer = Committer(store)
    committer.add_piggyback_claims(source)
    submitted = asyncio.create_task(committer.submit(insert("a")))
    await asyncio.sleep(0)

    await committer.close()

    assert await submitted == Inserted(("a",))
    assert source.answers == []


async def test_a_close_that_times_out_does_not_write_a_pass_again_without_its_piggyback_claim() -> None:
    store, source = ScriptedStore(*[StoreUnavailable("scripted", "away")] * 1_000), ClaimSource()
    committer = Committer(store, WriteLimits(give_up_after=30.0))
    committer.add_piggyback_claims(source)
    submit = asyncio.create_task(committer.submit(insert("a")))
    await store.entered.wait()
    await asyncio.sleep(0)
    async with asyncio.timeout(10):
        await committer.close(timeout=0)

    assert [type(answer) for answer in await outcomes(submit)] == [StoreClosed]
    assert len(store.passes) <= 2
