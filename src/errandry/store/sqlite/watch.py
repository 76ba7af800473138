"""Learning that another process has written the file: inotify where there is one, else looking often.

Whoever takes turns tells when what it has written can be seen. A program that commits on a connection of
its own does not; of that, the kernel tells: of writes to the `-wal` file. Those come before the commit can be
seen, while whoever made them waits for the disk. Who wakes up and works just then may be given the processor
that the commit needs, and doubles its time. So they are let rest for a while; then one looks, further and
further apart.
"""

import asyncio
import ctypes
import os
import sys
from collections.abc import Callable, Iterator

POLL = 0.01
_REST = 0.005
"""Most commits can be seen by then, and those who take turns have told of it."""
_PAUSES = tuple(_REST * 2**n for n in range(7))
"""On a busy disk, it may take half a second."""
_TOLD, _WRITTEN = ("-turn", 4), ("-wal", 2)
"""Which files are watched for what: given another time, written to."""


class FileWatch:
    """Waits until `look` says that something has changed."""

    def __init__(self, path: str, look: Callable[[], bool]) -> None:
        self._look, self._path = look, path
        self._told: int | None = None
        self._written: int | None = None
        self._is_set_up = False

    async def wait(self) -> None:
        """Return when `look()` has said True."""
        self._set_up()
        if self._told is None or self._written is None:
            while not self._look():  # noqa: ASYNC110 - nobody could set an event
                await asyncio.sleep(POLL)
            return
        hearing = _ChangeSignal(self._told, self._written)
        try:
            while not self._look():
                await hearing.sign.wait()
                hearing.sign.clear()
        finally:
            hearing.end()

    def hush(self) -> None:
        """Forget the signs so far: they tell of this process's own writes, or of what it has seen."""
        for signs in (self._told, self._written):
            if signs is not None:
                _is_read(signs)

    def _set_up(self) -> None:
        """Only for who waits: the kernel takes 10 ms to tear a watch down."""
        if not self._is_set_up:
            self._told, self._written = _inotify(self._path, *_TOLD), _inotify(self._path, *_WRITTEN)
            self._is_set_up = True

    def close(self) -> None:
        for signs in (self._told, self._written):
            if signs is not None:
                os.close(signs)
        self._told = self._written = None


class _ChangeSignal:
    """Sets `sign` when it is time to look: at once when told, a little later when something was written."""

    def __init__(self, told: int, written: int) -> None:
        self.sign = asyncio.Event()
        self._told, self._written = told, written
        self._loop = asyncio.get_running_loop()
        self._resting: asyncio.TimerHandle | None = None
        self._loop.add_reader(told, self._be_told)
        self._loop.add_reader(written, self._rest)

    def end(self) -> None:
        self._loop.remove_reader(self._told)
        self._loop.remove_reader(self._written)
        self._stop_resting()

    def _be_told(self) -> None:
        if _is_read(self._told):
            self.sign.set()

    def _rest(self) -> None:
        """Hear no more of what is being written, for a while."""
        self._loop.remove_reader(self._written)
        self._stop_resting()
        self._resting = self._loop.call_later(_REST, self._listen)

    def _listen(self) -> None:
        _is_read(self._written)
        self._loop.add_reader(self._written, self._rest)
        self._look_again(iter(_PAUSES))

    def _look_again(self, pauses: Iterator[float]) -> None:
        self.sign.set()
        pause = next(pauses, None)
        self._resting = None if pause is None else self._loop.call_later(pause, self._look_again, pauses)

    def _stop_resting(self) -> None:
        if self._resting is not None:
            self._resting.cancel()


def _is_read(signs: int) -> bool:
    """Take what is there to be read. False if it was hushed meanwhile."""
    try:
        return bool(os.read(signs, 65_536))
    except BlockingIOError:
        return False


def _inotify(path: str, side: str, what: int) -> int | None:
    """A descriptor that becomes readable when there is a sign; None where there is no such thing."""
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None, use_errno=True)
    signs: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if signs < 0:
        return None
    if libc.inotify_add_watch(signs, os.fsencode(f"{path}{side}"), what) < 0:
        os.close(signs)
        return None
    return signs
