"""The peers' benchmark: a turn of Errandry, peers that cannot be installed, and the table of results."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest

from bench.peers.environment import ROOT, NotInstalled, make_environment
from bench.peers.peer import PEERS
from bench.peers.table import Results, drawing, losses, page
from tests.bench.samples import make_results, make_sample
from tests.machine_load import WAIT_TIMEOUT

COMMAND = [sys.executable, "-m", "bench.peers", "--only", "errandry", "--rounds", "1", "--pickups", "3"]


def _env(folder: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder)}


@pytest.mark.slow(reason="starts workers and producers in processes")
def test_a_turn_is_measured_and_its_results_are_written(tmp_path: Path) -> None:
    done = subprocess.run(
        [*COMMAND, "--jobs", "200", "--out", "out"],
        cwd=tmp_path,
        env=_env(tmp_path),
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )

    assert done.returncode == 0, done.stderr
    results = msgspec.json.decode((tmp_path / "out" / "peers.json").read_bytes(), type=Results)
    [found] = results.samples
    assert (found.peer, len(found.latencies), found.is_cut) == ("errandry", 3, False)
    assert min(found.enqueue, found.drain, found.memory, found.fsync, *found.latencies) > 0
    assert (tmp_path / "out" / "peers.md").read_text() == page(results)
    assert page(results) in done.stdout
    ElementTree.parse(tmp_path / "out" / "peers.svg")
    assert list(tmp_path.glob("errandry-bench-*")) == []


@pytest.mark.slow(reason="starts workers and producers in processes")
def test_an_interrupted_run_leaves_nothing(tmp_path: Path) -> None:
    run = subprocess.Popen(
        [*COMMAND, "--jobs", "50000"], cwd=tmp_path, env=_env(tmp_path), stderr=subprocess.PIPE
    )
    assert run.stderr is not None
    run.stderr.readline()  # so the first turn has begun

    run.send_signal(signal.SIGTERM)

    assert run.wait(WAIT_TIMEOUT) == 130
    run.stderr.close()
    assert list(tmp_path.glob("errandry-bench-*")) == []


def test_an_unknown_peer_is_refused(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bench.peers", "--only", "hewey"]

    done = subprocess.run(command, env=_env(tmp_path), capture_output=True, text=True, check=False)

    assert done.returncode == 2
    assert "there is no 'hewey': choose from errandry, errandry-postgres, " in done.stderr


@pytest.mark.slow(reason="makes an environment and asks pip")
def test_a_failed_installation_names_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.peers.environment.FOLDER", tmp_path)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)

    with pytest.raises(NotInstalled, match="No matching distribution found for no-such-peer==1"):
        make_environment("no-such-peer", ("no-such-peer==1",))


def test_missing_peers_are_in_the_table_and_the_chart() -> None:
    results = make_results(
        make_sample("errandry"), missing={"celery": "it cannot be installed: no such package"}
    )

    assert "| celery 5.7.0 | redis | – | – | did not run: it cannot be" in page(results)
    assert "did not run" in "".join(ElementTree.fromstring(drawing(results)).itertext())


def test_every_peer_has_its_own_label_in_the_chart() -> None:
    drawn = ElementTree.fromstring(drawing(make_results(*map(make_sample, PEERS))))
    first = [str(text.text) for text in drawn.findall(".//{*}text[@class]") if "(" in str(text.text)]
    labels = first[: len(PEERS)]

    assert {"pgqueuer (postgres)", "pgqueuer-1000 (postgres)", "errandry (sqlite)"} <= set(labels)
    assert len(set(labels)) == len(PEERS)


def test_a_drain_that_was_cut_short_is_marked() -> None:
    assert "| 50* |" in page(make_results(make_sample("errandry"), make_sample("rq", drain=50.0)))


def test_the_losses_of_errandry_are_listed() -> None:
    results = make_results(
        make_sample("errandry"),
        make_sample("huey", enqueue=250.0, wait=0.08),
        make_sample("pgqueuer", drain=30_000),
    )

    assert list(losses(results)) == [
        "enqueued one by one, jobs/s: 100, but huey 250 (×2.5)",
        "drained, jobs/s: 1,000, but pgqueuer 30,000 (×30)",
    ]
    assert "Where Errandry loses:" in page(results)
    assert "no other system was ahead" in page(make_results(make_sample("errandry")))


@pytest.mark.parametrize("name", PEERS)
def test_every_peer_has_a_program_and_a_description_of_its_setup(name: str) -> None:
    program = ROOT / "bench" / "peers" / "programs" / f"{PEERS[name].program}.py"

    text = program.read_text("utf-8")

    assert "\nasync def producer() -> AsyncIterator[Put]:\n" in text
    assert "\ndef work() -> None:\n" in text
    assert PEERS[name].setup
