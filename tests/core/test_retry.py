"""Delays between attempts: their curve, their jitter and their cap."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from errandry.core.retry import DEFAULT_BACKOFF, Backoff, Curve
from errandry.errors import InvalidValue

starts = st.floats(0, 1e6)
shares = st.floats(0, 1)
attempts = st.integers(1, 10_000)
seeds = st.text(max_size=40)


def delays(backoff: Backoff, count: int = 4) -> list[float]:
    return [backoff.delay(attempt, "job") for attempt in range(1, count + 1)]


@pytest.mark.parametrize(
    ("backoff", "expected"),
    [
        (Backoff(Curve.EXPONENTIAL, 1.0, jitter=0.0), [1, 2, 4, 8]),
        (Backoff(Curve.EXPONENTIAL, 2.0, jitter=0.0), [2, 4, 8, 16]),
        (Backoff(Curve.LINEAR, 2.0, jitter=0.0), [2, 4, 6, 8]),
        (Backoff(Curve.FIXED, 2.0, jitter=0.0), [2, 2, 2, 2]),
        (Backoff(Curve.EXPONENTIAL, 1.0, cap=3.0, jitter=0.0), [1, 2, 3, 3]),
        (Backoff(Curve.EXPONENTIAL, 0.0), [0, 0, 0, 0]),
    ],
)
def test_without_jitter_the_delays_follow_the_curve(backoff: Backoff, expected: list[float]) -> None:
    assert delays(backoff) == expected


def test_the_default_backoff() -> None:
    assert Backoff(Curve.EXPONENTIAL, start=1.0, cap=3_600.0, jitter=0.25, function=None) == DEFAULT_BACKOFF


@given(st.sampled_from(Curve), starts, shares, attempts, seeds)
def test_jitter_stays_within_its_share(
    curve: Curve, start: float, jitter: float, attempt: int, seed: str
) -> None:
    plain = Backoff(curve, start, 1e9, 0.0).delay(attempt, seed)
    spread = Backoff(curve, start, 1e9, jitter).delay(attempt, seed)

    assert min(plain * (1 - jitter) * 0.999_999, 1e9) <= spread <= min(plain * (1 + jitter) * 1.000_001, 1e9)


@given(st.sampled_from(Curve), starts, st.floats(0, 1e5), shares, attempts, seeds)
def test_the_cap_is_applied_last(
    curve: Curve, start: float, cap: float, jitter: float, attempt: int, seed: str
) -> None:
    free = Backoff(curve, start, 3e9, jitter).delay(attempt, seed)

    assert Backoff(curve, start, cap, jitter).delay(attempt, seed) == min(free, cap)


@given(attempts, seeds)
def test_the_same_seed_gives_the_same_delay(attempt: int, seed: str) -> None:
    assert DEFAULT_BACKOFF.delay(attempt, seed) == Backoff().delay(attempt, seed)


def test_every_program_computes_the_same_delay() -> None:
    assert [round(delay, 6) for delay in delays(Backoff())] == [1.039154, 1.718256, 3.333134, 6.785873]


def test_jitter_varies_by_job_and_attempt_over_its_whole_range() -> None:
    fixed = Backoff(Curve.FIXED, 1.0, jitter=0.25)
    by_job = [fixed.delay(1, f"job-{number}") for number in range(1_000)]
    by_attempt = [fixed.delay(number, "job") for number in range(1, 1_000)]

    for delays in (by_job, by_attempt):
        assert len(set(delays)) > 990
        assert 0.75 <= min(delays) < 0.76
        assert 1.24 < max(delays) < 1.25
        assert abs(sum(delays) / len(delays) - 1) < 0.02


def test_a_very_high_attempt_does_not_overflow() -> None:
    assert Backoff(start=1.0, jitter=0.0).delay(10**9, "job") == 3_600.0


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"start": -1.0}, "backoff.start"),
        ({"start": float("nan")}, "backoff.start"),
        ({"cap": -1.0}, "backoff.cap"),
        ({"cap": float("inf")}, "backoff.cap"),
        ({"jitter": -0.01}, "backoff.jitter"),
        ({"jitter": 1.01}, "backoff.jitter"),
        ({"jitter": float("nan")}, "backoff.jitter"),
        ({"jitter": True}, "backoff.jitter"),
        ({"function": ""}, "backoff.function"),
    ],
)
def test_an_invalid_backoff_is_refused_by_the_name_of_its_field(fields: dict[str, float], name: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        Backoff(**fields)  # type: ignore[arg-type]

    assert caught.value.name == name


@pytest.mark.parametrize(
    ("backoff", "words"),
    [
        (Backoff(), "exponential from 1s"),
        (Backoff(Curve.LINEAR, 5.0), "linear from 5s"),
        (Backoff(Curve.FIXED, 30.0, jitter=0.0), "30s"),
        (Backoff(Curve.FIXED, 30.0), "fixed from 30s"),
        (Backoff(Curve.EXPONENTIAL, 2.0, 600.0, 0.1), "exponential from 2s up to 10m, jitter 0.1"),
        (Backoff(function="slowly"), "slowly"),
    ],
)
def test_a_backoff_is_written_in_words(backoff: Backoff, words: str) -> None:
    assert str(backoff) == words
