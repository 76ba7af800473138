"""The totals and figures of an SQLite store. No rules."""

from errandry.core.stats import DAY, KEPT, StatsRow
from errandry.store.sqlite.gates import SQL
from errandry.store.sqlite.steps import SqliteSteps
from errandry.store.tables.counters import ROLLED, counters, rolling, summed, within


class SqliteCounters(SqliteSteps):
    """A part of the tables: what was counted up to the event row `_folded`, and since."""

    _folded = 0

    def counters(self) -> dict[str, dict[str, int]]:
        return counters(self._all("totals"), summed(self._all("unfolded")))

    def stats(self, since: float, until: float) -> list[StatsRow]:
        found = [StatsRow(*row) for row in self._all("stats", (since, until))]
        newest = summed(self._all("unfolded")).listed()
        return found + within(newest, since, until)

    def _fold(self) -> None:
        """Add what the event rows since the last time have counted."""
        sums = summed(self._all("unfolded"))
        if sums.last:
            self._db.executemany(SQL["fold"], [(*key, value) for key, value in sums.totals.items()])
            self._db.executemany(SQL["fold_stats"], sums.listed())
            self._run("folded", (sums.last,))
            self._folded = sums.last
            self.is_dirty = True

    def _roll(self, now: float) -> None:
        """Add an hour of minutes that are old to the hours, and a day of hours to the days."""
        for span, into in ROLLED.items():
            [(oldest,)] = self._all("oldest_stats", (span,))
            if (old := rolling(span, oldest, now)) is not None:
                self._run("roll_stats", (span, *old, into))
                self._run("drop_stats", (span, old[1]))
        self._run("drop_stats", (DAY, int(now - KEPT[DAY])))
