"""A run from its beginning to its report."""

import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from statistics import quantiles
from typing import Any

from errandry.bench.bench_store import BenchStore, place
from errandry.bench.measure import PARTS, BenchRun, chosen
from errandry.bench.report import Report, address, machine, now
from errandry.bench.sizes import FULL, QUICK
from errandry.bench.stress import stress
from errandry.errors import InvalidValue

ReportProgress = Callable[[str], None]


async def measured(url: str | None, quick: bool, parts: Sequence[str], tell: ReportProgress) -> Report:
    """Measure these parts, or all, of the store at `url`, or of one made for it."""
    async with _started(url, quick) as (where, report):
        run = BenchRun(where, QUICK if quick else FULL)
        possible, left_out = chosen(where, parts or tuple(PARTS))
        for number, (name, part) in enumerate(possible.items(), 1):
            tell(f"{name} ({number} of {len(possible)})")
            await part(run)
        return report(figures=run.figures, curves=run.curves, left_out=left_out)


async def stressed(url: str | None, jobs: int, tell: ReportProgress) -> Report:
    """The stress test alone."""
    async with _started(url, quick=False) as (where, report):
        if not where.is_shared:
            raise InvalidValue("url", url, "cannot be shared with other processes, which the test needs")
        if where.raw is not None:
            where.raw.measure(QUICK.raw)
        return report(stress=await stress(where, jobs, tell))


@asynccontextmanager
async def _started(url: str | None, quick: bool) -> AsyncIterator[tuple[BenchStore, Callable[..., Report]]]:
    """The place of a run, and its report as far as it does not depend on what is found."""
    at, began = now(), time.monotonic()
    async with place(url) as where:

        def report(**found: Any) -> Report:
            return Report(
                at=at,
                store=address(where.url),
                durable=str(getattr(where.app.store, "durability", "")),
                quick=quick,
                seconds=time.monotonic() - began,
                machine=machine(),
                raw={} if where.raw is None else _raw(where.raw.seconds),
                **found,
            )

        yield where, report


def _raw(seconds: Sequence[float]) -> dict[str, float]:
    if len(seconds) < 2:
        return {}
    marks = quantiles(seconds, n=100, method="inclusive")
    return {
        "writes a second": len(seconds) / sum(seconds),
        **{f"p{share}": marks[share - 1] * 1e3 for share in (50, 95, 99)},
    }
