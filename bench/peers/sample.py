"""One turn of one peer: pickup latency while idle, then the rates of enqueueing and draining a backlog."""

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

from bench.peers.environment import peer_environment
from bench.peers.peer import Peer
from bench.peers.work import mark_count, read_marks

WARMUP_JOBS = 5
"""Number of first jobs that are not counted, because the worker has only just started."""
DRAIN_SECONDS_MAX = 5.0
"""Maximum seconds of draining; after them, the rate is that of the jobs that have run."""
START_TIMEOUT = 60.0
ENQUEUE_RATE_MIN = 50
"""Enqueued jobs per second below which a peer times out."""
STOP_TIMEOUT = 10.0
PAGE_SIZE = 4_096


class Sample(Struct, frozen=True, kw_only=True):
    """The result of one turn. `fsync` is the seconds of a synced page write just before it."""

    peer: str
    enqueue: float
    drain: float
    is_cut: bool
    latencies: list[float]
    memory: float
    fsync: float


class Turn:
    """Runs a peer's program with the peer's interpreter on an empty store."""

    def __init__(self, peer: Peer, python: Path, folder: Path) -> None:
        self.peer, self._folder = peer, folder
        self._command = [str(python), "-P", "-m", "bench.peers.program", peer.program]
        self._marks = folder / "marks"

    def take(self, empty: Callable[[str], str], jobs: int, pickups: int) -> Sample:
        """Measure the peer; `empty` returns the address of an empty store of a kind."""
        fsync = median_fsync(self._folder)
        latencies, memory = self.measure_at_rest(empty(self.peer.server), pickups)
        url = empty(self.peer.server)
        enqueue = jobs / self.produce(url, "put", jobs)
        drain, is_cut = self.drain(url, jobs)
        return Sample(
            peer=self.peer.name,
            enqueue=enqueue,
            drain=drain,
            is_cut=is_cut,
            latencies=latencies,
            memory=memory,
            fsync=fsync,
        )

    def measure_at_rest(self, url: str, pickups: int) -> tuple[list[float], float]:
        """The pickup latencies of this number of jobs, and the worker's memory in megabytes."""
        self.produce(url, "put", 1)  # creates the store
        with self._running_worker(url) as worker:
            self._wait_for_marks(1, worker)
            self.produce(url, "pick", WARMUP_JOBS + pickups)
            memory = _resident_megabytes(worker.pid)
        latencies = [mark.began - mark.sent for mark in read_marks(self._marks)][1 + WARMUP_JOBS :]
        self._marks.unlink()
        return latencies, memory

    def drain(self, url: str, jobs: int) -> tuple[float, bool]:
        """The drain rate per second, from the first handler to the last, and whether it was cut short."""
        with self._running_worker(url) as worker:
            self._wait_for_marks(1, worker)
            first = time.monotonic()
            while mark_count(self._marks) < jobs and time.monotonic() - first < DRAIN_SECONDS_MAX:
                time.sleep(0.02)
                if worker.poll() is not None:
                    raise RuntimeError(self._log_text())
        began = sorted(mark.began for mark in read_marks(self._marks))
        self._marks.unlink()
        return (len(began) - 1) / (began[-1] - began[0]), len(began) < jobs

    def produce(self, url: str, role: str, count: int) -> float:
        """Seconds to enqueue `count` jobs as `role` says."""
        try:
            done = subprocess.run(
                [*self._command, role, str(count)],
                env=peer_environment(self.peer, url, self._marks),
                cwd=self._folder,
                capture_output=True,
                text=True,
                check=False,
                process_group=0,
                timeout=START_TIMEOUT + count / ENQUEUE_RATE_MIN,
            )
        except subprocess.TimeoutExpired as error:
            text = f"{count:,} jobs were not enqueued within {error.timeout:.0f} s"
            raise RuntimeError(text) from None
        if done.returncode:
            raise RuntimeError(done.stderr.strip())
        return float(json.loads(done.stdout)["seconds"])

    @contextmanager
    def _running_worker(self, url: str) -> Iterator[subprocess.Popen[bytes]]:
        with (self._folder / "log").open("wb") as log:
            worker = subprocess.Popen(
                [*self._command, "work"],
                env=peer_environment(self.peer, url, self._marks),
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
                worker.wait(STOP_TIMEOUT)
            except subprocess.TimeoutExpired:
                worker.kill()
                worker.wait()

    def _wait_for_marks(self, count: int, worker: subprocess.Popen[bytes]) -> None:
        give_up = time.monotonic() + START_TIMEOUT
        while mark_count(self._marks) < count:
            if worker.poll() is not None or time.monotonic() > give_up:
                raise RuntimeError(self._log_text())
            time.sleep(0.005)

    def _log_text(self) -> str:
        text = (self._folder / "log").read_text("utf-8", "replace").strip()
        return text or "its worker ran no job and logged nothing"


def median_fsync(folder: Path, count: int = 200) -> float:
    """The median seconds to append a page to a file and sync it."""
    times, page = [], os.urandom(PAGE_SIZE)
    with (folder / "fsync").open("wb", buffering=0) as file:
        for _ in range(count):
            began = time.perf_counter()
            file.write(page)
            os.fsync(file.fileno())
            times.append(time.perf_counter() - began)
    return median(times)


def _resident_megabytes(pid: int) -> float:
    """The resident memory of a process in megabytes."""
    pages = int(Path(f"/proc/{pid}/statm").read_text("ascii").split()[1])
    return pages * resource.getpagesize() / 1e6
