"""Commands that are sent again under their nonce: they change nothing, and get the answer they got first."""

from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any

import pytest

from errandry.core.answer import ALREADY, WRITTEN, Inserted, Moved
from errandry.core.command import (
    CancelJobs,
    Command,
    CompleteOutcome,
    EditJobs,
    Insert,
    PostponeJobs,
    PromoteJobs,
    RemoveJobs,
    RerunJobs,
    ResolveJobs,
)
from errandry.core.flow import Edge
from errandry.core.gate import GateKind, Pause, PutRule, ResetRule, Resume
from errandry.core.job import JobRecord
from errandry.core.once import OnceCommandT, with_nonce
from errandry.core.query import parse
from errandry.core.rule import Rule
from errandry.core.schedule import (
    Backfill,
    Backfilled,
    PauseSchedule,
    PutSchedule,
    RemoveSchedule,
    ResumeSchedule,
    RunSchedule,
)
from errandry.core.state import State
from errandry.core.step import SendSignal
from errandry.core.unique import Conflict, UniqueKey
from errandry.errors import InvalidMove, UnknownJob
from errandry.store.contract import ANSWERS_AGE, Store
from errandry.testing.clock import FakeClock
from errandry.testing.conformance import requests
from errandry.testing.conformance.scheduling import plan
from errandry.testing.given import Given

_nonces = count(1)
KEY = UniqueKey("invoice 7")
PrepareCommand = Callable[[Given], Awaitable[Any]]
"""Brings the store into a state that the command can change, and returns the command, without a nonce."""


async def _rerun(given: Given) -> Command:
    return RerunJobs(ids=((await given.completed()).id,), delay=9.0)


async def _cancel(given: Given) -> Command:
    return CancelJobs(ids=((await given.waiting()).id,))


async def _edit(given: Given) -> Command:
    return EditJobs(ids=((await given.waiting()).id,), priority=7)


async def _postpone(given: Given) -> Command:
    return PostponeJobs(ids=((await given.waiting()).id,), delay=60.0)


async def _promote(given: Given) -> Command:
    return PromoteJobs(ids=((await given.scheduled()).id,))


async def _resolve(given: Given) -> Command:
    return ResolveJobs(ids=((await given.waiting()).id,), result="1")


async def _remove(given: Given) -> Command:
    return RemoveJobs(ids=((await given.waiting()).id,))


async def _remove_slice(given: Given) -> Command:
    for _ in range(3):
        await given.waiting(queue="bulk")
    return RemoveJobs(query=parse("queue:bulk"), limit=2)


async def _signal(given: Given) -> Command:
    return SendSignal((await given.waiting()).id, "go")


async def _insert(given: Given) -> Command:
    return Insert((given.new_job(), given.new_job()))


async def _insert_flow(given: Given) -> Command:
    parent, child = given.new_job(), given.new_job()
    return Insert((parent, child), (Edge(parent.id, child.id),))


async def _replace(given: Given) -> Command:
    await given.waiting(unique=KEY)
    return Insert((given.new_job(unique=KEY, on_conflict=Conflict.REPLACE, delay=60.0),))


async def _pause(_: Given) -> Command:
    return Pause(GateKind.QUEUE, "q")


async def _resume(given: Given) -> Command:
    await requests.send(given.store, Pause(GateKind.QUEUE, "q"))
    return Resume(GateKind.QUEUE, "q")


async def _put_rule(_: Given) -> Command:
    return PutRule(GateKind.QUEUE, "q", Rule(limit=3))


async def _reset_rule(given: Given) -> Command:
    await requests.send(given.store, PutRule(GateKind.QUEUE, "q", Rule(limit=3)))
    return ResetRule(GateKind.QUEUE, "q")


async def _put_schedule(_: Given) -> Command:
    return PutSchedule("nightly", plan())


async def _run_schedule(given: Given) -> Command:
    await requests.send(given.store, PutSchedule("nightly", plan()))
    return RunSchedule("nightly", "run-1")


async def _backfill(given: Given) -> Command:
    await requests.send(given.store, PutSchedule("nightly", plan()))
    now = await given.store.now()
    return Backfill("nightly", now - 30.0, now - 10.0)


async def _pause_schedule(given: Given) -> Command:
    await requests.send(given.store, PutSchedule("nightly", plan()))
    return PauseSchedule("nightly")


async def _resume_schedule(given: Given) -> Command:
    await requests.send(given.store, PutSchedule("nightly", plan()))
    await requests.send(given.store, PauseSchedule("nightly"))
    return ResumeSchedule("nightly")


async def _remove_schedule(given: Given) -> Command:
    await requests.send(given.store, PutSchedule("nightly", plan()))
    return RemoveSchedule("nightly")


COMMANDS: tuple[PrepareCommand, ...] = (
    *(_rerun, _cancel, _edit, _postpone, _promote, _resolve, _remove, _remove_slice, _signal),
    *(_insert, _insert_flow, _replace, _pause, _resume, _put_rule, _reset_rule),
    *(_put_schedule, _run_schedule, _backfill, _pause_schedule, _resume_schedule, _remove_schedule),
)


def once(command: OnceCommandT) -> OnceCommandT:
    """The command with a new nonce."""
    return with_nonce(command, f"once-{next(_nonces)}")


async def run_to_its_end(given: Given, job: JobRecord) -> None:
    """Let a worker run the job to its end."""
    held = await given.claim(await given.current_job(job.id))
    assert await requests.settle(given.store, held, CompleteOutcome()) is WRITTEN


