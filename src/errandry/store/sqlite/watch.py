"""Learning that another process has written the file: inotify where there is one, else looking often.

The kernel tells of writes to the `-wal` file a little before their commit can be seen, so after a sign
one looks a few times, further and further apart. Whoever takes turns gives another sign when it can be seen.
"""

import asyncio
import ctypes
import os
import sys
from collections.abc import Callable
from contextlib import suppress

POLL = 0.01
_PAUSES = (*(0.0002,) * 6, *(0.0005 * 2**n for n in range(11)))
"""Most commits can be seen a millisecond after their sign; on a busy disk, it may take half a second."""
_SIGNS = {"-wal": 2, "-turn": 4}
"""Which files are watched for what: written to, given another time."""


class Watch:
    """Waits until `look` says that something has changed."""

    def __init__(self, path: str, look: Callable[[], bool]) -> None:
        self._look, self._path = look, path
        self._signs: int | None = None
        self._is_set_up = False

    async def wait(self) -> None:
        """Return when `look()` has said True."""
        loop, sign = asyncio.get_running_loop(), asyncio.Event()
        self._set_up()
        if self._signs is not None:
            loop.add_reader(self._signs, _read, self._signs, sign)
        try:
            while not self._look():
                if await self._heard(sign):
                    return
        finally:
            if self._signs is not None:
                loop.remove_reader(self._signs)

    async def _heard(self, sign: asyncio.Event) -> bool:
        """Wait for a sign, and a little until what it tells of can be seen."""
        if self._signs is None:
            await asyncio.sleep(POLL)
            return False
        await sign.wait()
        sign.clear()
        for pause in _PAUSES:
            if self._look():
                return True
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await sign.wait()
                    return False  # there is another: begin anew
        return False

    def hush(self) -> None:
        """Forget the signs so far: they tell of this process's own writes, or of what it has seen."""
        if self._signs is not None:
            with suppress(BlockingIOError):
                os.read(self._signs, 65_536)

    def _set_up(self) -> None:
        """Only for who waits: the kernel takes 10 ms to tear a watch down."""
        if not self._is_set_up:
            self._signs = _inotify(self._path)
            self._is_set_up = True

    def close(self) -> None:
        if self._signs is not None:
            os.close(self._signs)
            self._signs = None


def _read(signs: int, sign: asyncio.Event) -> None:
    with suppress(BlockingIOError):  # hushed meanwhile
        os.read(signs, 65_536)
        sign.set()


def _inotify(path: str) -> int | None:
    """A descriptor that becomes readable when there is a sign; None where there is no such thing."""
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None, use_errno=True)
    signs: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if signs < 0:
        return None
    for side, what in _SIGNS.items():
        if libc.inotify_add_watch(signs, os.fsencode(f"{path}{side}"), what) < 0:
            os.close(signs)
            return None
    return signs
