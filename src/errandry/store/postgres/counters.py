"""The totals and figures of a PostgreSQL store."""

from errandry.core.stats import DAY, RETENTION, StatsRow
from errandry.store.postgres.array import columns
from errandry.store.postgres.steps import PostgresSteps
from errandry.store.tables.counters import ROLLED_INTO, counters, roll_up_range, rows_between, sum_event_rows

FOLD_MAX = 10_000
"""Maximum number of event rows that one pass folds into totals and figures."""


class PostgresCounters(PostgresSteps):
    """Part of the `Tables` protocol (store/tables/protocol.py)."""

    def counters(self) -> dict[str, dict[str, int]]:
        totals = self._rows("totals")
        newest = sum_event_rows(row[3:] for row in totals if row[3] is not None)
        return counters([row[:3] for row in totals if row[3] is None], newest)

    def stats(self, since: float, until: float) -> list[StatsRow]:
        figures = [StatsRow(*row) for row in self._rows("stats", (since, until))]
        newest = sum_event_rows(self._unfolded_deltas()).stats_rows()
        return figures + rows_between(newest, since, until)

    def _unfolded_deltas(self) -> list[tuple[int, float, str]]:
        """The counter changes of event rows and of the bind inbox that are not folded in yet."""
        return self._rows("unfolded_deltas", (2**62,)) + [
            (0, *row) for row in self._rows("bind_inbox_deltas")
        ]

    def _fold(self) -> None:
        """Fold the counter changes of new event rows into totals and figures."""
        sums = sum_event_rows(self._rows("unfolded_deltas", (FOLD_MAX,)))
        if sums.last:
            if sums.totals:
                self._send("fold_totals", columns((*key, value) for key, value in sums.totals.items()))
            if sums.figures:
                self._send("fold_stats", columns(sums.stats_rows()))
            self._send("save_folded", (sums.last,))

    def _roll_up(self, now: float) -> None:
        """Add the oldest hour of minutes to the hours, and the oldest day of hours to the days, if due."""
        for span in ROLLED_INTO:
            self._prefetch("oldest_stats", (span,))
        for span, into in ROLLED_INTO.items():
            [(oldest,)] = self._rows("oldest_stats", (span,))
            if (old := roll_up_range(span, oldest, now)) is not None:
                self._send("roll_stats", (into, into, into, span, *old))
                self._discard("oldest_stats")
                self._send("drop_stats", (span, old[1]))
        self._send("drop_stats", (DAY, int(now - RETENTION[DAY])))
