"""The totals and figures of an SQLite store."""

from errandry.core.stats import DAY, RETENTION, StatsRow
from errandry.store.sqlite.gates import SQL
from errandry.store.sqlite.steps import SqliteSteps
from errandry.store.tables.counters import ROLLED_INTO, counters, roll_up_range, rows_between, sum_event_rows


class SqliteCounters(SqliteSteps):
    """The part of `SqliteTables` that counts. `_folded` is the last event row that is in the totals."""

    _folded = 0

    def counters(self) -> dict[str, dict[str, int]]:
        return counters(self._all("totals"), sum_event_rows(self._all("unfolded_deltas")))

    def stats(self, since: float, until: float) -> list[StatsRow]:
        folded = [StatsRow(*row) for row in self._all("stats", (since, until))]
        newest = sum_event_rows(self._all("unfolded_deltas")).stats_rows()
        return folded + rows_between(newest, since, until)

    def _fold(self) -> None:
        """Add the counter changes of the event rows that are not folded in yet."""
        sums = sum_event_rows(self._all("unfolded_deltas"))
        if sums.last:
            self._db.executemany(SQL["fold_totals"], [(*key, value) for key, value in sums.totals.items()])
            self._db.executemany(SQL["fold_stats"], sums.stats_rows())
            self._run("save_folded", (sums.last,))
            self._folded = sums.last
            self.is_dirty = True

    def _roll(self, now: float) -> None:
        """Roll up the oldest figures: an hour of minutes into the hours, a day of hours into the days."""
        for span, into in ROLLED_INTO.items():
            [(oldest,)] = self._all("oldest_stats", (span,))
            if (old_range := roll_up_range(span, oldest, now)) is not None:
                self._run("roll_stats", (span, *old_range, into))
                self._run("drop_stats", (span, old_range[1]))
        self._run("drop_stats", (DAY, int(now - RETENTION[DAY])))
