"""OpenTelemetry: spans and metrics of an app, and the trace that leads from `enqueue` to the handler.

    from errandry.telemetry import instrument

    instrument(jobs)

Names follow the messaging conventions of OpenTelemetry where they have one. Needs the extra `otel`.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

import msgspec
from msgspec.structs import replace

from errandry import __version__
from errandry.api.app import CallNext, Errandry
from errandry.api.context import JobContext, current
from errandry.api.outcome import Cancel, Fail, Retry, Snooze
from errandry.core.answer import Answer
from errandry.core.command import Command
from errandry.core.job import JobRecord, NewJob
from errandry.errors import ErrandryError, InvalidValue
from errandry.store.contract import Store

try:
    from opentelemetry import metrics, propagate, trace
    from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation
    from opentelemetry.trace import SpanKind, StatusCode, TracerProvider
except ImportError as missing:
    why = "needs the package opentelemetry-api: pip install 'errandry[otel]'"
    raise InvalidValue("telemetry", "errandry.telemetry", why) from missing

log = logging.getLogger("errandry.telemetry")

_OUTCOMES: Mapping[type[BaseException], str] = {
    Retry: "retry",
    Snooze: "snooze",
    Fail: "fail",
    Cancel: "cancel",
    asyncio.CancelledError: "stop",
}


def instrument(
    jobs: Errandry,
    *,
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
) -> None:
    """Make spans and metrics of what `jobs` does, with the providers given or the global ones.

    To be called once, before the app is used; its handlers are wrapped as by the first middleware.
    """
    telemetry = _Telemetry(jobs, tracer_provider, meter_provider)
    jobs.wrap(telemetry.traced)
    jobs.on_enqueue(telemetry.enqueued)
    jobs.middlewares.insert(0, telemetry.processed)


class JobFields(logging.Filter):
    """Adds what job a record was logged for: `job`, `task`, `queue`, `attempt` and `fence`; empty outside.

    For formats such as `%(job)s %(attempt)s %(message)s`, and for handlers that write JSON.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        ctx = current()
        job = None if ctx is None else ctx.job
        record.job, record.task, record.queue = (job.id, job.task, job.queue) if job else ("", "", "")
        record.attempt, record.fence = (job.attempts, job.fence) if job else ("", "")
        return True


class _Telemetry:
    def __init__(self, jobs: Errandry, tracers: TracerProvider | None, meters: MeterProvider | None) -> None:
        self._jobs = jobs
        self._tracer = trace.get_tracer("errandry", __version__, tracers)
        meter = metrics.get_meter("errandry", __version__, meters)
        self._enqueued = meter.create_counter("errandry.enqueued", "{job}", "Jobs handed in.")
        self._processed = meter.create_counter("errandry.processed", "{attempt}", "Attempts, by outcome.")
        self._waited = meter.create_histogram("errandry.wait", "s", "From due to begun.")
        self._ran = meter.create_histogram("errandry.run", "s", "How long handlers took.")
        self._pass = meter.create_histogram("errandry.pass", "s", "How long writing passes took.")
        gauges: list[tuple[str, str, str, Callable[[CallbackOptions], Iterable[Observation]]]] = [
            ("errandry.jobs", "{job}", "Jobs by queue and state.", self._depths),
            ("errandry.lag", "s", "How long the job next in line has waited.", self._lags),
        ]
        for name, unit, text, look in gauges:
            meter.create_observable_gauge(name, [look], unit, text)

    def traced(self, store: Store) -> Store:
        return cast("Store", _Traced(store, self))

    def enqueued(self, job: NewJob) -> NewJob:
        """The job with the trace in its metadata, from where its handler goes on."""
        self._enqueued.add(1, {"queue": job.queue, "task": job.task})
        attributes = _attributes("create", job)
        carrier: dict[str, str] = {}
        with self._tracer.start_as_current_span(
            f"create {job.queue}", kind=SpanKind.PRODUCER, attributes=attributes
        ):
            propagate.inject(carrier)
        if not carrier:
            return job
        known = {} if job.metadata is None else msgspec.json.decode(job.metadata)
        return replace(job, metadata=msgspec.json.encode(known | carrier).decode())

    async def processed(self, ctx: JobContext, call_next: CallNext) -> Any:
        job = ctx.job
        names = {"queue": job.queue, "task": job.task}
        begun, outcome = time.perf_counter(), "complete"
        for one in (each.job for each in ctx.jobs):
            if one.started_at is not None:
                self._waited.record(max(0.0, one.started_at - max(one.created_at, one.run_at or 0.0)), names)
        with self._tracer.start_as_current_span(
            f"process {job.queue}",
            context=propagate.extract(_carrier(job)),
            kind=SpanKind.CONSUMER,
            attributes=_attributes("process", job) | {"errandry.attempt": job.attempts},
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                return await call_next(ctx)
            except BaseException as error:
                outcome = next((word for kind, word in _OUTCOMES.items() if isinstance(error, kind)), "error")
                if outcome in ("error", "fail"):
                    span.record_exception(error)
                    span.set_status(StatusCode.ERROR, f"{type(error).__name__}: {error}")
                raise
            finally:
                span.set_attribute("errandry.outcome", outcome)
                self._ran.record(time.perf_counter() - begun, names)
                self._processed.add(len(ctx.jobs), names | {"outcome": outcome})

    async def passed(self, store: Store, commands: Sequence[Command]) -> list[Answer]:
        begun = time.perf_counter()
        with self._tracer.start_as_current_span("pass", attributes={"errandry.commands": len(commands)}):
            try:
                return await store.commit(commands)
            finally:
                self._pass.record(time.perf_counter() - begun)

    def _depths(self, _: CallbackOptions) -> Iterable[Observation]:
        for info in self._look():
            for state, count in info.states.items():
                yield Observation(count, {"queue": info.name, "state": state})

    def _lags(self, _: CallbackOptions) -> Iterable[Observation]:
        for info in self._look():
            yield Observation(info.waited or 0.0, {"queue": info.name})

    def _look(self) -> list[Any]:
        """The queues, asked from the thread of whoever exports metrics."""
        try:
            return self._jobs.sync.run(self._jobs.queues)
        except ErrandryError as error:
            log.warning("queues cannot be counted: %s", error)
            return []


class _Traced:
    """A store whose passes are spans; everything else is the store's own."""

    def __init__(self, store: Store, telemetry: _Telemetry) -> None:
        self._store, self._telemetry = store, telemetry

    async def commit(self, commands: Sequence[Command]) -> list[Answer]:
        return await self._telemetry.passed(self._store, commands)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def _attributes(operation: str, job: NewJob | JobRecord) -> dict[str, str | int]:
    return {
        "messaging.system": "errandry",
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.destination.name": job.queue,
        "messaging.message.id": job.id,
        "errandry.task": job.task,
    }


def _carrier(job: JobRecord) -> dict[str, str]:
    """The trace that `enqueued` left in the metadata."""
    known = {} if job.metadata is None else msgspec.json.decode(job.metadata)
    return {name: value for name, value in known.items() if isinstance(value, str)}
