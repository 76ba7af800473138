"""Rates in numbers: how many are let through, when the next one is, and that no window sees too many."""

from hypothesis import given
from hypothesis import strategies as st

from errandry.core.gate import allowed, next_at, spent
from errandry.core.rule import Rate

rates = st.builds(Rate, st.integers(1, 2_000), st.floats(0.01, 100.0), st.integers(1, 200))
START = 1_700_000_000.0


def test_a_fresh_rate_lets_its_burst_through_and_then_one_by_one() -> None:
    rate, tat, now = Rate(60, 60.0, 3), 0.0, START

    assert allowed(rate, tat, now) == 3
    tat = spent(rate, tat, now, 3)
    assert allowed(rate, tat, now) == 0
    assert next_at(rate, tat, now) == now + 1.0
    assert allowed(rate, tat, now + 0.5) == 0
    assert allowed(rate, tat, now + 1.0) == 1
    assert allowed(rate, tat, now + 3.0) == 3
    assert allowed(rate, tat, now + 300.0) == 3


@given(rates, st.lists(st.floats(0.0, 2.0), min_size=1, max_size=60))
def test_no_period_sees_more_than_count_and_burst(rate: Rate, pauses: list[float]) -> None:
    tat, now, passed = 0.0, START, list[tuple[float, int]]()
    for pause in pauses:
        now += pause * rate.period
        if number := allowed(rate, tat, now):
            tat = spent(rate, tat, now, number)
            passed.append((now, number))

    for begin, _ in passed:
        within = sum(n for at, n in passed if begin <= at < begin + rate.period * 0.999999)
        assert within <= rate.count + rate.burst


@given(rates, st.floats(0.0, 100.0))
def test_who_comes_when_he_was_told_to_is_let_through(rate: Rate, ahead: float) -> None:
    tat = START + ahead * rate.every

    assert allowed(rate, tat, next_at(rate, tat, START)) >= 1
