"""Every guard is missed: without it the conformance suite and the model turn red; with all of them, green."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.mutants.catalogue import MUTANTS, Mutant

ROOT = Path(__file__).parents[2]
SUITES = {"conformance": "tests/store/test_conformance.py", "model": "tests/model/test_model.py"}
RED, GREEN = pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.OK

pytestmark = pytest.mark.prove


class Run(NamedTuple):
    code: int
    killer: str
    seconds: float
    output: str


def run(suite: str, pick: str, mutant: str = "") -> Run:
    """The suite in a process of its own, up to its first failure; with a mutant the model searches longer."""
    began = time.monotonic()
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", SUITES[suite], "-p", "tests.mutants.plugin"),
            *("-x", "-q", "-rfE", "--tb=short", "-p", "no:randomly", "-p", "no:cacheprovider", "-k", pick),
            *(("-m", "prove") if mutant and suite == "model" else ()),
        ],
        cwd=ROOT,
        env={**os.environ, "ERRANDRY_MUTANT": mutant},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    return Run(done.returncode, killer(done.stdout), time.monotonic() - began, done.stdout + done.stderr)


def killer(output: str) -> str:
    """Who noticed: the test, or in the model the check."""
    # An ERROR is a promise the conformance suite checks after each test.
    failed = re.search(r"^(?:FAILED|ERROR) \S+::(.+?)(?: - |$)", output, re.MULTILINE)
    checks = re.findall(
        r"^tests/model/(?:promises|claims|families|pair)\.py:\d+: in (\w+)", output, re.MULTILINE
    )
    return (checks or [failed[1]])[-1] if failed else ""


def picked(mutant: Mutant, suite: str) -> str:
    """What `pytest -k` runs: the mutant's store, and of the conformance suite what should notice."""
    return f"{mutant.store} and ({mutant.words})" if suite == "conformance" else mutant.store


PAIRS = [
    (mutant, suite)
    for mutant in MUTANTS
    for suite in SUITES
    if (mutant.in_model if suite == "model" else mutant.words)
]


@pytest.mark.parametrize("suite", SUITES)
def test_the_suite_is_green_without_a_mutant(suite: str) -> None:
    picks = {picked(mutant, suite) for mutant, paired in PAIRS if paired == suite}

    control = run(suite, " or ".join(sorted(picks)))

    assert control.code == GREEN, control.output


@pytest.mark.parametrize(
    ("mutant", "suite"), [pytest.param(m, suite, id=f"{m.name}-{suite}") for m, suite in PAIRS]
)
def test_a_missing_guard_is_noticed(
    mutant: Mutant, suite: str, record_property: Callable[[str, object], None]
) -> None:
    result = run(suite, picked(mutant, suite), mutant.name)

    record_property("kill", (mutant.name, mutant.without, suite, result.killer, round(result.seconds, 1)))
    assert result.code == RED, result.output
    assert result.killer, result.output
