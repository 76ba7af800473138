"""When a cron expression is due: fields in, moments out. Nothing here reads a clock.

Five fields (minute, hour, day of month, month, day of week), six with seconds before them, seven with years
after them, or a name such as `@daily`. Read as Debian's cron reads them, in a time zone:

- A time of day that the clocks skip is due when they have been put forward, once; one that they show twice
  is due the first time.
- What repeats within a day (`*` or `*/n` for hours, minutes or seconds) goes on evenly: it is due whenever
  the clock on the wall matches, twice in an hour that comes twice.
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
_RIGHT = "write 5 fields (30 8 * * 1-5), 6 with seconds first, 7 with years last, or a name as @daily"
_SECOND, _DAY = timedelta(seconds=1), timedelta(days=1)


class Cron(Struct, frozen=True, dict=True):
    """An expression, checked, in a time zone."""

    text: str
    zone: str = "UTC"

    def __post_init__(self) -> None:
        self._fields, self._years, self._zone  # noqa: B018 - reading checks them

    def after(self, moment: float) -> float | None:
        """The first time it is due after `moment`, in seconds since 1970; None if it never is again."""
        start = datetime.fromtimestamp(moment, UTC)
        if start.year > YEARS[-1]:
            return None
        tick = self._even(start) if self._repeats else self._by_wall(start)
        return None if tick is None else tick.timestamp()

    def _even(self, start: datetime) -> datetime | None:
        """The next moment at which the wall clock matches.

        Where it is about to be put back, or just was, a time on it that comes twice may be due again.
        """
        here, later = start.astimezone(self._zone), (start + _DAY).astimezone(self._zone)
        back = max(_offset(here) - _offset(later), timedelta())
        wall = here.replace(tzinfo=None, fold=0) - back
        folds = (0, 1) if back or here.fold else (0,)
        ticks = [tick for fold in folds if (tick := self._shown(wall, fold, start)) is not None]
        return min(ticks, default=None)

    def _shown(self, wall: datetime, fold: int, start: datetime) -> datetime | None:
        """The first moment after `start` at which the clock shows a match after `wall`: the first time that
        it shows it, or with `fold` the last time."""
        for local in self._walk(wall):
            moment = local.replace(tzinfo=self._zone, fold=fold).astimezone(UTC)
            if moment > start and moment.astimezone(self._zone).replace(tzinfo=None) == local:
                return moment
        return None

    def _by_wall(self, start: datetime) -> datetime | None:
        """The next time on the wall: skipped ones when the clocks went forward, double ones at first."""
        wall = start.astimezone(self._zone).replace(tzinfo=None) - 2 * _DAY
        moments = (self._moment(local) for local in self._walk(wall))
        return next((moment for moment in moments if moment > start), None)

    def _moment(self, wall: datetime) -> datetime:
        local = wall.replace(tzinfo=self._zone)
        moment = local.astimezone(UTC)
        if moment.astimezone(self._zone).replace(tzinfo=None) == wall:
            return moment
        return self._gap_end(local)

    def _gap_end(self, local: datetime) -> datetime:
        """When the clocks went forward over this time. Between what both offsets make of it."""
        low, high = sorted((local.replace(fold=0).astimezone(UTC), local.replace(fold=1).astimezone(UTC)))
        before = low.astimezone(self._zone).utcoffset()
        while high - low > _SECOND:
            middle = low + (high - low) // 2
            if middle.astimezone(self._zone).utcoffset() == before:
                low = middle
            else:
                high = middle
        return high.replace(microsecond=0)

    def _walk(self, start: datetime) -> Iterator[datetime]:
        """Matching times on the wall after `start`, in the years given."""
        found = start
        while (year := min((one for one in self._years if one >= found.year), default=None)) is not None:
            if year > found.year:
                found = found.replace(year=year, month=1, day=1, hour=0, minute=0, second=0) - _SECOND
            for found in CronSim(" ".join(self._fields), found):  # noqa: B020 - from there on
                if found.year not in self._years:
                    break
                yield found

    @cached_property
    def _zone(self) -> ZoneInfo:
        try:
            return ZoneInfo(self.zone)
        except (KeyError, ValueError, TypeError, OSError):
            why = "there is no such time zone here: write one as Europe/Vienna, or UTC"
            raise InvalidValue("timezone", self.zone, why) from None

    @cached_property
    def _fields(self) -> list[str]:
        """Six fields, with seconds."""
        if not isinstance(self.text, str):
            raise InvalidValue("cron", self.text, f"must be text: {_RIGHT}")
        fields = NAMES.get(self.text.strip().lower(), self.text).upper().split()
        if len(fields) not in (5, 6, 7):
            raise InvalidValue("cron", self.text, f"has {len(fields)} fields: {_RIGHT}")
        fields = ["0", *fields] if len(fields) == 5 else fields[:6]
        try:
            CronSim(" ".join(fields), datetime(2000, 1, 1))  # noqa: DTZ001 - only to have it read
        except CronSimError as error:
            why = str(error).removeprefix("Bad ")
            raise InvalidValue("cron", self.text, f"its {why} cannot be: {_RIGHT}") from None
        return fields

    @cached_property
    def _years(self) -> frozenset[int]:
        fields = self.text.upper().split()
        if len(fields) != 7:
            return frozenset(range(YEARS[0] - 1, YEARS[-1] + 2))  # where clocks are behind or ahead of UTC
        try:
            years = frozenset(year for part in fields[6].split(",") for year in _range(part))
        except ValueError:
            years = frozenset()
        if not years:
            why = f"its year cannot be: write 2027, 2027-2030, */2 or *, from {YEARS[0]} to {YEARS[-1]}"
            raise InvalidValue("cron", self.text, why)
        return years

    @property
    def _repeats(self) -> bool:
        """Whether it goes on within the day rather than at times of day."""
        seconds, minutes, hours, *_ = self._fields
        return any(field.startswith("*") for field in (seconds, minutes, hours))


def _offset(local: datetime) -> timedelta:
    return local.utcoffset() or timedelta()


def _range(part: str) -> range:
    """The years of `2027`, `2027-2030`, `*`, each also with a step."""
    whole, _, step = part.partition("/")
    first, _, last = whole.partition("-")
    low, high = (YEARS[0], YEARS[-1]) if whole == "*" else (int(first), int(last or first))
    if step and whole != "*" and not last:
        high = YEARS[-1]
    if not (YEARS[0] <= low <= high <= YEARS[-1]) or (step and int(step) < 1):
        raise ValueError(part)
    return range(low, high + 1, int(step) if step else 1)
