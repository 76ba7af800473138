"""Cron expressions in all zones and at clock changes, compared with an oracle that tries every minute."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from zoneinfo import ZoneInfo, available_timezones

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from errandry.core.cron import NAMES, Cron
from errandry.errors import InvalidValue

ZONES = sorted(available_timezones() - {"localtime"})
MINUTE, HALF, DAYS = timedelta(minutes=1), timedelta(seconds=30), 3


def ticks(cron: Cron, start: datetime) -> Iterator[datetime]:
    moment = start.timestamp()
    while (tick := cron.after(moment)) is not None:
        moment = tick
        yield datetime.fromtimestamp(moment, UTC)


def local(text: str, zone: str, start: str, number: int) -> list[str]:
    """The first ticks after a local time, in local time."""
    first = datetime.fromisoformat(start).replace(tzinfo=ZoneInfo(zone))
    next_ticks = islice(ticks(Cron(text, zone), first), number)
    return [tick.astimezone(ZoneInfo(zone)).isoformat() for tick in next_ticks]


def oracle(minutes: set[int], hours: set[int], zone: str, start: datetime, even: bool) -> list[datetime]:
    """Try every half minute of some days, without computing anything.

    Half minutes, because the offset of Monrovia was 44.5 minutes until 1972. The day before the start too,
    because a time that comes twice may have come for the first time then.
    """
    zoned = ZoneInfo(zone)
    moments = [start + n * HALF for n in range(-2_880, 2 * DAYS * 1_440)]
    walls = [moment.astimezone(zoned).replace(tzinfo=None) for moment in moments]

    def is_due(wall: datetime) -> bool:
        return wall.second == 0 and wall.minute in minutes and wall.hour in hours

    if even:
        due = {moment for moment, wall in zip(moments, walls, strict=True) if is_due(wall)}
        return sorted(moment for moment in due if moment > start)
    first: dict[datetime, datetime] = {}
    for moment, wall in zip(moments, walls, strict=True):
        first.setdefault(wall, moment)
    due = set()
    wall, end = min(walls), max(walls)
    while wall <= end:
        if is_due(wall):
            later = wall
            while later not in first:  # the clocks skip it
                later += HALF
            due.add(first[later])
        wall += HALF
    return sorted(moment for moment in due if moment > start)


@st.composite
def edges(draw: st.DrawFn) -> tuple[str, datetime]:
    """A zone, and a day shortly before a clock change, if the zone has one in that year."""
    zone = draw(st.sampled_from(ZONES))
    year = datetime(draw(st.integers(1970, 2099)), 1, 1, tzinfo=UTC)
    days = [year + timedelta(days=n) for n in range(366)]
    offsets = [day.astimezone(ZoneInfo(zone)).utcoffset() for day in days]
    changes = [day for day, a, b in zip(days, offsets, offsets[1:], strict=False) if a != b]
    return zone, (draw(st.sampled_from(changes)) if changes else days[draw(st.integers(0, 360))])


def assert_agrees_with_oracle(
    edge: tuple[str, datetime], minutes: set[int], hours: set[int], star: bool
) -> None:
    zone, start = edge
    hours = set(range(24)) if star else hours
    text = f"{','.join(map(str, minutes))} {'*' if star else ','.join(map(str, hours))} * * *"
    expected = oracle(minutes, hours, zone, start, star)
    assert list(islice(ticks(Cron(text, zone), start), len(expected))) == expected


numbers = {"minutes": st.sets(st.integers(0, 59), min_size=1, max_size=4)}
numbers["hours"] = st.sets(st.integers(0, 23), min_size=1, max_size=6)


@pytest.mark.slow(reason="tries every minute of several days")
@example(edge=("Africa/Monrovia", datetime(1970, 1, 1, tzinfo=UTC)), star=True, minutes={0, 37}, hours={3})
@example(
    edge=("Africa/Monrovia", datetime(1972, 1, 6, tzinfo=UTC)), star=False, minutes={0, 37}, hours={0, 3}
)
@example(edge=("Australia/LHI", datetime(1981, 2, 28, tzinfo=UTC)), star=True, minutes={30}, hours={0})
@example(edge=("Australia/LHI", datetime(2026, 10, 3, tzinfo=UTC)), star=True, minutes={0, 30}, hours={0})
@example(edge=("Australia/LHI", datetime(2026, 4, 4, tzinfo=UTC)), star=True, minutes={15, 30, 45}, hours={0})
@example(edge=("Europe/Dublin", datetime(1981, 10, 25, tzinfo=UTC)), star=False, minutes={0}, hours={0, 1})
@settings(max_examples=40, deadline=None)
@given(edge=edges(), star=st.booleans(), **numbers)
def test_ticks_equal_those_of_the_oracle(
    edge: tuple[str, datetime], star: bool, minutes: set[int], hours: set[int]
) -> None:
    assert_agrees_with_oracle(edge, minutes, hours, star)


@pytest.mark.prove
@settings(max_examples=3_000, deadline=None)
@given(edge=edges(), star=st.booleans(), **numbers)
def test_ticks_equal_those_of_the_oracle_in_thousands_of_cases(
    edge: tuple[str, datetime], star: bool, minutes: set[int], hours: set[int]
) -> None:
    assert_agrees_with_oracle(edge, minutes, hours, star)


def test_a_skipped_time_is_due_at_the_clock_change() -> None:
    assert local("30 2 * * *", "Europe/Vienna", "2026-03-28T12:00", 2) == [
        "2026-03-29T03:00:00+02:00",
        "2026-03-30T02:30:00+02:00",
    ]
    assert local("0 30 2 * * *", "Europe/Vienna", "2026-03-28T12:00", 1) == ["2026-03-29T03:00:00+02:00"]


def test_a_doubled_time_is_due_once() -> None:
    assert local("30 2 * * *", "Europe/Vienna", "2026-10-24T12:00", 2) == [
        "2026-10-25T02:30:00+02:00",
        "2026-10-26T02:30:00+01:00",
    ]


def test_a_repeating_expression_is_due_in_both_doubled_hours() -> None:
    seen = local("*/30 * * * *", "Europe/Vienna", "2026-10-25T01:45", 5)
    assert [one[11:16] + one[19:] for one in seen] == [
        *("02:00+02:00", "02:30+02:00", "02:00+01:00", "02:30+01:00", "03:00+01:00")
    ]


def test_a_day_that_a_zone_skipped_is_due_afterwards() -> None:
    """Samoa skipped 30 December 2011."""
    assert local("0 9 30 12 *", "Pacific/Apia", "2011-12-01T00:00", 1) == ["2011-12-31T00:00:00+14:00"]


def test_the_29th_of_february_is_due_in_leap_years() -> None:
    assert [one[:10] for one in local("0 0 29 2 *", "UTC", "2026-01-01T00:00", 3)] == [
        *("2028-02-29", "2032-02-29", "2036-02-29")
    ]


def test_an_expression_can_name_years() -> None:
    assert [one[:10] for one in local("0 0 0 1 1 * 2030", "UTC", "2026-01-01T00:00", 3)] == ["2030-01-01"]
    assert [one[:4] for one in local("0 30 23 31 12 * */10", "Asia/Tokyo", "2026-01-01T00:00", 9)] == [
        *("2030", "2040", "2050", "2060", "2070", "2080", "2090", "2100")
    ]
    assert [one[:4] for one in local("0 0 0 1 1 * 2030-2032,2040/30", "UTC", "2026-01-01T00:00", 9)] == [
        *("2030", "2031", "2032", "2040", "2070", "2100")
    ]


def test_1970_has_ticks_in_zones_where_it_is_still_1969() -> None:
    start = datetime.fromtimestamp(0, UTC)
    assert next(ticks(Cron("0 * * * *", "America/Anguilla"), start)) == start + timedelta(hours=1)


def test_the_first_of_six_fields_is_seconds() -> None:
    assert [one[17:19] for one in local("*/20 * * * * *", "UTC", "2026-01-01T00:00:05", 3)] == [
        *("20", "40", "00")
    ]


def test_a_due_moment_is_not_after_itself() -> None:
    [first, second] = local("0 8 * * *", "UTC", "2026-01-01T00:00", 2)
    assert first < second
    assert local("0 8 * * *", "UTC", "2026-01-01T08:00", 1) == [second]


@pytest.mark.parametrize(("name", "text"), NAMES.items())
def test_a_name_equals_its_expression(name: str, text: str) -> None:
    start = "2026-05-05T05:05"
    assert local(name, "Asia/Kathmandu", start, 3) == local(text, "Asia/Kathmandu", start, 3)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("* * *", "has 3 fields"),
        ("", "has 0 fields"),
        ("* * * * * * * *", "has 8 fields"),
        ("61 * * * *", "invalid minute"),
        ("0 0 30 2 *", "invalid day-of-month"),
        ("0 0 * * 8", "invalid day-of-week"),
        ("@sometimes", "there is no such name"),
        ("nope", "has 1 field and is no cron expression"),
        ("0 0 0 1 1 * 1900", "invalid year"),
        ("0 0 0 1 1 * 2030-2020", "invalid year"),
        ("0 0 0 1 1 * */0", "invalid year"),
        (5, "must be text"),
        (f"{'1,' * 500}1 * * * *", "has more than 1,000 characters"),
    ],
)
def test_an_invalid_expression_is_refused(text: str, why: str) -> None:
    with pytest.raises(InvalidValue, match=f"cron=.*: {why}.*: write "):
        Cron(text)


@pytest.mark.parametrize("zone", ["Mars/Base", "", "../etc/passwd", 5])
def test_an_invalid_zone_is_refused(zone: str) -> None:
    with pytest.raises(InvalidValue, match=r"timezone=.*: unknown time zone on this host"):
        Cron("@daily", zone)
