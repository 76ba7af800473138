"""`errandry bench`: what it refuses, what it reports, and that it cleans up after any end."""

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
from errandry.event_loop import LOOP_VARIABLE, UVLOOP
from tests.cli.conftest import Cli, Shop
from tests.cli.shell import COMMAND, COMMAND_TIMEOUT, Terminal, run_process
from tests.machine_load import MachineLoad
from tests.store.server import server

SMALL = Sizes(
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
def small_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure less than a quick run does; the measuring code is the same."""
    monkeypatch.setattr(run, "QUICK", SMALL)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--only", "enque"], "there is no part 'enque'. Did you mean enqueue?"),
        (["--only", "x"], "The parts are enqueue, drain, latency, cancel, recovery, footprint."),
        (["--jobs", "500"], "--jobs needs --stress."),
        (["--stress", "--quick"], "--jobs makes it shorter."),
        (["--stress", "--jobs", "3"], "'3' is not a whole number from 100 to 10,000,000"),
        (["--app", "shop:jobs"], "has its own tasks: leave out --app."),
    ],
)
def test_invalid_options_are_refused(cli: Cli, args: list[str], message: str) -> None:
    done = cli("bench", *args)

    assert (done.code, done.out) == (2, "")
    assert message in done.err


@pytest.mark.parametrize("option", ["--json", "--plots"])
def test_an_unwritable_folder_is_refused_before_measuring(cli: Cli, folder: Path, option: str) -> None:
    (folder / "file").touch()

    done = cli("bench", option, "file/out/x")

    assert done.code == 1
    assert "cannot create the folder file/out" in done.err
    assert "Not a directory" in done.err
    assert _left(folder) == []


def test_a_store_with_other_jobs_is_refused_and_not_changed(cli: Cli, shop: Shop) -> None:
    job = shop.enqueue(queue="mail")

    done = cli("bench", "--quick", "--only", "enqueue", "--url", "sqlite:///errandry.db")

    assert done.code == 2
    assert "already holds jobs (1 in mail): name an empty store, or leave out --url" in done.err
    assert shop.call(shop.jobs.counts) == {"mail": {"waiting": 1}}
    assert shop.call(shop.jobs.get, job.id).state == "waiting"


def test_a_store_with_a_worker_is_refused(cli: Cli, shop: Shop) -> None:
    shop.call(shop.jobs.engine.submit, Beat(worker="host-1-aaaa"))

    done = cli("bench", "--quick", "--only", "enqueue", "--url", "sqlite:///errandry.db")

    assert done.code == 2
    assert "the worker host-1-aaaa is using it" in done.err


def test_jobs_of_a_killed_run_are_removed_and_none_are_left(cli: Cli, shop: Shop) -> None:
    shop.enqueue(queue="errandry-bench-old")

    done = cli("bench", "--quick", "--only", "enqueue", "--url", "sqlite:///errandry.db")

    assert done.code == 0
    assert not any(shop.call(shop.jobs.counts).values())
    assert _left(Path()) == []


def test_parts_that_cannot_be_measured_in_memory_are_listed(cli: Cli) -> None:
    done = cli("bench", "--quick", "--url", "memory:", "--json")

    report = msgspec.json.decode(done.out, type=Report)
    assert {figure.part for figure in report.figures} == {"enqueue"}
    assert report.left_out.keys() == PARTS.keys() - {"enqueue"}
    assert report.raw == {}
    assert cli("bench", "--stress", "--url", "memory:").code == 2


@pytest.mark.slow(reason="starts PostgreSQL")
def test_a_server_is_compared_with_its_own_raw_writes(cli: Cli) -> None:
    url = server().new_url()

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
    monkeypatch.setenv(LOOP_VARIABLE, UVLOOP)
    with MachineLoad() as load:
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
    assert [figure.value < load.scaled(10) for figure in report.figures if figure.part == "recovery"] == [
        True
    ]
    for figure in report.figures:
        assert figure.name in done.out
    drawn = "".join(
        "".join(ElementTree.parse(path).getroot().itertext()) for path in (folder / "out").glob("*.svg")
    )
    assert "drain, 2 workers, preloaded" in drawn
    assert "idle, in another process" in drawn
    assert _left(folder) == []


@pytest.mark.slow(reason="runs hundreds of jobs while workers are killed")
def test_a_stress_test_accounts_for_every_job(folder: Path) -> None:
    done = run_process("bench", "--stress", "--jobs", "300", "--json", "report.json", "--plots", ".")

    assert done.code == 0, done.out + done.err
    assert "Every job ended as expected." in done.out
    stress = msgspec.json.decode((folder / "report.json").read_bytes(), type=Report).stress
    assert stress is not None
    assert (stress.jobs, stress.queues, stress.faults) == (318, 16, [])
    assert stress.killed > 0
    assert {result.kind: result.expected for result in stress.accounts}["flaky"] == 60
    assert sum(stress.totals[state] for state in ("completed", "failed", "canceled")) == 318
    assert stress.totals["inserted"] == 318
    assert "failed" in (folder / "stress.svg").read_text()
    assert _left(folder) == []


@pytest.mark.slow(reason="starts workers")
@pytest.mark.parametrize("how", ["keys", "signal"])
def test_an_interrupted_run_ends_its_workers_and_leaves_nothing(
    folder: Path, terminal: Callable[..., Terminal], how: str
) -> None:
    screen = terminal("bench", "--stress", "--jobs", "20000")
    screen.wait_until(lambda text: "workers killed" in text)
    assert len(list(_processes(folder))) > 1

    if how == "keys":
        screen.type("\x03")
    else:
        screen.process.send_signal(signal.SIGTERM)

    assert screen.wait() == 130
    assert list(_processes(folder)) == []
    assert _left(folder) == []


@pytest.mark.slow(reason="starts workers")
def test_the_workers_of_a_killed_run_end_by_themselves(folder: Path) -> None:
    bench = subprocess.Popen([*COMMAND, "bench", "--stress", "--jobs", "20000"], stderr=subprocess.PIPE)
    assert bench.stderr is not None
    bench.stderr.readline()  # so the workers are there
    assert len(list(_processes(folder))) > 1

    bench.kill()
    bench.wait()
    bench.stderr.close()

    give_up = time.monotonic() + COMMAND_TIMEOUT
    while list(_processes(folder)):
        assert time.monotonic() < give_up, list(_processes(folder))
        time.sleep(0.05)


def _left(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith("errandry-bench")]


def _processes(folder: Path) -> Iterator[int]:
    """The processes that run in this folder, except this one."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if (entry / "cwd").readlink() == folder and int(entry.name) != os.getpid():
                yield int(entry.name)
        except OSError:
            continue
