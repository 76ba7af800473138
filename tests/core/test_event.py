"""The events of each move."""

from typing import get_args

import pytest

from errandry.core.event import KINDS_OF_MOVE, EventKind, EventName, EventRecord, EventRun, expand
from errandry.core.state import TABLE, Move, State

REPORTS = {
    # move: its events; "reached": the event of the state reached
    "insert": "reached",
    "promote": "reached",
    "unblock": "reached",
    "release": "reached",
    "rerun": "reached",
    "snooze": "reached",
    "postpone": "reached",
    "complete": "reached",
    "fail": "reached",
    "lapse": "reached",
    "child_failed": "reached",
    "give_up": "reached",
    "cancel_forced": "reached",
    "resolve": "reached",
    "await": "reached",
    "start": "reached",
    "edit": "edited",
    "remove": "removed",
    "remove_forced": "removed",
    "renew": "",
    "note": "",
    "expire": "stalled reached",
}
REACHED = {State.RUNNING: "started"}


@pytest.mark.parametrize("name", REPORTS)
def test_a_move_has_the_events_of_the_state_it_reached(name: str) -> None:
    rule = TABLE[Move(name)]
    states = {*rule.leads.values(), *rule.otherwise} - {None}

    for state in states or set(State):
        assert state is not None
        reached = REACHED.get(state, str(state))
        assert " ".join(KINDS_OF_MOVE[Move(name), state]) == REPORTS[name].replace("reached", reached)


@pytest.mark.parametrize(
    ("move", "state", "kinds"),
    [
        (Move.CLAIM, State.CLAIMED, "claimed"),
        (Move.CLAIM, State.RUNNING, "claimed started"),
        (Move.RETRY, State.SCHEDULED, "retrying"),
        (Move.RETRY, State.WAITING, "retrying"),
        (Move.RETRY, State.FAILED, "failed"),
        (Move.RETRY, State.CANCELED, "canceled"),
        (Move.CANCEL, State.CANCELED, "canceled"),
        (Move.CANCEL, State.RUNNING, ""),
    ],
)
def test_a_move_with_several_targets_has_an_event_for_each(move: Move, state: State, kinds: str) -> None:
    assert " ".join(KINDS_OF_MOVE[move, state]) == kinds


def test_every_move_and_state_has_an_entry() -> None:
    assert set(KINDS_OF_MOVE) == {(move, state) for move in Move for state in State}


def test_an_event_run_expands_job_by_job() -> None:
    run = EventRun((EventKind.CLAIMED, EventKind.STARTED), ["a", "b"], "q", "t", 1)

    assert len(run) == 4
    assert expand([run, EventRun((EventKind.DRAINED,), [""], "q", "")]) == (
        EventRecord(EventKind.CLAIMED, "a", "q", "t", 1),
        EventRecord(EventKind.STARTED, "a", "q", "t", 1),
        EventRecord(EventKind.CLAIMED, "b", "q", "t", 1),
        EventRecord(EventKind.STARTED, "b", "q", "t", 1),
        EventRecord(EventKind.DRAINED, "", "q", ""),
    )


def test_type_checkers_know_every_kind() -> None:
    assert get_args(EventName) == tuple(EventKind)
