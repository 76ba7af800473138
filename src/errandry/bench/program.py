"""A worker of a run, in a process of its own.

    python -m errandry.bench.program OPTIONS LIFELINE

The store is the one of `$ERRANDRY_URL`. It says on its lifeline that it is ready, begins at a
line on stdin, and prints when it worked.
"""

import logging
import sys
import time

from msgspec import json

from errandry import loops
from errandry.bench.crew import Shift
from errandry.bench.task import declared
from errandry.worker import Worker, WorkerOptions
from errandry.worker.lifeline import Lifeline


async def main(options: WorkerOptions, line: Lifeline) -> None:
    async with declared() as app:
        worker = Worker(app, options)
        line.hold(worker.stop, options.grace)
        if not sys.stdin.readline():  # it blocks, and nothing else is going on yet
            return
        began = time.time()
        await worker.run()
        shift = Shift(began, time.time(), time.process_time())
    print(json.encode(shift).decode(), flush=True)  # noqa: T201 - for the process that started it


if __name__ == "__main__":
    # Not the failures of jobs that are there to fail.
    logging.basicConfig(level=logging.ERROR, stream=sys.stderr)
    loops.run(main(json.decode(sys.argv[1], type=WorkerOptions), Lifeline(int(sys.argv[2]))))
