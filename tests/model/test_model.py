"""Every store answers as the memory store does, whatever is sent to it, and keeps the promises of proof.md.

A store joins with a line in `STORES`. Memory itself is there as the control: the comparison is fair, and
what all stores share keeps the promises. In CI, Hypothesis chooses the same histories each time.
"""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from errandry.clock import Clock
from errandry.store.contract import StoreLimits
from errandry.store.memory.driver import MemoryStore
from errandry.store.sqlite.driver import SqliteStore
from errandry.store.url import store_at
from tests.model.machine import History, Opener, Subject
from tests.store.server import server


def memory(folder: Path, clock: Clock, limits: StoreLimits) -> Opener:
    store = MemoryStore(clock, limits)
    return lambda: store


def sqlite(folder: Path, clock: Clock, limits: StoreLimits) -> Opener:
    return lambda: SqliteStore(folder / "jobs.db", clock, limits, durability="process")


def postgres(folder: Path, clock: Clock, limits: StoreLimits) -> Opener:
    url = server().new_url()
    return lambda: store_at(url, clock, limits)


STORES: dict[str, Subject] = {"memory": memory, "sqlite": sqlite, "postgres": postgres}


@pytest.mark.slow("random histories of fifty steps")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", STORES)
def test_stores_answer_alike(name: str) -> None:
    explore(name, examples={"memory": 60, "postgres": 15}.get(name, 40), steps=50)


@pytest.mark.prove
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("name", STORES)
def test_stores_answer_alike_in_many_long_histories(name: str) -> None:
    explore(name, examples={"memory": 2_000, "postgres": 500}.get(name, 1_000), steps=60)


def explore(name: str, examples: int, steps: int) -> None:
    machine = type(f"Of{name.title()}", (History,), {"subject": staticmethod(STORES[name])})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            report_multiple_bugs=False,
            phases=set(settings().phases) - {Phase.explain},
            suppress_health_check=list(HealthCheck),
        ),
    )
