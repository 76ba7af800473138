"""Workers, producers and a program that enqueues with `bind` are killed again and again: P1 to P8 hold.

The producers enqueue jobs of single and of batch handlers. The program writes orders and their jobs in
transactions of its own: in the end each job of a committed order exists, and no other.

The seed determines which process is killed, when and how, but not what the processes do then.
"""

import asyncio
import random
import signal
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

from tests.faults.history import Ended, EnqueueAcked, EnqueueSent, Started, violations
from tests.faults.orders import create_orders, is_of_order, jobs_of_orders
from tests.faults.process import Process, wait_until
from tests.faults.scene import Scene

LEASE = 1.5


@pytest.mark.slow("ten seconds of chaos, and the time to recover")
@pytest.mark.timeout(300)
async def test_random_kills_lose_nothing(scene: Scene) -> None:
    await survive(scene, seed=1, seconds=10)


@pytest.mark.prove
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(2, 8))
async def test_random_kills_for_longer_lose_nothing(scene: Scene, seed: int) -> None:
    await survive(scene, seed, seconds=20)


async def survive(scene: Scene, seed: int, seconds: float) -> None:
    await create_orders(scene.url)
    chaos = Chaos(scene, seed)
    await chaos.run(seconds)
    for process in chaos.running["produce"] + chaos.running["order"]:
        process.signal(signal.SIGTERM)
        assert await process.wait_for_end() in (0, -signal.SIGTERM), (
            process.log()
        )  # -SIGTERM: it had no signal handler yet

    contents = await scene.all_finished(limit=90)

    facts = scene.journal.read()
    assert violations(facts, contents) == []
    ordered = await jobs_of_orders(scene.url)
    assert ordered
    assert {job.id for job in contents.jobs if is_of_order(job.id)} == ordered
    acked = sum(isinstance(fact, EnqueueAcked) for fact in facts)
    runs = sum(isinstance(fact, Started) for fact in facts)
    crashes = sum(job.crashes for job in contents.jobs)
    print(f"seed {seed}: {dict(chaos.actions)}, {acked} acked, {runs} runs, {crashes} crashes")  # noqa: T201
    assert crashes > 0


class Chaos:
    """Kills and stops processes, and starts others in their place.

    Mostly while a process has open work; sometimes at any time, even while it starts.
    """

    def __init__(self, scene: Scene, seed: int) -> None:
        self._scene, self._dice = scene, random.Random(seed)
        self.actions: Counter[str] = Counter()
        self._acked = 0
        self._busy: dict[int, set[str]] = defaultdict(set)
        self.running = {
            "work": [self._start("work") for _ in range(2)],
            "produce": [self._start("produce") for _ in range(2)],
            "order": [self._start("order")],
        }

    def _start(self, role: str) -> Process:
        options: dict[str, Any] = {"seed": self._dice.random()}
        if role == "work":
            options = {"lease": LEASE, "grace": 0.1, "concurrency": 20, "prefetch": self._dice.choice((0, 5))}
        return self._scene.start(role, options)

    async def run(self, seconds: float) -> None:
        """Run until the time is over and enough was enqueued and killed: a slow machine needs longer."""
        end = time.monotonic() + seconds
        while time.monotonic() < end or self._acked < 10 * seconds or self._kills() < 3:
            await asyncio.sleep(self._dice.uniform(0.2, 1.0))
            role = self._dice.choice(("work", "work", "produce", "order"))
            way = self._dice.choice(("kill", "kill", "kill unseen", "stop"))
            await self._disturb(role, way)
            self._read()

    def _kills(self) -> int:
        return self.actions["kill"] + self.actions["kill unseen"]

    async def _disturb(self, role: str, way: str) -> None:
        self.actions[way] += 1
        process = self.running[role].pop(0)
        if self._dice.random() < 0.8:
            await wait_until(lambda: self._is_busy(process.pid))
        if (
            way == "kill unseen"
        ):  # without its lock file, no worker knows that it is dead: its leases must expire
            for record in await self._scene.app.engine.call(self._scene.app.store.workers):
                if record.beat.pid == process.pid:
                    Path(record.beat.alive).unlink(missing_ok=True)
        if way == "stop":
            process.signal(signal.SIGTERM)
            await process.wait_for_end()
        else:
            process.kill()
        self.running[role].append(self._start(role))

    def _is_busy(self, pid: int) -> bool:
        """Whether a process has begun an enqueue or a run and not ended it, according to the journal."""
        self._read()
        return bool(self._busy[pid])

    def _read(self) -> None:
        for fact in self._scene.journal.read_new():
            self._acked += isinstance(fact, EnqueueAcked)
            match fact:
                case EnqueueSent(job=job, pid=pid) | Started(job=job, pid=pid):
                    self._busy[pid].add(job)
                case EnqueueAcked(job=job, pid=pid) | Ended(job=job, pid=pid):
                    self._busy[pid].discard(job)
