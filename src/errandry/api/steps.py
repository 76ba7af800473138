"""Durable steps: run each step of a handler once, sleep, and wait for signals, across runs of the job.

Only results are stored. A handler that runs again starts from its beginning, and a finished step returns its
stored result. The first run reads the result back from JSON too, so that both runs see the same value.
"""

import asyncio
import inspect
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any, get_type_hints

from msgspec import Struct

from errandry.api.outcome import Fail, SuspendForSignal, SuspendForSleep
from errandry.codec.json_codec import from_json, reader, to_json
from errandry.core import check
from errandry.core.duration import as_datetime, format_duration, seconds
from errandry.core.job import JobRecord
from errandry.core.step import StepKind, StepRecord
from errandry.errors import InvalidValue

SaveStep = Callable[[str, str], "Future[None]"]
"""Writes the result of a step under the fence, from any thread. The future is done when it is durable."""
Span = float | timedelta | str


class Step(Struct, frozen=True):
    """A step of a job, a sleep, or a signal sent to it, for `jobs.steps(id)`.

    name    its name, unique among those of its kind
    kind    step, sleep or signal
    result  the result of a step or the payload of a signal, as plain values
    at      when the step was finished, the sleep began or the signal came; None while the job waits for it
    until   when the sleep ends, or the wait for the signal; None if it waits without a timeout
    """

    name: str
    kind: StepKind
    result: Any
    at: datetime | None
    until: datetime | None


def step_of_record(record: StepRecord) -> Step:
    """The step of a record whose result is unsealed."""
    return Step(
        name=record.name,
        kind=record.kind,
        result=None if record.result is None else from_json(record.result),
        at=as_datetime(record.at),
        until=None if _is_endless(record) else as_datetime(record.until),
    )


def _is_endless(record: StepRecord) -> bool:
    """True for a wait without a timeout: it is stored with the longest one."""
    return record.until is not None and record.kind is StepKind.SIGNAL and record.until >= check.SPAN_MAX


class StepJournal:
    """The steps of one run: those loaded when it began, and those it adds."""

    def __init__(self, job: JobRecord, loaded: Iterable[StepRecord], save_step: SaveStep | None) -> None:
        self.loaded = tuple(loaded)
        self._job, self._save_step = job, save_step
        self._by_name = {(step.kind, step.name): step for step in self.loaded}
        self._used: set[str] = set()
        self._sleeps = 0

    async def step(self, name: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with self._begin_step(name) as stored:
            if stored is not None:
                return _decode_result(function, stored)
            value = function(*args, **kwargs)
            if inspect.isawaitable(value):
                value = await value
            text = _encode_result(name, value)
            with _fail_if_invalid(name):
                await asyncio.wrap_future(self._save(name, text))
            return _decode_result(function, text)

    def step_sync(self, name: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """`step` for a thread without an event loop."""
        with self._begin_step(name) as stored:
            if stored is not None:
                return _decode_result(function, stored)
            if asyncio._get_running_loop() is not None or inspect.iscoroutinefunction(function):
                raise TypeError(
                    f"step {name!r} would block the handler's event loop: await ctx.step(…) instead"
                )
            text = _encode_result(name, function(*args, **kwargs))
            with _fail_if_invalid(name):
                self._save(name, text).result()
            return _decode_result(function, text)

    def sleep(self, after: Span, name: str | None) -> None:
        self._sleeps += 1
        name = f"sleep {self._sleeps}" if name is None else name
        if (StepKind.SLEEP, name) not in self._by_name:
            raise SuspendForSleep(seconds(after, "after"), check.name("sleep", name))

    def signal(self, name: str, timeout: Span | None) -> Any:
        """The payload of the signal. Raises SuspendForSignal if it may still come, TimeoutError if not."""
        signal = self._by_name.get((StepKind.SIGNAL, name))
        if signal is None or (signal.at is None and (signal.until or 0.0) > (self._job.claimed_at or 0.0)):
            length = check.SPAN_MAX if timeout is None else seconds(timeout, "timeout")
            raise SuspendForSignal(check.name("signal", name), length)
        if signal.at is None:
            within = "" if timeout is None else f" within {format_duration(seconds(timeout, 'timeout'))}"
            raise TimeoutError(f"no signal {name!r} came{within}")
        return None if signal.result is None else from_json(signal.result)

    @contextmanager
    def _begin_step(self, name: str) -> Iterator[str | None]:
        """Yield the stored result of a step, or None. A name can be used again only after its step raised."""
        check.name("step", name)
        if name in self._used:
            why = "is used twice in this run: give each step its own name, in a loop one with a number"
            raise InvalidValue("step", name, why)
        self._used.add(name)
        stored = self._by_name.get((StepKind.STEP, name))
        try:
            yield None if stored is None else stored.result or "null"
        except BaseException:
            self._used.discard(name)
            raise

    def _save(self, name: str, text: str) -> "Future[None]":
        if self._save_step is None:
            raise TypeError(f"step {name!r} can only be stored while a worker, or drain, runs the handler")
        return self._save_step(name, text)


def _encode_result(name: str, value: Any) -> str:
    with _fail_if_invalid(name):
        return to_json("result", value)


@contextmanager
def _fail_if_invalid(name: str) -> Iterator[None]:
    """Fail the job for good if a result cannot be stored: a retry would only repeat the step's effects."""
    try:
        yield
    except InvalidValue as error:
        raise Fail(f"the result of step {name!r} cannot be stored: {error}") from error


def _decode_result(function: Callable[..., Any], text: str) -> Any:
    """The result as the type the function declares, or as plain values if that does not fit."""
    try:
        return reader(get_type_hints(function).get("return", Any))(text)
    except Exception:
        return from_json(text)
