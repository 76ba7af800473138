"""A virtual environment for each peer, created when it is first needed and kept under build/peers."""

import os
import subprocess
import sys
import venv
from pathlib import Path

from bench.peers.peer import Peer

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "build" / "peers"
INSTALL_TIMEOUT = 600.0
REASON_MAX = 300


class NotInstalled(Exception):
    """The peer cannot be installed; the text says why."""


def python_of(peer: Peer) -> Path:
    """The interpreter of the peer's environment; for Errandry, this interpreter."""
    return make_environment(peer.program, peer.needs) if peer.needs else Path(sys.executable)


def make_environment(name: str, needs: tuple[str, ...]) -> Path:
    """Create the environment with these packages if needed, and return its interpreter."""
    folder = FOLDER / name
    python, ready = folder / "bin" / "python", folder / "ready"
    requirements = "\n".join(needs)
    if ready.exists() and ready.read_text("utf-8") == requirements:
        return python
    venv.create(folder, clear=True, with_pip=False)
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", *needs]
    done = subprocess.run(pip, capture_output=True, text=True, check=False, timeout=INSTALL_TIMEOUT)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or [done.stderr]
        raise NotInstalled(lines[-1][:REASON_MAX].strip())
    ready.write_text(requirements, "utf-8")
    return python


def peer_environment(peer: Peer, url: str, marks: Path) -> dict[str, str]:
    """The environment variables of a peer's program. Errandry is imported from this checkout."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("ERRANDRY_")}
    path = os.pathsep.join((str(ROOT), str(ROOT / "src")))
    own = {"PEER_URL": url, "PEER_MARKS": str(marks), "PEER_BATCH": str(peer.batch)}
    return inherited | {"PYTHONPATH": path} | own
