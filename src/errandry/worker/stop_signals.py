"""The signals that stop a worker or a supervisor."""

import asyncio
import signal
from collections.abc import Callable


def handled_signals() -> list[signal.Signals]:
    """SIGTERM, SIGINT, and SIGHUP, which a closed terminal sends, unless it is ignored, as by `nohup`."""
    is_ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [signal.SIGTERM, signal.SIGINT, *([] if is_ignored else [signal.SIGHUP])]


class StopSignals:
    """Each SIGTERM and SIGINT calls `stop` while the block runs; a SIGHUP only if it is the first signal.

    A terminal that is closed, or a service manager, may send SIGHUP beside another signal.

    After one of them they are ignored until the event loop closes: the program ends, and a second signal must
    not interrupt it while it closes the store.
    """

    def __init__(self, stop: Callable[[], object]) -> None:
        self._stop, self._was_received, self._numbers = stop, False, handled_signals()

    def __enter__(self) -> None:
        for number in self._numbers:
            asyncio.get_running_loop().add_signal_handler(number, self._receive, number)

    def __exit__(self, *_: object) -> None:
        loop = asyncio.get_running_loop()
        for number in self._numbers:
            if self._was_received:
                loop.add_signal_handler(number, lambda: None)
            else:
                loop.remove_signal_handler(number)

    def _receive(self, number: signal.Signals) -> None:
        if number == signal.SIGHUP and self._was_received:
            return
        self._was_received = True
        self._stop()
