"""The supervisor of worker processes. `tests/faults/test_supervisor.py` has the tests with real workers."""

import asyncio
import sys

from errandry.worker.supervisor import Supervisor
from tests.machine_load import WAIT_TIMEOUT

WAITING_WORKER = """
import socket, sys
pipe = socket.socket(fileno=int(sys.argv[sys.argv.index("--supervisor-pipe") + 1]))
pipe.recv(1)
"""
"""A process that ends when the supervisor writes to its pipe."""


async def test_a_stop_reaches_workers_that_are_just_being_started() -> None:
    supervisor = Supervisor([sys.executable, "-c", WAITING_WORKER], 2, grace=600.0)
    running = asyncio.create_task(supervisor.run())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    supervisor.stop()

    assert await asyncio.wait_for(running, WAIT_TIMEOUT) == 0
