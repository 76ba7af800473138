"""The states of a job, its moves, and the table of where each move leads.

The table is data: the functions in `move.py` check every move against it, the conformance suite
generates its cases from it, and the docs print it.
"""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

from msgspec import Struct


class State(StrEnum):
    """The state of a job. The last three are terminal.

    blocked    the job waits for other jobs
    scheduled  the job waits for its time: delayed, snoozed, or backing off before a retry
    waiting    the job is ready for a worker
    claimed    a worker holds the job under a lease; its handler has not begun
    running    the handler may have begun; the worker renews the lease
    completed  the job is done; its result is kept
    failed     the job has failed for good; payload and errors are kept
    canceled   the job was stopped on request
    """

    BLOCKED = "blocked"
    SCHEDULED = "scheduled"
    WAITING = "waiting"
    CLAIMED = "claimed"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELED = "canceled"


class Reason(StrEnum):
    """Why a job failed or was canceled; also the kind of each recorded error. Queries filter by it.

    error            the handler raised an exception
    unrecoverable    the handler raised Fail or an exception of `fail_on`, or its result cannot be stored
    timeout          an attempt took longer than the timeout of the job
    worker_lost      the workers of the job died or stopped too often
    invalid_payload  the handler does not take these arguments
    no_handler       no worker knew the task, or this version of its arguments
    child_failed     a job that it waited for has failed, or another job that its parent waited for
    deadline         no worker had claimed the job by its deadline
    dropped          the queue was full, and this was its oldest job
    canceled         a user, an operator or the handler canceled the job
    """

    ERROR = "error"
    UNRECOVERABLE = "unrecoverable"
    TIMEOUT = "timeout"
    WORKER_LOST = "worker_lost"
    INVALID_PAYLOAD = "invalid_payload"
    NO_HANDLER = "no_handler"
    CHILD_FAILED = "child_failed"
    DEADLINE = "deadline"
    DROPPED = "dropped"
    CANCELED = "canceled"


class Move(StrEnum):
    INSERT = "insert"
    PROMOTE = "promote"
    UNBLOCK = "unblock"
    CHILD_FAILED = "child_failed"
    LAPSE = "lapse"
    DROP = "drop"
    CLAIM = "claim"
    START = "start"
    RENEW = "renew"
    NOTE = "note"
    STEP = "step"
    COMPLETE = "complete"
    RETRY = "retry"
    FAIL = "fail"
    SNOOZE = "snooze"
    AWAIT = "await"
    WAIT = "wait"
    RELEASE = "release"
    GIVE_UP = "give_up"
    EXPIRE = "expire"
    LOSE = "lose"
    CANCEL = "cancel"
    CANCEL_FORCED = "cancel_forced"
    RESOLVE = "resolve"
    POSTPONE = "postpone"
    EDIT = "edit"
    RERUN = "rerun"
    REMOVE = "remove"
    REMOVE_FORCED = "remove_forced"


class Actor(StrEnum):
    CLIENT = "client"
    WORKER = "worker"
    OPERATOR = "operator"
    STORE = "the store"
    ANY_WORKER = "any worker"
    ANYONE = "client, operator or worker"
    OPERATOR_OR_CLIENT = "operator, or a client that replaces a unique job"
    OPERATOR_OR_UPKEEP = "operator, or upkeep by any worker"


OPERATOR_ACTORS = frozenset({Actor.OPERATOR, Actor.OPERATOR_OR_CLIENT, Actor.OPERATOR_OR_UPKEEP})
"""Actors of moves that operators make; others make them only in special cases."""


BLOCKED, SCHEDULED, WAITING = State.BLOCKED, State.SCHEDULED, State.WAITING
CLAIMED, RUNNING = State.CLAIMED, State.RUNNING
COMPLETED, FAILED, CANCELED = State.COMPLETED, State.FAILED, State.CANCELED

HELD_STATES = frozenset({CLAIMED, RUNNING})
TERMINAL = frozenset({COMPLETED, FAILED, CANCELED})


class Transition(Struct, frozen=True):
    """One row of the table.

    `leads` maps each state from which the move starts to the state it usually leads to (None: the job is
    gone). `otherwise` has the other states to which it may lead, each with the condition. A fenced move needs
    the fence of the claim and a lease that has not expired.
    """

    leads: Mapping[State | None, State | None]
    by: Actor
    otherwise: Mapping[State | None, str] = MappingProxyType({})
    fenced: bool = False

    @property
    def sources(self) -> tuple[State, ...]:
        return tuple(state for state in self.leads if state is not None)


def _same(*states: State) -> dict[State | None, State | None]:
    return {state: state for state in states}


def _all(target: State | None, *states: State) -> dict[State | None, State | None]:
    return dict.fromkeys(states, target)


_CANCEL_WINS: Mapping[State | None, str] = {CANCELED: "cancel was requested"}
_RELEASED_TOO_OFTEN = "released 1,000 times"

