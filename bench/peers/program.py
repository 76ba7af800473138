"""Runs in a peer's own environment: enqueues, or works.

python -m bench.peers.program huey put 1000      enqueue so many, one by one; prints how long it took
python -m bench.peers.program huey pick 50       enqueue so many, each when the one before has begun
python -m bench.peers.program arq crowd 1000     enqueue so many, a hundred callers at a time
python -m bench.peers.program pgqueuer bulk 1000 enqueue so many, a thousand in a call
python -m bench.peers.program huey work          one worker process, until SIGTERM
"""

import asyncio
import inspect
import json
import logging
import os
import random
import signal
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import cast

from bench.peers.work import BulkProgram, Program, Put, PutMany, marked

PAUSE = 0.03
CROWD = 100
CALL = 1_000
PATIENCE = 20.0


async def produce(program: Program, role: str, count: int) -> None:
    if role == "bulk":
        async with cast("BulkProgram", program).bulk() as put_many:
            took = await _in_calls(put_many, count)
    else:
        async with program.producer() as put:
            took = await {"put": _all, "pick": _one_by_one, "crowd": _crowd}[role](put, count)
    print(json.dumps({"seconds": took}))


async def _in_calls(put_many: PutMany, count: int) -> float:
    began = time.perf_counter()
    for start in range(0, count, CALL):
        await put_many(list(range(start, min(count, start + CALL))), time.time())
    return time.perf_counter() - began


async def _crowd(put: Put, count: int) -> float:
    numbers, began = iter(range(count)), time.perf_counter()

    async def caller() -> None:
        for number in numbers:
            await _done(put, number)

    await asyncio.gather(*(caller() for _ in range(CROWD)))
    return time.perf_counter() - began


async def _all(put: Put, count: int) -> float:
    began = time.perf_counter()
    for number in range(count):
        await _done(put, number)
    return time.perf_counter() - began


async def _one_by_one(put: Put, count: int) -> float:
    """Each finds the system at rest."""
    path, began = Path(os.environ["PEER_MARKS"]), time.perf_counter()
    for number in range(count):
        await asyncio.sleep(PAUSE * random.uniform(0.5, 1.5))
        before, give_up = marked(path), time.monotonic() + PATIENCE
        await _done(put, number)
        while marked(path) == before and time.monotonic() < give_up:
            await asyncio.sleep(0.002)
    return time.perf_counter() - began


async def _done(put: Put, number: int) -> None:
    made = put(number, time.time())
    if inspect.isawaitable(made):
        await made


def main() -> None:
    logging.disable(logging.WARNING)
    name, role = sys.argv[1:3]
    program = cast("Program", import_module(f"bench.peers.programs.{name}"))
    if role == "work":
        signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGINT))
        program.work()
    else:
        asyncio.run(produce(program, role, int(sys.argv[3])))


if __name__ == "__main__":
    main()
