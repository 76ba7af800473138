"""The page of the benchmarks: everything that was found, and whether it is what is aimed at."""

import re

from bench.page import DRAWINGS, page
from bench.target import TARGETS, target_rows
from errandry.bench.report import KindResult, Measurement, Report, Stress, machine
from tests.bench.samples import make_results, make_sample


def _report(value: float) -> Report:
    figures = [
        Measurement(
            part=target.part,
            name=target.name,
            value=value,
            unit="jobs/s" if target.part in ("enqueue", "drain") else "ms",
            low=value,
            high=value,
            better="more" if target.part in ("enqueue", "drain") else "less",
        )
        for target in TARGETS
    ]
    return Report(
        at="2026-01-01T00:00:00+00:00",
        store="sqlite",
        durable="power",
        quick=False,
        seconds=60.0,
        machine=machine(),
        raw={"writes a second": 4_000.0, "p50": 0.2, "p95": 0.3, "p99": 0.5},
        figures=figures,
    )


def _stress(wrong: int) -> Stress:
    account = KindResult(kind="plain", rule="completes", expected=100, states={"completed": 100}, wrong=wrong)
    return Stress(
        jobs=100,
        queues=16,
        workers=4,
        killed=6,
        seconds=10.0,
        totals={"inserted": 100, "completed": 100, "expired": 7, "retried": 30},
        accounts=[account],
        faults=["plain job 1 is gone"] * wrong,
        timeline=[],
    )


def test_the_page_has_every_table_and_drawing() -> None:
    text = page(_report(20_000.0), _stress(0), make_results(make_sample("errandry")))

    assert set(re.findall(r"\(benchmarks/([^)]+)\)", text)) == set(DRAWINGS)
    assert "| plain | completes | 100 | 100 | 0 | 0 | 0 |" in text
    assert "Every job ended as expected." in text
    assert "| **errandry** | sqlite |" in text


def test_a_missing_job_is_reported_in_bold() -> None:
    text = page(_report(20_000.0), _stress(1), make_results(make_sample("errandry")))

    assert "**Some jobs are missing or ended in a wrong state.**" in text


def test_figures_are_compared_with_their_targets() -> None:
    good = {row.split(" | ")[0]: row for row in target_rows(_report(20_000.0))}
    slow = {row.split(" | ")[0]: row for row in target_rows(_report(1.0))}

    assert good["| drain: 1 worker, preloaded"].endswith("| at least 12,000 jobs/s | 20,000 | yes |")
    assert good["| footprint: from errandry import Errandry"].endswith("| **no** |")
    assert slow["| drain: 1 worker, preloaded"].endswith("| **no** |")
    assert slow["| footprint: from errandry import Errandry"].endswith("| yes |")
    assert len(good) == len(TARGETS)
