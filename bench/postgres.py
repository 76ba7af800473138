"""Compares Errandry on PostgreSQL with pgqueuer and Procrastinate: one server, every commit synced, in turns.

    python -m bench.postgres                      about five minutes
    python -m bench.postgres --rounds 1 --jobs 5000 --only pgqueuer

Before each phase, it measures the rate of single-row commits over one connection, and prints it beside the
result. A pickup finds an idle system, so it also measures a single commit on an idle system. At the end, it
compares the results with the promised figures.
"""

import argparse
import random
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median, quantiles

import psycopg
from msgspec import Struct

from bench.peers.environment import python_of
from bench.peers.peer import PEERS
from bench.peers.program import REST_INTERVAL
from bench.peers.sample import Turn
from bench.peers.server import Servers

OURS, PGQUEUER, PROCRASTINATE = "errandry-postgres", "pgqueuer", "procrastinate"
OURS_LARGE, PGQUEUER_LARGE = "errandry-postgres-1000", "pgqueuer-1000"
"""The same systems with a thousand claimed jobs per worker, which matters only for the drain."""
COMMITS, RESTED_COMMITS = 300, 30
"""Number of raw commits in one measurement: back to back, and on an idle system."""
PHASES = ("bulk", "drain", "crowd", "rested commit", "pickup p50", "pickup p99")


class Result(Struct, frozen=True):
    """A rate in jobs per second or a time in ms, and the raw commits per second just before."""

    value: float
    raw: float


Results = dict[tuple[str, str], list[Result]]
"""The results of all rounds, by phase and system."""


def main() -> None:
    options = _options()
    all_results: Results = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="errandry-bench-", dir=".")))
        servers = Servers(folder.absolute(), stack)
        for number in range(options.rounds):
            for name in (OURS, OURS_LARGE, *options.only):
                print(f"round {number + 1} of {options.rounds}: {name}", flush=True)
                work_folder = folder.absolute() / name
                work_folder.mkdir(exist_ok=True)
                turn = Turn(PEERS[name], python_of(PEERS[name]), work_folder)
                for phase, result in _turn(turn, servers, options):
                    all_results.setdefault((phase, name), []).append(result)
    print(table(all_results), "", *promises(all_results), sep="\n")


def _turn(turn: Turn, servers: Servers, options: argparse.Namespace) -> Iterator[tuple[str, Result]]:
    url = servers.empty("postgres")
    raw = commits(url)
    yield "bulk", Result(options.jobs / turn.produce(url, "bulk", options.jobs), raw)
    raw = commits(url)
    yield "drain", Result(turn.drain(url, options.jobs)[0], raw)
    if turn.peer.name in (OURS_LARGE, PGQUEUER_LARGE):
        return
    url = servers.empty("postgres")
    raw = commits(url)
    yield "crowd", Result(options.crowd / turn.produce(url, "crowd", options.crowd), raw)
    url = servers.empty("postgres")
    raw = commits(url)
    yield "rested commit", Result(rested_commit(url) * 1_000, raw)
    waits = [wait * 1_000 for wait in turn.measure_at_rest(url, options.pickups)[0]]
    yield "pickup p50", Result(median(waits), raw)
    yield "pickup p99", Result(quantiles(waits, n=100, method="inclusive")[98], raw)


def commits(url: str) -> float:
    """The number of single rows that one connection commits per second."""
    return COMMITS / sum(_commits(url, COMMITS, 0.0))


def rested_commit(url: str) -> float:
    """Median seconds to commit a row after the same pause as before a pickup."""
    return median(_commits(url, RESTED_COMMITS, REST_INTERVAL))


def _commits(url: str, count: int, pause: float) -> Iterator[float]:
    with psycopg.connect(url, autocommit=True) as db:
        db.execute("CREATE TABLE IF NOT EXISTS raw (number bigserial PRIMARY KEY, payload text)")
        for _ in range(count):
            if pause:
                time.sleep(pause * random.uniform(0.5, 1.5))
            began = time.perf_counter()
            db.execute("INSERT INTO raw (payload) VALUES ('{}')")
            yield time.perf_counter() - began


def table(all_results: Results) -> str:
    lines = [f"{'':14} {'system':22} {'median':>9} {'least':>9} {'most':>9} {'raw/s':>8}"]
    for phase in PHASES:
        for (of, name), results in all_results.items():
            if of == phase:
                values = [result.value for result in results]
                raw = median(result.raw for result in results)
                numbers = " ".join(f"{value:>9,.1f}" for value in (median(values), min(values), max(values)))
                lines.append(f"{phase:14} {name:22} {numbers} {raw:>8,.0f}")
    return "\n".join(lines)


def promises(all_results: Results) -> Iterator[str]:
    """The promised figures and the measured ones, as ratios of results from the same rounds."""
    for phase, ours, other, least in (
        ("drain", OURS, PGQUEUER, 1.5),
        ("drain", OURS_LARGE, PGQUEUER_LARGE, 1.0),
        ("bulk", OURS, PGQUEUER, 1.2),
    ):
        if (phase, other) in all_results:
            ratio = _median_of(all_results, phase, ours) / _median_of(all_results, phase, other)
            yield _verdict(ratio >= least, f"{phase} {ratio:.2f} of {other}'s, promised {least}")
    if ("drain", PGQUEUER) in all_results:
        ratio = _median_of(all_results, "drain", OURS_LARGE) / _median_of(all_results, "drain", PGQUEUER)
        yield f"       drain {ratio:.2f} of {PGQUEUER}'s with 1000 claimed: it has no limit, and fetches 100"
    ratio = median(result.value / result.raw for result in all_results["crowd", OURS])
    yield _verdict(
        ratio >= 5, f"100 callers at once: {ratio:.1f} of the commits of one connection, promised 5"
    )
    p50, p99 = _median_of(all_results, "pickup p50", OURS), _median_of(all_results, "pickup p99", OURS)
    most = median(2_000 / result.raw + 1 for result in all_results["pickup p50", OURS])
    yield _verdict(p50 <= most, f"pickup p50 {p50:.1f} ms, promised {most:.1f} (two commits and 1 ms)")
    rested = 2 * _median_of(all_results, "rested commit", OURS) + 1
    yield f"       pickup p50 {p50:.1f} ms; two idle commits and 1 ms would be {rested:.1f}"
    yield _verdict(p99 <= 10, f"pickup p99 {p99:.1f} ms, promised 10")


def _median_of(all_results: Results, phase: str, name: str) -> float:
    return median(result.value for result in all_results[phase, name])


def _verdict(is_kept: bool, text: str) -> str:
    return f"{'kept  ' if is_kept else 'MISSED'} {text}"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.postgres")
    others = [PGQUEUER, PGQUEUER_LARGE, PROCRASTINATE]
    parser.add_argument(
        "--only", type=lambda text: text.split(","), default=others, help="systems to compare"
    )
    parser.add_argument("--jobs", type=int, default=20_000, help="enqueued in bulk and drained (20000)")
    parser.add_argument("--crowd", type=int, default=10_000, help="enqueued by 100 callers at once (10000)")
    parser.add_argument("--pickups", type=int, default=100, help="jobs that find an idle system (100)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each system (3)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
