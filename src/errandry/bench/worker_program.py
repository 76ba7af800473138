"""A worker of a run, in a process of its own.

    python -m errandry.bench.worker_program OPTIONS LIFELINE

The store is the one of `$ERRANDRY_URL`. It says on its lifeline that it is ready, begins at a
line on stdin, and prints when it worked.
"""

import logging
import sys
import time

from msgspec import json

from errandry import event_loop
from errandry.bench.tasks import declared
from errandry.bench.worker_processes import WorkerUsage
from errandry.worker import Worker, WorkerOptions
from errandry.worker.supervisor_pipe import SupervisorPipe


async def main(options: WorkerOptions, line: SupervisorPipe) -> None:
    async with declared() as app:
        worker = Worker(app, options)
        line.hold(worker.stop, options.grace)
        if not sys.stdin.readline():  # it blocks, and nothing else is going on yet
            return
        began = time.time()
        await worker.run()
        shift = WorkerUsage(began, time.time(), time.process_time())
    print(json.encode(shift).decode(), flush=True)  # noqa: T201 - for the process that started it


if __name__ == "__main__":
    # Not the failures of jobs that are there to fail.
    logging.basicConfig(level=logging.ERROR, stream=sys.stderr)
    event_loop.run(main(json.decode(sys.argv[1], type=WorkerOptions), SupervisorPipe(int(sys.argv[2]))))
