"""The socket between a supervisor and a worker it started.

The worker stops when the supervisor sends a stop, or when the socket is closed because the supervisor has
died. Signals alone would not do: a service manager signals all processes of a service at once, and the worker
would take the supervisor's signal for a second one.
"""

import asyncio
import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from errandry.worker.stop_signals import handled_signals

READY = b"r"
STOP = b"s"
EXIT_MARGIN = 10.0
"""Seconds beyond its grace that a worker may take to exit before it is killed."""


class SupervisorPipe:
    """The worker's end of the socket."""

    def __init__(self, descriptor: int) -> None:
        os.set_inheritable(descriptor, False)
        self._socket = socket.socket(fileno=descriptor)
        self._is_stopped = False

    def connect(self, stop: Callable[[], None], grace: float) -> None:
        """Call `stop` on this loop for each stop that the supervisor sends.

        If the supervisor dies, the worker stops too; after its grace and `EXIT_MARGIN`, the process exits.
        """
        loop, drain = asyncio.get_running_loop(), partial(self._stop_once, stop)
        for number in handled_signals():
            loop.add_signal_handler(number, drain)
        listen = partial(self._read_stops, loop, drain, stop, grace)
        threading.Thread(target=listen, name="errandry-supervisor", daemon=True).start()

    def report_ready(self) -> None:
        """Tell the supervisor that the worker has opened its store."""
        with suppress(OSError):
            self._socket.send(READY)

    def _stop_once(self, stop: Callable[[], None]) -> None:
        """Stop on the first signal or stop. Only the supervisor can send a second, which skips the grace."""
        if not self._is_stopped:
            self._is_stopped = True
            stop()

    def _read_stops(
        self,
        loop: asyncio.AbstractEventLoop,
        drain: Callable[[], None],
        stop: Callable[[], None],
        grace: float,
    ) -> None:
        with suppress(RuntimeError):  # the loop was closed: the worker has ended
            is_connected = self._receive_stop()
            loop.call_soon_threadsafe(drain)
            while is_connected:
                if is_connected := self._receive_stop():
                    loop.call_soon_threadsafe(stop)
            threading.Event().wait(grace + EXIT_MARGIN)
            os._exit(1)

    def _receive_stop(self) -> bool:
        """Wait for the next stop; False if the supervisor has died."""
        try:
            return bool(self._socket.recv(1))
        except ConnectionResetError:  # the supervisor died before it had read everything
            return False
