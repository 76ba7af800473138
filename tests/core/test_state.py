"""The transition table equals the design. All other tests rely on the table."""

import pytest

from errandry.core.state import HELD_STATES, OPERATOR_ACTORS, TABLE, TERMINAL, Actor, Move, Reason, State

UNCLAIMED = "blocked scheduled waiting"
ENDED = "completed failed canceled"
DESIGN = {
    # move: (from, to, otherwise, by)
    "insert": ("", "waiting", "scheduled blocked", "client"),
    "promote": ("scheduled", "waiting", "", "client, operator or worker"),
    "unblock": ("blocked", "waiting", "scheduled", "the store"),
    "child_failed": ("blocked", "failed", "gone", "the store"),
    "lapse": (UNCLAIMED, "failed", "", "any worker"),
    "drop": ("waiting", "failed", "", "the store"),
    "claim": ("waiting", "claimed", "running", "worker"),
    "start": ("claimed", "running", "", "worker"),
    "renew": ("claimed running", "same", "", "worker"),
    "note": ("claimed running", "same", "", "worker"),
    "step": ("claimed running", "same", "", "worker"),
    "complete": ("running", "completed", "canceled", "worker"),
    "retry": ("running", "scheduled", "waiting failed canceled", "worker"),
    "fail": ("running", "failed", "canceled", "worker"),
    "snooze": ("running", "scheduled", "canceled", "worker"),
    "await": ("running", "blocked", "waiting canceled", "worker"),
    "wait": ("running", "scheduled", "waiting canceled", "worker"),
    "release": ("claimed running", "waiting", "scheduled failed canceled", "worker"),
    "give_up": ("claimed running", "canceled", "", "worker"),
    "expire": ("claimed running", "waiting", "scheduled failed canceled", "any worker"),
    "lose": ("scheduled", "failed", "", "any worker"),
    "cancel_forced": ("completed failed", "canceled", "", "operator"),
    "resolve": (UNCLAIMED, "completed", "failed", "operator"),
    "postpone": ("waiting scheduled", "scheduled", "", "operator"),
    "edit": (UNCLAIMED, "same", "scheduled waiting", "operator, or a client that replaces a unique job"),
    "rerun": (ENDED, "waiting", "scheduled blocked", "operator"),
    "remove": (f"{UNCLAIMED} {ENDED}", "gone", "", "operator, or upkeep by any worker"),
    "remove_forced": (f"{UNCLAIMED} claimed running {ENDED}", "gone", "", "operator"),
}


@pytest.mark.parametrize("name", DESIGN)
def test_the_row_of_a_move_equals_the_design(name: str) -> None:
    sources, target, otherwise, by = DESIGN[name]
    rule = TABLE[Move(name)]

    expected = {source: source if target == "same" else target for source in sources.split() or ["gone"]}

    assert {source or "gone": reached or "gone" for source, reached in rule.leads.items()} == expected
    assert {state or "gone" for state in rule.otherwise} == set(otherwise.split())
    assert rule.by == by
    assert set(rule.sources) == set(sources.split())


def test_a_cancel_is_immediate_except_for_a_running_job() -> None:
    rule = TABLE[Move.CANCEL]

    assert rule.leads == {
        **dict.fromkeys([State.BLOCKED, State.SCHEDULED, State.WAITING, State.CLAIMED], State.CANCELED),
        State.RUNNING: State.RUNNING,
    }
    assert (rule.by, rule.otherwise) == (Actor.ANYONE, {})


def test_every_move_has_a_row() -> None:
    assert set(TABLE) == set(Move) == {*map(Move, DESIGN), Move.CANCEL}


def test_every_move_of_a_worker_but_the_claim_is_fenced() -> None:
    fenced = {move for move, rule in TABLE.items() if rule.fenced}

    assert fenced == {move for move, rule in TABLE.items() if rule.by is Actor.WORKER} - {Move.CLAIM}
    assert {state for move in fenced for state in TABLE[move].sources} == HELD_STATES


def test_only_an_operator_moves_a_finished_job() -> None:
    movers = {move for move, rule in TABLE.items() if TERMINAL & set(rule.sources)}

    assert movers == {Move.CANCEL_FORCED, Move.RERUN, Move.REMOVE, Move.REMOVE_FORCED}
    assert {TABLE[move].by for move in movers} <= OPERATOR_ACTORS


def test_only_a_claim_makes_a_job_held() -> None:
    takers = {
        move
        for move, rule in TABLE.items()
        for source, target in [*rule.leads.items(), *((None, state) for state in rule.otherwise)]
        if source not in HELD_STATES and target in HELD_STATES
    }

    assert takers == {Move.CLAIM}


def test_a_cancel_request_can_override_every_outcome() -> None:
    outcomes = {
        Move.COMPLETE,
        Move.RETRY,
        Move.FAIL,
        Move.SNOOZE,
        Move.AWAIT,
        Move.WAIT,
        Move.RELEASE,
        Move.EXPIRE,
    }

    assert {move for move, rule in TABLE.items() if State.CANCELED in rule.otherwise} == outcomes


def test_states_and_reasons_keep_their_names() -> None:
    assert " ".join(State) == f"{UNCLAIMED} claimed running {ENDED}"
    assert set(Reason) == {
        *("error", "unrecoverable", "timeout", "worker_lost", "invalid_payload", "no_handler"),
        *("child_failed", "deadline", "dropped", "canceled"),
    }
