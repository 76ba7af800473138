"""Reading what is typed, or piped in, in the middle of a command."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def interruptible() -> Iterator[None]:
    """Have Ctrl-C end a blocking read: asyncio would only cancel its task, which cannot go on until then."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
