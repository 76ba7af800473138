"""`errandry bench`: what it refuses, what it finds, and that nothing stays behind, whatever happens to it."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import psycopg
import pytest

from errandry.bench import run
from errandry.bench.measure import PARTS
from errandry.bench.report import Report
from errandry.bench.sizes import Sizes
from errandry.core.command import Beat
from errandry.event_loop import UVLOOP, VARIABLE
from tests.cli.conftest import Cli, Place
from tests.cli.shell import COMMAND, LIMIT, Terminal, process
from tests.pace import Pace
from tests.store.server import server

LITTLE = Sizes(
    rounds=2,
    single=20,
    concurrent=200,
    bulk=500,
    drain=400,
    pickups=16,
    paced=0.5,
    kills=1,
    starts=2,
    idle=0.5,
    raw=20,
)


@pytest.fixture(autouse=True)
def little(monkeypatch: pytest.MonkeyPatch) -> None:
    """How long a part is measured for changes nothing about how."""
    monkeypatch.setattr(run, "QUICK", LITTLE)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--only", "enque"], "there is no part 'enque'. Did you mean enqueue?"),
        (["--only", "x"], "There are enqueue, drain, latency, cancel, recovery, footprint."),
        (["--jobs", "500"], "--jobs goes with --stress."),
        (["--stress", "--quick"], "--jobs makes it shorter."),
        (["--stress", "--jobs", "3"], "3 is not in the range"),
        (["--app", "shop:jobs"], "brings its own tasks: leave out --app."),
    ],
)
def test_what_makes_no_sense_is_refused(cli: Cli, args: list[str], said: str) -> None:
    done = cli("bench", *args)

    assert (done.code, done.out) == (2, "")
    assert said in done.err


@pytest.mark.parametrize("option", ["--json", "--plots"])
def test_a_place_that_cannot_be_written_to_is_refused_before_anything_is_measured(
    cli: Cli, folder: Path, option: str
) -> None:
    (folder / "file").touch()

    done = cli("bench", option, "file/out/x")

    assert done.code == 1
    assert "cannot be made: Not a directory" in done.err
    assert _left(folder) == []


def test_a_store_with_somebody_s_jobs_is_refused_and_left_alone(cli: Cli, place: Place) -> None:
    job = place.enqueue(queue="mail")

    done = cli("bench", "--quick", "--only", "enqueue", "--url", "sqlite:///errandry.db")

    assert done.code == 1
    assert "holds jobs already (1 in mail): name an empty store, or leave --url out" in done.err
    assert place.ask(place.jobs.counts) == {"mail": {"waiting": 1}}
    assert place.ask(place.jobs.get, job.id).state == "waiting"


def test_a_store_with_a_worker_is_refused(cli: Cli, place: Place) -> None:
    place.ask(place.jobs.engine.submit, Beat(worker="host-1-aaaa"))

    done = cli("bench", "--quick", "--only", "enqueue", "--url", "sqlite:///errandry.db")

    assert done.code == 1
    assert "a worker is at work there (host-1-aaaa)" in done.err


def test_what_a_killed_run_left_is_removed_and_nothing_new_stays(cli: Cli, place: Place) -> None:
    place.enqueue(queue="errandry-bench-old")

    done = cli("bench", "--quick", "--only", "enqueue", "--url", "sqlite:///errandry.db")

    assert done.code == 0
    assert not any(place.ask(place.jobs.counts).values())
    assert _left(Path()) == []


def test_what_cannot_be_measured_in_memory_is_said(cli: Cli) -> None:
    done = cli("bench", "--quick", "--url", "memory:", "--json")

    report = msgspec.json.decode(done.out, type=Report)
    assert {figure.part for figure in report.figures} == {"enqueue"}
    assert report.left_out.keys() == PARTS.keys() - {"enqueue"}
    assert report.raw == {}
    assert cli("bench", "--stress", "--url", "memory:").code == 1


@pytest.mark.slow(reason="starts PostgreSQL")
def test_a_server_is_measured_beside_its_own_raw_writes(cli: Cli) -> None:
    url = server().fresh()

    done = cli("bench", "--quick", "--only", "enqueue", "--json", "--url", url)

    assert done.code == 0, done.err
    report = msgspec.json.decode(done.out, type=Report)
    assert report.store == "postgresql://"
    assert report.raw["writes a second"] > 0
    assert all(figure.of_raw for figure in report.figures)
    with psycopg.connect(server().url()) as db:
        assert db.execute("SELECT 1 FROM pg_tables WHERE tablename = 'bench_raw'").fetchall() == []


@pytest.mark.slow(reason="measures everything, with workers in processes")
def test_a_quick_run_measures_and_draws_everything(
    cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, UVLOOP)
    with Pace() as pace:
        done = cli("bench", "--quick", "--json", "out/report.json", "--plots", "out")

    assert done.code == 0, done.err
    report = msgspec.json.decode((folder / "out" / "report.json").read_bytes(), type=Report)
    units = {figure.part: figure.unit for figure in report.figures}
    assert list(units) == list(PARTS)
    assert report.left_out == {}
    assert report.durable == "power"
    assert all(figure.low <= figure.value <= figure.high for figure in report.figures)
    assert all(figure.of_raw for figure in report.figures if figure.unit == "jobs/s")
    assert all(line == sorted(line) for line in map(list, report.curves.values()))
    assert report.raw["p50"] <= report.raw["p99"]
    assert [figure.value < pace.allowed(10) for figure in report.figures if figure.part == "recovery"] == [
        True
    ]
    for figure in report.figures:
        assert figure.name in done.out
    drawn = "".join(
        "".join(ElementTree.parse(path).getroot().itertext()) for path in (folder / "out").glob("*.svg")
    )
    assert "drain, 2 workers, preloaded" in drawn
    assert "at rest, in another process" in drawn
    assert _left(folder) == []


@pytest.mark.slow(reason="runs hundreds of jobs while workers are killed")
def test_a_stress_test_accounts_for_every_job(folder: Path) -> None:
    done = process("bench", "--stress", "--jobs", "300", "--json", "report.json", "--plots", ".")

    assert done.code == 0, done.out + done.err
    assert "Every job is accounted for." in done.out
    found = msgspec.json.decode((folder / "report.json").read_bytes(), type=Report).stress
    assert found is not None
    assert (found.jobs, found.queues, found.faults) == (318, 16, [])
    assert found.killed > 0
    assert {one.kind: one.expected for one in found.accounts}["flaky"] == 60
    assert sum(found.totals[state] for state in ("completed", "failed", "canceled")) == 318
    assert found.totals["inserted"] == 318
    assert "failed" in (folder / "stress.svg").read_text()
    assert _left(folder) == []


@pytest.mark.slow(reason="starts workers")
@pytest.mark.parametrize("how", ["keys", "signal"])
def test_interrupted_it_ends_its_workers_and_leaves_nothing(
    folder: Path, terminal: Callable[..., Terminal], how: str
) -> None:
    seen = terminal("bench", "--stress", "--jobs", "20000")
    seen.until(lambda text: "workers killed" in text)
    assert len(list(_processes(folder))) > 1

    if how == "keys":
        seen.type("\x03")
    else:
        seen.process.send_signal(signal.SIGTERM)

    assert seen.over() == 130
    assert list(_processes(folder)) == []
    assert _left(folder) == []


@pytest.mark.slow(reason="starts workers")
def test_killed_its_workers_end_by_themselves(folder: Path) -> None:
    bench = subprocess.Popen([*COMMAND, "bench", "--stress", "--jobs", "20000"], stderr=subprocess.PIPE)
    assert bench.stderr is not None
    bench.stderr.readline()  # so the workers are there
    assert len(list(_processes(folder))) > 1

    bench.kill()
    bench.wait()
    bench.stderr.close()

    give_up = time.monotonic() + LIMIT
    while list(_processes(folder)):
        assert time.monotonic() < give_up, list(_processes(folder))
        time.sleep(0.05)


def _left(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith("errandry-bench")]


def _processes(folder: Path) -> Iterator[int]:
    """Those that work in this folder, this one aside."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if (entry / "cwd").readlink() == folder and int(entry.name) != os.getpid():
                yield int(entry.name)
        except OSError:
            continue
