"""A version number of a store's data, increased from any thread, on which any event loop can wait."""

import asyncio
import threading


class ChangeCounter:
    """Counts changes. A reader that gets the version, reads, and waits with that version misses no change."""

    def __init__(self) -> None:
        self.version = 0
        self._waiting: set[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = set()
        self._lock = threading.Lock()

    def increment(self) -> None:
        with self._lock:
            self.version += 1
            waiting, self._waiting = self._waiting, set()
        running_loop = asyncio._get_running_loop()
        for loop, future in waiting:
            if loop is running_loop:
                _wake(future)
            elif not loop.is_closed():
                loop.call_soon_threadsafe(_wake, future)

    async def wait(self, version: int, timeout: float) -> bool:
        """Return True as soon as the version differs from `version`, False after `timeout` seconds."""
        loop = asyncio.get_running_loop()
        entry = loop, loop.create_future()
        with self._lock:
            if self.version != version:
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


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
