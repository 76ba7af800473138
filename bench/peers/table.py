"""The results of the peers: a table, a chart, the peers that could not run, and where Errandry loses."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median

from msgspec import Struct

from bench.peers.peer import PEERS
from bench.peers.sample import Sample
from errandry.bench.report import Machine, percentiles
from errandry.bench.svg import Bar, Panel, bars
from errandry.cli.bench import format_number

OURS = "errandry"


class Results(Struct, frozen=True, kw_only=True):
    """All samples of a run. `missing` has the reason for each peer without samples."""

    at: str
    machine: Machine
    jobs: int
    pickups: int
    rounds: int
    samples: Sequence[Sample]
    missing: Mapping[str, str]


class Row(Struct, frozen=True):
    """A peer's samples combined: the rates as median, minimum and maximum of the rounds."""

    name: str
    enqueue: tuple[float, float, float]
    drain: tuple[float, float, float]
    p50: float
    p99: float
    memory: float
    is_cut: bool


def rows(results: Results) -> dict[str, Row]:
    """The rows of the peers that ran, the fastest drain first."""
    by_name = {}
    for name in PEERS:
        samples = [sample for sample in results.samples if sample.peer == name]
        if samples:
            marks = percentiles([wait for sample in samples for wait in sample.latencies])
            by_name[name] = Row(
                name,
                _spread([sample.enqueue for sample in samples]),
                _spread([sample.drain for sample in samples]),
                marks[50],
                marks[99],
                median(sample.memory for sample in samples),
                any(sample.is_cut for sample in samples),
            )
    return dict(sorted(by_name.items(), key=lambda item: -item[1].drain[0]))


def page(results: Results) -> str:
    """The table and its notes as Markdown."""
    return "\n".join([*_table(results), "", *_notes(results)]) + "\n"


def _table(results: Results) -> Iterator[str]:
    """Two tables, because one with all columns is wider than a page."""
    by_name = rows(results)
    yield "| system | store | enqueue, jobs/s | min – max | drain, jobs/s | min – max |"
    yield "| --- | --- | ---: | ---: | ---: | ---: |"
    for name, row in by_name.items():
        drained = f"{row.drain[0]:,.0f}{'*' if row.is_cut else ''}"
        yield (
            f"| {_system(name)} | {row.enqueue[0]:,.0f} | {_range(row.enqueue)} "
            f"| {drained} | {_range(row.drain)} |"
        )
    yield ""
    yield "| system | store | pickup p50 / p99, ms | memory, MB | set up |"
    yield "| --- | --- | ---: | ---: | --- |"
    for name, row in by_name.items():
        latency = f"{row.p50:.1f} / {row.p99:.1f}"
        yield f"| {_system(name)} | {latency} | {row.memory:.0f} | {PEERS[name].setup} |"
    for name, why in results.missing.items():
        yield f"| {_system(name)} | – | – | did not run: {why} |"


def _system(name: str) -> str:
    """The cells of a system and its store."""
    peer = PEERS[name]
    return f"{f'**{peer.label}**' if peer.is_ours else _version(name)} | {peer.server}"


def _notes(results: Results) -> Iterator[str]:
    machine = results.machine
    fsync = percentiles([sample.fsync for sample in results.samples]) if results.samples else [0.0] * 101
    rounds = f"{results.rounds} round{'s' if results.rounds > 1 else ''}"
    yield (
        f"{results.jobs:,} no-op jobs with an int argument and result, one worker process, {rounds} "
        f"in which the systems took turns; {results.pickups} pickups a round. A value is the median of "
        "the rounds. Drain: from the first handler to the last; "
        "`*`: stopped before the backlog was empty. Pickup: from the enqueue call to the handler's "
        "first line, on an idle worker. Every store syncs a write before it answers (Redis: AOF with fsync "
        "always)."
    )
    yield ""
    yield (
        f"A page appended and synced took {fsync[50]:.2f} ms (p50 of the turns; {fsync[0]:.2f} to "
        f"{fsync[100]:.2f}). {machine.system}, {machine.processors} processors, Python {machine.python}, "
        f"Errandry {machine.errandry}, {results.at}."
    )
    yield ""
    if lost := list(losses(results)):
        yield "Where Errandry loses:"
        yield ""
        yield from (f"- {text}" for text in lost)
    else:
        yield "In this run no other system was ahead of Errandry in any column."


COLUMNS: Sequence[tuple[str, str, Callable[[Row], float]]] = (
    ("more", "enqueued one by one, jobs/s", lambda row: row.enqueue[0]),
    ("more", "drained, jobs/s", lambda row: row.drain[0]),
    ("less", "picked up, p50 ms", lambda row: row.p50),
    ("less", "picked up, p99 ms", lambda row: row.p99),
    ("less", "memory of a worker, MB", lambda row: row.memory),
)


def losses(results: Results) -> Iterator[str]:
    """For every column, the peers that were ahead of Errandry on SQLite."""
    by_name = rows(results)
    ours = by_name.get(OURS)
    if ours is None:
        return
    by_name = {name: row for name, row in by_name.items() if not PEERS[name].is_ours}
    for better, what, value in COLUMNS:
        factors = {name: value(row) / value(ours) for name, row in by_name.items()}
        ahead = {name: by for name, by in factors.items() if (by > 1 if better == "more" else by < 1)}
        if ahead:
            best = sorted(ahead, key=lambda name: factors[name], reverse=better == "more")
            theirs = ", ".join(
                f"{name} {format_number(value(by_name[name]))} (×{ahead[name]:.2g})" for name in best
            )
            yield f"{what}: {format_number(value(ours))}, but {theirs}"


def drawing(results: Results) -> str:
    """The SVG chart of enqueue, drain and latency, the best first."""
    all_rows = list(rows(results).values())
    absent = [Bar(name, None, text=f"did not run: {why}"[:70]) for name, why in results.missing.items()]
    by_enqueue = sorted(all_rows, key=lambda row: -row.enqueue[0])
    by_latency = sorted(all_rows, key=lambda row: row.p50)
    return bars(
        f"{results.jobs:,} no-op jobs, one worker process, every write synced",
        [
            Panel("enqueue one by one, jobs/s", [_bar(row.name, *row.enqueue) for row in by_enqueue]),
            Panel("drain, jobs/s", [*(_bar(row.name, *row.drain) for row in all_rows), *absent]),
            Panel(
                "pickup while idle, ms: p50 / p99 (less is better)",
                [
                    _bar(row.name, row.p50, row.p50, row.p99)._replace(text=f"{row.p50:.1f} / {row.p99:.1f}")
                    for row in by_latency
                ],
                is_log=True,
            ),
        ],
    )


def _bar(name: str, value: float, low: float, high: float) -> Bar:
    peer = PEERS[name]
    label = f"{peer.label} ({peer.server})"  # a system may run on two stores
    return Bar(label, value, low, high, peer.is_ours, f"{value:,.0f}" if value >= 100 else f"{value:,.1f}")


def _spread(values: Sequence[float]) -> tuple[float, float, float]:
    return median(values), min(values), max(values)


def _range(spread: tuple[float, float, float]) -> str:
    _, low, high = spread
    return "" if low == high else f"{low:,.0f} – {high:,.0f}"


def _version(name: str) -> str:
    return f"{name} {PEERS[name].needs[0].partition('==')[2]}".strip() if PEERS[name].needs else name
