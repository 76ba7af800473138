"""Loops that run beside the jobs, on the engine's loop."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from errandry.claims.trouble import OnTrouble
from errandry.store.engine.engine import Engine

log = logging.getLogger("errandry.worker")

LOOP_RESTART_DELAY = 1.0
"""Seconds before a background loop that raised is restarted."""

LoopFunction = Callable[[], Coroutine[Any, Any, None]]


def start_loops(
    engine: Engine, loops: Iterable[LoopFunction], on_trouble: OnTrouble
) -> list[asyncio.Task[None]]:
    """Run these loops on the engine's loop until their tasks are canceled."""
    return [asyncio.create_task(engine.call(_run_forever, loop, on_trouble)) for loop in loops]


async def _run_forever(loop: LoopFunction, on_trouble: OnTrouble) -> None:
    """Run a loop and restart it after an unexpected error: the worker cannot do without it."""
    while True:
        try:
            await loop()
        except Exception as error:
            log.exception("unexpected error in a background loop, restarting it in %g s", LOOP_RESTART_DELAY)
            on_trouble("a background loop failed, restarting it", error)
            await asyncio.sleep(LOOP_RESTART_DELAY)
