"""The event loops that Errandry creates: of asyncio or of uvloop, whose throughput is a fifth higher.

The engine uses uvloop if the program has imported it; `errandry worker` uses it if it is installed, as by
`pip install 'errandry[fast]'`. The environment variable `ERRANDRY_LOOP` selects one of them explicitly.
"""

import asyncio
import gc
import os
import sys
from collections.abc import Coroutine
from contextlib import closing, suppress
from importlib import import_module
from typing import Any, TypeVar

from errandry.errors import InvalidValue

LOOP_VARIABLE = "ERRANDRY_LOOP"
ASYNCIO, UVLOOP = "asyncio", "uvloop"
GC_THRESHOLD = 10_000
"""Number of new objects after which Python's cyclic garbage collector runs."""

T = TypeVar("T")


def new_loop() -> asyncio.AbstractEventLoop:
    """Create an event loop: of uvloop if the program has imported it. Importing it here would be slow."""
    if not _wants_uvloop(default=sys.modules.get(UVLOOP) is not None):
        return asyncio.new_event_loop()
    try:
        import uvloop
    except ImportError:
        raise InvalidValue(LOOP_VARIABLE, UVLOOP, "is not installed: pip install 'errandry[fast]'") from None
    return uvloop.new_event_loop()


def run(main: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run` for a long-running program of Errandry, on uvloop if it is installed.

    Excludes all objects loaded so far from garbage collection: they stay, and each full collection would stop
    the program for 20 ms. Collects newer objects less often than Python's default: running jobs create more
    objects than the default threshold, and few of them are cyclic garbage.
    """
    with closing(main):  # even if creating the loop fails
        if _wants_uvloop(default=True):
            with suppress(ImportError):
                import_module(UVLOOP)  # so that `new_loop` uses it
        before = gc.get_threshold()
        gc.collect()
        gc.freeze()
        gc.set_threshold(GC_THRESHOLD, *before[1:])
        try:
            with asyncio.Runner(loop_factory=new_loop) as runner:
                return runner.run(main)
        finally:
            gc.set_threshold(*before)
            gc.unfreeze()


def _wants_uvloop(*, default: bool) -> bool:
    """Whether to use uvloop; `default` applies if the environment variable is not set."""
    wanted = os.environ.get(LOOP_VARIABLE, "")
    if wanted not in ("", ASYNCIO, UVLOOP):
        raise InvalidValue(LOOP_VARIABLE, wanted, f"must be {ASYNCIO} or {UVLOOP}")
    return wanted == UVLOOP or (not wanted and default)
