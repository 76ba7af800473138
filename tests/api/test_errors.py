"""Every error survives pickling, with its attributes and message."""

import copy
import inspect
import pickle
from collections.abc import Iterator

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
