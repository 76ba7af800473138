"""Run a benchmark and make its report."""

import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from statistics import quantiles
from typing import Any

from errandry.bench.bench_store import BenchStore, open_store
from errandry.bench.measure import PARTS, BenchRun, select_parts
from errandry.bench.report import Report, machine, public_address, timestamp
from errandry.bench.sizes import FULL, QUICK
from errandry.bench.stress import run_stress
from errandry.errors import InvalidValue

ReportProgress = Callable[[str], None]


async def run_benchmark(
    url: str | None, quick: bool, parts: Sequence[str], show_progress: ReportProgress
) -> Report:
    """Measure these parts, or all, on the store at `url` or a new one."""
    async with _open_run(url, quick) as (store, report):
        run = BenchRun(store, QUICK if quick else FULL)
        possible, left_out = select_parts(store, parts or tuple(PARTS))
        for number, (name, part) in enumerate(possible.items(), 1):
            show_progress(f"{name} ({number} of {len(possible)})")
            await part(run)
        return report(figures=run.figures, curves=run.curves, left_out=left_out)


async def run_stress_test(url: str | None, jobs: int, show_progress: ReportProgress) -> Report:
    """Run the stress test."""
    async with _open_run(url, quick=False) as (store, report):
        if not store.is_shared:
            raise InvalidValue(
                "url", url, "cannot be shared with other processes; the stress test needs worker processes"
            )
        if store.raw is not None:
            store.raw.measure(QUICK.raw)
        return report(stress=await run_stress(store, jobs, show_progress))


@asynccontextmanager
async def _open_run(url: str | None, quick: bool) -> AsyncIterator[tuple[BenchStore, Callable[..., Report]]]:
    """Open the store of a run; also returns a function that makes the report from the results."""
    at, began = timestamp(), time.monotonic()
    async with open_store(url) as store:

        def report(**results: Any) -> Report:
            return Report(
                at=at,
                store=public_address(store.url),
                durable=str(getattr(store.app.store, "durability", "")),
                quick=quick,
                seconds=time.monotonic() - began,
                machine=machine(),
                raw={} if store.raw is None else _raw_figures(store.raw.seconds),
                **results,
            )

        yield store, report


def _raw_figures(seconds: Sequence[float]) -> dict[str, float]:
    if len(seconds) < 2:
        return {}
    marks = quantiles(seconds, n=100, method="inclusive")
    return {
        "writes a second": len(seconds) / sum(seconds),
        **{f"p{share}": marks[share - 1] * 1e3 for share in (50, 95, 99)},
    }
