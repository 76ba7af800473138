"""Enqueue: durable when it returns, once per id, all or none; hooks and codecs."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import asdict, replace

from errandry import Errandry, UniqueOptions, parallel
from errandry.api.options import UseOptions
from errandry.api.task import Task
from errandry.codec.json_codec import DocumentInfo
from errandry.core.answer import Answer
from errandry.core.command import Command
from errandry.core.job import NewJob
from errandry.core.state import State
from errandry.errors import InvalidArguments, InvalidValue, ReplyLost, StoreFull, TooLarge
from errandry.store.memory.driver import MemoryStore
from errandry.testing import FakeClock, assert_enqueued, drain


@pytest.fixture
def send(jobs: Errandry) -> Task[[str], str]:
    @jobs.task
    async def send(to: str) -> str:
        return f"sent to {to}"

    return send


async def test_an_enqueued_job_can_be_read_by_its_id(jobs: Errandry, send: Task[[str], str]) -> None:
    job = await send.enqueue("ada")

    record = await jobs.client.record(job.id)
    assert (record.task, record.state, record.payload) == ("send", State.WAITING, '{"to":"ada"}')
    assert (job.task, job.state, job.queue) == ("send", State.WAITING, "default")
    assert repr(job) == f"<job {job.id} send waiting>"


@pytest.mark.parametrize(
    "options",
    [
        UseOptions(),
        UseOptions(id="mail-1", queue="mail", priority=3, tags=["red"], metadata={"from": "shop"}),
        UseOptions(delay="1 hour", max_attempts=2, timeout=5, backoff="linear", keep="1 day", group="ada"),
        UseOptions(unique=UniqueOptions(scope="1 hour", on_conflict="raise")),
    ],
    ids=["none", "named", "timed", "unique"],
)
def test_jobs_copied_from_the_template_equal_jobs_that_were_checked(
    jobs: Errandry, options: UseOptions
) -> None:
    @jobs.task(version=2, redact=["to"])
    async def send(to: str) -> None: ...

    first, second = (send.using(**options).new(to).job for to in ("ada", "grace"))

    assert [NewJob(**asdict(job)) for job in (first, second)] == [first, second]
    assert (first.payload, second.payload) == ('{"to":"ada"}', '{"to":"grace"}')
    assert (first.id == second.id) is ("id" in options)
    assert (first.unique is None, first.unique == second.unique) == ("unique" not in options,) * 2


async def test_ids_sort_by_time(jobs: Errandry, send: Task[[str], str], clock: FakeClock) -> None:
    ids = []
    for _ in range(5):
        ids.append((await send.enqueue("ada")).id)
        clock.advance(1)

    assert ids == sorted(set(ids))


async def test_enqueueing_an_id_again_returns_the_existing_job(
    jobs: Errandry, send: Task[[str], str]
) -> None:
    first = await send.using(id="mail-1").enqueue("ada")
    await drain(jobs)

    again = await send.using(id="mail-1", queue="other").enqueue("grace")

    assert again.id == first.id
    assert (again.state, again.queue) == (State.COMPLETED, "default")
    assert await again.result() == "sent to ada"
    assert await jobs.counts() == {"default": {"completed": 1}}


async def test_enqueue_many_keeps_the_order(jobs: Errandry, send: Task[[str], str]) -> None:
    handles = await jobs.enqueue_many([send.new(f"{number}") for number in range(100)])
    await drain(jobs)

    assert [await job.result(30) for job in handles] == [f"sent to {number}" for number in range(100)]
    totals = await jobs.totals()
    assert totals["default"]["inserted"] == totals["default"]["completed"] == 100


async def test_enqueue_many_returns_jobs_that_exist_already(jobs: Errandry, send: Task[[str], str]) -> None:
    await send.using(id="b").enqueue("ada")
    await jobs.cancel("b")

    handles = await jobs.enqueue_many([send.using(id=job_id).new("grace") for job_id in "abc"])

    assert [(job.id, job.state) for job in handles] == [("a", "waiting"), ("b", "canceled"), ("c", "waiting")]


async def test_many_jobs_are_enqueued_all_or_none(jobs: Errandry, send: Task[[str], str]) -> None:
    with pytest.raises(TooLarge):
        await jobs.enqueue_many([send.new("ada"), send.new("x" * 2**20), send.new("grace")])
    with pytest.raises(InvalidValue, match="occurs twice"):
        await jobs.enqueue_many([send.using(id="a").new("ada"), send.using(id="a").new("grace")])

    assert await jobs.counts() == {}


async def test_enqueue_many_accepts_an_empty_list(jobs: Errandry) -> None:
    assert await jobs.enqueue_many([]) == []
    assert jobs.sync.enqueue_many([]) == []


async def test_enqueue_many_takes_jobs_of_several_tasks(jobs: Errandry, send: Task[[str], str]) -> None:
    @jobs.task(queue="sums")
    def add(a: int, b: int) -> int:
        return a + b

    mail, total = await jobs.enqueue_many(calls=[send.new("ada"), add.new(a=1, b=2)])
    await drain(jobs)

    assert (await mail.result(30), await total.result(30)) == ("sent to ada", 3)


async def test_a_call_of_another_apps_task_is_refused(jobs: Errandry) -> None:
    other = Errandry("memory:")

    @other.task
    async def foreign() -> None: ...

    with pytest.raises(InvalidValue, match="task='foreign': is declared by another app"):
        await jobs.enqueue_many([foreign.new()])

    assert await jobs.counts() == {}


class ReplyLosingStore(MemoryStore):
    """Writes the first commit and then loses its reply."""

    async def commit(self, commands: Sequence[Command]) -> list[Answer]:
        answers = await super().commit(commands)
        if not self.lost:
            self.lost = True
            raise ReplyLost("memory", "the line went dead")
        return answers

    lost = False


async def test_a_lost_reply_does_not_create_a_second_job() -> None:
    async with Errandry(store=ReplyLosingStore()) as jobs:

        @jobs.task
        async def send(to: str) -> None: ...

        job = await send.enqueue("ada")

        assert job.state is State.WAITING
        assert await jobs.counts() == {"default": {"waiting": 1}}


async def test_a_full_store_raises_and_nothing_is_enqueued(jobs: Errandry, send: Task[[str], str]) -> None:
    assert isinstance(jobs.store, MemoryStore)
    jobs.store.fail_before.append(StoreFull("memory", "no space left"))

    with pytest.raises(StoreFull):
        await send.enqueue("ada")

    assert await jobs.counts() == {}


# Hooks.


async def test_a_hook_gets_every_job_and_may_change_it(jobs: Errandry, send: Task[[str], str]) -> None:
    @jobs.on_enqueue
    def stamp(job: NewJob) -> NewJob:
        return replace(job, metadata=json.dumps({"by": "hook"}), queue=f"{job.queue}-eu")

    @jobs.on_enqueue
    def tag(job: NewJob) -> NewJob:
        return replace(job, tags=(*job.tags, job.queue))

    single = await send.enqueue("ada")
    many = await jobs.enqueue_many([send.new("ada"), send.new("grace")])
    blocking = send.sync.enqueue("joan")

    for job in (single, *many, blocking):
        record = await jobs.client.record(job.id)
        assert (record.queue, record.tags, record.metadata) == (
            "default-eu",
            ("default-eu",),
            '{"by": "hook"}',
        )


async def test_a_hook_may_refuse_a_job(jobs: Errandry, send: Task[[str], str]) -> None:
    @jobs.on_enqueue
    def refuse(job: NewJob) -> NewJob:
        if "eve" in job.payload:
            raise PermissionError("not for eve")
        return job

    with pytest.raises(PermissionError):
        await jobs.enqueue_many([send.new("ada"), send.new("eve")])

    assert await jobs.counts() == {}


async def test_the_error_names_a_hook_that_does_not_return_the_job(
    jobs: Errandry, send: Task[[str], str]
) -> None:
    @jobs.on_enqueue
    def forgetful(job: NewJob) -> NewJob:
        return None  # type: ignore[return-value]

    with pytest.raises(InvalidValue, match=r"on_enqueue=None: .*forgetful.* must return the job"):
        await send.enqueue("ada")


# Codecs.


class Mirror:
    """A toy codec: it stores the text backwards, with the job, task and field it belongs to."""

    def seal(self, text: str, document: DocumentInfo) -> str:
        return json.dumps([text[::-1], document.job, document.task, document.field])

    def unseal(self, text: str, document: DocumentInfo) -> str:
        reversed_text, *bound = json.loads(text)
        if bound != [document.job, document.task, document.field]:
            raise ValueError(f"sealed for {bound}, not for {document}")
        return str(reversed_text[::-1])


@pytest.fixture
def sealed(jobs: Errandry) -> Errandry:
    jobs.client.codec = Mirror()
    return jobs


async def test_a_codec_seals_stored_texts_and_the_handler_gets_plain_values(sealed: Errandry) -> None:
    seen: list[str] = []

    @sealed.task
    async def send(to: str) -> str:
        seen.append(to)
        return f"sent to {to}"

    job = await send.enqueue("ada")
    await drain(sealed, strict=True)
    record = await sealed.client.record(job.id)

    assert json.loads(record.payload) == ['{"to":"ada"}'[::-1], job.id, "send", "payload"]
    assert json.loads(record.result or "")[1:] == [job.id, "send", "result"]
    assert "sent to" not in (record.result or "")
    assert seen == ["ada"]
    assert await job.result(30) == "sent to ada"


async def test_a_codec_that_does_not_return_json_is_refused(
    jobs: Errandry, send: Task[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs.client.codec = Mirror()
    monkeypatch.setattr(Mirror, "seal", lambda _, text, document: f"{document.job}:{text}")

    with pytest.raises(InvalidValue, match=r"payload=.*must be JSON"):
        await send.enqueue("ada")

    assert await jobs.counts() == {}


async def test_arguments_are_checked_before_they_are_sealed(sealed: Errandry) -> None:
    @sealed.task
    async def send(to: str) -> None: ...

    with pytest.raises(InvalidArguments):
        await send.enqueue(5)  # type: ignore[arg-type]


async def test_edited_arguments_and_resolved_results_are_sealed(sealed: Errandry) -> None:
    @sealed.task
    async def send(to: str) -> str:
        return f"sent to {to}"

    edited, resolved = await send.enqueue("ada"), await send.enqueue("ada")
    await sealed.edit(edited.id, arguments={"to": "grace"})
    await sealed.resolve(resolved.id, result="by hand")
    await drain(sealed, strict=True)

    assert await edited.result(30) == "sent to grace"
    assert await resolved.result(30) == "by hand"


async def test_assert_enqueued_works_with_a_codec(sealed: Errandry) -> None:
    @sealed.task
    async def send(to: str) -> None: ...

    await send.enqueue("ada")

    await assert_enqueued(sealed, send, to="ada")


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ([1], r'the arguments must be a mapping by name, \{"name": …\}, not list'),
        ("ada", "must be a mapping by name, .*, not str"),
        ({1: "ada"}, "the names of arguments must be text, not 1"),
    ],
    ids=str,
)
async def test_arguments_without_names_are_refused(jobs: Errandry, arguments: Any, why: str) -> None:
    @jobs.task
    async def send(to: str) -> None: ...

    job, elsewhere = await send.enqueue("ada"), await jobs.enqueue("elsewhere", {"to": "ada"})
    await jobs.schedules.put("nightly", send.new("ada"), "@daily")

    for name in ("send", "elsewhere"):
        with pytest.raises(InvalidArguments, match=why):
            await jobs.enqueue(name, arguments)
        with pytest.raises(InvalidArguments, match=why):
            jobs.sync.enqueue(name, arguments)
    for job_id in (job.id, elsewhere.id):
        with pytest.raises(InvalidArguments, match=why):
            await jobs.edit(job_id, arguments=arguments)
    with pytest.raises(InvalidArguments, match=why):
        await jobs.schedules.edit("nightly", arguments=arguments)


async def test_values_that_are_no_calls_are_refused(jobs: Errandry) -> None:
    @jobs.task
    async def add(a: int, b: int) -> None: ...

    for calls, why in (
        ([add], r"call=<task add>: is a task without arguments: write add\.new"),
        ([(1, 2)], r"call=\(1, 2\): must be a call of a task, task\.new"),
        (add.new(1, 2), "calls=an object of type Call: must be a list of calls"),
        ([parallel(add.new(1, 2))], "is a flow: enqueue it with enqueue_flow"),
        ([add.new(1, 2), add.enqueue(1, 2)], r"call=.*: is a coroutine, as of task\.enqueue"),
    ):
        wrong: Any = calls
        with pytest.raises(InvalidValue, match=why):
            await jobs.enqueue_many(wrong)
    assert await jobs.counts() == {}


async def test_calls_of_a_generator_are_enqueued(jobs: Errandry) -> None:
    @jobs.task
    async def add(a: int, b: int) -> None: ...

    enqueued = await jobs.enqueue_many(add.new(1, b) for b in range(3))  # type: ignore[arg-type]

    assert len(enqueued) == 3
