"""Threads for sync handlers: reused, and abandoned if a handler does not stop."""

import asyncio
import contextvars
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from errandry.api.outcome import Suspension
from errandry.core import check

ThreadCall = tuple[Callable[[], Any], contextvars.Context, asyncio.Future[Any], asyncio.AbstractEventLoop]


class ThreadPool:
    """Calls each function in its own thread. A thread that has finished waits for the next call."""

    def __init__(self) -> None:
        self._idle: list[SimpleQueue[ThreadCall | None]] = []
        self._closed = False

    async def call(self, function: Callable[[], Any]) -> Any:
        """Call `function` in a thread with a copy of this context; return or raise what it does.

        If canceled, stop waiting; the thread goes on until the function returns.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        inbox = self._idle.pop() if self._idle else self._start()
        inbox.put((function, contextvars.copy_context(), future, loop))
        return await future

    def close(self) -> None:
        """End the idle threads; the others end when their handler returns."""
        self._closed = True
        while self._idle:
            self._idle.pop().put(None)

    def _start(self) -> SimpleQueue[ThreadCall | None]:
        inbox: SimpleQueue[ThreadCall | None] = SimpleQueue()
        threading.Thread(target=self._work, args=(inbox,), name="errandry-handler", daemon=True).start()
        return inbox

    def _work(self, inbox: SimpleQueue[ThreadCall | None]) -> None:
        while (call := inbox.get()) is not None:
            function, context, future, loop = call
            try:
                answer: tuple[Any, BaseException | None] = (context.run(function), None)
            except BaseException as error:
                answer = (None, error)
            if loop.is_closed():
                return
            loop.call_soon_threadsafe(self._deliver, future, answer, inbox)
            del call, function, context, future, answer

    def _deliver(
        self,
        future: asyncio.Future[Any],
        answer: tuple[Any, BaseException | None],
        inbox: SimpleQueue[ThreadCall | None],
    ) -> None:
        if self._closed:
            inbox.put(None)
        else:
            self._idle.append(inbox)
        if future.done():
            return
        value, error = answer
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(_raisable(error))


def _raisable(error: BaseException) -> BaseException:
    """`error`, wrapped if a future cannot hold it, or if it would end the program like SystemExit."""
    if isinstance(error, Exception | Suspension | BaseExceptionGroup) and not isinstance(
        error, StopIteration
    ):
        return error
    wrapped = RuntimeError(f"the handler raised {type(error).__name__}: {check.readable_text(error)}")
    wrapped.__cause__ = error
    return wrapped
