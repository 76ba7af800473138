"""Enqueueing: durable when it returns, once per id, all or none; hooks and codecs on the way."""

import json
from collections.abc import Sequence

import pytest
from msgspec.structs import asdict, replace

from errandry import Errandry, UniqueOptions
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


async def test_an_enqueued_job_is_there_under_its_id(jobs: Errandry, send: Task[[str], str]) -> None:
    job = await send.enqueue("ada")

    record = await jobs.record(job.id)
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
def test_a_job_made_of_a_call_is_what_it_would_be_made_and_checked_by_itself(
    jobs: Errandry, options: UseOptions
) -> None:
    @jobs.task(version=2, redact=["to"])
    async def send(to: str) -> None: ...

    one, other = (send.using(**options).new(to).job for to in ("ada", "grace"))

    assert [NewJob(**asdict(job)) for job in (one, other)] == [one, other]
    assert (one.payload, other.payload) == ('{"to":"ada"}', '{"to":"grace"}')
    assert (one.id == other.id) is ("id" in options)
    assert (one.unique is None, one.unique == other.unique) == ("unique" not in options,) * 2


async def test_ids_sort_by_the_time_they_were_made(
    jobs: Errandry, send: Task[[str], str], clock: FakeClock
) -> None:
    ids = []
    for _ in range(5):
        ids.append((await send.enqueue("ada")).id)
        clock.advance(1)

    assert ids == sorted(set(ids))


async def test_the_same_id_again_returns_the_job_there_is(jobs: Errandry, send: Task[[str], str]) -> None:
    first = await send.using(id="mail-1").enqueue("ada")
    await drain(jobs)

    again = await send.using(id="mail-1", queue="other").enqueue("grace")

    assert again.id == first.id
    assert (again.state, again.queue) == (State.COMPLETED, "default")
    assert await again.result() == "sent to ada"
    assert await jobs.counts() == {"default": {"completed": 1}}


async def test_many_jobs_go_together_in_the_order_given(jobs: Errandry, send: Task[[str], str]) -> None:
    made = await jobs.enqueue_many([send.new(f"{number}") for number in range(100)])
    await drain(jobs)

    assert [await job.result(30) for job in made] == [f"sent to {number}" for number in range(100)]
    totals = await jobs.totals()
    assert totals["default"]["inserted"] == totals["default"]["completed"] == 100


async def test_of_many_jobs_some_may_be_there_already(jobs: Errandry, send: Task[[str], str]) -> None:
    await send.using(id="b").enqueue("ada")
    await jobs.cancel("b")

    made = await jobs.enqueue_many([send.using(id=one).new("grace") for one in "abc"])

    assert [(job.id, job.state) for job in made] == [("a", "waiting"), ("b", "canceled"), ("c", "waiting")]


async def test_many_jobs_are_enqueued_all_or_none(jobs: Errandry, send: Task[[str], str]) -> None:
    with pytest.raises(TooLarge):
        await jobs.enqueue_many([send.new("ada"), send.new("x" * 2**20), send.new("grace")])
    with pytest.raises(InvalidValue, match="stands twice"):
        await jobs.enqueue_many([send.using(id="a").new("ada"), send.using(id="a").new("grace")])

    assert await jobs.counts() == {}


async def test_no_jobs_at_all_are_fine(jobs: Errandry) -> None:
    assert await jobs.enqueue_many([]) == []
    assert jobs.enqueue_many_sync([]) == []


async def test_jobs_of_several_tasks_go_together(jobs: Errandry, send: Task[[str], str]) -> None:
    @jobs.task(queue="sums")
    def add(a: int, b: int) -> int:
        return a + b

    mail, total = await jobs.enqueue_many([send.new("ada"), add.new(a=1, b=2)])
    await drain(jobs)

    assert (await mail.result(30), await total.result(30)) == ("sent to ada", 3)


async def test_a_call_of_another_apps_task_is_refused(jobs: Errandry) -> None:
    other = Errandry("memory:")

    @other.task
    async def foreign() -> None: ...

    with pytest.raises(InvalidValue, match="task='foreign': is declared by another app"):
        await jobs.enqueue_many([foreign.new()])

    assert await jobs.counts() == {}


class Away(MemoryStore):
    """Forgets to answer the first insert, having written it."""

    async def commit(self, commands: Sequence[Command]) -> list[Answer]:
        answers = await super().commit(commands)
        if not self.lost:
            self.lost = True
            raise ReplyLost("memory", "the line went dead")
        return answers

    lost = False


async def test_a_lost_reply_makes_no_second_job() -> None:
    async with Errandry(store=Away()) as jobs:

        @jobs.task
        async def send(to: str) -> None: ...

        job = await send.enqueue("ada")

        assert job.state is State.WAITING
        assert await jobs.counts() == {"default": {"waiting": 1}}


