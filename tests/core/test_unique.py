"""Unique keys: where one is kept, until when, and what cannot be one."""

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from errandry.core.job import NewJob
from errandry.core.unique import EVER, Scope, Unique
from errandry.errors import InvalidValue

ALIGNED = (Scope.SECOND, Scope.MINUTE, Scope.HOUR, Scope.DAY, Scope.WEEK, Scope.MONTH)
NOW = datetime(2026, 5, 13, 10, 20, 30, tzinfo=UTC).timestamp()


@pytest.mark.parametrize("scope", ALIGNED)
@given(due=st.floats(0, 9e10))
def test_every_moment_is_in_one_window_that_ends_after_it(scope: Scope, due: float) -> None:
    unique = Unique("k", scope)
    end = unique.until(due, NOW)

    assert end is not None
    assert end > due
    assert unique.slot("q", end) != unique.slot("q", due)
    assert unique.until(end, NOW) != end
    if due >= 1:
        assert unique.slot("q", end - 0.001) == unique.slot("q", (end - 0.001) // 1)


@pytest.mark.parametrize(
    ("scope", "begin"),
    [
        (Scope.HOUR, "2026-05-13T10:00"),
        (Scope.DAY, "2026-05-13"),
        (Scope.WEEK, "2026-05-11"),
        (Scope.MONTH, "2026-05-01"),
    ],
)
def test_windows_begin_by_the_calendar(scope: Scope, begin: str) -> None:
    start = int(datetime.fromisoformat(begin).replace(tzinfo=UTC).timestamp())

    assert Unique("k", scope).slot("q", NOW) == f"k\t{scope} {start}"


def test_others_are_kept_under_the_key_alone_or_with_the_queue() -> None:
    assert Unique("k").slot("q", NOW) == "k"
    assert Unique("k", per_queue=True).slot("q", NOW) == "q\nk"
    assert Unique("k").until(NOW, NOW) is None
    assert Unique("k", Scope.WINDOW, 5.0).until(NOW + 60, NOW) == NOW + 5.0
    assert Unique("k", Scope.EVER).until(NOW + 60, NOW) == NOW + EVER


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"key": ""}, "must be a name, not empty"),
        ({"key": "x" * 201}, "a name has at most 200 characters, this has 201"),
        ({"key": "a\tb"}, "no control characters"),
        ({"key": "k", "scope": "hour"}, "scope='hour': must be a Scope"),
        ({"key": "k", "scope": Scope.WINDOW}, "window=None: belongs to the scope window"),
        ({"key": "k", "window": 5.0}, "window=5.0: belongs to the scope window, not to alive"),
        ({"key": "k", "scope": Scope.WINDOW, "window": 0}, "window=0: must be more than 0 seconds"),
        ({"key": "k", "scope": Scope.WINDOW, "window": -1}, "must be a number of seconds"),
    ],
)
def test_what_cannot_be(fields: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidValue, match=why):
        Unique(**fields)


def test_a_job_says_what_is_to_become_of_it_in_words_of_ours() -> None:
    with pytest.raises(InvalidValue, match=r"on_conflict='raise': must be Conflict\.RETURN"):
        NewJob(id="x", task="t", payload="{}", on_conflict="raise")  # type: ignore[arg-type]
