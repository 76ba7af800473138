"""The program that runs in a peer's environment: it enqueues jobs or runs a worker.

python -m bench.peers.program huey put 1000      enqueue 1,000 jobs one by one; print the seconds
python -m bench.peers.program huey pick 50       enqueue 50 jobs, each after the one before has started
python -m bench.peers.program arq crowd 1000     enqueue 1,000 jobs with 100 concurrent callers
python -m bench.peers.program pgqueuer bulk 1000 enqueue 1,000 jobs in one call
python -m bench.peers.program huey work          run one worker process until SIGTERM
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

from bench.peers.work import BulkProgram, Program, Put, PutMany, mark_count

REST_INTERVAL = 0.03
CALLERS = 100
CALL_SIZE = 1_000
PICKUP_TIMEOUT = 20.0


async def produce(program: Program, role: str, count: int) -> None:
    if role == "bulk":
        async with cast("BulkProgram", program).bulk() as put_many:
            took = await _enqueue_in_bulk(put_many, count)
    else:
        async with program.producer() as put:
            took = await {"put": _enqueue_all, "pick": _enqueue_at_rest, "crowd": _enqueue_concurrently}[
                role
            ](put, count)
    print(json.dumps({"seconds": took}))


async def _enqueue_in_bulk(put_many: PutMany, count: int) -> float:
    began = time.perf_counter()
    for start in range(0, count, CALL_SIZE):
        await put_many(list(range(start, min(count, start + CALL_SIZE))), time.time())
    return time.perf_counter() - began


async def _enqueue_concurrently(put: Put, count: int) -> float:
    numbers, began = iter(range(count)), time.perf_counter()

    async def caller() -> None:
        for number in numbers:
            await _enqueue(put, number)

    await asyncio.gather(*(caller() for _ in range(CALLERS)))
    return time.perf_counter() - began


async def _enqueue_all(put: Put, count: int) -> float:
    began = time.perf_counter()
    for number in range(count):
        await _enqueue(put, number)
    return time.perf_counter() - began


async def _enqueue_at_rest(put: Put, count: int) -> float:
    """Enqueue one job after the other, each when the system is idle."""
    path, began = Path(os.environ["PEER_MARKS"]), time.perf_counter()
    for number in range(count):
        await asyncio.sleep(REST_INTERVAL * random.uniform(0.5, 1.5))
        before, give_up = mark_count(path), time.monotonic() + PICKUP_TIMEOUT
        await _enqueue(put, number)
        while mark_count(path) == before and time.monotonic() < give_up:
            await asyncio.sleep(0.002)
    return time.perf_counter() - began


async def _enqueue(put: Put, number: int) -> None:
    result = put(number, time.time())
    if inspect.isawaitable(result):
        await result


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