TABLE: Mapping[Move, Transition] = {
    Move.INSERT: Transition(
        {None: WAITING}, Actor.CLIENT, {SCHEDULED: "run_at is in the future", BLOCKED: "children are open"}
    ),
    Move.PROMOTE: Transition(_all(WAITING, SCHEDULED), Actor.ANYONE),
    Move.UNBLOCK: Transition(_all(WAITING, BLOCKED), Actor.STORE, {SCHEDULED: "run_at is in the future"}),
    Move.CHILD_FAILED: Transition(_all(FAILED, BLOCKED), Actor.STORE, {None: "the child's policy is remove"}),
    Move.LAPSE: Transition(_all(FAILED, BLOCKED, SCHEDULED, WAITING), Actor.ANY_WORKER),
    Move.DROP: Transition(_all(FAILED, WAITING), Actor.STORE),
    Move.CLAIM: Transition(
        _all(CLAIMED, WAITING), Actor.WORKER, {RUNNING: "claimed for a free slot; starts at once"}
    ),
    Move.START: Transition(_all(RUNNING, CLAIMED), Actor.WORKER, fenced=True),
    Move.RENEW: Transition(_same(CLAIMED, RUNNING), Actor.WORKER, fenced=True),
    Move.NOTE: Transition(_same(CLAIMED, RUNNING), Actor.WORKER, fenced=True),
    Move.STEP: Transition(_same(CLAIMED, RUNNING), Actor.WORKER, fenced=True),
    Move.COMPLETE: Transition(
        # guard: start_check
        _all(COMPLETED, RUNNING),
        Actor.WORKER,
        _CANCEL_WINS,
        fenced=True,
    ),
    Move.RETRY: Transition(
        _all(SCHEDULED, RUNNING),
        Actor.WORKER,
        {WAITING: "without a delay", FAILED: "attempts are spent", **_CANCEL_WINS},
        fenced=True,
    ),
    Move.FAIL: Transition(_all(FAILED, RUNNING), Actor.WORKER, _CANCEL_WINS, fenced=True),
    Move.SNOOZE: Transition(_all(SCHEDULED, RUNNING), Actor.WORKER, _CANCEL_WINS, fenced=True),
    Move.AWAIT: Transition(
        _all(BLOCKED, RUNNING), Actor.WORKER, {WAITING: "no child is open", **_CANCEL_WINS}, fenced=True
    ),
    Move.WAIT: Transition(
        _all(SCHEDULED, RUNNING), Actor.WORKER, {WAITING: "the signal has come", **_CANCEL_WINS}, fenced=True
    ),
    Move.RELEASE: Transition(
        _all(WAITING, CLAIMED, RUNNING),
        Actor.WORKER,
        {
            SCHEDULED: "with a delay",
            FAILED: f"{_RELEASED_TOO_OFTEN} or, if its worker ends unasked, at the limits of expire",
            **_CANCEL_WINS,
        },
        fenced=True,
    ),
    Move.GIVE_UP: Transition(_all(CANCELED, CLAIMED, RUNNING), Actor.WORKER, fenced=True),
    Move.EXPIRE: Transition(
        _all(WAITING, CLAIMED, RUNNING),
        Actor.ANY_WORKER,
        {
            FAILED: f"attempts are spent, crashes at their cap, or {_RELEASED_TOO_OFTEN}",
            SCHEDULED: "crashes at their cap, but the worker may still show that it lives",
            **_CANCEL_WINS,
        },
    ),
    Move.LOSE: Transition(_all(FAILED, SCHEDULED), Actor.ANY_WORKER),
    Move.CANCEL: Transition(
        {**_all(CANCELED, BLOCKED, SCHEDULED, WAITING, CLAIMED), RUNNING: RUNNING}, Actor.ANYONE
    ),
    Move.CANCEL_FORCED: Transition(_all(CANCELED, COMPLETED, FAILED), Actor.OPERATOR),
    Move.RESOLVE: Transition(
        _all(COMPLETED, BLOCKED, SCHEDULED, WAITING), Actor.OPERATOR, {FAILED: "resolved as failed"}
    ),
    Move.POSTPONE: Transition(_all(SCHEDULED, WAITING, SCHEDULED), Actor.OPERATOR),
    Move.EDIT: Transition(
        _same(BLOCKED, SCHEDULED, WAITING),
        Actor.OPERATOR_OR_CLIENT,
        {SCHEDULED: "run_at is in the future", WAITING: "run_at has come"},
    ),
    Move.RERUN: Transition(
        _all(WAITING, COMPLETED, FAILED, CANCELED),
        Actor.OPERATOR,
        {SCHEDULED: "run_at is in the future", BLOCKED: "children are open"},
    ),
    Move.REMOVE: Transition(
        _all(None, BLOCKED, SCHEDULED, WAITING, COMPLETED, FAILED, CANCELED), Actor.OPERATOR_OR_UPKEEP
    ),
    Move.REMOVE_FORCED: Transition(_all(None, *State), Actor.OPERATOR),
}
