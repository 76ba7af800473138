"""Failpoints kill the process they are reached in, when they were told to and not before."""

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
    ("told", "code", "times"), [("here", -9, 1), ("here:3", -9, 3), ("elsewhere", 0, 4), ("", 0, 4)]
)
def test_a_process_dies_at_the_point_and_the_time_it_was_told(told: str, code: int, times: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={"ERRANDRY_FAILPOINT": told},
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stdout.split()) == (code, [str(time) for time in range(times)])


def test_nothing_happens_where_nothing_was_said() -> None:
    assert not IS_ARMED
    reach("before_claim_commit")
