"""Eight processes want the same few keys, and take back half of what they begin: never two live holders."""

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
BORN = (EventKind.WAITING, EventKind.SCHEDULED)
ENDED = (EventKind.COMPLETED, EventKind.FAILED, EventKind.CANCELED, EventKind.REMOVED)
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_a_race_of_processes(kind: str, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db" if kind == "sqlite" else server().fresh()
    async with app(url) as jobs:
        told = await asyncio.to_thread(raced, url)
        await check(jobs, told)


async def test_a_race_of_threads_in_memory() -> None:
    """Nothing in memory can be taken back; all else is the same."""
    told: list[dict[str, list[str]]] = []

    async def run(seed: int) -> None:
        racer = Racer(jobs, seed)
        racer.in_a_transaction = racer.enqueue  # type: ignore[method-assign]
        told.append(await racer.run(ROUNDS))

    async with app("memory:") as jobs:
        threads = [threading.Thread(target=asyncio.run, args=(run(seed),)) for seed in range(RACERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            await asyncio.to_thread(thread.join)
        assert len(told) == RACERS
        await check(jobs, told)


def raced(url: str) -> list[dict[str, list[str]]]:
    """What each racer was told, all started at once."""
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
    told = [json.loads(racer.communicate(timeout=120)[0]) for racer in racers]
    assert [racer.returncode for racer in racers] == [0] * RACERS
    return told


async def check(jobs: Errandry, told: Sequence[dict[str, list[str]]]) -> None:
    made, met, lost = ([one for each in told for one in each[name]] for name in ("made", "met", "lost"))
    await jobs.queue("nowhere").pause()  # a pass, which numbers what was bound
    events = await happened(jobs)
    known = {one.event.job for one in events}

    assert len(set(made)) == len(made) > RACERS
    assert len(met) > RACERS
    assert set(made) <= known
    assert set(met) <= known, "somebody was sent away for a job that never was"
    assert not known.intersection(lost), "what was rolled back is there"
    alive: dict[str, set[str]] = {key: set() for key in KEYS}
    for one in events:
        if one.event.kind in BORN:
            alive[one.event.queue].add(one.event.job)
        elif one.event.kind in ENDED:
            alive[one.event.queue].discard(one.event.job)
        assert not one.event.job or len(alive[one.event.queue]) <= 1, (one, alive)
    task = jobs.tasks["touch"]
    for key in KEYS:
        held = await task.using(queue=key, unique=key).enqueue(3)
        assert held.existed == bool(alive[key]), (key, alive)
        assert {held.id} >= alive[key]


async def happened(jobs: Errandry) -> list[EventEntry]:
    found: list[EventEntry] = []
    cursor: str | None = None
    while True:
        page = await jobs.engine.call(jobs.store.events, cursor, 10_000)
        found += page.entries
        if not page.entries:
            return found
        cursor = page.cursor
