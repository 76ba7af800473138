"""One turn of one peer: pickup at rest, then a backlog enqueued one by one and drained by a worker."""

import json
import os
import resource
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from msgspec import Struct

from bench.peers.environment import surroundings
from bench.peers.peer import Peer
from bench.peers.work import marked, marks

WARMING = 5
"""So many first jobs, which meet a worker that has only just started, are not counted."""
CAP = 5.0
"""After so many seconds of draining, the rate is that of what has run."""
PATIENCE = 60.0
SLOWEST = 50
"""Who enqueues fewer jobs a second is not waited for."""
GRACE = 10.0
PAGE = 4_096


class Sample(Struct, frozen=True, kw_only=True):
    """What one turn found. `fsync` is what a synced write of a page took just before."""

    peer: str
    enqueue: float
    drain: float
    is_cut: bool
    latencies: list[float]
    memory: float
    fsync: float


class Turn:
    """A peer's programs, run by its own interpreter on an empty store."""

    def __init__(self, peer: Peer, python: Path, folder: Path) -> None:
        self.peer, self._folder = peer, folder
        self._command = [str(python), "-P", "-m", "bench.peers.program", peer.program]
        self._marks = folder / "marks"

    def take(self, empty: Callable[[str], str], jobs: int, pickups: int) -> Sample:
        """`empty` gives the address of an empty store of a kind."""
        fsync = fsyncs(self._folder)
        latencies, memory = self.at_rest(empty(self.peer.server), pickups)
        url = empty(self.peer.server)
        enqueue = jobs / self.produce(url, "put", jobs)
        drain, is_cut = self.drained(url, jobs)
        return Sample(
            peer=self.peer.name,
            enqueue=enqueue,
            drain=drain,
            is_cut=is_cut,
            latencies=latencies,
            memory=memory,
            fsync=fsync,
        )

    def at_rest(self, url: str, pickups: int) -> tuple[list[float], float]:
        """How long each of so many jobs waited, and a worker's megabytes."""
        self.produce(url, "put", 1)  # makes the store
        with self._working(url) as worker:
            self._until(1, worker)
            self.produce(url, "pick", WARMING + pickups)
            memory = _memory(worker.pid)
        found = [mark.began - mark.sent for mark in marks(self._marks)][1 + WARMING :]
        self._marks.unlink()
        return found, memory

    def drained(self, url: str, jobs: int) -> tuple[float, bool]:
        """Jobs a second, from the first handler to the last, and whether that was not all of them."""
        with self._working(url) as worker:
            self._until(1, worker)
            first = time.monotonic()
            while marked(self._marks) < jobs and time.monotonic() - first < CAP:
                time.sleep(0.02)
                if worker.poll() is not None:
                    raise RuntimeError(self._said())
        began = sorted(mark.began for mark in marks(self._marks))
        self._marks.unlink()
        return (len(began) - 1) / (began[-1] - began[0]), len(began) < jobs

    def produce(self, url: str, role: str, count: int) -> float:
        """Seconds to enqueue so many, in the manner of `role`."""
        try:
            done = subprocess.run(
                [*self._command, role, str(count)],
                env=surroundings(self.peer, url, self._marks),
                cwd=self._folder,
                capture_output=True,
                text=True,
                check=False,
                process_group=0,
                timeout=PATIENCE + count / SLOWEST,
            )
        except subprocess.TimeoutExpired as error:
            text = f"{count:,} jobs were not enqueued within {error.timeout:.0f} s"
            raise RuntimeError(text) from None
        if done.returncode:
            raise RuntimeError(done.stderr.strip())
        return float(json.loads(done.stdout)["seconds"])

    @contextmanager
    def _working(self, url: str) -> Iterator[subprocess.Popen[bytes]]:
        with (self._folder / "log").open("wb") as log:
            worker = subprocess.Popen(
                [*self._command, "work"],
                env=surroundings(self.peer, url, self._marks),
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,  # Ctrl-C is for the run, which ends it
            )
        try:
            yield worker
        finally:
            worker.terminate()
            try:
                worker.wait(GRACE)
            except subprocess.TimeoutExpired:
                worker.kill()
                worker.wait()

    def _until(self, count: int, worker: subprocess.Popen[bytes]) -> None:
        give_up = time.monotonic() + PATIENCE
        while marked(self._marks) < count:
            if worker.poll() is not None or time.monotonic() > give_up:
                raise RuntimeError(self._said())
            time.sleep(0.005)

    def _said(self) -> str:
        said = (self._folder / "log").read_text("utf-8", "replace").strip()
        return said or "its worker has run nothing, and said nothing"


def fsyncs(folder: Path, count: int = 200) -> float:
    """Seconds, in the middle case, to append a page to a file and sync it."""
    taken, page = [], os.urandom(PAGE)
    with (folder / "fsync").open("wb", buffering=0) as file:
        for _ in range(count):
            began = time.perf_counter()
            file.write(page)
            os.fsync(file.fileno())
            taken.append(time.perf_counter() - began)
    return median(taken)


def _memory(pid: int) -> float:
    """Megabytes."""
    pages = int(Path(f"/proc/{pid}/statm").read_text("ascii").split()[1])
    return pages * resource.getpagesize() / 1e6
