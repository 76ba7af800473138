"""`errandry doctor --metrics`: the metrics of a store in the Prometheus text format."""

from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING

import click

from errandry.core.why import SILENT_AFTER

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from errandry.api.app import Errandry


async def metrics_text(jobs: "Errandry") -> str:
    """All metrics in the Prometheus text format."""
    try:
        from prometheus_client.exposition import generate_latest
        from prometheus_client.registry import Collector
    except ImportError:
        why = "--metrics needs the package prometheus-client: pip install 'errandry[metrics]'"
        raise click.ClickException(why) from None

    families = [*await _queue_metrics(jobs), *await _worker_metrics(jobs)]

    class StoreCollector(Collector):
        def collect(self) -> Iterator["Metric"]:
            return iter(families)

    return generate_latest(StoreCollector()).decode()


async def _queue_metrics(jobs: "Errandry") -> list["Metric"]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    states = GaugeMetricFamily(
        "errandry_jobs", "Number of jobs by queue and state.", labels=["queue", "state"]
    )
    lag = GaugeMetricFamily(
        "errandry_queue_lag_seconds", "Seconds that the next job of the queue has waited.", labels=["queue"]
    )
    paused = GaugeMetricFamily("errandry_queue_paused", "1 while the queue is paused.", labels=["queue"])
    for info in await jobs.queues():
        for state, count in info.states.items():
            states.add_metric([info.name, state], count)
        lag.add_metric([info.name], info.waited or 0.0)
        paused.add_metric([info.name], info.paused is not None)
    totals_metric = CounterMetricFamily(
        "errandry_jobs_ever", "Lifetime totals of what happened to jobs, by queue.", labels=["queue", "what"]
    )
    for queue, totals in (await jobs.totals()).items():
        for event, count in totals.items():
            totals_metric.add_metric([queue, event], count)
    return [states, lag, paused, totals_metric]


async def _worker_metrics(jobs: "Errandry") -> list["Metric"]:
    from prometheus_client.core import GaugeMetricFamily

    now = await jobs.now()
    silent_since = now - timedelta(seconds=SILENT_AFTER)
    alive = [worker for worker in await jobs.workers.list() if worker.seen_at >= silent_since]
    return [
        GaugeMetricFamily("errandry_workers", "Number of live workers.", len(alive)),
        GaugeMetricFamily(
            "errandry_slots",
            "Number of handlers that live workers can run at once.",
            sum(worker.slots for worker in alive),
        ),
        GaugeMetricFamily(
            "errandry_slots_taken",
            "Number of handlers that live workers run now.",
            sum(worker.running for worker in alive),
        ),
    ]
