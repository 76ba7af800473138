"""Statistics by time: buckets, quantiles, slices of a time."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from errandry.core.duration import as_datetime
from errandry.core.stats import BOUNDS, MINUTE, RUNS, WAITS, DurationHistogram, StatsRow, bucket, stats
from errandry.errors import InvalidValue


def figure(name: str, value: int, at: int = 0, queue: str = "a", task: str = "t") -> StatsRow:
    return StatsRow(MINUTE, at, queue, task, name, value)


@given(st.lists(st.floats(0.0, 1e6), min_size=1, max_size=50), st.floats(0.0, 1.0))
def test_a_quantile_is_at_most_the_next_bound_above_it(times: list[float], share: float) -> None:
    runs = stats([figure(bucket(RUNS, time), 1) for time in times], 0.0, 60.0).total.run

    true = sorted(times)[max(0, math.ceil(share * len(times)) - 1)]
    assert runs.count == len(times)
    assert runs.quantile(share) == min(bound for bound in BOUNDS if bound >= true)


def test_a_duration_above_all_bounds_is_counted() -> None:
    assert stats([figure(bucket(WAITS, 1e9), 1)], 0.0, 60.0).total.wait.quantile(0.5) == math.inf


def test_an_empty_histogram_has_no_quantile() -> None:
    assert DurationHistogram().quantile(0.5) is None
    with pytest.raises(InvalidValue, match=r"share=1\.5"):
        DurationHistogram().quantile(1.5)


def test_statistics_by_queue_and_by_task() -> None:
    statistics = stats(
        [
            figure("total.completed", 3, queue="a", task="s"),
            figure("total.completed", 2, queue="b", task="s"),
            figure("total.failed", 1, queue="b", task="t"),
        ],
        0.0,
        60.0,
    )

    assert (statistics.total.counts.completed, statistics.total.counts.failed, statistics.total.rate) == (
        5,
        1,
        0.1,
    )
    assert {name: sums.counts.completed for name, sums in statistics.queues.items()} == {"a": 3, "b": 2}
    assert {name: sums.counts.failed for name, sums in statistics.tasks.items()} == {"s": 0, "t": 1}


def test_a_series_has_slices_of_equal_length() -> None:
    statistics = stats([figure("total.completed", n, at=n * MINUTE) for n in range(10)], 0.0, 600.0)

    assert [part.counts.completed for part in statistics.series(5)] == [1, 5, 9, 13, 17]
    assert [part.at for part in statistics.series(2)] == [as_datetime(0.0), as_datetime(300.0)]
    with pytest.raises(InvalidValue, match="parts=0"):
        statistics.series(0)


def test_the_time_extends_to_the_ends_of_its_rows() -> None:
    statistics = stats([StatsRow(3_600, 0, "a", "t", "total.completed", 36)], 3_000.0, 3_300.0)

    assert (statistics.since, statistics.until) == (as_datetime(0.0), as_datetime(3_600.0))
    assert statistics.total.rate == 0.01
