"""A virtual environment for each peer, made when it is first needed and kept under build/peers."""

import os
import subprocess
import sys
import venv
from pathlib import Path

from bench.peers.peer import Peer

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "build" / "peers"
PATIENCE = 600.0
LAST_WORDS = 300


class NotInstalled(Exception):
    """The peer cannot be had here; its text says why."""


def python_of(peer: Peer) -> Path:
    """An interpreter that has the peer, and not Errandry's own packages; ours for Errandry itself."""
    return made(peer.program, peer.needs) if peer.needs else Path(sys.executable)


def made(name: str, needs: tuple[str, ...]) -> Path:
    """The interpreter of an environment with these packages, from the index pip is configured for."""
    folder = FOLDER / name
    python, ready = folder / "bin" / "python", folder / "ready"
    wanted = "\n".join(needs)
    if ready.exists() and ready.read_text("utf-8") == wanted:
        return python
    venv.create(folder, clear=True, with_pip=False)
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", *needs]
    done = subprocess.run(pip, capture_output=True, text=True, check=False, timeout=PATIENCE)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or [done.stderr]
        raise NotInstalled(lines[-1][:LAST_WORDS].strip())
    ready.write_text(wanted, "utf-8")
    return python


def surroundings(peer: Peer, url: str, marks: Path) -> dict[str, str]:
    """What a program of a peer finds in its environment. Errandry is that of this checkout."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ERRANDRY_")}
    path = os.pathsep.join((str(ROOT), str(ROOT / "src")))
    given = {"PEER_URL": url, "PEER_MARKS": str(marks), "PEER_BATCH": str(peer.batch)}
    return kept | {"PYTHONPATH": path} | given
