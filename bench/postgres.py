"""Errandry on PostgreSQL beside pgqueuer and Procrastinate: one server, every commit synced, taking turns.

    python -m bench.postgres                      about five minutes
    python -m bench.postgres --rounds 1 --jobs 5000 --only pgqueuer

Before each phase single rows are committed over one connection, with nothing around them: their rate stands
beside it. A pickup finds everything asleep: how long a single commit takes then is said, too. At the end, the
figures that were promised and what became of them.
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
from bench.peers.program import PAUSE
from bench.peers.sample import Turn
from bench.peers.server import Servers

OURS, FEW, OTHER = "errandry-postgres", "pgqueuer", "procrastinate"
OURS_MANY, MANY = "errandry-postgres-1000", "pgqueuer-1000"
"""The same with a thousand jobs in hand, which matters only to who drains."""
COMMITS, RESTED = 300, 30
PHASES = ("bulk", "drain", "crowd", "rested commit", "pickup p50", "pickup p99")


class Result(Struct, frozen=True):
    """A rate in jobs a second, or a time in ms; and the raw commits a second just before."""

    value: float
    raw: float


Results = dict[tuple[str, str], list[Result]]
"""By phase and system, one for each round."""


def main() -> None:
    options = _options()
    found: Results = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="errandry-bench-", dir=".")))
        servers = Servers(folder.absolute(), stack)
        for number in range(options.rounds):
            for name in (OURS, OURS_MANY, *options.only):
                print(f"round {number + 1} of {options.rounds}: {name}", flush=True)
                own = folder.absolute() / name
                own.mkdir(exist_ok=True)
                turn = Turn(PEERS[name], python_of(PEERS[name]), own)
                for phase, result in _turn(turn, servers, options):
                    found.setdefault((phase, name), []).append(result)
    print(table(found), "", *bars(found), sep="\n")


def _turn(turn: Turn, servers: Servers, options: argparse.Namespace) -> Iterator[tuple[str, Result]]:
    url = servers.empty("postgres")
    raw = commits(url)
    yield "bulk", Result(options.jobs / turn.produce(url, "bulk", options.jobs), raw)
    raw = commits(url)
    yield "drain", Result(turn.drained(url, options.jobs)[0], raw)
    if turn.peer.name in (OURS_MANY, MANY):
        return
    url = servers.empty("postgres")
    raw = commits(url)
    yield "crowd", Result(options.crowd / turn.produce(url, "crowd", options.crowd), raw)
    url = servers.empty("postgres")
    raw = commits(url)
    yield "rested commit", Result(rested_commit(url) * 1_000, raw)
    waits = [wait * 1_000 for wait in turn.at_rest(url, options.pickups)[0]]
    yield "pickup p50", Result(median(waits), raw)
    yield "pickup p99", Result(quantiles(waits, n=100, method="inclusive")[98], raw)


def commits(url: str) -> float:
    """How many single rows one connection commits in a second."""
    return COMMITS / sum(_commits(url, COMMITS, 0.0))


def rested_commit(url: str) -> float:
    """Seconds, in the middle case, to commit a row after a pause as there is before each pickup."""
    return median(_commits(url, RESTED, PAUSE))


def _commits(url: str, count: int, pause: float) -> Iterator[float]:
    with psycopg.connect(url, autocommit=True) as db:
        db.execute("CREATE TABLE IF NOT EXISTS raw (number bigserial PRIMARY KEY, payload text)")
        for _ in range(count):
            if pause:
                time.sleep(pause * random.uniform(0.5, 1.5))
            began = time.perf_counter()
            db.execute("INSERT INTO raw (payload) VALUES ('{}')")
            yield time.perf_counter() - began


def table(found: Results) -> str:
    lines = [f"{'':14} {'system':22} {'middle':>9} {'least':>9} {'most':>9} {'raw/s':>8}"]
    for phase in PHASES:
        for (of, name), results in found.items():
            if of == phase:
                values = [result.value for result in results]
                raw = median(result.raw for result in results)
                numbers = " ".join(f"{one:>9,.1f}" for one in (median(values), min(values), max(values)))
                lines.append(f"{phase:14} {name:22} {numbers} {raw:>8,.0f}")
    return "\n".join(lines)


def bars(found: Results) -> Iterator[str]:
    """What was promised, as ratios of what was measured side by side."""
    for phase, ours, other, least in (
        ("drain", OURS, FEW, 1.5),
        ("drain", OURS_MANY, MANY, 1.0),
        ("bulk", OURS, FEW, 1.2),
    ):
        if (phase, other) in found:
            ratio = _middle(found, phase, ours) / _middle(found, phase, other)
            yield _said(ratio >= least, f"{phase} {ratio:.2f} of {other}'s, promised {least}")
    if ("drain", FEW) in found:
        ratio = _middle(found, "drain", OURS_MANY) / _middle(found, "drain", FEW)
        yield f"       drain {ratio:.2f} of {FEW}'s with a thousand in hand: it has no limit, and fetches 100"
    ratio = median(result.value / result.raw for result in found["crowd", OURS])
    yield _said(ratio >= 5, f"100 callers at once: {ratio:.1f} of the commits of one connection, promised 5")
    p50, p99 = _middle(found, "pickup p50", OURS), _middle(found, "pickup p99", OURS)
    most = median(2_000 / result.raw + 1 for result in found["pickup p50", OURS])
    yield _said(p50 <= most, f"pickup p50 {p50:.1f} ms, promised {most:.1f} (two commits and 1 ms)")
    rested = 2 * _middle(found, "rested commit", OURS) + 1
    yield f"       pickup p50 {p50:.1f} ms; two commits at rest and 1 ms would be {rested:.1f}"
    yield _said(p99 <= 10, f"pickup p99 {p99:.1f} ms, promised 10")


def _middle(found: Results, phase: str, name: str) -> float:
    return median(result.value for result in found[phase, name])


def _said(is_kept: bool, text: str) -> str:
    return f"{'kept  ' if is_kept else 'MISSED'} {text}"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.postgres")
    others = [FEW, MANY, OTHER]
    parser.add_argument("--only", type=lambda text: text.split(","), default=others, help="beside Errandry")
    parser.add_argument("--jobs", type=int, default=20_000, help="enqueued in bulk and drained (20000)")
    parser.add_argument("--crowd", type=int, default=10_000, help="enqueued by 100 callers at once (10000)")
    parser.add_argument("--pickups", type=int, default=100, help="jobs that find the system at rest (100)")
    parser.add_argument("--rounds", type=int, default=3, help="turns for each (3)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
