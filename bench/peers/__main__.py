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
from errandry.bench.report import machine, now

LAST_WORDS = 200


def main() -> None:
    options = _options()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that everything is ended then, too
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
    at, samples, missing = now(), list[Sample](), dict[str, str]()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="errandry-bench-", dir=".")))
        servers = Servers(folder.absolute(), stack)
        pythons = _installed(options.only, missing)
        for number in range(options.rounds):
            for name in random.sample(list(pythons), len(pythons)):
                if name in missing:
                    continue
                print(f"round {number + 1} of {options.rounds}: {name}", file=sys.stderr, flush=True)
                try:
                    samples.append(_turn(PEERS[name], pythons[name], folder.absolute(), servers, options))
                except (RuntimeError, OSError, NotInstalled) as error:
                    missing[name] = _reason(error)
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


def _installed(names: list[str], missing: dict[str, str]) -> dict[str, Path]:
    """The interpreters of those that can be had here; the others are said to be missing."""
    found = {}
    for name in names:
        try:
            found[name] = python_of(PEERS[name])
        except (NotInstalled, OSError) as error:
            missing[name] = f"it cannot be installed here: {_reason(error)}"
            print(f"{name}: {missing[name]}", file=sys.stderr, flush=True)
    return found


def _turn(peer: Peer, python: Path, folder: Path, servers: Servers, options: argparse.Namespace) -> Sample:
    own = folder / peer.name
    own.mkdir(exist_ok=True)
    turn = Turn(peer, python, own)
    return turn.take(servers.empty, options.jobs, options.pickups)


def _reason(error: Exception) -> str:
    """The last line of what went wrong, which is where programs say it."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[-1].replace("|", "/")[:LAST_WORDS]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description=__doc__)
    parser.add_argument("--only", type=_names, default=list(PEERS), help="such as huey,rq; Errandry always")
    parser.add_argument("--jobs", type=int, default=3_000, help="enqueued and drained in each turn (3000)")
    parser.add_argument("--pickups", type=int, default=30, help="jobs that find the system at rest (30)")
    parser.add_argument("--rounds", type=int, default=3, help="turns for each (3)")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "bench", help="a folder (build/bench)")
    return parser.parse_args()


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in PEERS:
            raise argparse.ArgumentTypeError(f"there is no {name!r}: choose from {', '.join(PEERS)}")
    return list(dict.fromkeys([OURS, *names]))


if __name__ == "__main__":
    main()
