"""Two workers and three producers on one store, killed again and again: P1 to P8 hold for all they did.

The seed decides who is hit, when and how; what the processes make of it is theirs.
"""

import asyncio
import random
import signal
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

from tests.faults.history import Acked, Asked, Ended, Started, violations
from tests.faults.process import Process, until
from tests.faults.scene import Scene

LEASE = 1.5


@pytest.mark.slow("ten seconds of chaos, and the time to recover")
@pytest.mark.timeout(300)
async def test_killed_at_random_nobody_loses_anything(scene: Scene) -> None:
    await survive(scene, seed=1, seconds=10)


@pytest.mark.prove
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(2, 8))
async def test_killed_at_random_for_longer_nobody_loses_anything(scene: Scene, seed: int) -> None:
    await survive(scene, seed, seconds=20)


async def survive(scene: Scene, seed: int, seconds: float) -> None:
    chaos = Chaos(scene, seed)
    await chaos.reign(seconds)
    for process in chaos.running["produce"]:
        process.signal(signal.SIGTERM)
        assert await process.over() in (0, -signal.SIGTERM), process.log()  # the latter: it had just started

    found = await scene.all_finished(limit=90)

    facts = scene.journal.read()
    assert violations(facts, found) == []
    acked = sum(isinstance(fact, Acked) for fact in facts)
    runs = sum(isinstance(fact, Started) for fact in facts)
    crashes = sum(job.crashes for job in found.jobs)
    print(f"seed {seed}: {dict(chaos.hits)}, {acked} acked, {runs} runs, {crashes} crashes")  # noqa: T201
    assert crashes > 0


class Chaos:
    """Hits processes and starts others in their place.

    Mostly when they are in the middle of something; now and then as it comes, even while they start.
    """

    def __init__(self, scene: Scene, seed: int) -> None:
        self._scene, self._dice = scene, random.Random(seed)
        self.hits: Counter[str] = Counter()
        self._acked = 0
        self._busy: dict[int, set[str]] = defaultdict(set)
        self.running = {
            "work": [self._start("work") for _ in range(2)],
            "produce": [self._start("produce") for _ in range(3)],
        }

    def _start(self, role: str) -> Process:
        options: dict[str, Any] = {"seed": self._dice.random()}
        if role == "work":
            options = {"lease": LEASE, "grace": 0.1, "concurrency": 20, "prefetch": self._dice.choice((0, 5))}
        return self._scene.start(role, options)

    async def reign(self, seconds: float) -> None:
        """For so long, and until there was enough to lose: on a slow machine that takes longer."""
        end = time.monotonic() + seconds
        while time.monotonic() < end or self._acked < 10 * seconds or self._kills() < 3:
            await asyncio.sleep(self._dice.uniform(0.2, 1.0))
            role = self._dice.choice(("work", "work", "produce"))
            way = self._dice.choice(("kill", "kill", "kill unseen", "stop"))
            await self._hit(role, way)
            self._read()

    def _kills(self) -> int:
        return self.hits["kill"] + self.hits["kill unseen"]

    async def _hit(self, role: str, way: str) -> None:
        self.hits[way] += 1
        process = self.running[role].pop(0)
        if self._dice.random() < 0.8:
            await until(lambda: self._is_busy(process.pid))
        if way == "kill unseen":  # nobody can tell that it is dead: its leases have to run out
            for info in await self._scene.app.workers():
                if info.beat.pid == process.pid:
                    Path(info.beat.alive).unlink(missing_ok=True)
        if way == "stop":
            process.signal(signal.SIGTERM)
            await process.over()
        else:
            process.kill()
        self.running[role].append(self._start(role))

    def _is_busy(self, pid: int) -> bool:
        """Whether a process has begun something and not ended it, by the journal."""
        self._read()
        return bool(self._busy[pid])

    def _read(self) -> None:
        for fact in self._scene.journal.news():
            self._acked += isinstance(fact, Acked)
            match fact:
                case Asked(job=job, pid=where) | Started(job=job, pid=where):
                    self._busy[where].add(job)
                case Acked(job=job, pid=where) | Ended(job=job, pid=where):
                    self._busy[where].discard(job)
