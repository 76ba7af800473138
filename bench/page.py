"""Write docs/benchmarks.md from the results in build/bench: tables, charts, and where Errandry loses.

make bench-all       runs all benchmarks, and then this
python -m bench.page
"""

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from msgspec import json

from bench.peers.table import Results
from bench.peers.table import page as peers_page
from bench.target import target_rows
from errandry.bench.report import Report, Stress
from errandry.cli.bench import format_number

ROOT = Path(__file__).parents[1]
RESULTS, DOCS = ROOT / "build" / "bench", ROOT / "docs"
DRAWINGS = ("throughput.svg", "latency.svg", "stress.svg", "peers.svg")


def page(report: Report, stress: Stress, peers: Results) -> str:
    """The text of the page."""
    return "\n".join([*_head(report), *_figures(report), *_stress(stress), *_peers(peers)]) + "\n"


def _head(report: Report) -> Iterator[str]:
    machine = report.machine
    yield "# Benchmarks"
    yield ""
    yield (
        "Written by `make bench-all`, which runs all benchmarks. A single time or rate says little on a "
        "shared machine: compare only figures that were measured side by side. "
        "`errandry bench` measures your own machine: [Benchmarking](guide/bench.md)."
    )
    yield ""
    yield f"{machine.system}, {machine.processors} processors, Python {machine.python}, {report.at}."


def _figures(report: Report) -> Iterator[str]:
    yield ""
    yield "## Errandry on SQLite"
    yield ""
    yield (
        "`errandry bench` with the default durability: an acknowledged write survives a power cut. In the "
        "same minutes, raw writes (one row per SQLite transaction) ran at "
        f"{report.raw['writes a second']:,.0f} per second; one took {report.raw['p50']:.2f} ms (p50). "
        "The last column is the number of jobs in the time of one raw write or, for a latency, its length in "
        "raw writes."
    )
    yield ""
    yield "| part | what | median | min – max | raw writes |"
    yield "| --- | --- | ---: | ---: | ---: |"
    for figure in report.figures:
        spread = (
            "" if figure.low == figure.high else f"{format_number(figure.low)} – {format_number(figure.high)}"
        )
        raw = "" if figure.of_raw is None else f"{figure.of_raw:,.2f}"
        value = f"{format_number(figure.value)} {figure.unit}"
        yield f"| {figure.part} | {figure.name} | {value} | {spread} | {raw} |"
    yield ""
    yield "[![Throughput](benchmarks/throughput.svg)](benchmarks/throughput.svg)"
    yield ""
    yield "[![Latency by percentile](benchmarks/latency.svg)](benchmarks/latency.svg)"
    yield ""
    yield "Targets on two processors:"
    yield ""
    yield "| what | target | measured (cancel: maximum) | met |"
    yield "| --- | --- | ---: | --- |"
    yield from target_rows(report)


def _stress(stress: Stress) -> Iterator[str]:
    yield ""
    yield "## Stress test"
    yield ""
    yield (
        f"`errandry bench --stress`: {stress.jobs:,} jobs in {stress.queues} queues with {stress.workers} "
        f"worker processes in {stress.seconds:.0f} s ({stress.jobs / stress.seconds:,.0f} per second). "
        f"{stress.killed} workers were killed with -9; {stress.totals.get('expired', 0):,} leases expired, "
        f"and {stress.totals.get('retried', 0):,} attempts were retried. "
        + (
            "Every job ended as expected."
            if stress.is_sound
            else "**Some jobs are missing or ended in a wrong state.**"
        )
    )
    yield ""
    states = ("completed", "failed", "canceled")
    yield f"| kind | expected end | jobs | {' | '.join(states)} | wrong |"
    yield f"| --- | --- | {'---: | ' * (len(states) + 2)}".rstrip()
    for result in stress.accounts:
        counts = " | ".join(f"{result.states.get(state, 0):,}" for state in states)
        yield f"| {result.kind} | {result.rule} | {result.expected:,} | {counts} | {result.wrong:,} |"
    yield ""
    yield "[![Jobs by state over time](benchmarks/stress.svg)](benchmarks/stress.svg)"


def _peers(results: Results) -> Iterator[str]:
    yield ""
    yield "## Other systems"
    yield ""
    yield (
        "`python -m bench.peers` gives the same work to each system, in separate environments, taking turns. "
        "Their guarantees differ; the column “set up” says whether results are kept."
    )
    yield ""
    yield peers_page(results).rstrip()
    yield ""
    yield "[![Peers](benchmarks/peers.svg)](benchmarks/peers.svg)"


def main() -> None:
    try:
        report = json.decode((RESULTS / "report.json").read_bytes(), type=Report)
        stress = json.decode((RESULTS / "stress.json").read_bytes(), type=Report).stress
        peers = json.decode((RESULTS / "peers.json").read_bytes(), type=Results)
    except FileNotFoundError as error:
        sys.exit(f"{error.filename} does not exist yet: run make bench-all")
    if stress is None:
        sys.exit(f"{RESULTS / 'stress.json'} has no stress test: run make bench-all")
    (DOCS / "benchmarks").mkdir(exist_ok=True)
    for name in DRAWINGS:
        shutil.copy(RESULTS / name, DOCS / "benchmarks" / name)
    (DOCS / "benchmarks.md").write_text(page(report, stress, peers), "utf-8")
    print("\n".join(target_rows(report)))
    print(f"Wrote {DOCS / 'benchmarks.md'}")


if __name__ == "__main__":
    main()
