"""What came of a run, as it is written down: figures, each beside the raw writes of the same minutes."""

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

FORMAT = 1


class Measurement(Struct, frozen=True, kw_only=True):
    """One thing measured.

    part    what it belongs to: enqueue, drain, …
    name    what it is, in words
    value   the middle of its rounds
    unit    jobs/s, ms, s, MB, %
    low     the least of its rounds
    high    the most of its rounds
    of_raw  a rate: jobs for each raw write there was time for; a time: how many raw writes long it is
    better  whether more of it is better, or less
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
    """One kind of job in a stress test: how many there should be, and how they ended."""

    kind: str
    rule: str
    expected: int
    states: Mapping[str, int]
    wrong: int


class Stress(Struct, frozen=True, kw_only=True):
    """A stress test: every job accounted for, or not. `faults` has the first that are not as they must be."""

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
    """Where it was measured."""

    system: str
    processors: int
    python: str
    errandry: str


class Report(Struct, frozen=True, kw_only=True):
    """All of a run.

    format    of this document; it changes when a reader would have to
    at        when it began, UTC
    store     its address, without a password
    durable   what an acknowledged write survives, where the store says so
    quick     whether it was the short run
    seconds   how long it took
    machine   where it was measured
    raw       raw writes: how many a second, and milliseconds for one by percentile
    figures   what was measured
    curves    for each latency, milliseconds by percentile from 0 to 100
    left_out  parts that were not measured, and why
    stress    the stress test, if that is what was run
    """

    format: int = FORMAT
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


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def address(url: str) -> str:
    """The store's address as others may see it."""
    parts = urlsplit(url)
    if parts.scheme == "sqlite":
        return f"sqlite{f'?{parts.query}' if parts.query else ''}"
    return f"{parts.scheme}://{parts.hostname or ''}"


def rates(part: str, name: str, rounds: Sequence[float], raw: float | None) -> Measurement:
    """Jobs a second over some rounds; `raw` is what one raw write took meanwhile."""
    value = median(rounds)
    of_raw = None if raw is None else value * raw
    return Measurement(
        part=part, name=name, value=value, unit="jobs/s", low=min(rounds), high=max(rounds), of_raw=of_raw
    )


def curve(seconds: Sequence[float]) -> list[float]:
    """Milliseconds by percentile, from 0 to 100."""
    ordered = sorted(seconds)
    return [1e3 * ordered[round(share / 100 * (len(ordered) - 1))] for share in range(101)]


def latencies(part: str, name: str, seconds: Sequence[float], raw: float | None) -> list[Measurement]:
    """p50, p95 and p99 of these."""
    marks = curve(seconds)
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
