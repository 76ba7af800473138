"""The stress test reports every job that is missing or ended in a wrong state."""

from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from errandry.bench.bench_store import BenchStore
from errandry.bench.stress import KINDS, check_jobs, count_faults, enqueue, expected_kinds, kind_of
from errandry.bench.tasks import declare_app
from errandry.core.state import State

JOBS = 200


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[BenchStore]:
    async with declare_app("memory:") as jobs:
        yield BenchStore("memory:", jobs, tmp_path, None)


def test_every_hundred_jobs_have_each_kind_by_its_share() -> None:
    assert sum(kind.share for kind in KINDS.values()) == 100
    assert Counter(map(kind_of, range(100))) == {name: kind.share for name, kind in KINDS.items()}
    assert KINDS["flaky"].share == 20
    assert sum(kind.share for kind in KINDS.values() if kind.state is State.FAILED) == 10


def test_spawned_jobs_are_expected_too() -> None:
    kinds = Counter(expected_kinds(JOBS).values())

    assert kinds["spawned"] == 2 * kinds["spawning"] > 0
    assert sum(kinds.values()) == JOBS + kinds["spawned"]


async def test_unfinished_jobs_are_reported(store: BenchStore) -> None:
    await enqueue(store, JOBS)

    accounts, faults = await check_jobs(store, expected_kinds(JOBS))

    wrong = {account.kind: account.wrong for account in accounts}
    assert wrong == {
        account.kind: account.expected if account.kind != "canceled" else 0 for account in accounts
    }
    assert any("it is waiting" in fault for fault in faults)
    assert any(fault.startswith("spawned job") and fault.endswith("is missing") for fault in faults)


async def test_a_wrong_accountis_reported(store: BenchStore) -> None:
    await enqueue(store, JOBS)
    number = next(number for number in range(JOBS) if kind_of(number) == "plain")
    await store.app.resolve(f"stress-{number:07}", result=number + 1)

    _, faults = await check_jobs(store, expected_kinds(JOBS))

    assert any(f"its result is {number + 1}, not {number}" in fault for fault in faults)


@pytest.mark.parametrize(
    ("name", "fault"),
    [("hopeless", "it failed with 'by hand'"), ("failing", "it had 0 attempts, not 3")],
)
async def test_a_job_that_failed_for_another_reason_is_reported(
    store: BenchStore, name: str, fault: str
) -> None:
    await enqueue(store, JOBS)
    number = next(number for number in range(JOBS) if kind_of(number) == name)
    await store.app.resolve(f"stress-{number:07}", state="failed", message="by hand")

    _, faults = await check_jobs(store, expected_kinds(JOBS))

    assert any(fault in line for line in faults), [line for line in faults if f"{number:07}" in line]


async def test_missing_and_unexpected_jobs_are_reported(store: BenchStore) -> None:
    await enqueue(store, JOBS)
    await store.app.remove("stress-0000007")
    await store.app.tasks["noop"].using(queue="errandry-bench-stress-3", id="odd-1").enqueue(i=1)

    _, faults = await check_jobs(store, expected_kinds(JOBS))

    assert any("job stress-0000007 is missing" in fault for fault in faults)
    assert "job odd-1 was not expected" in faults


@pytest.mark.parametrize(
    ("totals", "faults"),
    [
        ({"inserted": 4, "completed": 2, "failed": 1, "canceled": 1}, []),
        (
            {"inserted": 4, "completed": 2, "failed": 1},
            ["4 inserted, 0 canceled, 2 completed, 1 failed: both sums should be 4"],
        ),
        (
            {"inserted": 5, "completed": 5},
            ["5 inserted, 0 canceled, 5 completed, 0 failed: both sums should be 4"],
        ),
    ],
)
def test_inserted_jobs_must_equal_ended_jobs(totals: dict[str, int], faults: list[str]) -> None:
    assert list(count_faults(totals, 4)) == faults
