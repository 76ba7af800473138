"""The stress test's own test: whatever is not as it must be, it says so."""

from collections import Counter
from pathlib import Path

import pytest

from errandry.bench.bench_store import BenchStore
from errandry.bench.stress import KINDS, accounted, conserved, enqueue, expected, kind_of
from errandry.bench.tasks import declared
from errandry.core.state import State

JOBS = 200


@pytest.fixture
def place(tmp_path: Path) -> BenchStore:
    return BenchStore("memory:", declared("memory:"), tmp_path, None)


def test_every_hundred_jobs_have_the_shares_of_the_kinds() -> None:
    assert sum(kind.share for kind in KINDS.values()) == 100
    assert Counter(map(kind_of, range(100))) == {name: kind.share for name, kind in KINDS.items()}
    assert KINDS["flaky"].share == 20
    assert sum(kind.share for kind in KINDS.values() if kind.state is State.FAILED) == 10


def test_spawned_jobs_are_expected_too() -> None:
    kinds = Counter(expected(JOBS).values())

    assert kinds["spawned"] == 2 * kinds["spawning"] > 0
    assert sum(kinds.values()) == JOBS + kinds["spawned"]


async def test_jobs_that_have_not_come_to_their_end_are_found(place: BenchStore) -> None:
    await enqueue(place, JOBS)

    accounts, faults = await accounted(place, expected(JOBS))

    wrong = {one.kind: one.wrong for one in accounts}
    assert wrong == {one.kind: one.expected if one.kind != "canceled" else 0 for one in accounts}
    assert any("it is waiting" in fault for fault in faults)
    assert any(fault.startswith("spawned job") and fault.endswith("is gone") for fault in faults)


async def test_a_result_that_is_another_job_s_is_found(place: BenchStore) -> None:
    await enqueue(place, JOBS)
    number = next(number for number in range(JOBS) if kind_of(number) == "plain")
    await place.app.resolve(f"stress-{number:07}", result=number + 1)

    _, faults = await accounted(place, expected(JOBS))

    assert any(f"its result is {number + 1}, not {number}" in fault for fault in faults)


@pytest.mark.parametrize(
    ("name", "fault"),
    [("hopeless", "it failed with 'by hand'"), ("failing", "it was tried 0 times, not 3")],
)
async def test_a_job_that_failed_in_another_way_is_found(place: BenchStore, name: str, fault: str) -> None:
    await enqueue(place, JOBS)
    number = next(number for number in range(JOBS) if kind_of(number) == name)
    await place.app.resolve(f"stress-{number:07}", state="failed", message="by hand")

    _, faults = await accounted(place, expected(JOBS))

    assert any(fault in one for one in faults), [one for one in faults if f"{number:07}" in one]


async def test_lost_and_unheard_of_jobs_are_found(place: BenchStore) -> None:
    await enqueue(place, JOBS)
    await place.app.remove("stress-0000007")
    await place.app.tasks["noop"].using(queue="errandry-bench-stress-3", id="odd-1").enqueue(i=1)

    _, faults = await accounted(place, expected(JOBS))

    assert any("job stress-0000007 is gone" in fault for fault in faults)
    assert "job odd-1 should not be there" in faults


@pytest.mark.parametrize(
    ("totals", "faults"),
    [
        ({"inserted": 4, "completed": 2, "failed": 1, "canceled": 1}, []),
        (
            {"inserted": 4, "completed": 2, "failed": 1},
            ["4 inserted, 0 canceled, 2 completed, 1 failed: all should be 4"],
        ),
        (
            {"inserted": 5, "completed": 5},
            ["5 inserted, 0 canceled, 5 completed, 0 failed: all should be 4"],
        ),
    ],
)
def test_what_was_inserted_must_have_ended(totals: dict[str, int], faults: list[str]) -> None:
    assert list(conserved(totals, 4)) == faults
