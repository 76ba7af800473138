"""Notice that another process has written the file: by inotify on Linux, elsewhere by polling.

A process that uses the turnstile touches the `-turn` file when its commit is visible. A foreign program does
not. Its commits are noticed by the writes to the `-wal` file, but those come before the commit is visible,
while the program waits for the disk. A process that wakes up and works at that moment can take the processor
from the commit and double its time. So after a write to the `-wal` file, the watch waits a moment, then looks
at growing intervals.
"""

import asyncio
import ctypes
import os
import sys
from collections.abc import Callable, Iterator

POLL_INTERVAL = 0.01
"""Seconds between two polls where there is no inotify."""
_QUIET_TIME = 0.005
"""Seconds from a write to the `-wal` file to the first poll. Most commits are visible by then."""
_POLL_INTERVALS = tuple(_QUIET_TIME * 2**n for n in range(7))
"""Seconds between later polls: on a busy disk, a commit may take half a second to become visible."""
_TURN_FILE, _LOG_FILE = ("-turn", 4), ("-wal", 2)
"""The suffix of each watched file and its inotify event: IN_ATTRIB (touched), IN_MODIFY (written)."""


class FileWatch:
    """Waits until `has_changed` returns True. Calls it when the file may have changed."""

    def __init__(self, path: str, has_changed: Callable[[], bool]) -> None:
        self._has_changed, self._path = has_changed, path
        self._turn_signals: int | None = None
        self._log_signals: int | None = None
        self._is_set_up = False

    async def wait(self) -> None:
        """Return as soon as a call of `has_changed` returns True."""
        self._set_up()
        if self._turn_signals is None or self._log_signals is None:
            while not self._has_changed():  # noqa: ASYNC110 - nothing could set an event
                await asyncio.sleep(POLL_INTERVAL)
            return
        signal = _ChangeSignal(self._turn_signals, self._log_signals)
        try:
            while not self._has_changed():
                await signal.is_due.wait()
                signal.is_due.clear()
        finally:
            signal.end()

    def discard_signals(self) -> None:
        """Discard the signals so far, which come from commits that this process made or has seen."""
        for descriptor in (self._turn_signals, self._log_signals):
            if descriptor is not None:
                _drain(descriptor)

    def _set_up(self) -> None:
        """Set inotify up at the first wait only: the kernel takes 10 ms to tear a watch down."""
        if not self._is_set_up:
            self._turn_signals, self._log_signals = (
                _inotify(self._path, *_TURN_FILE),
                _inotify(self._path, *_LOG_FILE),
            )
            self._is_set_up = True

    def close(self) -> None:
        for descriptor in (self._turn_signals, self._log_signals):
            if descriptor is not None:
                os.close(descriptor)
        self._turn_signals = self._log_signals = None


class _ChangeSignal:
    """Sets `is_due` when it is time to poll: at once after a turn, later after a write to the log."""

    def __init__(self, turn_signals: int, log_signals: int) -> None:
        self.is_due = asyncio.Event()
        self._turn_signals, self._log_signals = turn_signals, log_signals
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._loop.add_reader(turn_signals, self._on_turn)
        self._loop.add_reader(log_signals, self._on_log_write)

    def end(self) -> None:
        self._loop.remove_reader(self._turn_signals)
        self._loop.remove_reader(self._log_signals)
        self._cancel_timer()

    def _on_turn(self) -> None:
        if _drain(self._turn_signals):
            self.is_due.set()

    def _on_log_write(self) -> None:
        """Ignore further writes to the log for `_QUIET_TIME`."""
        self._loop.remove_reader(self._log_signals)
        self._cancel_timer()
        self._timer = self._loop.call_later(_QUIET_TIME, self._end_quiet_time)

    def _end_quiet_time(self) -> None:
        _drain(self._log_signals)
        self._loop.add_reader(self._log_signals, self._on_log_write)
        self._request_poll(iter(_POLL_INTERVALS))

    def _request_poll(self, pauses: Iterator[float]) -> None:
        self.is_due.set()
        pause = next(pauses, None)
        self._timer = None if pause is None else self._loop.call_later(pause, self._request_poll, pauses)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


def _drain(descriptor: int) -> bool:
    """Read all pending signals. False if there were none, because they were discarded."""
    try:
        return bool(os.read(descriptor, 65_536))
    except BlockingIOError:
        return False


def _inotify(path: str, suffix: str, event_mask: int) -> int | None:
    """A descriptor that becomes readable when the event occurs; None where inotify is not available."""
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if descriptor < 0:
        return None
    if libc.inotify_add_watch(descriptor, os.fsencode(f"{path}{suffix}"), event_mask) < 0:
        os.close(descriptor)
        return None
    return descriptor
