"""The report of a run: figures, each with the raw writes of the same minutes."""

import os
import platform
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from statistics import median
from typing import Literal
from urllib.parse import urlsplit

from msgspec import Struct

from errandry import __version__
from errandry.event_loop import UVLOOP

FORMAT_VERSION = 1


class Measurement(Struct, frozen=True, kw_only=True):
    """One thing measured.

    part    part of the run: enqueue, drain, …
    name    what was measured, in words
    value   median of the rounds
    unit    jobs/s, ms, s, MB, %
    low     minimum of the rounds
    high    maximum of the rounds
    of_raw  for a rate, jobs in the time of one raw write; for a time, its length in raw writes
    better  whether more or less is better
    """

    part: str
    name: str
    value: float
    unit: str
    low: float
    high: float
    of_raw: float | None = None
    better: Literal["more", "less"] = "more"


class KindResult(Struct, frozen=True, kw_only=True):
    """One kind of job in a stress test: the expected number, and how they ended."""

    kind: str
    rule: str
    expected: int
    states: Mapping[str, int]
    wrong: int


class Stress(Struct, frozen=True, kw_only=True):
    """A stress test. `faults` describes the first jobs that are missing or ended in a wrong state."""

    jobs: int
    queues: int
    workers: int
    killed: int
    seconds: float
    totals: Mapping[str, int]
    accounts: Sequence[KindResult]
    faults: Sequence[str]
    timeline: Sequence[tuple[float, Mapping[str, int]]]

    @property
    def is_sound(self) -> bool:
        return not self.faults


class Machine(Struct, frozen=True, kw_only=True):
    """The machine of a run."""

    system: str
    processors: int
    python: str
    errandry: str


class Report(Struct, frozen=True, kw_only=True):
    """The report of a run.

    format    version of this format; it changes if readers have to change
    at        start of the run, UTC
    store     URL of the store, without a password
    durable   what an acknowledged write survives, if the store reports it
    quick     whether it was a quick run
    seconds   duration of the run
    machine   the machine of the run
    raw       raw writes per second, and milliseconds of a raw write by percentile
    figures   the measurements
    curves    for each latency, milliseconds by percentile from 0 to 100
    left_out  parts that were not measured, and why
    stress    the stress test, if there was one
    """

    format: int = FORMAT_VERSION
    at: str
    store: str
    durable: str
    quick: bool
    seconds: float
    machine: Machine
    raw: Mapping[str, float]
    figures: Sequence[Measurement] = ()
    curves: Mapping[str, Sequence[float]] = {}
    left_out: Mapping[str, str] = {}
    stress: Stress | None = None


def machine() -> Machine:
    return Machine(
        system=platform.platform(),
        processors=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        python=platform.python_version() + (" with uvloop" if UVLOOP in sys.modules else ""),
        errandry=__version__,
    )


def timestamp() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def public_address(url: str) -> str:
    """The store's URL without path, user and password."""
    parts = urlsplit(url)
    if parts.scheme == "sqlite":
        return f"sqlite{f'?{parts.query}' if parts.query else ''}"
    return f"{parts.scheme}://{parts.hostname or ''}"


def rate_measurement(part: str, name: str, rounds: Sequence[float], raw: float | None) -> Measurement:
    """Jobs per second over some rounds; `raw` is the seconds of a raw write in the same time."""
    value = median(rounds)
    of_raw = None if raw is None else value * raw
    return Measurement(
        part=part, name=name, value=value, unit="jobs/s", low=min(rounds), high=max(rounds), of_raw=of_raw
    )


def percentiles(seconds: Sequence[float]) -> list[float]:
    """Milliseconds by percentile, from 0 to 100."""
    ordered = sorted(seconds)
    return [1e3 * ordered[round(share / 100 * (len(ordered) - 1))] for share in range(101)]


def latency_measurements(
    part: str, name: str, seconds: Sequence[float], raw: float | None
) -> list[Measurement]:
    """The p50, p95 and p99 of these latencies."""
    marks = percentiles(seconds)
    return [
        Measurement(
            part=part,
            name=f"{name}, p{share}",
            value=marks[share],
            unit="ms",
            low=marks[0],
            high=marks[100],
            of_raw=None if raw is None else marks[share] / 1e3 / raw,
            better="less",
        )
        for share in (50, 95, 99)
    ]
