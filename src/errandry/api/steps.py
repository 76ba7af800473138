"""What a handler does with the durable steps of its job: do them, sleep, wait for signals.

Only results are kept. A handler that runs again begins at its beginning; a step that is done gives back what
it gave the first time, read from JSON both times, so that nobody sees a difference.
"""

import asyncio
import inspect
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, get_type_hints

from errandry.api.outcome import Fail, SuspendForSignal, SuspendForSleep
from errandry.codec.json_codec import from_json, reader, to_json
from errandry.core import check
from errandry.core.duration import seconds, short
from errandry.core.job import JobRecord
from errandry.core.step import Step, StepKind
from errandry.errors import InvalidValue

SaveStep = Callable[[str, str], "Future[None]"]
"""Writes the result of a step under the fence; from any thread. Done when it is durable."""
Span = float | timedelta | str


class StepJournal:
    """The steps of one run: those found when it began, and those it does."""

    def __init__(self, job: JobRecord, found: Iterable[Step], keep: SaveStep | None) -> None:
        self.found = tuple(found)
        self._job, self._keep = job, keep
        self._by_name = {(step.kind, step.name): step for step in self.found}
        self._used: set[str] = set()
        self._sleeps = 0

    async def step(self, name: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with self._begun(name) as done:
            if done is not None:
                return _read(function, done)
            value = function(*args, **kwargs)
            if inspect.isawaitable(value):
                value = await value
            text = _text(name, value)
            with _storable(name):
                await asyncio.wrap_future(self._kept(name, text))
            return _read(function, text)

    def step_sync(self, name: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The same for a thread without a loop."""
        with self._begun(name) as done:
            if done is not None:
                return _read(function, done)
            if asyncio._get_running_loop() is not None or inspect.iscoroutinefunction(function):
                raise TypeError(f"step {name!r} is one for the loop of its handler: await ctx.step(…) there")
            text = _text(name, function(*args, **kwargs))
            with _storable(name):
                self._kept(name, text).result()
            return _read(function, text)

    def sleep(self, after: Span, name: str | None) -> None:
        self._sleeps += 1
        name = f"sleep {self._sleeps}" if name is None else name
        if (StepKind.SLEEP, name) not in self._by_name:
            raise SuspendForSleep(seconds(after, "after"), check.name("sleep", name))

    def signal(self, name: str, timeout: Span | None) -> Any:
        """What was sent with the signal, if it is there; or how the handler ends because it is not."""
        found = self._by_name.get((StepKind.SIGNAL, name))
        if found is None or (found.at is None and (found.until or 0.0) > (self._job.claimed_at or 0.0)):
            length = check.SPAN_MAX if timeout is None else seconds(timeout, "timeout")
            raise SuspendForSignal(check.name("signal", name), length)
        if found.at is None:
            within = "" if timeout is None else f" within {short(seconds(timeout, 'timeout'))}"
            raise TimeoutError(f"no signal {name!r} came{within}")
        return None if found.result is None else from_json(found.result)

    @contextmanager
    def _begun(self, name: str) -> Iterator[str | None]:
        """The result of a step if it is done. A name can be used once, unless the step goes wrong."""
        check.name("step", name)
        if name in self._used:
            why = "stands twice in this run: each step has a name of its own, in a loop one with a number"
            raise InvalidValue("step", name, why)
        self._used.add(name)
        done = self._by_name.get((StepKind.STEP, name))
        try:
            yield None if done is None else done.result or "null"
        except BaseException:
            self._used.discard(name)
            raise

    def _kept(self, name: str, text: str) -> "Future[None]":
        if self._keep is None:
            raise TypeError(f"step {name!r} can only be kept where a worker, or drain, runs the handler")
        return self._keep(name, text)


def _text(name: str, value: Any) -> str:
    with _storable(name):
        return to_json("result", value)


@contextmanager
def _storable(name: str) -> Iterator[None]:
    """What cannot be stored fails the job: another try would do the same, and that twice."""
    try:
        yield
    except InvalidValue as error:
        raise Fail(f"the result of step {name!r} cannot be kept: {error}") from error


def _read(function: Callable[..., Any], text: str) -> Any:
    """A result as the type the function declares, or plain values where that does not fit."""
    try:
        return reader(get_type_hints(function).get("return", Any))(text)
    except Exception:
        return from_json(text)
