"""Results of the peers' benchmark for tests."""

from bench.peers.sample import Sample
from bench.peers.table import Results
from errandry.bench.report import machine


def make_sample(peer: str, enqueue: float = 100.0, drain: float = 1_000.0, wait: float = 0.005) -> Sample:
    return Sample(
        peer=peer,
        enqueue=enqueue,
        drain=drain,
        is_cut=peer == "rq",
        latencies=[wait] * 10,
        memory=30.0,
        fsync=0.0002,
    )


def make_results(*samples: Sample, missing: dict[str, str] | None = None) -> Results:
    return Results(
        at="2026-01-01T00:00:00+00:00",
        machine=machine(),
        jobs=1_000,
        pickups=10,
        rounds=2,
        samples=samples,
        missing=missing or {},
    )
