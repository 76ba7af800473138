"""The charts of a report: throughput, latency, and the course of a stress test."""

from errandry.bench.report import Measurement, Report
from errandry.bench.svg import Bar, Panel, bars, curves, layers
from errandry.core.state import State

STATE_COLORS = {
    State.COMPLETED: "#5c9663",
    State.FAILED: "#b5483c",
    State.CANCELED: "#9aa3ad",
    State.CLAIMED: "#7cc0cf",
    State.RUNNING: "#2f8fa8",
    State.WAITING: "#e0b84a",
    State.SCHEDULED: "#86a6d6",
}
"""The color of each state in the stress chart, in the order of the layers, from the bottom."""


def drawings(report: Report) -> dict[str, str]:
    """SVG documents by file name, only for figures that the report has."""
    documents = {}
    if rates := [figure for figure in report.figures if figure.unit == "jobs/s"]:
        documents["throughput.svg"] = _throughput(report, rates)
    if report.curves:
        title = f"Latency by percentile: from the enqueue call to the handler ({report.store})"
        documents["latency.svg"] = curves(title, report.curves, report.raw.get("p50"))
    if report.stress is not None and len(report.stress.timeline) > 1:
        times = [at for at, _ in report.stress.timeline]
        amounts = {
            (str(state), color): [states.get(state, 0) for _, states in report.stress.timeline]
            for state, color in STATE_COLORS.items()
        }
        title = f"Stress test: {report.stress.jobs:,} jobs, {report.stress.killed} workers killed"
        documents["stress.svg"] = layers(title, times, amounts)
    return documents


def _throughput(report: Report, rates: list[Measurement]) -> str:
    lines = [
        Bar(
            f"{figure.part}, {figure.name}",
            figure.value,
            figure.low,
            figure.high,
            is_ours=True,
            text=f"{figure.value:,.0f}",
        )
        for figure in rates
    ]
    raw = ("raw single writes", report.raw["writes a second"]) if report.raw else None
    return bars(f"Throughput ({report.store})", [Panel("jobs a second", lines, line=raw)])
