"""What a worker tells operators: blocked loops, health, and repeated failures."""

import asyncio
import logging
import time
from pathlib import Path

import pytest

from errandry import Errandry
from errandry.claims.throttled_log import REPEAT_AFTER, ThrottledLog
from errandry.errors import StoreUnavailable
from errandry.testing import FakeClock
from tests.machine_load import WAIT_TIMEOUT
from tests.run_worker import run_burst, running_worker
from tests.worker.gate import Gate


async def test_a_handler_that_blocks_the_loop_is_named_with_its_line(
    live: Errandry, caplog: pytest.LogCaptureFixture
) -> None:
    def warnings() -> list[str]:
        texts = [record.getMessage() for record in caplog.records]
        return [text for text in texts if "task blocking (job " in text and "blocked the event loop" in text]

    def block_until_warned() -> None:
        give_up = time.monotonic() + WAIT_TIMEOUT
        while not warnings() and time.monotonic() < give_up:
            time.sleep(0.005)

    @live.task
    async def blocking() -> None:
        block_until_warned()  # the line to be named

    await blocking.enqueue()
    await run_burst(live, stall_after=0.1)

    [message] = warnings()
    with open(__file__, encoding="utf-8") as source:
        line = next(n for n, text in enumerate(source, 1) if "the line to be named" in text)
    assert f"{Path(__file__).name}:{line}" in message


async def test_health_has_the_ages_of_the_last_pass_and_upkeep_and_the_number_of_jobs(
    live: Errandry, gate: Gate
) -> None:
    @live.task
    async def work() -> None:
        await gate.pass_through()

    await work.enqueue()
    async with running_worker(live, upkeep_every=0.01) as worker:
        await gate.begun.wait()
        async with asyncio.timeout(30):
            while (health := worker.health()).last_upkeep is None:  # noqa: ASYNC110 - a health check asks
                await asyncio.sleep(0.001)
        gate.opened.set()

    assert health.running == 1
    assert health.last_pass is not None
    assert 0 <= health.last_pass < WAIT_TIMEOUT
    assert 0 <= health.last_upkeep < WAIT_TIMEOUT


async def test_a_repeated_failure_and_its_end_are_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = FakeClock()
    throttled_log = ThrottledLog(clock, "cannot write, retrying", "writes succeed again")
    caplog.set_level(logging.INFO, "errandry.worker")
    throttled_log.report_recovery()
    for _ in range(5):
        throttled_log.report_failure(StoreUnavailable("store", "away"))
        clock.advance(REPEAT_AFTER / 4)
    throttled_log.report_recovery()
    throttled_log.report_recovery()

    lines = [record.getMessage() for record in caplog.records]
    assert lines == ["cannot write, retrying: store: away"] * 2 + ["writes succeed again, after 38 s"]
