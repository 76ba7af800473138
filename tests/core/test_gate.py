"""The arithmetic of rates (GCRA): how many jobs are allowed, when the next one is, the maximum per period."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from errandry.core.gate import (
    GateKind,
    ResetRule,
    allowed_now,
    next_allowed_at,
    tat_after,
    tat_for_new_rate,
)
from errandry.core.rule import Rate
from errandry.errors import InvalidValue

rates = st.builds(Rate, st.integers(1, 2_000), st.floats(0.01, 100.0), st.integers(1, 200))
START = 1_700_000_000.0


def test_an_unused_rate_allows_its_burst_and_then_one_job_at_a_time() -> None:
    rate, tat, now = Rate(60, 60.0, 3), 0.0, START

    assert allowed_now(rate, tat, now) == 3
    tat = tat_after(rate, tat, now, 3)
    assert allowed_now(rate, tat, now) == 0
    assert next_allowed_at(rate, tat, now) == now + 1.0
    assert allowed_now(rate, tat, now + 0.5) == 0
    assert allowed_now(rate, tat, now + 1.0) == 1
    assert allowed_now(rate, tat, now + 3.0) == 3
    assert allowed_now(rate, tat, now + 300.0) == 3


@given(rates, st.lists(st.floats(0.0, 2.0), min_size=1, max_size=60))
def test_no_period_has_more_jobs_than_count_and_burst(rate: Rate, pauses: list[float]) -> None:
    tat, now, passed = 0.0, START, list[tuple[float, int]]()
    for pause in pauses:
        now += pause * rate.period
        if number := allowed_now(rate, tat, now):
            tat = tat_after(rate, tat, now, number)
            passed.append((now, number))

    for begin, _ in passed:
        within = sum(n for at, n in passed if begin <= at < begin + rate.period * 0.999999)
        assert within <= rate.count + rate.burst


@given(rates, st.floats(0.0, 100.0))
def test_a_job_is_allowed_at_the_announced_time(rate: Rate, ahead: float) -> None:
    tat = START + ahead * rate.every

    assert allowed_now(rate, tat, next_allowed_at(rate, tat, START)) >= 1


@given(rates, rates, st.integers(1, 200))
def test_a_changed_rate_delays_the_next_job_by_no_more_than_its_own_interval(
    old: Rate, new: Rate, used: int
) -> None:
    tat = tat_for_new_rate(new, tat_after(old, 0.0, START, used), START)

    assert next_allowed_at(new, tat, START) - START <= new.every + 1e-6
    assert tat_for_new_rate(None, tat, START) == 0.0


def test_a_reset_takes_true_or_false_for_what_code_declares() -> None:
    with pytest.raises(InvalidValue, match="declared='x': must be True or False"):
        ResetRule(GateKind.QUEUE, "mail", declared="x")  # type: ignore[arg-type]
