"""The totals and figures of a PostgreSQL store. No rules."""

from errandry.core.stats import DAY, KEPT, StatsRow
from errandry.store.postgres.array import columns
from errandry.store.postgres.steps import PostgresSteps
from errandry.store.tables.counters import ROLLED, counters, rolling, summed, within

FOLD_MAX = 10_000


class PostgresCounters(PostgresSteps):
    """Part of what `store.tables.Tables` asks for."""

    def counters(self) -> dict[str, dict[str, int]]:
        found = self._all("totals")
        newest = summed(row[3:] for row in found if row[3] is not None)
        return counters([row[:3] for row in found if row[3] is None], newest)

    def stats(self, since: float, until: float) -> list[StatsRow]:
        found = [StatsRow(*row) for row in self._all("stats", (since, until))]
        newest = summed(self._uncounted()).listed()
        return found + within(newest, since, until)

    def _uncounted(self) -> list[tuple[int, float, str]]:
        """The event rows that are not added up yet, and those without a number."""
        return self._all("unfolded", (2**62,)) + [(0, *row) for row in self._all("unnumbered")]

    def _fold(self) -> None:
        """Add what the event rows since the last time have counted."""
        sums = summed(self._all("unfolded", (FOLD_MAX,)))
        if sums.last:
            if sums.totals:
                self._run("fold", columns((*key, value) for key, value in sums.totals.items()))
            if sums.figures:
                self._run("fold_stats", columns(sums.listed()))
            self._run("folded", (sums.last,))

    def _roll(self, now: float) -> None:
        """Add an hour of minutes that are old to the hours, and a day of hours to the days."""
        for span in ROLLED:
            self._ask("oldest_stats", (span,))
        for span, into in ROLLED.items():
            [(oldest,)] = self._all("oldest_stats", (span,))
            if (old := rolling(span, oldest, now)) is not None:
                self._run("roll_stats", (into, into, into, span, *old))
                self._unask("oldest_stats")
                self._run("drop_stats", (span, old[1]))
        self._run("drop_stats", (DAY, int(now - KEPT[DAY])))
