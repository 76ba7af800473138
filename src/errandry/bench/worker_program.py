"""The program of a worker process in a benchmark run.

    python -m errandry.bench.worker_program OPTIONS PIPE

The store is `$ERRANDRY_URL`. The worker reports on the pipe that it is ready, starts after a line on stdin,
and prints its usage at the end.
"""

import logging
import sys
import time

from msgspec import json

from errandry import event_loop
from errandry.bench.tasks import declare_app
from errandry.bench.worker_processes import WorkerUsage
from errandry.worker import Worker, WorkerOptions
from errandry.worker.supervisor_pipe import SupervisorPipe


async def main(options: WorkerOptions, pipe: SupervisorPipe) -> None:
    async with declare_app() as app:
        worker = Worker(app, options)
        pipe.connect(worker.stop, options.grace)
        pipe.report_ready()
        if not sys.stdin.readline():  # this may block the event loop: the worker does not run yet
            return
        began = time.time()
        await worker.run()
        usage = WorkerUsage(began, time.time(), time.process_time())
    print(json.encode(usage).decode(), flush=True)  # noqa: T201 - for the process that started it


if __name__ == "__main__":
    # Do not log the failures of jobs that are meant to fail.
    logging.basicConfig(level=logging.ERROR, stream=sys.stderr)
    event_loop.run(main(json.decode(sys.argv[1], type=WorkerOptions), SupervisorPipe(int(sys.argv[2]))))
