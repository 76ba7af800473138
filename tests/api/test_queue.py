"""Operations on whole queues: purge, clean, rerun, promote, move, obliterate; and dry runs."""

from collections.abc import AsyncIterator

import pytest

from errandry import Errandry
from errandry.api.queue import Queue
from errandry.api.task import Task
from errandry.core.gate import GateKind
from errandry.core.state import State
from errandry.errors import InvalidValue, QueueInUse
from errandry.testing import FakeClock, drain
from errandry.testing.given import Given


@pytest.fixture
def send(jobs: Errandry) -> Task[[str], str]:
    @jobs.task(queue="mail", max_attempts=1)
    async def send(to: str) -> str:
        if to == "unknown":
            raise LookupError(to)
        return to

    return send


@pytest.fixture
async def mail(jobs: Errandry) -> AsyncIterator[Queue]:
    """A queue with two jobs in every state, and one of another queue."""
    async with jobs:
        given = Given(jobs.store)
        await given.waiting(queue="other")
        for state in [*State] * 2:
            await given.in_state(state, queue="mail")
        yield jobs.queue("mail")


async def mail_counts(jobs: Errandry) -> dict[str, int]:
    return (await jobs.counts()).get("mail", {})


ALL = {str(state): 2 for state in State}


def without(*states: str) -> dict[str, int]:
    return {state: 2 for state in sorted(ALL) if state not in states}


async def test_purge_leaves_held_and_finished_jobs(jobs: Errandry, mail: Queue) -> None:
    moved = await mail.purge()

    assert len(moved.moved) == 6
    assert await mail_counts(jobs) == without("waiting", "scheduled", "blocked")
    assert (await jobs.counts())["other"] == {"waiting": 1}
    assert (await mail.purge()).moved == ()


async def test_purge_can_delete_jobs_of_some_states_only(jobs: Errandry, mail: Queue) -> None:
    assert len((await mail.purge("scheduled")).moved) == 2

    assert await mail_counts(jobs) == without("scheduled")
    with pytest.raises(InvalidValue, match="state='running': must be one of waiting, scheduled, blocked"):
        await mail.purge("running")


async def test_clean_deletes_jobs_by_state_and_age(jobs: Errandry, mail: Queue, clock: FakeClock) -> None:
    clock.advance(20)
    new = await Given(jobs.store).completed(queue="mail", id="new", task="new")

    assert len((await mail.clean("completed", older="15 seconds")).moved) == 2
    assert await mail_counts(jobs) == without("completed") | {"completed": 1}
    assert len((await mail.clean(older=20)).moved) == 4
    assert (await mail.clean(older=1)).moved == ()
    assert (await mail.clean()).moved == (new.id,)
    assert len((await mail.clean("waiting", older="20s")).moved) == 2
    assert await mail_counts(jobs) == {"blocked": 2, "claimed": 2, "running": 2, "scheduled": 2}


async def test_a_dry_run_changes_nothing(jobs: Errandry, mail: Queue) -> None:
    answers = [
        await mail.purge(dry_run=True),
        await mail.clean("failed", dry_run=True),
        await mail.rerun(dry_run=True),
        await mail.promote(dry_run=True),
        await mail.move("bulk", dry_run=True),
        await mail.obliterate(dry_run=True),
        await mail.obliterate(dry_run=True, force=True),
    ]

    assert [len(moved.moved) for moved in answers] == [6, 2, 2, 2, 6, 12, 16]
    assert await mail_counts(jobs) == ALL


async def test_rerun_runs_all_failed_jobs_or_those_that_match(jobs: Errandry, send: Task[[str], str]) -> None:
    failed = [await send.using(tags=[tag]).enqueue("unknown") for tag in ("red", "blue")]
    await drain(jobs)

    assert (await jobs.queue("mail").rerun("tag:red", delay=60)).moved == (failed[0].id,)
    assert (await jobs.queue("mail").rerun(reset_attempts=True)).moved == (failed[1].id,)
    assert await mail_counts(jobs) == {"scheduled": 1, "waiting": 1}
    assert (await jobs.queue("mail").promote()).moved == (failed[0].id,)


async def test_move_puts_jobs_into_another_queue(jobs: Errandry, send: Task[[str], str]) -> None:
    await jobs.enqueue_many([send.new(f"{n}") for n in range(1_200)])

    moved = await jobs.queue("mail").move("bulk")

    assert len(set(moved.moved)) == 1_200
    assert await jobs.counts() == {"bulk": {"waiting": 1_200}, "mail": {}}
    assert (await jobs.queue("bulk").move("rare", "payload~1199")).moved == (moved.moved[0],)


async def test_a_queue_in_use_is_not_obliterated(jobs: Errandry, mail: Queue) -> None:
    with pytest.raises(QueueInUse, match="the queue 'mail' is in use: workers have 4 of its jobs") as error:
        await mail.obliterate()

    assert (error.value.queue, error.value.held) == ("mail", 4)
    assert await mail_counts(jobs) == ALL
    assert (await jobs.paused())[GateKind.QUEUE] == {}


async def test_an_obliterated_queue_has_no_jobs_and_no_rules(jobs: Errandry, mail: Queue) -> None:
    await mail.set_rules(limit=3)
    await mail.group("acme").set_rules(weight=2.0)
    counts: list[int] = []

    moved = await mail.obliterate(force=True, progress=counts.append)

    assert (len(moved.moved), sum(counts)) == (16, 16)
    assert (await mail_counts(jobs), await jobs.rules()) == ({}, [])
    assert (await jobs.totals())["mail"]["removed"] == 16
    assert (await jobs.paused())[GateKind.QUEUE] == {}


async def test_an_interrupted_obliterate_can_be_continued(jobs: Errandry, send: Task[[str], str]) -> None:
    """It leaves the queue paused, with some jobs deleted; the same call again finishes it."""
    await jobs.enqueue_many([send.new("ada") for _ in range(1_200)])

    def interrupt(count: int) -> None:
        raise KeyboardInterrupt(count)

    with pytest.raises(KeyboardInterrupt):
        await jobs.queue("mail").obliterate(progress=interrupt)
    assert await mail_counts(jobs) == {"waiting": 700}
    assert "mail" in (await jobs.paused())[GateKind.QUEUE]

    assert len((await jobs.queue("mail").obliterate()).moved) == 700
    assert (await jobs.paused())[GateKind.QUEUE] == {}


async def test_queue_methods_work_without_a_loop(jobs: Errandry, send: Task[[str], str]) -> None:
    await send.enqueue("ada")

    assert len(jobs.sync.queue("mail").purge().moved) == 1
