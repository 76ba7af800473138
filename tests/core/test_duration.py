"""Parsing and formatting of durations and instants."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from errandry.core.check import SPAN_MAX, span
from errandry.core.duration import (
    as_datetime,
    format_duration,
    format_time,
    instant,
    rough_duration,
    seconds,
)
from errandry.errors import InvalidValue


@pytest.mark.parametrize(
    ("written", "length"),
    [
        (0, 0.0),
        (90, 90.0),
        (1.5, 1.5),
        (timedelta(minutes=1, milliseconds=5), 60.005),
        ("90", 90.0),
        ("0.1", 0.1),
        ("90s", 90.0),
        ("100ms", 0.1),
        ("5m", 300.0),
        ("2h", 7_200.0),
        ("3d", 259_200.0),
        ("1w", 604_800.0),
        ("1h30m", 5_400.0),
        ("1w2d3h4m5s6ms", 788_645.006),
        ("1.5h", 5_400.0),
        ("5 minutes", 300.0),
        ("1 hour 30 minutes", 5_400.0),
        ("1 Hour", 3_600.0),
        ("2 hrs", 7_200.0),
        ("1 min", 60.0),
        ("20 secs", 20.0),
        ("1 day", 86_400.0),
        (" 2 weeks ", 1_209_600.0),
        ("250 milliseconds", 0.25),
    ],
)
def test_a_duration_is_parsed(written: str | float | timedelta, length: float) -> None:
    assert seconds(written) == length
    assert type(seconds(written)) is float


@pytest.mark.parametrize(
    ("written", "why"),
    [
        ("", "not a duration"),
        (" ", "not a duration"),
        ("h", "not a duration"),
        ("soon", "not a duration"),
        ("-5m", "not a duration"),
        ("1,5h", "not a duration"),
        ("1.h", "not a duration"),
        ("1  h", "not a duration"),
        ("\N{ARABIC-INDIC DIGIT ONE}s", "not a duration"),
        ("1" * 101, "not a duration"),
        ("1 2", "a number lacks its unit"),
        ("1h30", "a number lacks its unit"),
        ("5 months", "'months' is not a unit; the units are w, d, h, m, s, ms"),
        ("1e3", "'e' is not a unit"),
        ("30m1h", "the largest first"),
        ("1h1h", "each unit once"),
        ("101 weeks 36500 d", "from 0 to a century"),
        ("9" * 100, "from 0 to a century"),
        (-1, "from 0 to a century"),
        (-0.001, "from 0 to a century"),
        (timedelta(microseconds=-1), "from 0 to a century"),
        (float("nan"), "from 0 to a century"),
        (float("inf"), "from 0 to a century"),
        (10**400, "from 0 to a century"),
        (True, "not a duration"),
        (None, "not a duration"),
        (b"5m", "not a duration"),
        ([1], "not a duration"),
    ],
)
def test_an_invalid_duration_is_refused_by_name(written: object, why: str) -> None:
    with pytest.raises(InvalidValue) as refused:
        seconds(written, name="delay")  # type: ignore[arg-type]

    assert refused.value.name == "delay"
    assert refused.value.value is written
    assert why in refused.value.why
    assert str(refused.value).startswith("delay=")


def test_the_longest_duration_is_a_century() -> None:
    assert seconds(SPAN_MAX) == SPAN_MAX
    with pytest.raises(InvalidValue, match="century"):
        seconds(SPAN_MAX + 1)


def test_minus_zero_becomes_zero() -> None:
    assert str(seconds(-0.0)) == "0.0"


@pytest.mark.parametrize(
    ("length", "text"),
    [(0, "0s"), (0.25, "0.25s"), (60, "1m"), (90, "1m30s"), (5_400.5, "1h30m0.5s"), (694_861, "1w1d1h1m1s")],
)
def test_the_short_spelling_uses_the_largest_units(length: float, text: str) -> None:
    assert format_duration(length) == text


@given(st.integers(0, int(SPAN_MAX) * 1_000_000))
def test_every_duration_survives_formatting_to_the_microsecond(micros: int) -> None:
    assert seconds(format_duration(micros / 1e6)) == micros / 1e6


@given(st.text(st.sampled_from("0123456789. smhdw\n-+e"), max_size=12) | st.text())
def test_any_text_is_a_duration_or_an_invalid_value(text: str) -> None:
    try:
        length = seconds(text)
    except InvalidValue:
        return
    assert span("length", length) == length


@pytest.mark.parametrize(
    ("text", "micros"),
    [
        ("1970-01-01", 0),
        ("2026-01-31", 1_769_817_600_000_000),
        ("2026-01-31T08:00", 1_769_846_400_000_000),
        ("2026-01-31 08:00:01.5Z", 1_769_846_401_500_000),
        ("2026-01-31T08:00+02:00", 1_769_839_200_000_000),
    ],
)
def test_an_instant_is_utc_unless_it_names_a_zone(text: str, micros: int) -> None:
    assert instant(text) == micros


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2026",
        "20260131",
        "2026-02-30",
        "2026-01-31T",
        "2026-01-31T25:00",
        "2026-01-31T08:00+99:99",
        "2026-W05-6",
        "2026-01-31x08:00",
        "1969-12-31T23:59:59Z",
        "1970-01-01T00:00+01:00",
        "9999-12-31T23:59-01:00",
        "٢٠٢٦-01-31",
    ],
)
def test_text_that_is_no_iso_time_after_1970_is_refused(text: str) -> None:
    with pytest.raises(InvalidValue, match="2026-01-31") as refused:
        instant(text, name="run_at")

    assert (refused.value.name, refused.value.value) == ("run_at", text)


@given(st.integers(0, 253_402_300_799_999_999))
def test_every_instant_survives_formatting(micros: int) -> None:
    assert instant(format_time(micros)) == micros


def test_a_time_in_seconds_becomes_a_datetime_in_utc() -> None:
    at = datetime(2026, 1, 31, 8, 0, 0, 123456, tzinfo=UTC)
    assert as_datetime(at.timestamp()) == at
    assert as_datetime(1e11).year == 5138
    assert as_datetime(None) is None


@pytest.mark.parametrize(
    ("length", "text"),
    [
        (0.0, "0 ms"),
        (0.25, "250 ms"),
        (1.0, "1 s"),
        (119.4, "119 s"),
        (180.0, "3 min"),
        (299.9, "5 min"),
        (0.9996, "1 s"),
        (7_200.0, "2 h"),
        (172_800.0, "2 days"),
        (70_000_000.0, "2 years"),
    ],
)
def test_a_rough_duration_is_rounded(length: float, text: str) -> None:
    assert rough_duration(length) == text
