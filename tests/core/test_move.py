"""The effect of each move on a job, field by field."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import asdict, replace

from errandry.core import move
from errandry.core.answer import LossCause
from errandry.core.command import (
    CompleteOutcome,
    EditJobs,
    FailOutcome,
    GiveUpOutcome,
    Outcome,
    Ref,
    ReleaseOutcome,
    RetryOutcome,
    SnoozeOutcome,
)
from errandry.core.job import (
    DAY,
    ERRORS_MAX,
    LEVEL_MAX,
    LOG_TEXT_MAX,
    LOGS_MAX,
    AttemptError,
    Failure,
    JobRecord,
    Keep,
    LogLine,
    NewJob,
    Progress,
)
from errandry.core.retry import Backoff
from errandry.core.state import HELD_STATES, TABLE, TERMINAL, Move, Reason, State
from errandry.core.worker_loss import LIVES, UNKNOWN, WorkerLoss
from errandry.errors import InvalidMove

NOW = 1_750_000_000.0
LATER = NOW + 100
FENCE = int(NOW * 1_000_000)
BOOM = Failure(Reason.TIMEOUT, "TimeoutError", "took too long", "Traceback")


def in_state(state: State, **fields: Any) -> JobRecord:
    """A job that reached `state` at NOW by the usual moves."""
    new = NewJob(id="job", task="task", payload="{}")
    job = move.created(new, 1, NOW, children=int(state is State.BLOCKED))
    if state is State.SCHEDULED:
        job = move.postponed(job, NOW + 1_000, NOW)
    elif state in HELD_STATES | TERMINAL:
        job = move.claimed(job, "worker", 30.0, state is not State.CLAIMED, NOW)
    if state in TERMINAL:
        ends: Mapping[State, Outcome] = {
            State.COMPLETED: CompleteOutcome("1"),
            State.FAILED: FailOutcome(BOOM),
        }
        job = move.settled(job, ends.get(state, GiveUpOutcome()), NOW)
    assert job.state is state
    return replace(job, **fields)


def changed(before: JobRecord, after: JobRecord) -> dict[str, Any]:
    """The fields in which two records differ, with the values of the second."""
    old = asdict(before)
    return {name: value for name, value in asdict(after).items() if value != old[name]}


PURE: Mapping[Move, Callable[[JobRecord], JobRecord]] = {
    Move.PROMOTE: lambda job: move.promoted(job, LATER),
    Move.LAPSE: lambda job: move.lapsed(job, LATER),
    Move.CLAIM: lambda job: move.claimed(job, "worker", 30.0, False, LATER),
    Move.START: lambda job: move.started(job, LATER),
    Move.RENEW: lambda job: move.renewed(job, 30.0, LATER),
    Move.NOTE: lambda job: move.noted(job, None, (), LATER),
    Move.COMPLETE: lambda job: move.settled(job, CompleteOutcome(), LATER),
    Move.RETRY: lambda job: move.settled(job, RetryOutcome(delay=1.0), LATER),
    Move.FAIL: lambda job: move.settled(job, FailOutcome(), LATER),
    Move.SNOOZE: lambda job: move.settled(job, SnoozeOutcome(1.0), LATER),
    Move.RELEASE: lambda job: move.settled(job, ReleaseOutcome(), LATER),
    Move.GIVE_UP: lambda job: move.settled(job, GiveUpOutcome(), LATER),
    Move.EXPIRE: lambda job: move.expired(job, LATER, UNKNOWN),
    Move.LOSE: lambda job: move.lost(job, LATER),
    Move.CANCEL: lambda job: move.canceled(job, LATER),
    Move.RESOLVE: lambda job: move.resolved(job, State.COMPLETED, None, "", LATER),
    Move.POSTPONE: lambda job: move.postponed(job, LATER + 1, LATER),
    Move.EDIT: lambda job: move.edited(job, EditJobs(ids=("job",)), LATER),
    Move.RERUN: lambda job: move.rerun(job, None, False, LATER),
}


@pytest.mark.parametrize("move_name", list(PURE))
@pytest.mark.parametrize("state", list(State))
def test_a_move_leads_where_the_table_says_or_is_refused(move_name: Move, state: State) -> None:
    job = in_state(state)

    if state in TABLE[move_name].leads:
        assert PURE[move_name](job).state is TABLE[move_name].leads[state]
        assert PURE[move_name](job).updated_at == LATER
    else:
        with pytest.raises(InvalidMove) as caught:
            PURE[move_name](job)
        assert (caught.value.job_id, caught.value.state) == ("job", state)
        assert caught.value.allowed == TABLE[move_name].sources


@pytest.mark.parametrize("state", list(State))
@pytest.mark.parametrize("force", [False, True])
def test_a_held_job_is_removed_only_by_force(state: State, force: bool) -> None:
    if force or state not in HELD_STATES:
        assert move.removal(in_state(state), force) is (Move.REMOVE_FORCED if force else Move.REMOVE)
    else:
        with pytest.raises(InvalidMove, match=f"cannot remove job job: it is {state}, not blocked or"):
            move.removal(in_state(state), force)


# Insert and promote.


@pytest.mark.parametrize("lifo", [False, True])
def test_a_new_job_that_is_ready_has_a_place_by_its_seq(lifo: bool) -> None:
    job = move.created(NewJob(id="job", task="task", payload="{}", lifo=lifo), 7, NOW)

    assert (job.seq, job.state, job.created_at, job.updated_at) == (7, State.WAITING, NOW, NOW)
    assert job.place == (-7 if lifo else 7)


@pytest.mark.parametrize(
    ("fields", "state", "run_at"),
    [
        ({"run_at": NOW}, State.WAITING, NOW),
        ({"run_at": NOW + 0.001}, State.SCHEDULED, NOW + 0.001),
        ({"delay": 0.0}, State.WAITING, NOW),
        ({"delay": 60.0}, State.SCHEDULED, NOW + 60),
    ],
)
def test_a_new_job_that_is_not_ready_has_no_place(
    fields: dict[str, Any], state: State, run_at: float | None
) -> None:
    job = move.created(NewJob(id="job", task="task", payload="{}", **fields), 7, NOW)

    assert (job.state, job.run_at) == (state, run_at)
    assert (job.place is None) == (state is not State.WAITING)


def test_a_new_parent_is_blocked_even_if_it_has_a_delay() -> None:
    job = move.created(NewJob(id="job", task="task", payload="{}", delay=60.0), 7, NOW, 2, 1)

    assert (job.state, job.place, job.run_at) == (State.BLOCKED, None, NOW + 60)
    assert (job.open_children, job.children, job.parents) == (2, 2, 1)


def test_a_job_that_is_no_longer_waiting_has_no_place() -> None:
    waiting = in_state(State.WAITING)

    for leave in (Move.CLAIM, Move.POSTPONE, Move.CANCEL, Move.LAPSE, Move.RESOLVE):
        assert PURE[leave](waiting).place is None
    assert PURE[Move.EDIT](waiting).place == waiting.place


def test_an_early_promotion_sets_run_at() -> None:
    early = move.promoted(in_state(State.SCHEDULED), LATER)
    due = move.promoted(in_state(State.SCHEDULED, run_at=NOW + 1), LATER)

    assert (early.run_at, due.run_at) == (LATER, NOW + 1)


# Claim, start, renew, note.


@pytest.mark.parametrize("start", [False, True])
def test_a_claim_counts_an_attempt_and_gives_a_lease_and_a_fence(start: bool) -> None:
    job = in_state(State.WAITING, progress=Progress(0.5), started_at=NOW - 9, settled=Move.RETRY)

    assert changed(job, move.claimed(job, "me", 20.0, start, LATER)) == {
        "state": State.RUNNING if start else State.CLAIMED,
        "attempts": 1,
        "fence": int(LATER * 1_000_000),
        "worker": "me",
        "lease_until": LATER + 20,
        "claimed_at": LATER,
        "started_at": LATER if start else None,
        "updated_at": LATER,
        "progress": None,
        "settled": None,
        "place": None,
    }


@pytest.mark.parametrize("ahead", [0, 1, 10**9])
def test_a_fence_rises_even_if_the_clock_does_not(ahead: int) -> None:
    job = in_state(State.WAITING, fence=FENCE + ahead)

    assert move.claimed(job, "me", 20.0, True, NOW).fence == FENCE + ahead + 1


HOLDER = Ref("job", FENCE)


@pytest.mark.parametrize(
    ("job", "ref", "now", "cause"),
    [
        (None, HOLDER, NOW, LossCause.NOT_HELD),
        (in_state(State.WAITING), HOLDER, NOW, LossCause.NOT_HELD),
        (in_state(State.COMPLETED), HOLDER, NOW, LossCause.NOT_HELD),
        (in_state(State.RUNNING), Ref("job", FENCE - 1), NOW, LossCause.OTHER_FENCE),
        (in_state(State.RUNNING), Ref("job", FENCE + 1), NOW, LossCause.OTHER_FENCE),
        (in_state(State.RUNNING), HOLDER, NOW + 30, LossCause.EXPIRED),
        (in_state(State.RUNNING), Ref("job", 1), NOW + 30, LossCause.OTHER_FENCE),
        (in_state(State.CLAIMED), HOLDER, NOW, LossCause.NOT_HELD),
    ],
)
def test_an_invalid_claim_is_refused_with_its_cause(
    job: JobRecord | None, ref: Ref, now: float, cause: LossCause
) -> None:
    assert move.held_job(job, ref, Move.COMPLETE, now) is cause


def test_a_claim_is_valid_until_its_lease_ends() -> None:
    job = in_state(State.RUNNING)

    assert move.held_job(job, HOLDER, Move.COMPLETE, NOW + 29.999) is job


def test_start_and_renew_change_nothing_else() -> None:
    job = in_state(State.CLAIMED)

    assert changed(job, move.started(job, LATER)) == {
        "state": State.RUNNING,
        "started_at": LATER,
        "updated_at": LATER,
    }
    assert changed(job, move.renewed(job, 40.0, LATER)) == {"lease_until": LATER + 40, "updated_at": LATER}


def test_notes_replace_progress_and_add_lines() -> None:
    job = in_state(State.RUNNING, progress=Progress(0.1), logs=(LogLine(1.0, "one"),))

    assert changed(job, move.noted(job, Progress(0.2), (LogLine(2.0, "two"),), LATER)) == {
        "progress": Progress(0.2),
        "logs": (LogLine(1.0, "one"), LogLine(2.0, "two")),
        "updated_at": LATER,
    }
    assert changed(job, move.noted(job, None, (), LATER)) == {"updated_at": LATER}


def test_notes_are_limited_and_storable() -> None:
    bad = "\0\ud800" + "x" * 50_000
    lines = tuple(LogLine(float(number), bad, bad) for number in range(LOGS_MAX + 5))

    after = move.noted(in_state(State.RUNNING), Progress(1.0, bad), lines, LATER)

    assert [line.at for line in after.logs] == [float(number) for number in range(5, LOGS_MAX + 5)]
    assert {(len(line.text) <= LOG_TEXT_MAX, len(line.level) <= LEVEL_MAX) for line in after.logs} == {
        (True, True)
    }
    assert after.progress is not None
    assert len(after.progress.text) <= LOG_TEXT_MAX
    assert {text[:3] for text in (after.progress.text, after.logs[0].text, after.logs[0].level)} == {
        "\ufffd\ufffdx"
    }


# Settle.

ENDED = {"lease_until": None, "finished_at": LATER, "updated_at": LATER}
RELEASED = {"lease_until": None, "worker": None, "updated_at": LATER}
ERROR = AttemptError(1, "worker", NOW, LATER, Reason.TIMEOUT, "TimeoutError", "took too long", "Traceback")


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (
            CompleteOutcome("[1]"),
            ENDED
            | {
                "state": State.COMPLETED,
                "result": "[1]",
                "settled": Move.COMPLETE,
                "expires_at": LATER + 7 * DAY,
            },
        ),
        (
            FailOutcome(BOOM),
            ENDED
            | {
                "state": State.FAILED,
                "reason": Reason.TIMEOUT,
                "errors": (ERROR,),
                "settled": Move.FAIL,
                "expires_at": LATER + 30 * DAY,
            },
        ),
        (
            GiveUpOutcome(),
            ENDED
            | {
                "state": State.CANCELED,
                "reason": Reason.CANCELED,
                "settled": Move.GIVE_UP,
                "expires_at": LATER + 7 * DAY,
            },
        ),
        (
            RetryOutcome(BOOM, 60.0),
            RELEASED
            | {
                "state": State.SCHEDULED,
                "run_at": LATER + 60,
                "errors": (ERROR,),
                "settled": Move.RETRY,
            },
        ),
        (
            RetryOutcome(BOOM, 0.0),
            RELEASED | {"state": State.WAITING, "run_at": LATER, "errors": (ERROR,), "settled": Move.RETRY},
        ),
        (
            SnoozeOutcome(60.0),
            RELEASED
            | {"state": State.SCHEDULED, "run_at": LATER + 60, "attempts": 0, "settled": Move.SNOOZE},
        ),
        (
            ReleaseOutcome(),
            RELEASED
            | {
                "state": State.WAITING,
                "run_at": LATER,
                "attempts": 0,
                "releases": 1,
                "settled": Move.RELEASE,
            },
        ),
        (
            ReleaseOutcome(60.0),
            RELEASED
            | {
                "state": State.SCHEDULED,
                "run_at": LATER + 60,
                "attempts": 0,
                "releases": 1,
                "settled": Move.RELEASE,
            },
        ),
    ],
    ids=lambda value: repr(value)[:30] if not isinstance(value, dict) else "",
)
def test_an_outcome_changes_only_these_fields(outcome: Outcome, expected: dict[str, Any]) -> None:
    job = in_state(State.RUNNING)

    assert changed(job, move.settled(job, outcome, LATER)) == expected


def test_a_retry_without_a_delay_uses_the_backoff_of_the_job() -> None:
    backoff = Backoff(start=3.0, jitter=0.0)
    job = in_state(State.RUNNING, attempts=2, backoff=backoff)
    plain = in_state(State.RUNNING, attempts=2)

    assert move.settled(job, RetryOutcome(), LATER).run_at == LATER + 6
    assert move.settled(plain, RetryOutcome(), LATER).run_at == LATER + Backoff().delay(2, "job")


@pytest.mark.parametrize(("attempts", "state"), [(4, State.SCHEDULED), (5, State.FAILED), (6, State.FAILED)])
def test_a_retry_fails_when_attempts_are_spent(attempts: int, state: State) -> None:
    after = move.settled(in_state(State.RUNNING, attempts=attempts), RetryOutcome(BOOM, 60.0), LATER)

    assert (after.state, len(after.errors)) == (state, 1)
    assert after.reason is (Reason.TIMEOUT if state is State.FAILED else None)


@pytest.mark.parametrize(
    "release",
    [
        lambda job: move.settled(job, ReleaseOutcome(), LATER),
        lambda job: move.expired(job, LATER, UNKNOWN),
    ],
    ids=["release", "expire"],
)
def test_the_1000th_release_fails_the_job(release: Callable[[JobRecord], JobRecord]) -> None:
    before, after = [release(in_state(State.CLAIMED, releases=count)) for count in (998, 999)]

    assert (before.state, before.releases, before.reason) == (State.WAITING, 999, None)
    assert (after.state, after.releases, after.reason) == (State.FAILED, 1_000, Reason.WORKER_LOST)
    assert [error.message for error in after.errors] == ["released 1,000 times without finishing"]


def test_a_job_that_no_worker_can_run_records_since_when_and_its_releases_do_not_count() -> None:
    first = move.settled(in_state(State.RUNNING, releases=999), ReleaseOutcome(5.0, unhandled=True), LATER)
    claimed = replace(first, state=State.RUNNING, attempts=1)
    second = move.settled(claimed, ReleaseOutcome(10.0, unhandled=True), LATER + 5)

    assert (first.state, first.attempts, first.releases) == (State.SCHEDULED, 0, 999)
    assert (first.unhandled_since, first.run_at) == (LATER, LATER + 5)
    assert (second.unhandled_since, second.run_at, second.releases) == (LATER, LATER + 15, 999)


@pytest.mark.parametrize(
    ("state", "after_move", "since"),
    [
        (State.WAITING, lambda job: move.claimed(job, "w", 30.0, True, LATER), NOW),
        (State.SCHEDULED, lambda job: move.promoted(job, LATER), NOW),
        (State.CLAIMED, lambda job: move.started(job, LATER), NOW),
        (State.CLAIMED, lambda job: move.settled(job, ReleaseOutcome(), LATER), NOW),
        (State.CLAIMED, lambda job: move.expired(job, LATER, UNKNOWN), NOW),
        (State.RUNNING, lambda job: move.settled(job, ReleaseOutcome(), LATER), None),
        (State.RUNNING, lambda job: move.settled(job, RetryOutcome(), LATER), None),
        (State.RUNNING, lambda job: move.settled(job, SnoozeOutcome(1.0), LATER), None),
        (State.RUNNING, lambda job: move.settled(job, CompleteOutcome(), LATER), None),
        (State.RUNNING, lambda job: move.settled(job, FailOutcome(), LATER), None),
        (State.RUNNING, lambda job: move.expired(job, LATER, UNKNOWN), None),
        (State.WAITING, lambda job: move.edited(job, EditJobs(ids=("job",), priority=1), LATER), None),
        (State.FAILED, lambda job: move.rerun(job, None, False, LATER), None),
    ],
)
def test_unhandled_since_is_cleared_when_a_handler_has_begun_or_the_job_is_changed(
    state: State, after_move: Callable[[JobRecord], JobRecord], since: float | None
) -> None:
    assert after_move(in_state(state, unhandled_since=NOW)).unhandled_since == since


@pytest.mark.parametrize(
    "outcome",
    [
        CompleteOutcome("1"),
        RetryOutcome(BOOM),
        FailOutcome(BOOM),
        SnoozeOutcome(1.0),
        ReleaseOutcome(),
        GiveUpOutcome(BOOM),
    ],
)
def test_a_cancel_request_overrides_every_outcome_and_the_record_keeps_its_error(outcome: Outcome) -> None:
    after = move.settled(in_state(State.RUNNING, cancel_requested=True), outcome, LATER)

    assert (after.state, after.reason, after.settled) == (State.CANCELED, Reason.CANCELED, outcome.move)
    assert (after.finished_at, after.expires_at) == (LATER, LATER + 7 * DAY)
    assert after.result == ("1" if isinstance(outcome, CompleteOutcome) else None)
    kinds = {CompleteOutcome: [Reason.CANCELED], SnoozeOutcome: [], ReleaseOutcome: []}.get(
        type(outcome), [Reason.TIMEOUT]
    )
    assert [error.kind for error in after.errors] == kinds


def test_keep_determines_the_expiry_by_the_final_state() -> None:
    job = in_state(State.RUNNING, keep=Keep(completed=1.0, failed=2.0, canceled=3.0))

    ends = [
        move.settled(job, outcome, LATER) for outcome in (CompleteOutcome(), FailOutcome(), GiveUpOutcome())
    ]

    assert [end.expires_at for end in ends] == [LATER + 1, LATER + 2, LATER + 3]


def test_the_newest_errors_are_kept_and_their_text_is_truncated() -> None:
    long = "\0" + "x" * 100_000
    job = in_state(State.RUNNING)
    for number in range(1, ERRORS_MAX + 6):
        job = replace(
            job, errors=move.settled(job, FailOutcome(Failure(Reason.ERROR, long, long, long)), LATER).errors
        )
        job = replace(job, attempts=number + 1)

    assert [error.attempt for error in job.errors] == list(range(6, ERRORS_MAX + 6))
    for error in job.errors:
        assert len(error.type) <= 200
        assert len(error.message) <= 4_000
        assert len(error.traceback) <= 16_384
    assert all(error.message.startswith("\ufffdx") for error in job.errors)


# Expire.


def test_an_expired_claim_gives_its_attempt_back() -> None:
    job = in_state(State.CLAIMED)

    assert changed(job, move.expired(job, LATER, UNKNOWN)) == RELEASED | {
        "state": State.WAITING,
        "run_at": LATER,
        "attempts": 0,
        "releases": 1,
    }


def test_an_expired_running_job_counts_a_crash() -> None:
    job = in_state(State.RUNNING)
    after = move.expired(job, LATER, UNKNOWN)

    [error] = after.errors
    assert (error.attempt, error.worker, error.started, error.ended) == (1, "worker", NOW, LATER)
    assert error.kind is Reason.WORKER_LOST
    assert changed(job, after) == RELEASED | {
        "state": State.WAITING,
        "run_at": LATER,
        "crashes": 1,
        "errors": (error,),
    }


@pytest.mark.parametrize(
    ("fields", "state", "reason"),
    [
        ({"attempts": 4}, State.WAITING, None),
        ({"attempts": 5}, State.FAILED, Reason.WORKER_LOST),
        ({"crashes": 1}, State.WAITING, None),
        ({"crashes": 2}, State.FAILED, Reason.WORKER_LOST),
        ({"attempts": 5, "cancel_requested": True}, State.CANCELED, Reason.CANCELED),
    ],
)
def test_an_expired_job_fails_at_its_limit_of_attempts_or_crashes(
    fields: dict[str, Any], state: State, reason: Reason | None
) -> None:
    after = move.expired(in_state(State.RUNNING, **fields), LATER, UNKNOWN)

    assert (after.state, after.reason) == (state, reason)
    assert (after.crashes, len(after.errors)) == (fields.get("crashes", 0) + 1, 1)


def test_a_job_that_its_worker_only_stalled_spends_its_attempt_but_counts_no_crash() -> None:
    after = move.expired(in_state(State.RUNNING, attempts=1, crashes=2), LATER, LIVES)

    assert (after.state, after.attempts, after.crashes, after.lost_by) == (State.WAITING, 1, 2, None)
    assert move.expired(in_state(State.RUNNING, attempts=5), LATER, LIVES).state is State.FAILED


def test_a_crash_that_is_not_final_names_the_worker() -> None:
    after = move.expired(in_state(State.RUNNING), LATER, WorkerLoss(Failure(), final_at=LATER + 9))

    assert (after.state, after.crashes, after.lost_by) == (State.WAITING, 1, "worker")


def test_the_crash_at_the_cap_waits_until_it_is_final() -> None:
    job = in_state(State.RUNNING, crashes=2)

    after = move.expired(job, LATER, WorkerLoss(Failure(), final_at=LATER + 9))

    assert (after.state, after.run_at, after.crashes) == (State.SCHEDULED, LATER + 9, 3)
    assert move.awaits_final_crash(after)
    assert not move.awaits_final_crash(move.crash_confirmed(after))
    taken_back = move.crash_taken_back(after, LATER)
    assert (taken_back.state, taken_back.crashes, taken_back.lost_by) == (State.WAITING, 2, None)


# Moves of operators.


@pytest.mark.parametrize("state", [State.BLOCKED, State.SCHEDULED, State.WAITING, State.CLAIMED])
def test_a_job_that_is_not_running_is_canceled_at_once(state: State) -> None:
    after = move.canceled(in_state(state), LATER)

    assert (after.state, after.reason, after.finished_at) == (State.CANCELED, Reason.CANCELED, LATER)
    assert (after.lease_until, after.cancel_requested) == (None, False)


def test_a_running_job_gets_a_cancel_request() -> None:
    job = in_state(State.RUNNING)

    assert changed(job, move.canceled(job, LATER)) == {"cancel_requested": True, "updated_at": LATER}


@pytest.mark.parametrize("state", [State.COMPLETED, State.FAILED])
def test_a_forced_cancel_of_a_finished_job_keeps_its_result_and_errors(state: State) -> None:
    job = in_state(state)
    after = move.canceled(job, LATER, force=True)

    assert changed(job, after).keys() - {"finished_at", "expires_at", "updated_at"} == {"state", "reason"}
    assert (after.state, after.reason, after.finished_at) == (State.CANCELED, Reason.CANCELED, LATER)


@pytest.mark.parametrize("state", [State.WAITING, State.RUNNING])
def test_a_forced_cancel_of_an_unfinished_job_equals_a_plain_one(state: State) -> None:
    job = in_state(state)

    assert move.canceled(job, LATER, force=True) == move.canceled(job, LATER)


def test_a_rerun_clears_the_last_run_but_keeps_its_errors() -> None:
    job = in_state(
        State.FAILED,
        cancel_requested=True,
        result="1",
        progress=Progress(0.5),
        releases=3,
        crashes=2,
        deadline=LATER,
    )
    after = move.rerun(job, None, False, LATER)

    assert changed(job, after) == {
        "state": State.WAITING,
        "reason": None,
        "result": None,
        "progress": None,
        "cancel_requested": False,
        "releases": 0,
        "worker": None,
        "claimed_at": None,
        "started_at": None,
        "finished_at": None,
        "expires_at": None,
        "deadline": None,
        "updated_at": LATER,
    }


def test_a_rerun_keeps_a_deadline_in_the_future() -> None:
    assert move.rerun(in_state(State.FAILED, deadline=LATER + 1), None, False, LATER).deadline == LATER + 1


@pytest.mark.parametrize(
    ("attempts", "reset", "expected"),
    [(1, False, (1, 5, 2)), (5, False, (5, 6, 2)), (7, False, (7, 8, 2)), (5, True, (0, 5, 0))],
)
def test_a_rerun_has_at_least_one_attempt(attempts: int, reset: bool, expected: tuple[int, int, int]) -> None:
    after = move.rerun(in_state(State.FAILED, attempts=attempts, crashes=2), None, reset, LATER)

    assert (after.attempts, after.max_attempts, after.crashes) == expected


@pytest.mark.parametrize(
    ("run_at", "children", "state"),
    [(LATER, 0, State.WAITING), (LATER + 1, 0, State.SCHEDULED), (None, 1, State.BLOCKED)],
)
def test_a_rerun_may_be_scheduled_or_blocked(run_at: float | None, children: int, state: State) -> None:
    after = move.rerun(in_state(State.COMPLETED, open_children=children), run_at, False, LATER)

    assert (after.state, after.run_at) == (state, run_at)


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        (EditJobs(ids=("job",)), {}),
        (EditJobs(ids=("job",), payload="[1]"), {"payload": "[1]"}),
        (EditJobs(ids=("job",), priority=0), {}),
        (EditJobs(ids=("job",), priority=-1), {"priority": -1}),
        (EditJobs(ids=("job",), max_attempts=9), {"max_attempts": 9}),
        (EditJobs(ids=("job",), tags=("a",)), {"tags": ("a",)}),
        (EditJobs(ids=("job",), run_at=LATER), {"run_at": LATER}),
        (
            EditJobs(ids=("job",), run_at=LATER + 1),
            {"run_at": LATER + 1, "state": State.SCHEDULED, "place": None},
        ),
    ],
)
def test_an_edit_changes_only_the_given_fields(edit: EditJobs, expected: dict[str, Any]) -> None:
    job = in_state(State.WAITING)

    assert changed(job, move.edited(job, edit, LATER)) == expected | {"updated_at": LATER}


def test_an_edit_makes_a_due_job_waiting() -> None:
    job = in_state(State.SCHEDULED)

    assert move.edited(job, EditJobs(ids=("job",), run_at=LATER), LATER).state is State.WAITING
    assert move.edited(job, EditJobs(ids=("job",), payload="[1]"), LATER).state is State.SCHEDULED


def test_a_resolved_job_has_its_result_or_error() -> None:
    job = in_state(State.WAITING)
    done = move.resolved(job, State.COMPLETED, "[1]", "", LATER)
    failed = move.resolved(job, State.FAILED, None, "not needed", LATER)

    assert (done.state, done.result, done.reason, done.errors) == (State.COMPLETED, "[1]", None, ())
    assert (failed.state, failed.reason) == (State.FAILED, Reason.UNRECOVERABLE)
    assert [(error.type, error.message) for error in failed.errors] == [("Resolved", "not needed")]


def test_a_lapsed_job_fails_with_the_reason_deadline() -> None:
    after = move.lapsed(in_state(State.WAITING), LATER)

    assert (after.state, after.reason, after.finished_at) == (State.FAILED, Reason.DEADLINE, LATER)


# Properties.


@given(st.lists(st.tuples(st.sampled_from(list(PURE)), st.booleans()), max_size=60))
def test_the_record_is_consistent_after_any_moves(steps: list[tuple[Move, bool]]) -> None:
    job = in_state(State.WAITING)
    for move_name, other in steps:
        if job.state not in TABLE[move_name].leads:
            continue
        before = job
        job = (
            move.claimed(job, "worker", 1.0, True, LATER)
            if move_name is Move.CLAIM and other
            else PURE[move_name](job)
        )

        assert (job.state in HELD_STATES) == (job.lease_until is not None)
        assert (job.state in TERMINAL) == (job.finished_at is not None) == (job.expires_at is not None)
        assert (job.state in (State.FAILED, State.CANCELED)) == (job.reason is not None)
        assert 0 <= job.attempts <= job.max_attempts
        assert job.crashes <= job.max_crashes or job.state not in HELD_STATES
        assert job.fence >= before.fence
        assert job.fence > before.fence or move_name is not Move.CLAIM
        assert not job.cancel_requested or job.state in {State.RUNNING, *TERMINAL}
        assert len(job.errors) <= ERRORS_MAX
        assert job.state not in HELD_STATES or job.worker == "worker"
