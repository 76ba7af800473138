"""Operator commands: by id, where a refusal is raised, or by query, where it is reported."""

from datetime import timedelta

import pytest

from errandry import Errandry
from errandry.api.task import Task
from errandry.core.state import State
from errandry.errors import InvalidArguments, InvalidMove, InvalidValue, QueryError, UnknownJob
from errandry.testing import FakeClock, drain


@pytest.fixture
def send(jobs: Errandry) -> Task[[str], str]:
    @jobs.task
    async def send(to: str) -> str:
        return to

    return send


async def test_get_reads_a_job_by_its_id(jobs: Errandry, send: Task[[str], str]) -> None:
    job = await send.enqueue("ada")

    assert (await jobs.get(job.id)).record == await jobs.client.record(job.id)
    with pytest.raises(UnknownJob, match="there is no job 'unknown'"):
        await jobs.get("unknown")
    with pytest.raises(InvalidValue, match="id=''"):
        await jobs.get("")


async def test_jobs_are_listed_by_query_newest_first_page_by_page(
    jobs: Errandry, send: Task[[str], str]
) -> None:
    handles = await jobs.enqueue_many([send.using(priority=n % 2).new(f"{n}") for n in range(10)])

    first = await jobs.list("task:send priority:1", limit=3)
    rest = await jobs.list("task:send priority:1", cursor=first.cursor, limit=3)

    odd = [job.id for job in reversed(handles[1::2])]
    assert [record.id for record in first.jobs + rest.jobs] == odd
    assert rest.cursor is None
    with pytest.raises(QueryError, match="stat"):
        await jobs.list("stat:failed")


async def test_counts_totals_and_queues(jobs: Errandry, send: Task[[str], str], clock: FakeClock) -> None:
    await send.enqueue("ada")
    await send.using(queue="later", delay=60).enqueue("ada")
    await drain(jobs)
    clock.advance(1)
    await send.enqueue("ada")
    clock.advance(5)

    assert await jobs.counts() == {"default": {"completed": 1, "waiting": 1}, "later": {"scheduled": 1}}
    assert (await jobs.totals())["default"] == {"completed": 1, "inserted": 2}
    assert [(queue.name, queue.waited) for queue in await jobs.queues()] == [("default", 5), ("later", None)]


async def test_cancel_by_id_and_by_handle(jobs: Errandry, send: Task[[str], str]) -> None:
    job, other = await send.enqueue("ada"), await send.enqueue("grace")

    assert (await jobs.cancel(job.id)).moved == (job.id,)
    assert (await jobs.cancel(job.id)).already == (job.id,)
    await other.cancel()

    assert (await job.refresh()).state is (await other.refresh()).state is State.CANCELED


async def test_a_finished_job_is_canceled_only_by_force(jobs: Errandry, send: Task[[str], str]) -> None:
    job = await send.enqueue("ada")
    await drain(jobs)

    with pytest.raises(InvalidMove, match=r"cannot cancel job .*: it is completed, not blocked or"):
        await jobs.cancel(job.id)
    await jobs.cancel(job.id, force=True)

    assert (await job.refresh()).state is State.CANCELED


async def test_a_rerun_runs_now_or_later(jobs: Errandry, send: Task[[str], str], clock: FakeClock) -> None:
    job = await send.using(max_attempts=1).enqueue("ada")
    await drain(jobs)

    await jobs.rerun(job.id)
    assert (await job.refresh()).state is State.WAITING
    await drain(jobs)
    await jobs.rerun(job.id, delay="1 hour", reset_attempts=True)

    record = (await job.refresh()).record
    assert (record.state, record.run_at) == (State.SCHEDULED, clock.time() + 3_600)
    assert (record.attempts, record.max_attempts) == (0, 2)


async def test_edit_changes_arguments_and_options(
    jobs: Errandry, send: Task[[str], str], clock: FakeClock
) -> None:
    job = await send.enqueue("ada")

    await jobs.edit(job.id, arguments={"to": "grace"}, priority=5, max_attempts=9, tags=["vip"])
    await jobs.edit(job.id, run_at=clock.time() + 60)

    record = (await job.refresh()).record
    assert (record.payload, record.priority, record.max_attempts) == ('{"to":"grace"}', 5, 9)
    assert (record.tags, record.state, record.run_at) == (("vip",), State.SCHEDULED, clock.time() + 60)


