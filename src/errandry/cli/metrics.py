"""`errandry doctor --metrics`: the figures of a store as Prometheus reads them."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from errandry.core.why import SILENT_AFTER

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from errandry.api.app import Errandry


async def exposed(jobs: "Errandry") -> str:
    """Everything in the text format of Prometheus."""
    try:
        from prometheus_client.exposition import generate_latest
        from prometheus_client.registry import Collector
    except ImportError:
        why = "--metrics needs the package prometheus-client: pip install 'errandry[metrics]'"
        raise click.ClickException(why) from None

    families = [*await _of_queues(jobs), *await _of_workers(jobs)]

    class Found(Collector):
        def collect(self) -> Iterator["Metric"]:
            return iter(families)

    return generate_latest(Found()).decode()


async def _of_queues(jobs: "Errandry") -> list["Metric"]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    states = GaugeMetricFamily("errandry_jobs", "Jobs by queue and state.", labels=["queue", "state"])
    lag = GaugeMetricFamily(
        "errandry_queue_lag_seconds", "How long the job next in line has waited.", labels=["queue"]
    )
    paused = GaugeMetricFamily("errandry_queue_paused", "1 while the queue is paused.", labels=["queue"])
    for info in await jobs.queues():
        for state, count in info.states.items():
            states.add_metric([info.name, state], count)
        lag.add_metric([info.name], info.waited or 0.0)
        paused.add_metric([info.name], info.paused is not None)
    ever = CounterMetricFamily(
        "errandry_jobs_ever", "What ever happened to jobs, by queue.", labels=["queue", "what"]
    )
    for queue, totals in (await jobs.totals()).items():
        for what, count in totals.items():
            ever.add_metric([queue, what], count)
    return [states, lag, paused, ever]


async def _of_workers(jobs: "Errandry") -> list["Metric"]:
    from prometheus_client.core import GaugeMetricFamily

    now = await jobs.now()
    alive = [info.beat for info in await jobs.workers() if now - info.seen_at <= SILENT_AFTER]
    slots = sum(beat.concurrency + sum(share.slots for share in beat.shares) for beat in alive)
    return [
        GaugeMetricFamily("errandry_workers", "Workers that beat lately.", len(alive)),
        GaugeMetricFamily("errandry_slots", "Handlers that they can run at once.", slots),
        GaugeMetricFamily(
            "errandry_slots_taken", "Handlers that they run.", sum(beat.running for beat in alive)
        ),
    ]
