"""A bell: rung from any thread, heard by everyone who waits on any loop, missed by nobody."""

import asyncio
import threading


class ChangeCounter:
    """It counts its rings. Who notes the count, then looks, then waits for another count misses nothing."""

    def __init__(self) -> None:
        self.count = 0
        self._waiting: set[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = set()
        self._lock = threading.Lock()

    def increment(self) -> None:
        with self._lock:
            self.count += 1
            waiting, self._waiting = self._waiting, set()
        here = asyncio._get_running_loop()
        for loop, heard in waiting:
            if loop is here:
                _hear(heard)
            elif not loop.is_closed():
                loop.call_soon_threadsafe(_hear, heard)

    async def wait(self, rings: int, timeout: float) -> bool:
        """True as soon as it has rung since the count was `rings`, False when the time is up."""
        loop = asyncio.get_running_loop()
        entry = loop, loop.create_future()
        with self._lock:
            if self.count != rings:
                return True
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