async def test_edited_arguments_are_checked(jobs: Errandry, send: Task[[str], str]) -> None:
    job = await send.enqueue("ada")

    with pytest.raises(InvalidArguments, match="argument to=5: must be str, not int"):
        await jobs.edit(job.id, arguments={"to": 5})
    with pytest.raises(InvalidArguments, match="no argument 'nope': it takes to: str"):
        await jobs.edit(job.id, arguments={"to": "ada", "nope": 1})

    assert (await job.refresh()).record.payload == '{"to":"ada"}'


async def test_arguments_and_results_are_written_by_id_only(jobs: Errandry, send: Task[[str], str]) -> None:
    job = await send.enqueue("ada")

    for refused in (
        jobs.edit(query="task:send", arguments={"to": "grace"}),
        jobs.resolve(query="task:send", result="x"),
    ):
        with pytest.raises(InvalidValue, match="give their ids"):
            await refused
    with pytest.raises(UnknownJob):
        await jobs.edit("unknown", arguments={"to": "grace"})
    moved = await jobs.edit("unknown", job.id, arguments={"to": "grace"})

    assert (moved.moved, [job_id for job_id, _ in moved.refused]) == ((job.id,), ["unknown"])


async def test_postpone_and_promote(jobs: Errandry, send: Task[[str], str], clock: FakeClock) -> None:
    job = await send.enqueue("ada")

    await jobs.postpone(job.id, delay=timedelta(hours=2))
    assert (await job.refresh()).record.run_at == clock.time() + 7_200
    await jobs.postpone(job.id, run_at="2031-01-01")
    assert (await job.refresh()).state is State.SCHEDULED
    await jobs.promote(job.id)

    assert (await job.refresh()).state is State.WAITING
    with pytest.raises(InvalidMove, match="cannot promote"):
        await jobs.promote(job.id)
    with pytest.raises(InvalidValue, match="say when"):
        await jobs.postpone(job.id)
    with pytest.raises(InvalidValue, match="give either run_at or delay"):
        await jobs.postpone(job.id, delay=1, run_at="2031-01-01")


async def test_resolve_settles_jobs_by_hand(jobs: Errandry, send: Task[[str], str]) -> None:
    good, bad, plain = [await send.enqueue("ada") for _ in range(3)]

    await jobs.resolve(good.id, result="by hand")
    await jobs.resolve(bad.id, state="failed", message="no longer wanted")
    await jobs.resolve(plain.id)

    assert await good.result(30) == "by hand"
    assert await plain.result(30) is None
    failed = (await bad.refresh()).record
    assert (failed.state, failed.errors[-1].message) == (State.FAILED, "no longer wanted")
    with pytest.raises(InvalidMove):
        await jobs.resolve(good.id)
    with pytest.raises(InvalidValue, match="must be one of completed, failed"):
        await jobs.resolve(bad.id, state="canceled")  # type: ignore[arg-type]


async def test_remove_deletes_the_job(jobs: Errandry, send: Task[[str], str]) -> None:
    job = await send.enqueue("ada")

    await jobs.remove(job.id)

    assert (await jobs.list()).jobs == ()
    with pytest.raises(UnknownJob):
        await jobs.remove(job.id)


async def test_several_ids_report_what_was_refused(jobs: Errandry, send: Task[[str], str]) -> None:
    job, done = await send.using(priority=1).enqueue("ada"), await send.enqueue("grace")
    await drain(jobs)
    await jobs.rerun(job.id)

    moved = await jobs.cancel(job.id, done.id, "unknown")

    assert moved.moved == (job.id,)
    assert [(job_id, type(why)) for job_id, why in moved.refused] == [
        (done.id, InvalidMove),
        ("unknown", UnknownJob),
    ]


