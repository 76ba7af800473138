"""`python -m bench.peers`: the peers take turns; writes peers.md, peers.svg and peers.json."""

import argparse
import random
import signal
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from msgspec import json

from bench.peers.environment import ROOT, NotInstalled, python_of
from bench.peers.peer import PEERS, Peer
from bench.peers.sample import Sample, Turn
from bench.peers.server import Servers
from bench.peers.table import OURS, Results, drawing, page
from errandry.bench.report import machine, timestamp

REASON_MAX = 200


def main() -> None:
    options = _options()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # to end all processes on SIGTERM, too
    try:
        results = _run(options)
    except KeyboardInterrupt:
        sys.exit(130)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "peers.json").write_bytes(json.format(json.encode(results)))
    (options.out / "peers.md").write_text(page(results), "utf-8")
    if results.samples:
        (options.out / "peers.svg").write_text(drawing(results), "utf-8")
    print(page(results))
    sys.exit(0 if any(sample.peer == OURS for sample in results.samples) else 1)


def _run(options: argparse.Namespace) -> Results:
    at, samples, missing = timestamp(), list[Sample](), dict[str, str]()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="errandry-bench-", dir=".")))
        servers = Servers(folder.absolute(), stack)
        pythons = _install(options.only, missing)
        for number in range(options.rounds):
            for name in random.sample(list(pythons), len(pythons)):
                if name in missing:
                    continue
                print(f"round {number + 1} of {options.rounds}: {name}", file=sys.stderr, flush=True)
                try:
                    samples.append(
                        _take_turn(PEERS[name], pythons[name], folder.absolute(), servers, options)
                    )
                except (RuntimeError, OSError, NotInstalled) as error:
                    missing[name] = _last_line(error)
                    print(f"  {missing[name]}", file=sys.stderr, flush=True)
    return Results(
        at=at,
        machine=machine(),
        jobs=options.jobs,
        pickups=options.pickups,
        rounds=options.rounds,
        samples=[sample for sample in samples if sample.peer not in missing],
        missing=missing,
    )


def _install(names: list[str], missing: dict[str, str]) -> dict[str, Path]:
    """The interpreters of the peers that can be installed; the others are added to `missing`."""
    pythons = {}
    for name in names:
        try:
            pythons[name] = python_of(PEERS[name])
        except (NotInstalled, OSError) as error:
            missing[name] = f"it cannot be installed: {_last_line(error)}"
            print(f"{name}: {missing[name]}", file=sys.stderr, flush=True)
    return pythons


def _take_turn(
    peer: Peer, python: Path, folder: Path, servers: Servers, options: argparse.Namespace
) -> Sample:
    own_folder = folder / peer.name
    own_folder.mkdir(exist_ok=True)
    turn = Turn(peer, python, own_folder)
    return turn.take(servers.empty, options.jobs, options.pickups)


def _last_line(error: Exception) -> str:
    """The last line of an error, which has the message of a traceback."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[-1].replace("|", "/")[:REASON_MAX]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description=__doc__)
    parser.add_argument(
        "--only", type=_names, default=list(PEERS), help="peers to run, such as huey,rq; Errandry always runs"
    )
    parser.add_argument(
        "--jobs", type=int, default=3_000, help="jobs enqueued and drained in each turn; default: 3000"
    )
    parser.add_argument(
        "--pickups", type=int, default=30, help="jobs enqueued while idle in each turn; default: 30"
    )
    parser.add_argument("--rounds", type=int, default=3, help="turns of each peer; default: 3")
    parser.add_argument(
        "--out", type=Path, default=ROOT / "build" / "bench", help="output folder; default: build/bench"
    )
    return parser.parse_args()


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in PEERS:
            raise argparse.ArgumentTypeError(f"there is no {name!r}: choose from {', '.join(PEERS)}")
    return list(dict.fromkeys([OURS, *names]))


if __name__ == "__main__":
    main()
