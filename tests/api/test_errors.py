"""Every error survives pickling, with its attributes and message."""

import copy
import inspect
import pickle
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from errandry import Cancel, Fail, Retry, Snooze, errors
from errandry.api.outcome import HandlerOutcome
from errandry.errors import ErrandryError

SAMPLES = {
    "worker_id": "web-1",
    "name": "priority",
    "value": "high",
    "why": "must be a whole number",
    "size": 7,
    "bound": 5,
    "task": "send",
    "text": "stat:failed",
    "position": 3,
    "job_id": "job-1",
    "field": "payload",
    "move": "cancel",
    "action": "complete",
    "outcome": "retry",
    "state": "completed",
    "allowed": ("waiting", "scheduled"),
    "key": "mail",
    "queue": "default",
    "held": 2,
    "group": "acme",
    "known": ("send", "sum"),
    "reason": "error",
    "error": "ValueError: no",
    "traceback": "Traceback …",
    "fence": 9,
    "cause": "expired",
    "cursor": "abc",
    "command": "Insert",
    "store": "jobs.db",
    "version": 1,
}


def tree(kind: type[ErrandryError] = ErrandryError) -> Iterator[type[ErrandryError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from tree(child)


def sample(kind: type[ErrandryError]) -> ErrandryError:
    names = [] if kind.__init__ is Exception.__init__ else [*inspect.signature(kind).parameters]
    return kind(*[SAMPLES[name] for name in names if name not in ("args", "kwargs")])


@pytest.mark.parametrize("kind", dict.fromkeys(tree()), ids=lambda kind: kind.__name__)
def test_an_error_survives_pickling_and_copying(kind: type[ErrandryError]) -> None:
    error = sample(kind)

    for other in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(other) is kind
        assert (str(other), other.args, vars(other)) == (str(error), error.args, vars(error))


SELF_CONTAINING: list[Any] = []
SELF_CONTAINING.append(SELF_CONTAINING)


@pytest.mark.parametrize(
    "value",
    [lambda: 0, threading.Lock(), {"handler": [print, open]}, SELF_CONTAINING],
    ids=["function", "lock", "nested", "endless"],
)
def test_an_invalid_value_that_cannot_be_pickled_is_replaced_by_its_text(value: object) -> None:
    error = errors.InvalidValue("handler", value, "must be a name")
    error.add_note("see the guide")

    other = pickle.loads(pickle.dumps(error))

    assert type(other) is errors.InvalidValue
    assert (str(other), other.name, other.why) == (str(error), "handler", "must be a name")
    assert (repr(other.value), other.__notes__) == (errors.short_repr(value), ["see the guide"])
    assert str(pickle.loads(pickle.dumps(other))) == str(error)


@pytest.mark.parametrize("kind", dict.fromkeys(tree()), ids=lambda kind: kind.__name__)
def test_the_drawn_tree_names_every_error(kind: type[ErrandryError]) -> None:
    assert f"{kind.__name__} " in f"{errors.__doc__}".replace("\n", " ")


@pytest.mark.parametrize(
    "outcome", [Retry("busy", after="5s"), Retry(), Snooze("1 hour"), Fail("no"), Cancel()], ids=repr
)
def test_an_outcome_survives_pickling(outcome: HandlerOutcome) -> None:
    other = pickle.loads(pickle.dumps(outcome))

    assert type(other) is type(outcome)
    assert (str(other), vars(other)) == (str(outcome), vars(outcome))


def test_a_message_has_the_name_the_value_and_the_rule() -> None:
    error = errors.InvalidValue("priority", "high", "must be a whole number")

    assert str(error) == "priority='high': must be a whole number"
    assert (error.name, error.value, error.why) == ("priority", "high", "must be a whole number")


def test_long_values_are_shortened_in_messages() -> None:
    assert len(str(errors.InvalidValue("payload", "x" * 1_000_000, "is too long"))) < 120


class Unreadable:
    def __repr__(self) -> str:
        raise ValueError("no repr")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("x" * 5_000, "(5,000 characters)"),
        (b"x" * 5_000, "(5,000 bytes)"),
        (10**5_000, "a whole number of 16,610 bits"),
        (Unreadable(), "an object of Unreadable, whose repr raises ValueError"),
        ("x" * 58, f"'{'x' * 58}'"),
    ],
    ids=["text", "bytes", "number", "unreadable", "short"],
)
def test_a_message_shows_any_value_shortly_and_tells_its_length(value: object, text: str) -> None:
    message = str(errors.InvalidValue("name", value, "must be a name"))

    assert text in message
    assert len(message) < 120


@pytest.mark.parametrize(
    ("cause", "why"),
    [
        ("expired", "the lease expired"),
        ("not_held", "no worker holds it"),
        ("other_fence", "another claim holds it"),
        ("its outcome could not be written", "its outcome could not be written"),
    ],
)
def test_a_lost_lease_says_why_in_words_and_keeps_the_cause(cause: str, why: str) -> None:
    error = errors.LeaseLost("job-1", 7, cause)

    assert str(error) == f"the lease on job job-1 (fence 7) is no longer held: {why}"
    assert error.cause == cause
