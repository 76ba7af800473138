"""`Blocking`: what the classes of `errandry.api.sync` have in common."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from errandry.errors import StoreClosed

if TYPE_CHECKING:
    from errandry.api.store_client import StoreClient

T = TypeVar("T")


class Blocking:
    """Runs async methods on the engine's thread and waits for them. Safe in any thread, and after a fork."""

    _client: "StoreClient"

    def _wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run the coroutine on the engine's loop, in the context variables of the caller."""
        is_started = False

        async def run() -> T:
            nonlocal is_started
            is_started = True
            return await coroutine

        try:
            return self._client.engine.call_sync(run)
        finally:
            if not is_started:  # the store could not be opened
                coroutine.close()

    def _refuse_running_loop(self, instead: str) -> None:
        """Raise RuntimeError if an event loop runs in this thread: the call would need a loop of its own."""
        if asyncio._get_running_loop() is not None:
            raise RuntimeError(f"an event loop is running in this thread: write {instead} in its coroutines")

    def _iterate(self, values: AsyncIterator[T]) -> Iterator[T]:
        """Yield the values of an async generator; it is closed when the loop over them is left."""
        try:
            while True:
                try:
                    value = self._wait(_next(values))
                except StopAsyncIteration:
                    return
                yield value
        finally:
            if isinstance(values, AsyncGenerator):
                with suppress(StoreClosed):  # then the generator is closed already
                    self._wait(values.aclose())


async def _next(values: AsyncIterator[T]) -> T:
    return await anext(values)
