"""The event loops that Errandry makes itself: asyncio's or uvloop's, with which it does a fifth more.

The engine has the kind that the program uses; `errandry worker` uses uvloop where it is installed, as with
`pip install 'errandry[fast]'`. `ERRANDRY_LOOP` says which of them, for who wants it so.
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

VARIABLE = "ERRANDRY_LOOP"
ASYNCIO, UVLOOP = "asyncio", "uvloop"
GARBAGE = 10_000
"""So many new objects are there before they are searched for garbage."""

T = TypeVar("T")


def new_loop() -> asyncio.AbstractEventLoop:
    """A loop of the kind this program uses, as far as that can be told: importing uvloop takes its time."""
    if not _is_wanted(sys.modules.get(UVLOOP) is not None):
        return asyncio.new_event_loop()
    try:
        import uvloop
    except ImportError:
        raise InvalidValue(VARIABLE, UVLOOP, "is not installed: pip install 'errandry[fast]'") from None
    return uvloop.new_event_loop()


def run(main: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run` for a program of ours that goes on for long: with uvloop if it is there.

    What is loaded by then is there to stay: to search all of it for garbage would stop everything for 20 ms,
    again and again. What comes later is searched less often than Python does: as many jobs as are under way
    make more objects than its bound allows, and few of them are garbage that has to be searched for.
    """
    with closing(main):  # even if there is no loop to run it
        if _is_wanted(True):
            with suppress(ImportError):
                import_module(UVLOOP)  # for `new_loop` to find
        before = gc.get_threshold()
        gc.collect()
        gc.freeze()
        gc.set_threshold(GARBAGE, *before[1:])
        try:
            with asyncio.Runner(loop_factory=new_loop) as runner:
                return runner.run(main)
        finally:
            gc.set_threshold(*before)
            gc.unfreeze()


def _is_wanted(usually: bool) -> bool:
    """Whether uvloop is to be used, if it is there; where nothing is said, as usual."""
    wanted = os.environ.get(VARIABLE, "")
    if wanted not in ("", ASYNCIO, UVLOOP):
        raise InvalidValue(VARIABLE, wanted, f"must be {ASYNCIO} or {UVLOOP}")
    return wanted == UVLOOP or (not wanted and usually)
