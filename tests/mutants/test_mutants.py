"""Without any one of its guards the code fails the conformance suite and the model; with all it passes.

A mutant runs the whole conformance suite of its store, up to the first failure. Picking tests by name would
save a few seconds, but would break with every renamed test.
"""

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

pytestmark = pytest.mark.prove


class Run(NamedTuple):
    code: int
    killer: str
    seconds: float
    output: str


def run(suite: str, stores: str, mutant: str = "") -> Run:
    """Run a suite in its own process, up to the first failure. With a mutant the model searches longer."""
    began = time.monotonic()
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", SUITES[suite], "-p", "tests.mutants.plugin"),
            *("-x", "-q", "-rfE", "--tb=short", "-p", "no:randomly", "-p", "no:cacheprovider", "-k", stores),
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
    """Return the name of the test that failed, or in the model the name of the check."""
    # An ERROR is a check that the conformance suite makes after each test.
    failed = re.search(r"^(?:FAILED|ERROR) \S+::(.+?)(?: - |$)", output, re.MULTILINE)
    checks = re.findall(
        r"^tests/model/(?:promises|claims|flows|pair)\.py:\d+: in (\w+)", output, re.MULTILINE
    )
    return (checks or [failed[1]])[-1] if failed else ""


PAIRS = [
    (mutant, suite)
    for mutant in MUTANTS
    for suite in SUITES
    if (mutant.in_model if suite == "model" else mutant.in_conformance)
]


@pytest.mark.parametrize("suite", SUITES)
def test_the_suite_passes_without_a_mutant(suite: str) -> None:
    stores = {mutant.store for mutant, paired in PAIRS if paired == suite}

    control = run(suite, " or ".join(sorted(stores)))

    assert control.code == pytest.ExitCode.OK, control.output


@pytest.mark.parametrize(
    ("mutant", "suite"), [pytest.param(m, suite, id=f"{m.name}-{suite}") for m, suite in PAIRS]
)
def test_a_missing_guard_is_noticed(
    mutant: Mutant, suite: str, record_property: Callable[[str, object], None]
) -> None:
    result = run(suite, mutant.store, mutant.name)

    record_property("kill", (mutant.name, mutant.without, suite, result.killer, round(result.seconds, 1)))
    assert result.code == pytest.ExitCode.TESTS_FAILED, result.output
    assert result.killer, result.output
