"""`unique=…`: the keys of jobs, the answers for duplicates, and refused options."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import apsw
import psycopg
import pytest

from errandry import Errandry, State, UniqueOptions
from errandry.api.task import Task
from errandry.codec.json_codec import DocumentInfo
from errandry.core.event import EventKind
from errandry.core.unique import UniqueScope
from errandry.errors import DuplicateJob, InvalidValue, StoreUnavailable, UnknownJob
from errandry.store.engine.backlog import WriteLimits
from errandry.store.postgres import driver
from errandry.store.postgres.driver import PostgresStore
from errandry.testing import FakeClock, assert_enqueued, drain
from tests.api.callers import CALLERS, enqueue, psycopg_async, wait_for_blocked_lock
from tests.machine_load import WAIT_TIMEOUT
from tests.run_worker import event_kinds, run_burst
from tests.store.server import server

Send = Task[..., str]


def declare_send(jobs: Errandry, **options: Any) -> Send:
    async def send(to: str, subject: str = "hi") -> str:
        return f"sent to {to}"

    return cast("Send", jobs.task(**options)(send))


async def key_of(task: Send, *args: Any, **kwargs: Any) -> str:
    unique = task.new(*args, **kwargs).job.unique
    assert unique is not None
    return unique.key


class TestKeys:
    async def test_the_order_of_arguments_does_not_matter(self, jobs: Errandry) -> None:
        send = declare_send(jobs, unique=True)

        same = {await key_of(send, "ada", "yo"), await key_of(send, subject="yo", to="ada")}
        others = {await key_of(send, "ada"), await key_of(send, "ida", "yo")}

        assert len(same) == 1
        assert len(same | others) == 3
        assert same.pop().startswith("send:")

    async def test_the_order_of_names_in_nested_values_does_not_matter(self, jobs: Errandry) -> None:
        @jobs.task(unique=True)
        async def index(doc: dict[str, Any]) -> None: ...

        assert await key_of(index, {"a": 1, "b": {"c": 2, "d": 3}}) == await key_of(
            index, {"b": {"d": 3, "c": 2}, "a": 1}
        )

    async def test_by_selects_the_arguments(self, jobs: Errandry) -> None:
        by_to = declare_send(jobs).using(unique=UniqueOptions(by=["to"]))
        by_none = by_to.using(unique=UniqueOptions(by=()))

        assert await key_of(by_to, "ada", "yo") == await key_of(by_to, "ada", "ho")
        assert await key_of(by_to, "ada") != await key_of(by_to, "ida")
        assert await key_of(by_none, "ada") == await key_of(by_none, "ida") != await key_of(by_to, "ada")

    async def test_another_task_makes_another_key(self, jobs: Errandry) -> None:
        first = await jobs.enqueue("one", {"x": 1}, unique=True)
        other = await jobs.enqueue("other", {"x": 1}, unique=True)

        assert first.id != other.id

    async def test_enqueueing_by_name_makes_the_same_key(self, jobs: Errandry) -> None:
        elsewhere = await jobs.enqueue("send", {"to": "ada"}, unique=True)
        here = await declare_send(jobs, unique=True).enqueue("ada")

        assert (here.id, here.existed) == (elsewhere.id, True)

    async def test_a_long_task_name_is_shortened_in_the_key(self, jobs: Errandry) -> None:
        job = await jobs.enqueue("t" * 200, {}, unique=True)

        assert job.record.unique is not None
        assert len(job.record.unique.key) <= 200

    async def test_a_given_key_holds_across_all_tasks(self, jobs: Errandry) -> None:
        first = await jobs.enqueue("charge", {}, unique="order 7")
        second = await jobs.enqueue("refund", {}, unique="order 7")

        assert (second.id, second.task, second.existed) == (first.id, "charge", True)

    async def test_using_can_remove_unique(self, jobs: Errandry) -> None:
        send = declare_send(jobs, unique=True)

        for off in (False, None):
            assert send.using(unique=off).new("ada").job.unique is None

    @pytest.mark.parametrize(
        ("scope", "stored"),
        [
            ("alive", (UniqueScope.ALIVE, None)),
            ("hour", (UniqueScope.HOUR, None)),
            ("1 hour", (UniqueScope.WINDOW, 3_600.0)),
            (90, (UniqueScope.WINDOW, 90.0)),
            ("ever", (UniqueScope.EVER, None)),
        ],
    )
    async def test_scopes_are_read(self, jobs: Errandry, scope: Any, stored: Any) -> None:
        unique = declare_send(jobs).using(unique=UniqueOptions("k", scope=scope)).new("ada").job.unique

        assert unique is not None
        assert (unique.scope, unique.window) == stored


class TestAnswers:
    async def test_the_handle_of_a_duplicate_has_existed(self, jobs: Errandry) -> None:
        send = declare_send(jobs, unique=True)

        first, second = await send.enqueue("ada"), await send.enqueue("ada")

        assert (first.existed, second.existed, second.replaced) == (False, True, False)
        assert second.id == first.id
        await assert_enqueued(jobs, send, to="ada")
        await drain(jobs)
        assert await second.result() == "sent to ada"
        assert not (await send.enqueue("ada")).existed

    async def test_the_handle_of_a_repeated_id_has_existed(self, jobs: Errandry) -> None:
        send = declare_send(jobs).using(id="mine")

        assert [(await send.enqueue("ada")).existed for _ in range(2)] == [False, True]

    async def test_raise(self, jobs: Errandry) -> None:
        send = declare_send(jobs, unique=UniqueOptions("order 7", on_conflict="raise"))
        first = await send.enqueue("ada")

        with pytest.raises(DuplicateJob, match=f"the unique key 'order 7' is held by job {first.id}"):
            await send.enqueue("ida")

    async def test_in_bulk_each_call_gets_its_own_handle(self, jobs: Errandry) -> None:
        send = declare_send(jobs, unique=True)
        holder = await send.enqueue("ada")

        handles = await jobs.enqueue_many([send.new(to) for to in ("ida", "ada", "eve", "ida")])

        assert [job.existed for job in handles] == [False, True, False, True]
        assert handles[1].id == holder.id
        assert handles[3].id == handles[0].id
        assert await jobs.counts() == {"default": {"waiting": 3}}

    async def test_in_bulk_a_raise_refuses_all(self, jobs: Errandry) -> None:
        send = declare_send(jobs, unique=UniqueOptions(on_conflict="raise"))

        with pytest.raises(DuplicateJob):
            await jobs.enqueue_many([send.new("ada"), send.new("ida"), send.new("ada")])
        assert await jobs.counts() == {}

    async def test_replace_and_delay_debounce(self, jobs: Errandry, clock: FakeClock) -> None:
        send = declare_send(jobs, unique=UniqueOptions(by=["to"], on_conflict="replace")).using(delay="10s")
        first = await send.enqueue("ada", "one")
        clock.advance(8)
        second = await send.enqueue("ada", "two")
        clock.advance(8)

        assert (second.id, second.existed, second.replaced) == (first.id, True, True)
        assert second.record.payload == '{"to":"ada","subject":"two"}'
        assert await drain(jobs) == []
        clock.advance(2)
        [done] = await drain(jobs)
        assert (done.id, done.record.payload) == (first.id, second.record.payload)

    async def test_a_window_throttles(self, jobs: Errandry, clock: FakeClock) -> None:
        send = declare_send(jobs, unique=UniqueOptions(by=(), scope="1 minute"))
        inserted = []
        for number in range(10):
            job = await send.enqueue(str(number))
            await drain(jobs)
            inserted += [] if job.existed else [number]
            clock.advance(20)

        assert inserted == [0, 3, 6, 9]

    async def test_the_handle_of_a_removed_holder_has_its_id(self, jobs: Errandry) -> None:
        send = declare_send(jobs, keep=0, unique=UniqueOptions("once", scope="ever"))
        first = await send.enqueue("ada")
        await drain(jobs)

        second = await send.enqueue("ada")

        assert (second.id, second.existed) == (first.id, True)
        with pytest.raises(UnknownJob):
            await second.refresh()

    def test_enqueue_sync_returns_the_holder(self) -> None:
        jobs = Errandry("memory:")
        send = declare_send(jobs, unique=True)

        first, second = send.sync.enqueue("ada"), send.sync.enqueue("ada")

        assert (second.id, second.existed) == (first.id, True)
        jobs.sync.close()

    async def test_a_rerun_is_refused_while_another_job_holds_the_key(self, jobs: Errandry) -> None:
        send = declare_send(jobs, unique=True)
        first = await send.enqueue("ada")
        await drain(jobs)
        second = await send.enqueue("ada")

        with pytest.raises(DuplicateJob, match=second.id):
            await first.rerun()

    async def test_why_names_the_key(self, jobs: Errandry) -> None:
        job = await declare_send(jobs, unique="order 7").enqueue("ada")

        assert "Its unique key 'order 7' is held while the job is alive" in (
            (await jobs.why(job.id)).reasons[-1].text
        )


class TestRefused:
    @pytest.mark.parametrize(
        ("options", "why"),
        [
            ({"scope": "alife"}, "scope='alife': did you mean alive?"),
            ({"scope": "fortnight"}, "scope='fortnight': must be one of alive, .* or a length of time"),
            ({"scope": "5 parsecs"}, "scope='5 parsecs': 'parsecs' is not a unit"),
            ({"scope": "0s"}, "scope='0s': must be more than 0 seconds"),
            ({"scope": 0}, "scope=0: must be more than 0 seconds"),
            ({"scope": -1}, "scope=-1: must be more than 0 seconds"),
            ({"scope": "window"}, "scope='window': must be"),
            ({"on_conflict": "rise"}, "on_conflict='rise': did you mean raise?"),
            ({"on_conflict": "explode"}, "on_conflict='explode': must be one of return, raise, replace"),
            ({"per": "task"}, "per='task': must be queue"),
            ({"key": ""}, "unique='': must be a name, not empty"),
            ({"key": " "}, "must be a name, not empty"),
            ({"key": "x" * 201}, "a name has at most 200 characters, this has 201"),
            ({"key": "a\nb"}, "no control characters"),
            ({"key": "k", "by": ["to"]}, r"by=\['to'\]: give either by or a key \('k'\)"),
            ({"by": "to"}, "by='to': must be names of arguments"),
        ],
    )
    def test_wrong_options(self, options: dict[str, Any], why: str) -> None:
        with pytest.raises(InvalidValue, match=why):
            UniqueOptions(**options)

    async def test_by_names_that_are_no_arguments(self, jobs: Errandry) -> None:
        with pytest.raises(InvalidValue, match=r"by='too': did you mean to\?"):
            declare_send(jobs, unique=UniqueOptions(by=["too"]))
        with pytest.raises(InvalidValue, match="by='customer': must be one of to, subject"):
            declare_send(jobs).using(unique=UniqueOptions(by=["customer"]))

    async def test_a_value_of_the_wrong_type(self, jobs: Errandry) -> None:
        with pytest.raises(InvalidValue, match=r"unique=7: must be True, a key, or UniqueOptions\(…\)"):
            declare_send(jobs, unique=7)

    async def test_replace_with_a_codec_that_seals_for_one_job(self) -> None:
        class Sealed:
            def seal(self, text: str, document: DocumentInfo) -> str:
                return f'"{document.job}"'

            def unseal(self, text: str, document: DocumentInfo) -> str:
                return text

        async with Errandry("memory:", codec=Sealed()) as jobs:
            with pytest.raises(InvalidValue, match="on_conflict='replace': does not work with a codec"):
                await declare_send(jobs, unique=UniqueOptions(on_conflict="replace")).enqueue("ada")


class TestBound:
    @pytest.fixture
    async def shop(self) -> AsyncIterator[Errandry]:
        with server().lend_url() as url:
            async with Errandry(url, write_limits=WriteLimits(give_up_after=0.5)) as shop:
                yield shop

    @pytest.mark.parametrize("library", CALLERS)
    async def test_every_library_gets_the_holder(self, shop: Errandry, library: str) -> None:
        send = declare_send(shop, unique=True)
        holder = await send.enqueue("ada")
        async with CALLERS[library](server()) as caller:
            same, new = await enqueue(caller, send, "ada"), await enqueue(caller, send, "ida")
            again = await enqueue(caller, send, "ida")
            with pytest.raises(DuplicateJob, match=holder.id):
                await enqueue(caller, send.using(unique=UniqueOptions(on_conflict="raise")), "ada")
            await caller.commit()

        assert (same.id, same.existed, new.existed) == (holder.id, True, False)
        assert (again.id, again.existed) == (new.id, True)
        assert await shop.counts() == {"default": {"waiting": 2}}
        assert (await shop.client.record(new.id)).unique == new.record.unique

    async def test_a_rolled_back_holder_does_not_block_the_key(self, shop: Errandry) -> None:
        send = declare_send(shop, unique=True)
        async with psycopg_async(server()) as caller:
            lost = await enqueue(caller, send, "ada")
            await caller.rollback()

        job = await send.enqueue("ada")
        assert (job.id != lost.id, job.existed) == (True, False)

    async def test_an_open_transaction_blocks_only_its_key(self, shop: Errandry) -> None:
        send = declare_send(shop, unique=True)
        async with psycopg_async(server()) as caller:
            await enqueue(caller, send, "ada")
            for _ in range(2):
                with pytest.raises(StoreUnavailable, match="lock"):
                    await send.enqueue("ada")
            async with asyncio.timeout(30):
                assert not (await send.enqueue("ida")).existed
                await send.using(unique=False).enqueue("ada")
                await run_burst(shop)
            await caller.rollback()

        assert not (await send.enqueue("ada")).existed

    async def test_a_waiting_enqueue_follows_the_commit_or_rollback(
        self, shop: Errandry, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(driver, "LOCK_TIMEOUTS", ["60s"] * PostgresStore.tracks)
        monkeypatch.setattr(driver, "REPLY_TIMEOUTS", [WAIT_TIMEOUT] * PostgresStore.tracks)
        send = declare_send(shop, unique=True)
        for decide in ("commit", "rollback"):
            async with psycopg_async(server()) as caller:
                held = await enqueue(caller, send, decide)
                waiting = asyncio.create_task(send.enqueue(decide))
                await wait_for_blocked_lock()
                assert not waiting.done()
                await getattr(caller, decide)()
                job = await waiting

            assert (job.id == held.id, job.existed) == (decide == "commit", decide == "commit")

    async def test_a_caller_that_got_the_holder_does_not_block_it(self, shop: Errandry) -> None:
        send = declare_send(shop, unique=True)
        job = await send.enqueue("ada")
        async with psycopg_async(server()) as caller:
            assert (await enqueue(caller, send, "ada")).existed
            async with asyncio.timeout(30):
                await run_burst(shop)
                assert await job.result(timeout=30) == "sent to ada"
                assert not (await send.enqueue("ada")).existed

    async def test_replace_takes_effect_with_the_commit(self, shop: Errandry) -> None:
        send = declare_send(shop, unique=UniqueOptions(by=["to"], on_conflict="replace"))
        first = await send.using(delay=3_600).enqueue("ada", "one")
        async with psycopg_async(server()) as caller:
            second = await caller.enqueue(send.new("ada", "two"))
            assert (await shop.client.record(first.id)).state is State.SCHEDULED
            await caller.commit()

        assert (second.id, second.existed, second.replaced) == (first.id, True, True)
        record = await shop.client.record(first.id)
        assert (record.payload, record.state) == ('{"to":"ada","subject":"two"}', State.WAITING)
        assert await shop.counts() == {"default": {"waiting": 1}}
        await run_burst(shop)
        assert await first.result(timeout=30) == "sent to ada"
        assert await event_kinds(shop, first.id) == [
            *(
                EventKind.SCHEDULED,
                EventKind.EDITED,
                EventKind.CLAIMED,
                EventKind.STARTED,
                EventKind.COMPLETED,
            )
        ]
        assert await shop.counts() == {"default": {"completed": 1}}

    async def test_replace_leaves_a_running_job_alone(self, shop: Errandry) -> None:
        send = declare_send(shop, unique=UniqueOptions("k", scope="1 hour", on_conflict="replace"))
        first = await send.enqueue("ada")
        await run_burst(shop)
        async with psycopg_async(server()) as caller:
            second = await enqueue(caller, send, "ida")
            await caller.commit()

        assert (second.id, second.existed, second.replaced) == (first.id, True, False)

    async def test_bulk_inserts_see_keys_of_the_store_and_of_each_other(self, shop: Errandry) -> None:
        send = declare_send(shop, unique=True)
        holder = await send.enqueue("ada")
        refusing = send.using(unique=UniqueOptions("other", on_conflict="raise"))
        async with psycopg_async(server()) as caller:
            bound = shop.bind(caller.connection)
            handles = await bound.enqueue_many([send.new(to) for to in ("ida", "ada", "ida")])
            with pytest.raises(DuplicateJob, match=r"'other'"):
                await bound.enqueue_many([send.new("eve"), refusing.new("a"), refusing.new("b")])
            await caller.commit()

        assert [job.existed for job in handles] == [False, True, True]
        assert [job.id for job in handles[1:]] == [holder.id, handles[0].id]
        assert not (await refusing.enqueue("a")).existed
        assert not (await send.enqueue("eve")).existed

    async def test_many_callers_and_passes_at_once(self, shop: Errandry) -> None:
        """Half of the callers roll back; every caller that got an existing job finds it."""
        send = declare_send(shop, unique=True)

        async def call(number: int) -> list[str]:
            async with psycopg_async(server()) as caller:
                job = await enqueue(caller, send, "ada")
                await asyncio.sleep(0.005)
                await (caller.commit() if number % 2 else caller.rollback())
            return [job.id] if number % 2 or job.existed else []

        async def write() -> list[str]:
            try:
                return [(await send.enqueue("ada")).id]
            except StoreUnavailable:
                return []

        ids_seen = await asyncio.gather(
            *[call(number) for number in range(12)], *[write() for _ in range(12)]
        )

        [job] = (await shop.list()).jobs
        assert {job_id for ids in ids_seen for job_id in ids} == {job.id}


class TestBoundToSqlite:
    async def test_a_key_is_taken_with_the_commit_and_not_after_a_rollback(self, tmp_path: Path) -> None:
        async with Errandry(f"sqlite:///{tmp_path}/jobs.db") as jobs:
            send = declare_send(jobs, unique=True)
            await jobs.open()
            db = apsw.Connection(str(tmp_path / "jobs.db"))
            db.execute("BEGIN IMMEDIATE")
            lost = send.sync.bind(db).enqueue("ada")
            db.execute("ROLLBACK")
            db.execute("BEGIN IMMEDIATE")
            job = send.sync.bind(db).enqueue("ada")
            again = send.sync.bind(db).enqueue("ada")
            with pytest.raises(DuplicateJob):
                send.using(unique=UniqueOptions(on_conflict="raise")).sync.bind(db).enqueue("ada")
            db.execute("COMMIT")

            assert (job.existed, again.existed, again.id) == (False, True, job.id)
            assert lost.id != job.id
            assert (await send.enqueue("ada")).id == job.id
            assert [job.id for job in (await jobs.list()).jobs] == [job.id]


@pytest.mark.parametrize("scope", [scope for scope in UniqueScope if scope is not UniqueScope.WINDOW])
def test_the_database_computes_the_slot_and_expiry_that_the_core_computes(scope: UniqueScope) -> None:
    from errandry.core.unique import UniqueKey

    unique = UniqueKey("k", scope, per_queue=True)
    moments = [0.0, 345_599.5, 345_600.0, 951_782_399.999, 951_782_400.0, 1_800_000_000.123, 4_102_444_799.5]
    with server().lend_url() as url, psycopg.connect(server().url()) as db:
        asyncio.run(_open_and_close(url))
        schema = url.rpartition("schema=")[2]
        for due in moments:
            params = (f'{{"key": "k", "scope": "{scope}", "per_queue": true}}', due)
            statement = f"SELECT slot, expires_at FROM \"{schema}\".unique_slot(%s, 'q', %s::float8, 5.5)"
            row = db.execute(statement.encode(), params).fetchone()

            assert row == (unique.slot("q", due), unique.until(due, 5.5))


async def _open_and_close(url: str) -> None:
    async with Errandry(url):
        pass