async def test_a_query_moves_all_jobs_that_match(jobs: Errandry, send: Task[[str], str]) -> None:
    mail = [send.using(tags=["mail"]).new(f"{n}") for n in range(1_200)]
    await jobs.enqueue_many([*mail, send.new("other")])

    moved = await jobs.cancel(query="tag:mail")

    assert len(moved.moved) == len(set(moved.moved)) == 1_200
    assert await jobs.counts() == {"default": {"canceled": 1_200, "waiting": 1}}
    assert (await jobs.cancel(query="tag:mail")).moved == ()
    assert len((await jobs.rerun(query="tag:mail state:canceled", delay=60)).moved) == 1_200
    assert len((await jobs.promote(query="tag:mail")).moved) == 1_200
    assert len((await jobs.edit(query="tag:mail", priority=3)).moved) == 1_200
    assert len((await jobs.remove(query="priority:3")).moved) == 1_200
    assert await jobs.counts() == {"default": {"waiting": 1}}


async def test_ids_and_a_query_together_narrow_each_other(jobs: Errandry, send: Task[[str], str]) -> None:
    mail, other = await send.using(queue="mail").enqueue("ada"), await send.enqueue("bob")

    with pytest.raises(InvalidValue, match="give job ids, a query, or both"):
        await jobs.cancel()
    assert (await jobs.cancel(mail.id, other.id, query="queue:mail")).moved == (mail.id,)
    assert (await other.refresh()).state is State.WAITING


async def test_a_dry_run_lists_the_jobs_that_would_move(jobs: Errandry, send: Task[[str], str]) -> None:
    waiting = [await send.enqueue("ada") for _ in range(3)]
    await jobs.cancel(waiting[0].id)
    live = [job.id for job in reversed(waiting[1:])]

    assert list((await jobs.cancel(query="", dry_run=True)).moved) == live
    assert (await jobs.edit(query="", arguments={"to": "x"}, dry_run=True)).moved == tuple(live)
    assert (await jobs.rerun(*live, waiting[0].id, dry_run=True)).moved == (waiting[0].id,)
    assert await jobs.counts() == {"default": {"canceled": 1, "waiting": 2}}


async def test_jobs_of_a_paused_queue_wait_until_it_is_resumed(
    jobs: Errandry, send: Task[[str], str]
) -> None:
    mail = jobs.queue("mail")
    paused, free = await send.using(queue="mail").enqueue("ada"), await send.enqueue("grace")

    assert (await mail.pause(by="ops"), await mail.pause()) == (True, False)
    assert [job.id for job in await drain(jobs)] == [free.id]
    [_, info] = await jobs.queues()
    assert (info.name, info.paused and info.paused.by) == ("mail", "ops")

    assert (await mail.resume(), await mail.resume()) == (True, False)
    assert [job.id for job in await drain(jobs)] == [paused.id]


async def test_a_paused_task_waits_in_all_queues(jobs: Errandry, send: Task[[str], str]) -> None:
    @jobs.task
    async def other() -> None: ...

    assert (await send.pause(by="ops"), await jobs.remote_task("send").pause()) == (True, False)
    await send.using(queue="mail").enqueue("ada")
    free = await other.enqueue()

    assert [job.id for job in await drain(jobs)] == [free.id]
    assert (await send.resume(), await send.resume()) == (True, False)
    assert len(await drain(jobs)) == 1


async def test_why_explains_why_a_job_is_not_running(jobs: Errandry, send: Task[[str], str]) -> None:
    await send.using(queue="mail", priority=-1).enqueue("grace")
    job = await send.using(queue="mail").enqueue("ada")
    await jobs.queue("mail").pause(by="ops")

    answer = await jobs.why(job.id)

    assert (answer.job, answer.state) == (job.id, State.WAITING)
    assert [because.code for because in answer.reasons] == ["queue_paused", "no_worker", "in_line"]
    assert "by ops" in answer.reasons[0].text


async def test_why_counts_no_attempt_of_a_job_whose_attempts_were_reset(jobs: Errandry) -> None:
    @jobs.task(max_attempts=1)
    async def broken() -> None:
        raise ValueError("no")

    job = await broken.enqueue()
    await drain(jobs)
    await jobs.rerun(job.id, reset_attempts=True, delay="1 hour")

    [scheduled, *_] = (await jobs.why(job.id)).reasons
    assert (scheduled.code, "attempt" in scheduled.text) == ("scheduled", False)


async def test_why_explains_how_a_job_has_ended(jobs: Errandry, send: Task[[str], str]) -> None:
    job = await send.enqueue("ada")
    await drain(jobs)

    assert [because.code for because in (await jobs.why(job.id)).reasons] == ["completed"]
    with pytest.raises(UnknownJob):
        await jobs.why("unknown")
