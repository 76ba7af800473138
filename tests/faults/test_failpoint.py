"""A failpoint kills the process that reaches it, the given number of times later."""

import subprocess
import sys

import pytest

from errandry.failpoint import IS_ARMED, reach

PROGRAM = """
from errandry.failpoint import reach
for time in range(4):
    reach("another")
    print(time, flush=True)
    reach("here")
"""


@pytest.mark.parametrize(
    ("failpoint", "code", "times"), [("here", -9, 1), ("here:3", -9, 3), ("elsewhere", 0, 4), ("", 0, 4)]
)
def test_a_process_dies_at_the_given_point_and_time(failpoint: str, code: int, times: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={"ERRANDRY_FAILPOINT": failpoint},
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stdout.split()) == (code, [str(time) for time in range(times)])


def test_an_unset_failpoint_does_nothing() -> None:
    assert not IS_ARMED
    reach("before_claim_commit")
