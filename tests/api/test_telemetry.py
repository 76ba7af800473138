"""OpenTelemetry: traces from `enqueue` through the handler to the jobs it enqueues, and metrics."""

import asyncio
import logging
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

from errandry import Cancel, Errandry, Fail, JobContext, Retry, Snooze
from errandry.errors import InvalidValue
from errandry.telemetry import JobFields, instrument
from errandry.worker.options import WorkerOptions
from errandry.worker.worker import Worker


class Watched:
    def __init__(self, jobs: Errandry) -> None:
        self._exporter, self._reader = InMemorySpanExporter(), InMemoryMetricReader()
        tracers = TracerProvider(shutdown_on_exit=False)
        tracers.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.meters = MeterProvider([self._reader], shutdown_on_exit=False)
        self.tracers = tracers
        instrument(jobs, tracer_provider=tracers, meter_provider=self.meters)

    def spans(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.name == name]

    def points(self, name: str) -> list[tuple[dict[str, Any], Any]]:
        data = self._reader.get_metrics_data()
        return [
            (dict(point.attributes or {}), point)
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
            for point in metric.data.data_points
        ]

    def values(self, name: str) -> dict[tuple[str, ...], float]:
        return {tuple(names.values()): point.value for names, point in self.points(name)}


@pytest.fixture
def app() -> Errandry:
    return Errandry("memory:")


@pytest.fixture
def watched(app: Errandry) -> Iterator[Watched]:
    watched = Watched(app)
    yield watched
    watched.meters.shutdown()
    watched.tracers.shutdown()


def id_of(span: ReadableSpan) -> int | None:
    return span.context.span_id if span.context else None


def parent_of(span: ReadableSpan) -> int | None:
    return span.parent.span_id if span.parent else None


async def work(app: Errandry) -> None:
    await Worker(app, WorkerOptions(burst=True)).run()


async def test_one_trace_covers_the_enqueue_the_handler_and_its_jobs(app: Errandry, watched: Watched) -> None:
    @app.task(queue="mail")
    async def child() -> None: ...

    @app.task
    async def parent() -> None:
        await child.enqueue()

    async with app:
        with watched.tracers.get_tracer("test").start_as_current_span("request") as request:
            job = await parent.enqueue()
        await work(app)

    [create, grandchild] = watched.spans("create default") + watched.spans("create mail")
    [process, child_process] = watched.spans("process default") + watched.spans("process mail")
    trace = request.get_span_context().trace_id
    assert {
        span.context.trace_id for span in (create, process, grandchild, child_process) if span.context
    } == {trace}
    assert parent_of(create) == request.get_span_context().span_id
    assert parent_of(process) == id_of(create)
    assert parent_of(grandchild) == id_of(process)
    assert (create.kind, process.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert dict(process.attributes or {}) == {
        "messaging.system": "errandry",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "default",
        "messaging.message.id": job.id,
        "errandry.task": "parent",
        "errandry.attempt": 1,
        "errandry.outcome": "complete",
    }
    assert watched.spans("pass")


async def test_metadata_of_programs_is_kept_with_the_trace(app: Errandry, watched: Watched) -> None:
    @app.task
    async def send() -> None: ...

    async with app:
        job = await send.using(metadata={"tenant": 7}).enqueue()
        metadata = (await app.client.record(job.id)).metadata or ""
    assert '"tenant":7' in metadata
    assert '"traceparent":"00-' in metadata


async def test_attempts_are_counted_by_outcome(app: Errandry, watched: Watched) -> None:
    ends: dict[str, BaseException | type[Cancel] | None] = {
        "complete": None,
        "error": ValueError("no"),
        "retry": Retry(after="1h"),
        "snooze": Snooze("1h"),
        "fail": Fail("hopeless"),
        "cancel": Cancel,
        "suspend": None,
    }

    @app.task(backoff="1h")
    async def end(ctx: JobContext, how: str) -> object:
        outcome = ends[how]
        if how == "suspend":
            ctx.sleep("1h")
        if isinstance(outcome, ValueError | Retry):
            raise outcome
        return outcome

    async with app:
        for how in ends:
            await end.enqueue(how)
        await work(app)
        jobs = {
            names["state"]: point.value
            for names, point in watched.points("errandry.jobs")
            if names["queue"] == "default"
        }

    assert watched.values("errandry.processed") == {("default", "end", how): 1 for how in ends}
    assert watched.values("errandry.enqueued") == {("default", "end"): 7}
    assert jobs == {"completed": 1, "failed": 1, "canceled": 1, "scheduled": 4}
    for name in ("errandry.wait", "errandry.run"):
        assert [point.count for _, point in watched.points(name)] == [7]
    assert watched.points("errandry.pass")[0][1].count > 0
    failed = {
        (span.attributes or {})["errandry.outcome"]
        for span in watched.spans("process default")
        if not span.status.is_ok and span.status.description
    }
    assert failed == {"error", "fail"}


async def test_a_handler_in_a_thread_continues_the_trace(app: Errandry, watched: Watched) -> None:
    @app.task
    def outer() -> None:
        with watched.tracers.get_tracer("test").start_as_current_span("inner"):
            pass

    async with app:
        await outer.enqueue()
        await work(app)
    [inner], [process] = watched.spans("inner"), watched.spans("process default")
    assert parent_of(inner) == id_of(process)


async def test_a_closed_store_exports_no_gauges(app: Errandry, watched: Watched) -> None:
    await app.open()
    await app.close()
    assert await asyncio.to_thread(watched.points, "errandry.jobs") == []


async def test_an_open_app_cannot_be_instrumented(app: Errandry) -> None:
    async with app:
        with pytest.raises(InvalidValue, match="wrap it before its first use"):
            instrument(app)


async def test_log_records_have_the_fields_of_their_job(app: Errandry) -> None:
    lines: list[str] = []

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(self.format(record))

    handler = Lines()
    handler.addFilter(JobFields())
    handler.setFormatter(logging.Formatter("%(job)s %(task)s %(queue)s %(attempt)s %(message)s"))
    logger = logging.getLogger("shop")
    logger.addHandler(handler)

    @app.task
    async def send() -> None:
        logger.warning("inside")

    try:
        async with app:
            job = await send.enqueue()
            logger.warning("outside")
            await work(app)
    finally:
        logger.removeHandler(handler)
    assert lines == ["    outside", f"{job.id} send default 1 inside"]


def test_without_the_package_the_error_names_the_extra() -> None:
    code = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "try: import errandry.telemetry\n"
        "except ValueError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'errandry[otel]'" in done.stdout
