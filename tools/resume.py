"""A pytest plugin: record how each test ends, and do not run again those that have passed before.

`pytest -p tools.resume --record FILE` appends one line of JSON per test to the file, also if pytest is killed
later. Tests that failed or were skipped run again. With xdist the controller records, and tells its workers
at their start what has passed: a worker that is replaced later must collect the same tests.
"""

import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pytest


class RecordedTest(NamedTuple):
    """How a test ended: `passed`, `failed` or `skipped`. `seconds` is the time since its session began."""

    test: str
    outcome: str
    session: str
    seconds: float


def read_record(path: Path) -> list[RecordedTest]:
    """The tests that have ended so far. Half a line, of a run that was killed, is ignored."""
    ends = []
    for line in path.read_text("utf-8").splitlines() if path.exists() else ():
        try:
            ends.append(RecordedTest(**json.loads(line)))
        except json.JSONDecodeError:
            continue
    return ends


def last_outcomes(ends: Iterable[RecordedTest]) -> dict[str, str]:
    """The last outcome of each test."""
    return {end.test: end.outcome for end in ends}


class Recorder:
    """Writes the record, in the process that receives the reports of all tests."""

    def __init__(self, path: Path) -> None:
        outcomes = last_outcomes(read_record(path))
        self.passed = [test for test, outcome in outcomes.items() if outcome == "passed"]
        self._session, self._began = str(time.time_ns()), time.monotonic()
        self._outcomes: dict[str, str] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a", encoding="utf-8", buffering=1)

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Tell a new worker of xdist which tests to leave out."""
        node.workerinput["passed"] = self.passed

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record a test when all its phases have ended: a failure in one of them is its outcome."""
        outcome = self._outcomes.get(report.nodeid, "passed")
        self._outcomes[report.nodeid] = outcome = report.outcome if outcome == "passed" else outcome
        if report.when not in ("setup", "call"):  # the teardown, or the end of a worker that crashed
            end = RecordedTest(
                report.nodeid, outcome, self._session, round(time.monotonic() - self._began, 1)
            )
            self._file.write(json.dumps(end._asdict()) + "\n")

    def pytest_unconfigure(self) -> None:
        self._file.close()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record", help="file to record how tests end; those that passed do not run again")


def pytest_configure(config: pytest.Config) -> None:
    if (path := config.getoption("--record")) and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder(Path(path)), "recorder")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    recorder = config.pluginmanager.get_plugin("recorder")
    passed = set(recorder.passed if recorder else getattr(config, "workerinput", {}).get("passed", ()))
    if done := [item for item in items if item.nodeid in passed]:
        config.hook.pytest_deselected(items=done)
        items[:] = [item for item in items if item.nodeid not in passed]