class RepeatedNonces:
    @pytest.mark.parametrize("make", COMMANDS, ids=[make.__name__[1:] for make in COMMANDS])
    async def test_a_command_sent_again_gets_the_first_answer_and_changes_nothing(
        self,
        store: Store,
        clock: FakeClock,
        given: Given,
        make: PrepareCommand,
    ) -> None:
        command = once(await make(given))
        first = await requests.send(store, command)
        before = await requests.snapshot(store)
        clock.advance(1.0)

        assert await requests.send(store, command) == first
        assert await requests.snapshot(store) == before
        assert first is WRITTEN or isinstance(first, Moved | Inserted | Backfilled)

    async def test_a_job_does_not_run_again_because_its_rerun_is_sent_again(
        self, store: Store, given: Given
    ) -> None:
        job = await given.completed()
        rerun = once(RerunJobs(ids=(job.id,)))
        assert await requests.send(store, rerun) == Moved((job.id,))
        await run_to_its_end(given, job)

        assert await requests.send(store, rerun) == Moved((job.id,))
        assert (await requests.current_job(store, job)).state is State.COMPLETED

    async def test_a_cancel_sent_again_does_not_cancel_what_was_rerun_since(
        self, store: Store, given: Given
    ) -> None:
        job = await given.waiting()
        cancel = once(CancelJobs(ids=(job.id,)))
        await requests.send(store, cancel)
        await requests.send(store, once(RerunJobs(ids=(job.id,))))

        assert await requests.send(store, cancel) == Moved((job.id,))
        assert (await requests.current_job(store, job)).state is State.WAITING

    async def test_an_edit_sent_again_does_not_undo_a_later_one(self, store: Store, given: Given) -> None:
        job = await given.waiting()
        edits = [once(EditJobs(ids=(job.id,), priority=priority)) for priority in (1, 2)]
        for edit in edits:
            await requests.send(store, edit)

        assert await requests.send(store, edits[0]) == Moved((job.id,))
        assert (await requests.current_job(store, job)).priority == 2

    async def test_a_removal_sent_again_leaves_a_new_job_with_the_same_id(
        self, store: Store, given: Given
    ) -> None:
        job = await given.waiting()
        remove = once(RemoveJobs(ids=(job.id,)))
        await requests.send(store, remove)
        await requests.insert(store, given.new_job(id=job.id))

        assert await requests.send(store, remove) == Moved((job.id,))
        assert (await requests.current_job(store, job)).state is State.WAITING

    async def test_a_job_that_was_replaced_and_has_run_is_not_inserted_again(
        self, store: Store, given: Given
    ) -> None:
        job = await given.waiting(unique=KEY)
        new = given.new_job(unique=KEY, on_conflict=Conflict.REPLACE, payload='{"new":1}')
        insert = once(Insert((new,)))
        first = Inserted((job.id,), frozenset({job.id}), frozenset({job.id}))
        assert await requests.send(store, insert) == first
        await run_to_its_end(given, job)

        assert await requests.send(store, insert) == first
        assert [stored.id for stored in await requests.list_jobs(store)] == [job.id]

    async def test_the_jobs_of_an_insert_sent_again_did_not_exist_before(
        self, store: Store, given: Given
    ) -> None:
        new = given.new_job()
        insert, other = once(Insert((new,))), once(Insert((new,)))
        await requests.send(store, insert)

        assert await requests.send(store, insert) == Inserted((new.id,))
        assert await requests.send(store, other) == Inserted((new.id,), frozenset({new.id}))

    async def test_refusals_are_answered_again(self, store: Store, given: Given) -> None:
        waiting, completed = await given.waiting(), await given.completed()
        cancel = once(CancelJobs(ids=(waiting.id, completed.id, "unknown")))

        answers = [await requests.operate(store, cancel) for _ in range(2)]

        assert [answer.moved for answer in answers] == [(waiting.id,)] * 2
        refused = [{job: (type(error), error.args) for job, error in answer.refused} for answer in answers]
        assert {job: kind for job, (kind, _) in refused[0].items()} == {
            completed.id: InvalidMove,
            "unknown": UnknownJob,
        }
        assert refused[0] == refused[1]

    async def test_a_command_that_changed_nothing_is_applied_when_it_is_sent_again(
        self, store: Store, given: Given
    ) -> None:
        cancel = once(CancelJobs(ids=("late",)))
        assert (await requests.operate(store, cancel)).moved == ()
        await requests.insert(store, given.new_job(id="late"))

        assert await requests.operate(store, cancel) == Moved(("late",))

    async def test_a_command_may_be_sent_twice_in_one_pass(self, store: Store, given: Given) -> None:
        job, pause = await given.waiting(), once(Pause(GateKind.QUEUE, "q"))
        signal = once(SendSignal(job.id, "go"))

        assert await store.commit([signal, pause, pause]) == [WRITTEN, WRITTEN, WRITTEN]

    async def test_without_a_nonce_each_sending_is_a_command_of_its_own(self, store: Store) -> None:
        pause = Pause(GateKind.QUEUE, "q")

        assert [await requests.send(store, pause) for _ in range(2)] == [WRITTEN, ALREADY]

    async def test_answers_are_kept_for_a_bounded_time(self, store: Store, clock: FakeClock) -> None:
        pause = once(Pause(GateKind.QUEUE, "q"))
        await requests.send(store, pause)
        clock.advance(ANSWERS_AGE - 1.0)
        await requests.run_upkeep(store)
        assert await requests.send(store, pause) is WRITTEN

        clock.advance(1.0)
        await requests.run_upkeep(store)

        assert await requests.send(store, pause) is ALREADY
