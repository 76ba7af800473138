"""Eight processes compete for a few unique keys, with rollbacks: a key has one live holder at a time."""

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from errandry import Errandry
from errandry.core.event import EventKind
from errandry.store.contract import EventEntry
from tests.faults.racer import KEYS, Racer, app
from tests.store.server import server

pytestmark = pytest.mark.slow("starts eight programs")

RACERS, ROUNDS = 8, 40
STARTING = (EventKind.WAITING, EventKind.SCHEDULED)
ENDING = (EventKind.COMPLETED, EventKind.FAILED, EventKind.CANCELED, EventKind.REMOVED)
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_a_race_of_processes(kind: str, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db" if kind == "sqlite" else server().new_url()
    async with app(url) as jobs:
        results = await asyncio.to_thread(run_racers, url)
        await check(jobs, results)


async def test_a_race_of_threads_in_memory() -> None:
    """The same without transactions, which the memory store does not have."""
    results: list[dict[str, list[str]]] = []

    async def run(seed: int) -> None:
        racer = Racer(jobs, seed)
        racer.enqueue_in_transaction = racer.enqueue  # type: ignore[method-assign]
        results.append(await racer.run(ROUNDS))

    async with app("memory:") as jobs:
        threads = [threading.Thread(target=asyncio.run, args=(run(seed),)) for seed in range(RACERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            await asyncio.to_thread(thread.join)
        assert len(results) == RACERS
        await check(jobs, results)


def run_racers(url: str) -> list[dict[str, list[str]]]:
    """The results of the racers, which all start at once."""
    command = [sys.executable, "-m", "tests.faults.racer", url]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "cwd": ROOT}
    racers = [subprocess.Popen([*command, str(seed), str(ROUNDS)], **pipes) for seed in range(RACERS)]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("\n")
        racer.stdin.flush()
    results = [json.loads(racer.communicate(timeout=120)[0]) for racer in racers]
    assert [racer.returncode for racer in racers] == [0] * RACERS
    return results


async def check(jobs: Errandry, results: Sequence[dict[str, list[str]]]) -> None:
    inserted, existing, rolled_back = (
        [job_id for result in results for job_id in result[name]]
        for name in ("inserted", "existing", "rolled_back")
    )
    await jobs.queue("nowhere").pause()  # a pass, which numbers the jobs of callers' transactions
    events = await read_all_events(jobs)
    known = {entry.event.job for entry in events}

    assert len(set(inserted)) == len(inserted) > RACERS
    assert len(existing) > RACERS
    assert set(inserted) <= known
    assert set(existing) <= known, "a racer was refused because of a job that does not exist"
    assert not known.intersection(rolled_back), "a job that was rolled back exists"
    alive: dict[str, set[str]] = {key: set() for key in KEYS}
    for entry in events:
        if entry.event.kind in STARTING:
            alive[entry.event.queue].add(entry.event.job)
        elif entry.event.kind in ENDING:
            alive[entry.event.queue].discard(entry.event.job)
        assert not entry.event.job or len(alive[entry.event.queue]) <= 1, (entry, alive)
    task = jobs.tasks["touch"]
    for key in KEYS:
        holder = await task.using(queue=key, unique=key).enqueue(3)
        assert holder.existed == bool(alive[key]), (key, alive)
        assert {holder.id} >= alive[key]


async def read_all_events(jobs: Errandry) -> list[EventEntry]:
    entries: list[EventEntry] = []
    cursor: str | None = None
    while True:
        page = await jobs.engine.call(jobs.store.events, cursor, 10_000)
        entries += page.entries
        if not page.entries:
            return entries
        cursor = page.cursor
