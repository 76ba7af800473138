"""Compute when a cron expression is due. Nothing here reads a clock.

An expression has five fields (minute, hour, day of month, month, day of week), six with seconds first, seven
with years last, or is a name such as `@daily`. It follows the rules of Debian's cron, in a time zone:

- A time of day that the clocks skip when they go forward is due once, at the moment of the change. A time of
  day that they show twice when they go back is due the first time.
- An expression that repeats within the day (`*` or `*/n` for hours, minutes or seconds) is due at every local
  time that matches: twice in an hour that comes twice.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import cached_property
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError
from msgspec import Struct

from errandry.errors import InvalidValue

NAMES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
YEARS = range(1970, 2101)
TEXT_MAX = 1_000
"""Maximum number of characters of an expression."""
_USAGE = (
    "write 5 fields (30 8 * * 1-5 is 8:30 from Monday to Friday), 6 with seconds first, 7 with years last, a "
    'name such as @daily, or an interval such as "every 5 minutes"'
)
_SECOND, _DAY = timedelta(seconds=1), timedelta(days=1)


class Cron(Struct, frozen=True, dict=True):
    """A valid cron expression in a time zone."""

    text: str
    zone: str = "UTC"

    def __post_init__(self) -> None:
        self._fields, self._years, self._zone  # noqa: B018 - reading checks them

    def after(self, moment: float) -> float | None:
        """The first due time after `moment`, in seconds since 1970; None if there is none."""
        start = datetime.fromtimestamp(moment, UTC)
        if start.year > YEARS[-1]:
            return None
        tick = self._next_interval(start) if self._repeats_within_day else self._next_time_of_day(start)
        return None if tick is None else tick.timestamp()

    def _next_interval(self, start: datetime) -> datetime | None:
        """The next moment at which the local time matches.

        If the clocks go back within the next day, or just went back, a local time that comes twice may be due
        twice.
        """
        before, after = start.astimezone(self._zone), (start + _DAY).astimezone(self._zone)
        back = max(_offset(before) - _offset(after), timedelta())
        wall = before.replace(tzinfo=None, fold=0) - back
        folds = (0, 1) if back or before.fold else (0,)
        ticks = [tick for fold in folds if (tick := self._first_match(wall, fold, start)) is not None]
        return min(ticks, default=None)

    def _first_match(self, wall: datetime, fold: int, start: datetime) -> datetime | None:
        """The first moment after `start` whose local time matches and is after `wall`.

        Of a local time that comes twice, `fold` 0 means the first and 1 the second time.
        """
        for local in self._wall_times(wall):
            moment = local.replace(tzinfo=self._zone, fold=fold).astimezone(UTC)
            if moment > start and moment.astimezone(self._zone).replace(tzinfo=None) == local:
                return moment
        return None

    def _next_time_of_day(self, start: datetime) -> datetime | None:
        """The next matching time of day. A skipped one is due at the change, a doubled one the first time."""
        wall = start.astimezone(self._zone).replace(tzinfo=None) - 2 * _DAY
        moments = (self._to_utc(local) for local in self._wall_times(wall))
        return next((moment for moment in moments if moment > start), None)

    def _to_utc(self, wall: datetime) -> datetime:
        local = wall.replace(tzinfo=self._zone)
        moment = local.astimezone(UTC)
        if moment.astimezone(self._zone).replace(tzinfo=None) == wall:
            return moment
        return self._gap_end(local)

    def _gap_end(self, local: datetime) -> datetime:
        """The moment at which the clocks went forward past this local time.

        It lies between the two moments that the offsets before and after the change give. Bisect for it.
        """
        low, high = sorted((local.replace(fold=0).astimezone(UTC), local.replace(fold=1).astimezone(UTC)))
        before = low.astimezone(self._zone).utcoffset()
        while high - low > _SECOND:
            middle = low + (high - low) // 2
            if middle.astimezone(self._zone).utcoffset() == before:
                low = middle
            else:
                high = middle
        return high.replace(microsecond=0)

    def _wall_times(self, start: datetime) -> Iterator[datetime]:
        """Matching local times after `start`, in the years of the expression."""
        wall = start
        while (year := min((year for year in self._years if year >= wall.year), default=None)) is not None:
            if year > wall.year:
                wall = wall.replace(year=year, month=1, day=1, hour=0, minute=0, second=0) - _SECOND
            for wall in CronSim(" ".join(self._fields), wall):  # noqa: B020 - continues from the last one
                if wall.year not in self._years:
                    break
                yield wall

    @cached_property
    def _zone(self) -> ZoneInfo:
        return time_zone(self.zone)

    @cached_property
    def _fields(self) -> list[str]:
        """The six fields from seconds to day of week."""
        if not isinstance(self.text, str):
            raise InvalidValue("cron", self.text, f"must be text: {_USAGE}")
        if len(self.text) > TEXT_MAX:
            raise InvalidValue("cron", self.text, f"has more than {TEXT_MAX:,} characters: {_USAGE}")
        name = self.text.strip().lower()
        if name.startswith("@") and name not in NAMES:
            raise InvalidValue("cron", self.text, f"there is no such name: write {', '.join(NAMES)}")
        fields = NAMES.get(name, self.text).upper().split()
        if len(fields) not in (5, 6, 7):
            count = f"{len(fields)} field{'s' if len(fields) != 1 else ''}"
            raise InvalidValue("cron", self.text, f"has {count} and is no cron expression: {_USAGE}")
        fields = ["0", *fields] if len(fields) == 5 else fields[:6]
        try:
            CronSim(" ".join(fields), datetime(2000, 1, 1))  # noqa: DTZ001 - only parses the fields
        except CronSimError as error:
            why = str(error).removeprefix("Bad ")
            raise InvalidValue("cron", self.text, f"invalid {why}: {_USAGE}") from None
        return fields

    @cached_property
    def _years(self) -> frozenset[int]:
        fields = self.text.upper().split()
        if len(fields) != 7:
            return frozenset(range(YEARS[0] - 1, YEARS[-1] + 2))  # local time may be in another year than UTC
        try:
            years = frozenset(year for part in fields[6].split(",") for year in _year_range(part))
        except ValueError:
            years = frozenset()
        if not years:
            why = f"invalid year: write 2027, 2027-2030, */2 or *, from {YEARS[0]} to {YEARS[-1]}"
            raise InvalidValue("cron", self.text, why)
        return years

    @property
    def _repeats_within_day(self) -> bool:
        """Whether the expression repeats within the day, and is not for times of day."""
        seconds, minutes, hours, *_ = self._fields
        return any(field.startswith("*") for field in (seconds, minutes, hours))


def time_zone(name: str) -> ZoneInfo:
    """The time zone of this name; InvalidValue if this host does not know it."""
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, TypeError, OSError):
        why = "unknown time zone on this host: write a name such as Europe/Vienna, or UTC"
        raise InvalidValue("timezone", name, why) from None


def _offset(local: datetime) -> timedelta:
    return local.utcoffset() or timedelta()


def _year_range(part: str) -> range:
    """The years of `2027`, `2027-2030` or `*`, each also with a step such as `*/2`."""
    whole, _, step = part.partition("/")
    first, _, last = whole.partition("-")
    low, high = (YEARS[0], YEARS[-1]) if whole == "*" else (int(first), int(last or first))
    if step and whole != "*" and not last:
        high = YEARS[-1]
    if not (YEARS[0] <= low <= high <= YEARS[-1]) or (step and int(step) < 1):
        raise ValueError(part)
    return range(low, high + 1, int(step) if step else 1)
