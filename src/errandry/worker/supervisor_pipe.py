"""The line between a supervisor and a worker it started: a stop when the supervisor says so, or is gone.

Not by signals alone: a service manager signals all processes of a service at once, and the worker would take
the supervisor's signal for a second one.
"""

import asyncio
import os
import signal
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial

READY = b"r"
STOP = b"s"
MARGIN = 10.0
"""How much longer than its grace a worker may take to end, before it is ended."""


class SupervisorPipe:
    """The worker's end. Says that it is ready, and has `stop` called for every stop the supervisor sends."""

    def __init__(self, descriptor: int) -> None:
        os.set_inheritable(descriptor, False)
        self._socket = socket.socket(fileno=descriptor)
        self._is_stopped = False

    def hold(self, stop: Callable[[], None], grace: float) -> None:
        """From now on, on this loop. A worker whose supervisor has died ends, if need be by force."""
        loop, drain = asyncio.get_running_loop(), partial(self._drain, stop)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, drain)
        listen = partial(self._listen, loop, drain, stop, grace)
        threading.Thread(target=listen, name="errandry-lifeline", daemon=True).start()
        with suppress(OSError):
            self._socket.send(READY)

    def _drain(self, stop: Callable[[], None]) -> None:
        """The first stop, whoever it comes from; only the supervisor can say that it must not wait."""
        if not self._is_stopped:
            self._is_stopped = True
            stop()

    def _listen(
        self,
        loop: asyncio.AbstractEventLoop,
        drain: Callable[[], None],
        stop: Callable[[], None],
        grace: float,
    ) -> None:
        with suppress(RuntimeError):  # the loop was closed: the worker has ended
            goes_on = self._hears()
            loop.call_soon_threadsafe(drain)
            while goes_on:
                if goes_on := self._hears():
                    loop.call_soon_threadsafe(stop)
            threading.Event().wait(grace + MARGIN)
            os._exit(1)

    def _hears(self) -> bool:
        """Wait for the next word; False if the supervisor is gone."""
        try:
            return bool(self._socket.recv(1))
        except ConnectionResetError:  # it died with something left to read
            return False
