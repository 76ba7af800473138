"""A bell: rung from any thread, heard by everyone who waits on any loop."""

import asyncio
import threading


class Bell:
    """Waiters come and go; a ring wakes all who wait at that moment."""

    def __init__(self) -> None:
        self._waiting: set[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = set()
        self._lock = threading.Lock()

    def ring(self) -> None:
        if not self._waiting:
            return
        with self._lock:
            waiting, self._waiting = self._waiting, set()
        for loop, heard in waiting:
            if not loop.is_closed():
                loop.call_soon_threadsafe(_hear, heard)

    async def wait(self, timeout: float) -> bool:
        """True when it rang, False when the time was up."""
        loop = asyncio.get_running_loop()
        entry = loop, loop.create_future()
        with self._lock:
            self._waiting.add(entry)
        try:
            async with asyncio.timeout(timeout):
                await entry[1]
        except TimeoutError:
            return False
        finally:
            with self._lock:
                self._waiting.discard(entry)
        return True


def _hear(heard: asyncio.Future[None]) -> None:
    if not heard.done():
        heard.set_result(None)
