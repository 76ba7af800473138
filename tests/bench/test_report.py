"""The figures of a report."""

import pytest

from errandry.bench.report import latency_measurements, percentiles, public_address, rate_measurement


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("sqlite:////home/ada/jobs.db", "sqlite"),
        ("sqlite:///jobs.db?durability=process", "sqlite?durability=process"),
        ("postgresql://ada:secret@db.example/jobs", "postgresql://db.example"),
    ],
)
def test_the_address_of_the_store_has_no_secrets(url: str, shown: str) -> None:
    assert public_address(url) == shown


def test_a_rate_has_its_number_of_jobs_per_raw_write() -> None:
    figure = rate_measurement("drain", "1 worker", [900.0, 1_000.0, 1_200.0], raw=0.002)

    assert (figure.value, figure.low, figure.high) == (1_000.0, 900.0, 1_200.0)
    assert figure.of_raw == pytest.approx(2.0)


def test_a_latency_has_its_length_in_raw_writes() -> None:
    waits = [number / 1_000 for number in range(101)]

    p50, p95, p99 = latency_measurements("latency", "idle", waits, raw=0.01)

    assert [figure.value for figure in (p50, p95, p99)] == pytest.approx([50.0, 95.0, 99.0])
    assert p50.of_raw == pytest.approx(5.0)
    assert p50.name == "idle, p50"


def test_percentiles_go_from_the_minimum_to_the_maximum() -> None:
    marks = percentiles([0.003, 0.001, 0.002])

    assert (marks[0], marks[50], marks[100], len(marks)) == pytest.approx((1.0, 2.0, 3.0, 101))
