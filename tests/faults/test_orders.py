"""A program that enqueues with `bind` is killed: an order exists with its jobs, or neither does."""

import signal

import pytest

from tests.faults.history import EnqueueAcked
from tests.faults.orders import create_orders, jobs_of_orders
from tests.faults.process import wait_until
from tests.faults.scene import Scene

pytestmark = pytest.mark.slow("starts programs and kills them")

STEPS = ("before_order", "before_bound_insert", "before_commit", "after_commit")


@pytest.mark.parametrize("step", STEPS)
async def test_a_killed_program_leaves_an_order_with_its_jobs_or_nothing(scene: Scene, step: str) -> None:
    await create_orders(scene.url)
    victim = scene.start("order", {"seed": 1, "rollbacks": 0.0}, ERRANDRY_FAILPOINT=f"{step}:5")

    assert await victim.wait_for_end() == -signal.SIGKILL, victim.log()

    left = await jobs_of_orders(scene.url)
    assert left
    assert {job.id for job in (await scene.contents()).jobs} == left
    await scene.worker()
    other = scene.start("order", {"seed": 2})  # the victim has left no lock
    await wait_until(lambda: len(acked_jobs(scene) - left) > 5)
    other.signal(signal.SIGTERM)
    assert await other.wait_for_end() == 0, other.log()
    await scene.check()
    assert {job.id for job in (await scene.contents()).jobs} == await jobs_of_orders(scene.url)


def acked_jobs(scene: Scene) -> set[str]:
    return {fact.job for fact in scene.journal.read() if isinstance(fact, EnqueueAcked)}
