"""States, moves and the one table that says which move leads where.

The table is data: the rules in `move.py` look every move up here, the conformance
suite generates its cases from it, and the docs print it.
"""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

from msgspec import Struct


class State(StrEnum):
    """Where a job is. The last three are terminal.

    blocked    waits for other jobs
    scheduled  waits for its time: delayed, snoozed, or backing off before a retry
    waiting    ready for a worker
    claimed    a worker holds it under a lease; its handler has not begun
    running    its handler may have begun; the lease is being renewed
    completed  done; the result is kept
    failed     attempts spent, or beyond help; payload and errors are kept
    canceled   stopped on request
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
    """Why a job failed or was canceled; also the kind of each recorded error. People filter by it.

    error            the handler raised
    unrecoverable    the handler raised Fail, or an exception of fail_on, or returned what cannot be stored
    timeout          an attempt took longer than the job's timeout
    worker_lost      its worker died or went away, too often
    invalid_payload  the handler does not take these arguments
    no_handler       no worker knew its task
    child_failed     a job it waited for has failed, or one that its parent waited for
    deadline         no worker had claimed it by its deadline
    dropped          its queue was full, and it was the oldest
    canceled         somebody asked for it
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
    SPAWN = "spawn"
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
    CANCEL = "cancel"
    CANCEL_FORCED = "cancel_forced"
    RESOLVE = "resolve"
    POSTPONE = "postpone"
    EDIT = "edit"
    RERUN = "rerun"
    REMOVE = "remove"
    REMOVE_FORCED = "remove_forced"


class By(StrEnum):
    CLIENT = "client"
    WORKER = "worker"
    OPERATOR = "operator"
    STORE = "the store"
    ANYONE = "anyone"


BLOCKED, SCHEDULED, WAITING = State.BLOCKED, State.SCHEDULED, State.WAITING
CLAIMED, RUNNING = State.CLAIMED, State.RUNNING
COMPLETED, FAILED, CANCELED = State.COMPLETED, State.FAILED, State.CANCELED

HELD = frozenset({CLAIMED, RUNNING})
TERMINAL = frozenset({COMPLETED, FAILED, CANCELED})


class Rule(Struct, frozen=True):
    """One row of the table.

    `leads` maps each state the move starts from to where it leads in the plain case (None: the
    job is gone); `otherwise` names the other states it may reach, each with its condition. A fenced
    move needs the fence of the claim and an unexpired lease.
    """

    leads: Mapping[State | None, State | None]
    by: By
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
_RELEASED_TOO_OFTEN = "released more than 20 times"

TABLE: Mapping[Move, Rule] = {
    Move.INSERT: Rule(
        {None: WAITING}, By.CLIENT, {SCHEDULED: "run_at is in the future", BLOCKED: "children are open"}
    ),
    Move.PROMOTE: Rule(_all(WAITING, SCHEDULED), By.ANYONE),
    Move.UNBLOCK: Rule(_all(WAITING, BLOCKED), By.STORE, {SCHEDULED: "run_at is in the future"}),
    Move.CHILD_FAILED: Rule(_all(FAILED, BLOCKED), By.STORE, {None: "the child's policy is remove"}),
    Move.LAPSE: Rule(_all(FAILED, BLOCKED, SCHEDULED, WAITING), By.ANYONE),
    Move.DROP: Rule(_all(FAILED, WAITING), By.STORE),
    Move.CLAIM: Rule(_all(CLAIMED, WAITING), By.WORKER, {RUNNING: "claimed for a free slot: starts at once"}),
    Move.START: Rule(_all(RUNNING, CLAIMED), By.WORKER, fenced=True),
    Move.RENEW: Rule(_same(CLAIMED, RUNNING), By.WORKER, fenced=True),
    Move.NOTE: Rule(_same(CLAIMED, RUNNING), By.WORKER, fenced=True),
    Move.SPAWN: Rule(_same(CLAIMED, RUNNING), By.WORKER, fenced=True),
    Move.STEP: Rule(_same(CLAIMED, RUNNING), By.WORKER, fenced=True),
    Move.COMPLETE: Rule(_all(COMPLETED, RUNNING), By.WORKER, _CANCEL_WINS, fenced=True),
    Move.RETRY: Rule(
        _all(SCHEDULED, RUNNING),
        By.WORKER,
        {WAITING: "without a delay", FAILED: "attempts are spent", **_CANCEL_WINS},
        fenced=True,
    ),
    Move.FAIL: Rule(_all(FAILED, RUNNING), By.WORKER, _CANCEL_WINS, fenced=True),
    Move.SNOOZE: Rule(_all(SCHEDULED, RUNNING), By.WORKER, _CANCEL_WINS, fenced=True),
    Move.AWAIT: Rule(
        _all(BLOCKED, RUNNING), By.WORKER, {WAITING: "no child is open", **_CANCEL_WINS}, fenced=True
    ),
    Move.WAIT: Rule(
        _all(SCHEDULED, RUNNING), By.WORKER, {WAITING: "the signal is there", **_CANCEL_WINS}, fenced=True
    ),
    Move.RELEASE: Rule(
        _all(WAITING, CLAIMED, RUNNING),
        By.WORKER,
        {SCHEDULED: "with a delay", FAILED: _RELEASED_TOO_OFTEN, **_CANCEL_WINS},
        fenced=True,
    ),
    Move.GIVE_UP: Rule(_all(CANCELED, CLAIMED, RUNNING), By.WORKER, fenced=True),
    Move.EXPIRE: Rule(
        _all(WAITING, CLAIMED, RUNNING),
        By.ANYONE,
        {FAILED: f"attempts are spent, crashes at their cap, or {_RELEASED_TOO_OFTEN}", **_CANCEL_WINS},
    ),
    Move.CANCEL: Rule({**_all(CANCELED, BLOCKED, SCHEDULED, WAITING, CLAIMED), RUNNING: RUNNING}, By.ANYONE),
    Move.CANCEL_FORCED: Rule(_all(CANCELED, COMPLETED, FAILED), By.OPERATOR),
    Move.RESOLVE: Rule(
        _all(COMPLETED, BLOCKED, SCHEDULED, WAITING), By.OPERATOR, {FAILED: "resolved as failed"}
    ),
    Move.POSTPONE: Rule(_all(SCHEDULED, WAITING, SCHEDULED), By.OPERATOR),
    Move.EDIT: Rule(
        _same(BLOCKED, SCHEDULED, WAITING),
        By.OPERATOR,
        {SCHEDULED: "run_at is in the future", WAITING: "run_at has come"},
    ),
    Move.RERUN: Rule(
        _all(WAITING, COMPLETED, FAILED, CANCELED),
        By.OPERATOR,
        {SCHEDULED: "run_at is in the future", BLOCKED: "children are open"},
    ),
    Move.REMOVE: Rule(_all(None, BLOCKED, SCHEDULED, WAITING, COMPLETED, FAILED, CANCELED), By.OPERATOR),
    Move.REMOVE_FORCED: Rule(_all(None, *State), By.OPERATOR),
}
