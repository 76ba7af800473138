"""Compare the working tree with another commit: both run `errandry bench` on each store, taking turns.

    python -m bench.compare 1a0c424                       the drain, five rounds, about five minutes
    python -m bench.compare 1a0c424 --only drain,pickup --rounds 3

Prints the median of each figure and their ratio; above 1 the working tree is better.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from bench.peers.server import SYNCED_SETTINGS
from bench.stores import STORES
from tests.store.server import Server

ROOT = Path(__file__).parents[1]

Figures = dict[tuple[str, str, str], list[float]]
"""The values of all rounds, by store, name of the figure, and side: `old` or `new`."""


def main() -> None:
    options = _options()
    figures: Figures = defaultdict(list)
    units: dict[str, dict[str, Any]] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="errandry-bench-", dir=".")))
        sources = {"old": _sources_of(options.commit, folder.absolute()), "new": ROOT / "src"}
        server = Server(**SYNCED_SETTINGS)
        stack.callback(server.remove)
        for number in range(options.rounds):
            sides = sorted(sources, reverse=number % 2 == 1)
            for store in STORES:
                for side in sides:
                    print(f"round {number + 1} of {options.rounds}: {store}, {side}", file=sys.stderr)
                    url = server.new_url() if store == "postgres" else None
                    for figure in _measure(sources[side], folder, url, options.only):
                        units[figure["name"]] = figure
                        figures[store, figure["name"], side].append(figure["value"])
    for store, name in dict.fromkeys((store, name) for store, name, _ in figures):
        old, new = median(figures[store, name, "old"]), median(figures[store, name, "new"])
        ratio = new / old if units[name]["better"] == "more" else old / new
        print(f"{store:9} {name:40} {old:12,.2f} -> {new:12,.2f} {units[name]['unit']:8} ratio {ratio:.2f}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("commit", help="the commit to compare with")
    parser.add_argument("--only", default="drain", help="parts of errandry bench; default: drain")
    parser.add_argument("--rounds", type=int, default=5)
    return parser.parse_args()


def _sources_of(commit: str, folder: Path) -> Path:
    """Write `src` as it was at `commit` to `folder`, and return its path."""
    archive = subprocess.run(["git", "archive", commit, "src"], cwd=ROOT, check=True, stdout=subprocess.PIPE)
    subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
    return folder / "src"


def _measure(source: Path, folder: Path, url: str | None, parts: str) -> list[dict[str, Any]]:
    """The figures of `errandry bench` with the package in `source`, in a new SQLite file or at `url`."""
    command = [sys.executable, "-m", "errandry", "bench", "--only", parts, "--json"]
    run = subprocess.run(
        [*command, "--url", url] if url else command,
        env=os.environ | {"PYTHONPATH": str(source)},
        cwd=folder,
        check=True,
        stdout=subprocess.PIPE,
    )
    figures: list[dict[str, Any]] = json.loads(run.stdout)["figures"]
    return figures


if __name__ == "__main__":
    main()
