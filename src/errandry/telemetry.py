"""OpenTelemetry: spans and metrics of an app, and traces that continue from `enqueue` to the handler.

    from errandry.telemetry import instrument

    instrument(jobs)

Names follow the messaging conventions of OpenTelemetry where those define one. Needs the extra `otel`.
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
from errandry.api.context import JobContext, current_job_fields
from errandry.api.job import Job
from errandry.api.outcome import Cancel, Fail, Retry, Snooze, Suspension, returned_outcome, unwrap_group
from errandry.core.answer import Answer
from errandry.core.command import Command
from errandry.core.job import NewJob
from errandry.errors import ErrandryError, InvalidValue
from errandry.store.contract import Store

try:
    from opentelemetry import metrics, propagate, trace
    from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation
    from opentelemetry.trace import Span, SpanKind, StatusCode, TracerProvider
except ImportError as missing:
    why = "needs the package opentelemetry-api: pip install 'errandry[otel]'"
    raise InvalidValue("telemetry", "errandry.telemetry", why) from missing

log = logging.getLogger("errandry.telemetry")

_OUTCOMES: Mapping[type[BaseException], str] = {
    Retry: "retry",
    Snooze: "snooze",
    Fail: "fail",
    Cancel: "cancel",
    Suspension: "suspend",
    asyncio.CancelledError: "stop",
}


def instrument(
    jobs: Errandry,
    *,
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
) -> None:
    """Make `jobs` record spans and metrics, with the given providers or the global ones.

    Call it once, before the app is used. It wraps handlers as the outermost middleware.
    """
    telemetry = _Telemetry(jobs, tracer_provider, meter_provider)
    jobs.client.wrap_store(telemetry.trace_store)
    jobs.on_enqueue(telemetry.trace_enqueue)
    jobs.middlewares.insert(0, telemetry.trace_attempt)


class JobFields(logging.Filter):
    """Logging filter that adds the current job to a log record: `job`, `task`, `queue`, `attempt`, `fence`.

    For formats such as `%(job)s %(attempt)s %(message)s`, and for handlers that write JSON. Outside of job
    handlers the fields are empty.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        if not hasattr(record, "job"):  # the worker's lines about attempts have these fields already
            record.__dict__.update(dict.fromkeys(_JOB_FIELDS, "") | current_job_fields())
        return True


_JOB_FIELDS = "job", "task", "queue", "attempt", "fence"


