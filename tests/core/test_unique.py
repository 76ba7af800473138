"""Unique keys: their slot, how long they are held, and which are refused."""

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from errandry.core.job import NewJob
from errandry.core.unique import FOR_EVER, UniqueKey, UniqueScope
from errandry.errors import InvalidValue

ALIGNED = (
    UniqueScope.SECOND,
    UniqueScope.MINUTE,
    UniqueScope.HOUR,
    UniqueScope.DAY,
    UniqueScope.WEEK,
    UniqueScope.MONTH,
)
NOW = datetime(2026, 5, 13, 10, 20, 30, tzinfo=UTC).timestamp()


@pytest.mark.parametrize("scope", ALIGNED)
@given(due=st.floats(0, 9e10))
def test_a_calendar_period_ends_after_every_moment_in_it(scope: UniqueScope, due: float) -> None:
    unique = UniqueKey("k", scope)
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
        (UniqueScope.HOUR, "2026-05-13T10:00"),
        (UniqueScope.DAY, "2026-05-13"),
        (UniqueScope.WEEK, "2026-05-11"),
        (UniqueScope.MONTH, "2026-05-01"),
    ],
)
def test_a_period_begins_with_the_calendar_hour_day_week_or_month(scope: UniqueScope, begin: str) -> None:
    start = int(datetime.fromisoformat(begin).replace(tzinfo=UTC).timestamp())

    assert UniqueKey("k", scope).slot("q", NOW) == f"k\t{scope} {start}"


def test_other_slots_are_the_key_alone_or_with_the_queue() -> None:
    assert UniqueKey("k").slot("q", NOW) == "k"
    assert UniqueKey("k", per_queue=True).slot("q", NOW) == "q\nk"
    assert UniqueKey("k").until(NOW, NOW) is None
    assert UniqueKey("k", UniqueScope.WINDOW, 5.0).until(NOW + 60, NOW) == NOW + 5.0
    assert UniqueKey("k", UniqueScope.EVER).until(NOW + 60, NOW) == NOW + FOR_EVER


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"key": ""}, "must be a name, not empty"),
        ({"key": "x" * 201}, "a name has at most 200 characters, this has 201"),
        ({"key": "a\tb"}, "no control characters"),
        ({"key": "k", "scope": "hour"}, "scope='hour': must be a UniqueScope"),
        ({"key": "k", "scope": UniqueScope.WINDOW}, "window=None: belongs to the scope window"),
        ({"key": "k", "window": 5.0}, "window=5.0: belongs to the scope window, not to alive"),
        ({"key": "k", "scope": UniqueScope.WINDOW, "window": 0}, "window=0: must be more than 0 seconds"),
        ({"key": "k", "scope": UniqueScope.WINDOW, "window": -1}, "must be a number of seconds"),
    ],
)
def test_an_invalid_unique_key_is_refused(fields: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidValue, match=why):
        UniqueKey(**fields)


def test_on_conflict_must_be_a_conflict() -> None:
    with pytest.raises(InvalidValue, match=r"on_conflict='raise': must be Conflict\.RETURN"):
        NewJob(id="x", task="t", payload="{}", on_conflict="raise")  # type: ignore[arg-type]
