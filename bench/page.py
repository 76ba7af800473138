"""docs/benchmarks.md from what the runs have left in build/bench: tables, drawings, and where Errandry loses.

make bench-all       the runs, and then this
python -m bench.page
"""

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from msgspec import json

from bench.peers.table import Results
from bench.peers.table import page as peers_page
from bench.target import compared
from errandry.bench.report import Report, Stress
from errandry.cli.bench import amount

ROOT = Path(__file__).parents[1]
FOUND, DOCS = ROOT / "build" / "bench", ROOT / "docs"
DRAWINGS = ("throughput.svg", "latency.svg", "stress.svg", "peers.svg")


def page(report: Report, stress: Stress, peers: Results) -> str:
    """The whole page."""
    return "\n".join([*_head(report), *_figures(report), *_stress(stress), *_peers(peers)]) + "\n"


def _head(report: Report) -> Iterator[str]:
    machine = report.machine
    yield "# Benchmarks"
    yield ""
    yield (
        "Made by `make bench-all`, which measures everything anew and writes this page. A time or a rate "
        "alone says little on a shared machine: what can be compared is what was measured side by side. "
        "`errandry bench` measures your own machine: [Measuring](guide/bench.md)."
    )
    yield ""
    yield f"{machine.system}, {machine.processors} processors, Python {machine.python}, {report.at}."


def _figures(report: Report) -> Iterator[str]:
    yield ""
    yield "## Errandry on SQLite"
    yield ""
    yield (
        "`errandry bench`, in the default setting: an acknowledged write survives a power cut. In the same "
        f"minutes the disk took {report.raw['writes a second']:,.0f} single durable writes a second, written "
        f"with SQLite and nothing around it; one took {report.raw['p50']:.2f} ms (p50). The last column says "
        "how many jobs there were in the time of one such write, or how many such writes long a latency is."
    )
    yield ""
    yield "| part | what | | least – most | raw writes |"
    yield "| --- | --- | ---: | ---: | ---: |"
    for figure in report.figures:
        spread = "" if figure.low == figure.high else f"{amount(figure.low)} – {amount(figure.high)}"
        raw = "" if figure.of_raw is None else f"{figure.of_raw:,.2f}"
        value = f"{amount(figure.value)} {figure.unit}"
        yield f"| {figure.part} | {figure.name} | {value} | {spread} | {raw} |"
    yield ""
    yield "![Throughput](benchmarks/throughput.svg)"
    yield ""
    yield "![Latency by percentile](benchmarks/latency.svg)"
    yield ""
    yield "What is aimed at, on two processors:"
    yield ""
    yield "| what | should be | was | met |"
    yield "| --- | --- | ---: | --- |"
    yield from compared(report)


def _stress(found: Stress) -> Iterator[str]:
    yield ""
    yield "## Stress test"
    yield ""
    yield (
        f"`errandry bench --stress`: {found.jobs:,} jobs over {found.queues} queues with {found.workers} "
        f"worker processes in {found.seconds:.0f} s ({found.jobs / found.seconds:,.0f} a second). "
        f"{found.killed} workers were killed with -9 meanwhile and {found.totals.get('expired', 0):,} jobs "
        f"taken back from them; {found.totals.get('retried', 0):,} retries. "
        f"{'Every job is accounted for.' if found.is_sound else '**Not every job is accounted for.**'}"
    )
    yield ""
    states = ("completed", "failed", "canceled")
    yield f"| kind | what it must do | jobs | {' | '.join(states)} | wrong |"
    yield f"| --- | --- | {'---: | ' * (len(states) + 2)}".rstrip()
    for one in found.accounts:
        ends = " | ".join(f"{one.states.get(state, 0):,}" for state in states)
        yield f"| {one.kind} | {one.rule} | {one.expected:,} | {ends} | {one.wrong:,} |"
    yield ""
    yield "![Jobs by state over time](benchmarks/stress.svg)"


def _peers(results: Results) -> Iterator[str]:
    yield ""
    yield "## Beside others"
    yield ""
    yield (
        "`python -m bench.peers`: the same work on each, in an environment of its own, taking turns. They do "
        "not promise the same: what each keeps and survives is in the table of the README."
    )
    yield ""
    yield peers_page(results).rstrip()
    yield ""
    yield "![Peers](benchmarks/peers.svg)"


def main() -> None:
    try:
        report = json.decode((FOUND / "report.json").read_bytes(), type=Report)
        stress = json.decode((FOUND / "stress.json").read_bytes(), type=Report).stress
        peers = json.decode((FOUND / "peers.json").read_bytes(), type=Results)
    except FileNotFoundError as error:
        sys.exit(f"{error.filename} is not there yet: run make bench-all")
    if stress is None:
        sys.exit(f"{FOUND / 'stress.json'} is no report of a stress test: run make bench-all")
    (DOCS / "benchmarks").mkdir(exist_ok=True)
    for name in DRAWINGS:
        shutil.copy(FOUND / name, DOCS / "benchmarks" / name)
    (DOCS / "benchmarks.md").write_text(page(report, stress, peers), "utf-8")
    print("\n".join(compared(report)))
    print(f"Written: {DOCS / 'benchmarks.md'}")


if __name__ == "__main__":
    main()
