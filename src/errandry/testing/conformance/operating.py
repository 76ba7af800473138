"""Operator commands: their effect on jobs named by id, and on many jobs selected by a query, in slices."""

from typing import Any

import pytest
from msgspec.structs import replace

from errandry.core.answer import Moved
from errandry.core.command import (
    CancelJobs,
    CompleteOutcome,
    EditJobs,
    FailOutcome,
    OperatorCommand,
    PostponeJobs,
    PromoteJobs,
    RemoveJobs,
    RerunJobs,
    ResolveJobs,
    RetryOutcome,
)
from errandry.core.job import Failure, JobRecord, Keep
from errandry.core.query import parse
from errandry.core.state import Reason, State
from errandry.errors import InvalidMove, UnknownJob
from errandry.store.contract import Store
from errandry.testing.clock import FakeClock
from errandry.testing.conformance import requests
from errandry.testing.given import Given


class OperatorCommands:
    async def test_each_job_gets_its_own_answer(self, store: Store, given: Given) -> None:
        first, completed = await given.waiting(), await given.completed()
        canceled, last = await given.canceled(), await given.waiting()

        answer = await requests.operate(
            store, CancelJobs(ids=(first.id, completed.id, "unknown", canceled.id, last.id, first.id))
        )

        refused = dict(answer.refused)
        assert (answer.moved, answer.already) == ((first.id, last.id), (canceled.id,))
        assert {name: type(error) for name, error in refused.items()} == {
            completed.id: InvalidMove,
            "unknown": UnknownJob,
        }
        assert (await requests.current_job(store, completed)) == completed

    async def test_a_claimed_job_is_canceled_at_once(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        job = await given.claimed()
        clock.advance(5)
        await requests.operate(store, CancelJobs(ids=(job.id,)))

        after, now = await requests.current_job(store, job), clock.time()
        assert (after.state, after.reason, after.finished_at) == (State.CANCELED, Reason.CANCELED, now)
        assert after.lease_until is None

    async def test_canceling_a_running_job_records_a_cancel_request(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        job = await given.running()
        clock.advance(5)

        assert await requests.operate(store, CancelJobs(ids=(job.id,))) == Moved((job.id,))

        expected = replace(job, cancel_requested=True, updated_at=clock.time())
        assert await requests.current_job(store, job) == expected

    @pytest.mark.parametrize("state", [State.WAITING, State.RUNNING])
    @pytest.mark.parametrize("force", [False, True])
    async def test_a_second_cancel_answers_already_and_changes_nothing(
        self, store: Store, clock: FakeClock, given: Given, state: State, force: bool
    ) -> None:
        job = await given.in_state(state)
        await requests.operate(store, CancelJobs(ids=(job.id,)))
        clock.advance(5)
        before = await requests.snapshot(store)

        assert await requests.operate(store, CancelJobs(ids=(job.id,), force=force)) == Moved(
            already=(job.id,)
        )
        assert await requests.snapshot(store) == before

    async def test_a_forced_cancel_keeps_result_and_errors(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        completed, failed = await given.completed("[1]"), await given.failed()
        clock.advance(5)
        await requests.operate(store, CancelJobs(ids=(completed.id, failed.id), force=True))

        for before in (completed, failed):
            after = await requests.current_job(store, before)
            assert (after.state, after.reason) == (State.CANCELED, Reason.CANCELED)
            assert (after.result, after.errors) == (before.result, before.errors)
            assert after.finished_at == clock.time()

    async def test_a_rerun_resets_the_job_and_keeps_its_errors(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        failed = await given.failed(max_attempts=3)
        clock.advance(5)

        assert await requests.operate(store, RerunJobs(ids=(failed.id,))) == Moved((failed.id,))

        after = await requests.current_job(store, failed)
        assert (after.state, after.reason, after.result, after.progress) == (State.WAITING, None, None, None)
        assert (after.finished_at, after.expires_at, after.worker) == (None, None, None)
        assert (after.attempts, after.max_attempts) == (1, 3)
        assert after.errors == failed.errors
        assert (after.created_at, after.seq, after.payload) == (failed.created_at, failed.seq, failed.payload)

    async def test_a_rerun_clears_the_cancel_request(self, store: Store, given: Given) -> None:
        job = await given.running()
        await requests.operate(store, CancelJobs(ids=(job.id,)))
        await requests.settle(store, job, CompleteOutcome())
        await requests.operate(store, RerunJobs(ids=(job.id,)))

        reclaimed = await given.claim(job)

        assert not reclaimed.cancel_requested
        assert await requests.settle(store, reclaimed, CompleteOutcome()) == "written"
        assert (await requests.current_job(store, job)).state is State.COMPLETED

    async def test_a_rerun_grants_one_attempt_if_all_are_spent(self, store: Store, given: Given) -> None:
        job = await given.settled(RetryOutcome(), max_attempts=1)
        await requests.operate(store, RerunJobs(ids=(job.id,)))

        after = await requests.current_job(store, job)
        assert (after.attempts, after.max_attempts) == (1, 2)

    async def test_a_rerun_can_reset_the_attempts(self, store: Store, given: Given) -> None:
        job = await given.settled(RetryOutcome(), max_attempts=1)
        await requests.operate(store, RerunJobs(ids=(job.id,), reset_attempts=True))

        after = await requests.current_job(store, job)
        assert (after.attempts, after.max_attempts, after.crashes, after.releases) == (0, 1, 0, 0)

    async def test_a_rerun_can_be_delayed(self, store: Store, clock: FakeClock, given: Given) -> None:
        job = await given.completed()
        await requests.operate(store, RerunJobs(ids=(job.id,), delay=60.0))

        after = await requests.current_job(store, job)
        assert (after.state, after.run_at) == (State.SCHEDULED, clock.time() + 60)

    async def test_a_lapsed_job_can_be_rerun(self, store: Store, clock: FakeClock, given: Given) -> None:
        job = await given.waiting(deadline=clock.time() + 10)
        clock.advance(10)
        await requests.run_upkeep(store)
        await requests.operate(store, RerunJobs(ids=(job.id,)))

        assert await requests.claim_ids(store) == [job.id]

    async def test_a_rerun_job_is_no_longer_pruned(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        job = await given.completed(keep=Keep(completed=10.0))
        clock.advance(10)
        await requests.operate(store, RerunJobs(ids=(job.id,)))

        assert (await requests.run_upkeep(store)).pruned == 0

    async def test_an_edit_changes_the_given_fields_only(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        job = await given.waiting(tags=("old",), priority=3)
        clock.advance(5)
        edit = EditJobs(ids=(job.id,), payload="[1]", metadata="{}", max_attempts=9, tags=("new", "er"))

        assert await requests.operate(store, edit) == Moved((job.id,))

        edited = replace(job, payload="[1]", metadata="{}", max_attempts=9, updated_at=clock.time())
        edited = replace(edited, tags=("new", "er"))
        assert await requests.current_job(store, job) == edited

    async def test_an_edit_can_remove_all_tags(self, store: Store, given: Given) -> None:
        job = await given.waiting(tags=("old",))
        await requests.operate(store, EditJobs(ids=(job.id,), tags=()))

        assert (await requests.current_job(store, job)).tags == ()

    async def test_an_edit_leaves_a_blocked_job_blocked(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        job = await given.blocked()
        await requests.operate(store, EditJobs(ids=(job.id,), run_at=clock.time() + 60))

        after = await requests.current_job(store, job)
        assert (after.state, after.run_at) == (State.BLOCKED, clock.time() + 60)

    @pytest.mark.parametrize("state", [State.WAITING, State.SCHEDULED])
    @pytest.mark.parametrize("way", ["delay", "run_at"])
    async def test_a_postponed_job_runs_at_its_new_time(
        self, store: Store, clock: FakeClock, given: Given, state: State, way: str
    ) -> None:
        job = await given.in_state(state)
        when: dict[str, Any] = {"delay": 60.0} if way == "delay" else {"run_at": clock.time() + 60}
        await requests.operate(store, PostponeJobs(ids=(job.id,), **when))
        assert (await requests.current_job(store, job)).state is State.SCHEDULED
        clock.advance(59.75)
        assert await requests.claim_ids(store) == []
        clock.advance(0.25)

        assert await requests.claim_ids(store) == [job.id]

    async def test_a_promoted_job_runs_now_and_an_edit_does_not_undo_it(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        job = await given.scheduled()
        await requests.operate(store, PromoteJobs(ids=(job.id,)))
        await requests.operate(store, EditJobs(ids=(job.id,), payload="[1]"))

        after = await requests.current_job(store, job)
        assert (after.state, after.run_at) == (State.WAITING, clock.time())

    async def test_a_job_resolved_as_completed_has_the_result_given(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        job = await given.waiting()
        await requests.operate(store, ResolveJobs(ids=(job.id,), result="[1]"))

        after = await requests.current_job(store, job)
        assert (after.state, after.result, after.reason) == (State.COMPLETED, "[1]", None)
        assert (after.finished_at, after.attempts) == (clock.time(), 0)

    async def test_a_job_resolved_as_failed_has_the_message_given(self, store: Store, given: Given) -> None:
        job = await given.waiting()
        await requests.operate(store, ResolveJobs(ids=(job.id,), state=State.FAILED, message="not needed"))

        after = await requests.current_job(store, job)
        assert (after.state, after.reason) == (State.FAILED, Reason.UNRECOVERABLE)
        assert [error.message for error in after.errors] == ["not needed"]

    @pytest.mark.parametrize("state", [State.WAITING, State.COMPLETED])
    async def test_a_removed_job_is_gone_and_still_counted(
        self, store: Store, given: Given, state: State
    ) -> None:
        job = await given.in_state(state)
        await requests.operate(store, RemoveJobs(ids=(job.id,)))

        assert await requests.is_gone(store, job)
        assert await requests.claim_ids(store) == []
        totals = (await store.totals())["default"]
        assert (totals["inserted"], totals["removed"]) == (1, 1)


ALL = parse("queue:many")


class BulkCommands:
    async def test_a_command_by_query_moves_the_matching_jobs_that_may_move(
        self, store: Store, given: Given
    ) -> None:
        matching = [await given.waiting(queue="many"), await given.scheduled(queue="many")]
        not_matching = [await given.waiting(), await given.completed(queue="many")]

        answer = await requests.operate(store, CancelJobs(query=ALL))

        assert answer == Moved(tuple(job.id for job in reversed(matching)))
        assert [await requests.current_job(store, job) for job in not_matching] == not_matching

    @pytest.mark.parametrize(
        "command",
        [
            CancelJobs(query=ALL, limit=2),
            EditJobs(query=ALL, limit=2, payload="[1]"),
            PostponeJobs(query=ALL, limit=2, delay=10.0),
            ResolveJobs(query=ALL, limit=2),
            RemoveJobs(query=ALL, limit=2),
        ],
        ids=lambda command: type(command).__name__,
    )
    async def test_a_command_by_query_works_through_all_jobs_in_slices(
        self, store: Store, given: Given, command: OperatorCommand
    ) -> None:
        jobs = [await given.waiting(queue="many") for _ in range(5)]

        slices = await _slices(store, command)

        newest = [job.id for job in reversed(jobs)]
        assert [list(answer.moved) for answer in slices] == [newest[:2], newest[2:4], newest[4:]]

    async def test_jobs_can_be_rerun_and_promoted_by_query(self, store: Store, given: Given) -> None:
        finished = [await given.completed(queue="many"), await given.failed(queue="many")]
        scheduled = [await given.scheduled(queue="many") for _ in range(3)]

        reruns = await _slices(store, RerunJobs(query=ALL, limit=1, delay=60.0))
        promotions = await _slices(store, PromoteJobs(query=ALL, limit=2))

        assert _moved(reruns) == _ids(finished)
        assert _moved(promotions) == _ids(finished + scheduled)

    async def test_a_slice_of_exactly_the_limit_is_the_last(self, store: Store, given: Given) -> None:
        await given.inserted(*(given.new_job(queue="many") for _ in range(4)))

        assert (await requests.operate(store, CancelJobs(query=ALL, limit=4))).below is None

    async def test_jobs_inserted_between_slices_are_left_out(self, store: Store, given: Given) -> None:
        old = [await given.waiting(queue="many") for _ in range(3)]
        first = await requests.operate(store, EditJobs(query=ALL, limit=2, payload="[1]"))
        new = await given.waiting(queue="many")
        second = await requests.operate(store, EditJobs(query=ALL, limit=2, below=first.below, payload="[1]"))

        assert set(first.moved + second.moved) == _ids(old)
        assert second.below is None
        assert await requests.current_job(store, new) == new

    async def test_a_forced_cancel_by_query_also_takes_finished_jobs(
        self, store: Store, given: Given
    ) -> None:
        for state in State:
            await given.in_state(state, queue="many")

        answer = await requests.operate(store, CancelJobs(query=ALL, force=True))

        states = {job.state for job in await requests.list_jobs(store)}
        assert states == {State.CANCELED, State.RUNNING}
        assert (len(answer.moved), len(answer.refused)) == (7, 0)

    @pytest.mark.parametrize("force", [False, True])
    async def test_a_removal_by_query_takes_claimed_and_running_jobs_only_by_force(
        self, store: Store, given: Given, force: bool
    ) -> None:
        for state in State:
            await given.in_state(state, queue="many")

        await requests.operate(store, RemoveJobs(query=ALL, force=force))

        remaining_states = {job.state for job in await requests.list_jobs(store, ALL)}
        assert remaining_states == (set() if force else {State.CLAIMED, State.RUNNING})

    async def test_a_query_that_matches_nothing_moves_nothing(self, store: Store, given: Given) -> None:
        await given.waiting()

        assert await requests.operate(store, RemoveJobs(query=ALL)) == Moved()

    async def test_thousands_of_ids_move_at_once(self, store: Store, given: Given) -> None:
        jobs = [given.new_job() for _ in range(3_000)]
        await requests.insert(store, *jobs)
        ids = tuple(job.id for job in jobs)

        answer = await requests.operate(store, CancelJobs(ids=ids))

        assert answer == Moved(ids)
        assert await store.counts() == {"default": {"canceled": 3_000}}

    async def test_a_query_can_match_errors_and_payloads(self, store: Store, given: Given) -> None:
        boom = FailOutcome(Failure(Reason.ERROR, "OSError", "disk full"))
        job = await given.settled(boom, payload='{"to": "bob"}')
        await given.settled(boom, payload='{"to": "eve"}')
        await given.failed(payload='{"to": "bob"}')

        answer = await requests.operate(store, RerunJobs(query=parse('error~"DISK FULL" payload~bob')))

        assert answer == Moved((job.id,))


async def _slices(store: Store, command: OperatorCommand) -> list[Moved]:
    """Send the command until no slice is left, and return the answers."""
    answers = [await requests.operate(store, command)]
    while answers[-1].below is not None:
        assert len(answers) < 20, "the slices do not end"
        answers.append(await requests.operate(store, replace(command, below=answers[-1].below)))
    return answers


def _moved(answers: list[Moved]) -> set[str]:
    return {job for answer in answers for job in answer.moved}


def _ids(jobs: list[JobRecord]) -> set[str]:
    return {job.id for job in jobs}