async def test_a_store_that_is_full_says_so_and_nothing_is_enqueued(
    jobs: Errandry, send: Task[[str], str]
) -> None:
    assert isinstance(jobs.store, MemoryStore)
    jobs.store.fail_before.append(StoreFull("memory", "no space left"))

    with pytest.raises(StoreFull):
        await send.enqueue("ada")

    assert await jobs.counts() == {}


# Hooks.


async def test_a_hook_sees_every_job_and_may_change_it(jobs: Errandry, send: Task[[str], str]) -> None:
    @jobs.on_enqueue
    def stamp(job: NewJob) -> NewJob:
        return replace(job, metadata=json.dumps({"by": "hook"}), queue=f"{job.queue}-eu")

    @jobs.on_enqueue
    def tag(job: NewJob) -> NewJob:
        return replace(job, tags=(*job.tags, job.queue))

    single = await send.enqueue("ada")
    several = await jobs.enqueue_many([send.new("ada"), send.new("grace")])
    blocking = send.enqueue_sync("joan")

    for job in (single, *several, blocking):
        record = await jobs.record(job.id)
        assert (record.queue, record.tags, record.metadata) == (
            "default-eu",
            ("default-eu",),
            '{"by": "hook"}',
        )


async def test_a_hook_may_refuse(jobs: Errandry, send: Task[[str], str]) -> None:
    @jobs.on_enqueue
    def refuse(job: NewJob) -> NewJob:
        if "eve" in job.payload:
            raise PermissionError("not for eve")
        return job

    with pytest.raises(PermissionError):
        await jobs.enqueue_many([send.new("ada"), send.new("eve")])

    assert await jobs.counts() == {}


async def test_a_hook_that_forgets_to_return_the_job_is_named(jobs: Errandry, send: Task[[str], str]) -> None:
    @jobs.on_enqueue
    def forgetful(job: NewJob) -> NewJob:
        return None  # type: ignore[return-value]

    with pytest.raises(InvalidValue, match=r"on_enqueue=None: .*forgetful.* must return the job"):
        await send.enqueue("ada")


# Codecs.


class Mirror:
    """A toy: the text backwards, bound to the job, its task and its field."""

    def seal(self, text: str, about: DocumentInfo) -> str:
        return json.dumps([text[::-1], about.job, about.task, about.field])

    def unseal(self, text: str, about: DocumentInfo) -> str:
        turned, *bound = json.loads(text)
        if bound != [about.job, about.task, about.field]:
            raise ValueError(f"sealed for {bound}, not for {about}")
        return str(turned[::-1])


@pytest.fixture
def sealed(jobs: Errandry) -> Errandry:
    jobs.codec = Mirror()
    return jobs


async def test_a_codec_seals_what_is_stored_and_the_handler_sees_it_plain(sealed: Errandry) -> None:
    seen: list[str] = []

    @sealed.task
    async def send(to: str) -> str:
        seen.append(to)
        return f"sent to {to}"

    job = await send.enqueue("ada")
    await drain(sealed, strict=True)
    record = await sealed.record(job.id)

    assert json.loads(record.payload) == ['{"to":"ada"}'[::-1], job.id, "send", "payload"]
    assert json.loads(record.result or "")[1:] == [job.id, "send", "result"]
    assert "sent to" not in (record.result or "")
    assert seen == ["ada"]
    assert await job.result(30) == "sent to ada"


async def test_what_a_codec_makes_that_is_no_json_is_refused(
    jobs: Errandry, send: Task[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs.codec = Mirror()
    monkeypatch.setattr(Mirror, "seal", lambda _, text, about: f"{about.job}:{text}")

    with pytest.raises(InvalidValue, match=r"payload=.*must be JSON"):
        await send.enqueue("ada")

    assert await jobs.counts() == {}


async def test_arguments_are_checked_before_they_are_sealed(sealed: Errandry) -> None:
    @sealed.task
    async def send(to: str) -> None: ...

    with pytest.raises(InvalidArguments):
        await send.enqueue(5)  # type: ignore[arg-type]


async def test_what_an_operator_writes_is_sealed_too(sealed: Errandry) -> None:
    @sealed.task
    async def send(to: str) -> str:
        return f"sent to {to}"

    edited, resolved = await send.enqueue("ada"), await send.enqueue("ada")
    await sealed.edit(edited.id, arguments={"to": "grace"})
    await sealed.resolve(resolved.id, result="by hand")
    await drain(sealed, strict=True)

    assert await edited.result(30) == "sent to grace"
    assert await resolved.result(30) == "by hand"


async def test_what_is_enqueued_can_be_asserted_through_a_codec(sealed: Errandry) -> None:
    @sealed.task
    async def send(to: str) -> None: ...

    await send.enqueue("ada")

    await assert_enqueued(sealed, send, to="ada")