class _Telemetry:
    def __init__(self, jobs: Errandry, tracers: TracerProvider | None, meters: MeterProvider | None) -> None:
        self._jobs = jobs
        self._tracer = trace.get_tracer("errandry", __version__, tracers)
        meter = metrics.get_meter("errandry", __version__, meters)
        self._enqueued_counter = meter.create_counter("errandry.enqueued", "{job}", "Jobs enqueued.")
        self._attempt_counter = meter.create_counter(
            "errandry.processed", "{attempt}", "Attempts, by outcome."
        )
        self._wait_histogram = meter.create_histogram("errandry.wait", "s", "Seconds from due to started.")
        self._run_histogram = meter.create_histogram("errandry.run", "s", "Seconds in the handler.")
        self._pass_histogram = meter.create_histogram("errandry.pass", "s", "Seconds of a write pass.")
        gauges: list[tuple[str, str, str, Callable[[CallbackOptions], Iterable[Observation]]]] = [
            ("errandry.jobs", "{job}", "Jobs by queue and state.", self._observe_jobs),
            ("errandry.lag", "s", "Seconds the next job has waited.", self._observe_lag),
        ]
        for name, unit, text, observe in gauges:
            meter.create_observable_gauge(name, [observe], unit, text)

    def trace_store(self, store: Store) -> Store:
        return cast("Store", _TracedStore(store, self))

    def trace_enqueue(self, job: NewJob) -> NewJob:
        """The job with the trace context in its metadata, so that its handler continues the trace."""
        self._enqueued_counter.add(1, {"queue": job.queue, "task": job.task})
        attributes = _span_attributes("create", job)
        carrier: dict[str, str] = {}
        with self._tracer.start_as_current_span(
            f"create {job.queue}", kind=SpanKind.PRODUCER, attributes=attributes
        ):
            propagate.inject(carrier)
        if not carrier:
            return job
        fields = {} if job.metadata is None else msgspec.json.decode(job.metadata)
        return replace(job, metadata=msgspec.json.encode(fields | carrier).decode())

    async def trace_attempt(self, ctx: JobContext, call_next: CallNext) -> Any:
        job = ctx.job
        names = {"queue": job.queue, "task": job.task}
        begun, outcome = time.perf_counter(), "complete"
        for batch_job in (job_ctx.job for job_ctx in ctx.jobs):
            if batch_job.started_at is not None:
                due_at = max(batch_job.created_at, batch_job.run_at or batch_job.created_at)
                waited = (batch_job.started_at - due_at).total_seconds()
                self._wait_histogram.record(max(0.0, waited), names)
        with self._tracer.start_as_current_span(
            f"process {job.queue}",
            context=propagate.extract(_carrier(job)),
            kind=SpanKind.CONSUMER,
            attributes=_span_attributes("process", job) | {"errandry.attempt": job.attempts},
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                result = await call_next(ctx)
                if (returned := returned_outcome(result)) is not None:
                    outcome = _record_error(span, returned)
                return result
            except BaseException as error:
                outcome = _record_error(span, unwrap_group(error))
                raise
            finally:
                span.set_attribute("errandry.outcome", outcome)
                self._run_histogram.record(time.perf_counter() - begun, names)
                self._attempt_counter.add(len(ctx.jobs), names | {"outcome": outcome})

    async def trace_pass(self, store: Store, commands: Sequence[Command]) -> list[Answer]:
        begun = time.perf_counter()
        with self._tracer.start_as_current_span("pass", attributes={"errandry.commands": len(commands)}):
            try:
                return await store.commit(commands)
            finally:
                self._pass_histogram.record(time.perf_counter() - begun)

    def _observe_jobs(self, _: CallbackOptions) -> Iterable[Observation]:
        for info in self._read_queues():
            for state, count in info.states.items():
                yield Observation(count, {"queue": info.name, "state": state})

    def _observe_lag(self, _: CallbackOptions) -> Iterable[Observation]:
        for info in self._read_queues():
            yield Observation(info.waited or 0.0, {"queue": info.name})

    def _read_queues(self) -> list[Any]:
        """The queues; called on the metric exporter's thread."""
        try:
            return self._jobs.sync.queues()
        except ErrandryError as error:
            log.warning("cannot read queues for metrics: %s", error)
            return []


class _TracedStore:
    """A store that records a span for each pass and delegates everything else."""

    def __init__(self, store: Store, telemetry: _Telemetry) -> None:
        self._store, self._telemetry = store, telemetry

    async def commit(self, commands: Sequence[Command]) -> list[Answer]:
        return await self._telemetry.trace_pass(self._store, commands)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def _record_error(span: Span, error: BaseException) -> str:
    """The word for how an attempt ended with `error`; errors and failures are recorded in the span."""
    outcome = next((word for kind, word in _OUTCOMES.items() if isinstance(error, kind)), "error")
    if outcome in ("error", "fail"):
        span.record_exception(error)
        span.set_status(StatusCode.ERROR, f"{type(error).__name__}: {error}")
    return outcome


def _span_attributes(operation: str, job: NewJob | Job[Any]) -> dict[str, str | int]:
    return {
        "messaging.system": "errandry",
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.destination.name": job.queue,
        "messaging.message.id": job.id,
        "errandry.task": job.task,
    }


def _carrier(job: Job[Any]) -> dict[str, str]:
    """The trace context that `trace_enqueue` put into the metadata."""
    return {name: value for name, value in job.metadata.items() if isinstance(value, str)}
