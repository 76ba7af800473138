"""A task on the engine's loop that a cancel of the main loop's tasks does not reach."""

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from errandry.errors import StoreClosed
from errandry.store.engine.engine import Engine


class EngineTask:
    """Runs a coroutine function on the engine's loop.

    At the end of a program, `asyncio.run` cancels all tasks of its loop, and `Engine.call` passes that on.
    The claimer must not be canceled in the middle of a claim, because its jobs would stay claimed.
    """

    def __init__(self, engine: Engine, function: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._engine, self._function = engine, function
        self._ended: Future[BaseException | None] = Future()
        self._ended.set_running_or_notify_cancel()  # so that a canceled wait does not cancel it
        self._task: asyncio.Task[None] | None = None

    @property
    def is_done(self) -> bool:
        return self._ended.done()

    @property
    def error(self) -> BaseException | None:
        """The error that ended it; None if there was none, or if it goes on."""
        return self._ended.result() if self._ended.done() else None

    async def start(self) -> None:
        try:
            await self._engine.call(self._start)
        except BaseException as error:
            if self._task is None and not self._ended.done():
                self._ended.set_result(error)
            raise

    async def wait(self, timeout: float | None = None) -> None:
        """Return when it has ended, or after the timeout. On any loop."""
        await asyncio.wait([asyncio.wrap_future(self._ended)], timeout=timeout)

    def cancel(self) -> None:
        """Cancel it. From any thread."""
        if (task := self._task) is not None:
            with suppress(RuntimeError):  # the engine's loop has ended, and the task with it
                task.get_loop().call_soon_threadsafe(task.cancel)

    async def _start(self) -> None:
        self._task = asyncio.create_task(self._function())
        self._task.add_done_callback(self._end)

    def _end(self, task: asyncio.Task[None]) -> None:
        closed = StoreClosed("app", "it was closed while its worker ran") if task.cancelled() else None
        self._ended.set_result(closed or task.exception())
