"""A worker in this process on a failing store: it keeps each job or gives it up, and forgets none."""

import asyncio
import logging
import os
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from errandry import Worker, WorkerOptions
from errandry.claims import background, leases, liveness
from errandry.core.answer import Answer, UpkeepResult
from errandry.core.command import Beat, Claim, Command, Renew, Settle, Start, Upkeep
from errandry.core.state import State
from errandry.errors import StoreRefused, StoreUnavailable
from tests.faults.process import WAIT_TIMEOUT, wait_until, wait_until_async
from tests.faults.troubled import FULL, LEASE, TroubledApp


async def test_claimed_jobs_run_although_the_next_claim_fails(troubled: TroubledApp) -> None:
    """The worker claims for async handlers and for threads; an error of one claim does not stop the other."""
    job = await troubled.wait.enqueue()
    troubled.store.error_for = lambda command: (
        FULL if isinstance(command, Claim) and command.tasks == ("answer",) else None
    )
    troubled.may_finish.set()

    async with troubled.running_worker():
        assert await job.result(timeout=30) == "done"

    assert troubled.began == [job.id]


async def test_a_claim_that_took_longer_than_its_lease_is_renewed_before_its_job_runs(
    troubled: TroubledApp,
) -> None:
    """As on a machine that slept while the claim was in flight: its answer may come after the lease."""
    job = await troubled.wait.enqueue()

    def sleep_before_answer(command: Command) -> None:
        if isinstance(command, Claim) and not troubled.store.count(Renew):
            troubled.clock.skew += 1.5 * LEASE

    troubled.store.error_for = sleep_before_answer
    async with troubled.running_worker(upkeep=False):
        await wait_until(lambda: troubled.began)
        renewals = troubled.store.count(Renew)
        await wait_until(lambda: troubled.store.count(Renew) > renewals + 3)
        troubled.may_finish.set()
        assert await job.result(timeout=30) == "done"

    assert troubled.ended == []
    assert (await troubled.app.client.record(job.id)).attempts == 1


async def test_leases_are_renewed_while_reads_hang(troubled: TroubledApp) -> None:
    job = await troubled.wait.enqueue()
    async with troubled.running_worker() as worker:
        await wait_until(lambda: troubled.began)
        troubled.store.before_read["cancels"] = asyncio.Event().wait
        troubled.store.before_read["workers"] = asyncio.Event().wait
        renewals = troubled.store.count(Renew)
        await wait_until(lambda: troubled.store.count(Renew) > renewals + 6)
        troubled.may_finish.set()
        await wait_until(lambda: worker.health().running == 0)

    assert (troubled.ended, troubled.began) == ([], [job.id])
    assert await troubled.state(job.id) is State.COMPLETED


async def test_a_handler_whose_lease_cannot_be_renewed_is_stopped(
    troubled: TroubledApp, caplog: pytest.LogCaptureFixture
) -> None:
    await troubled.wait.enqueue()
    async with troubled.running_worker():
        await wait_until(lambda: troubled.began)
        troubled.store.error_for = lambda command: (
            FULL if isinstance(command, Renew | Upkeep | Claim) else None
        )
        troubled.clock.skew = 1.5 * LEASE

        await wait_until(lambda: troubled.ended)

    assert troubled.ended == ["canceled"]
    assert caplog.text.count("is lost, it should stop") == 1


async def test_a_worker_that_claims_its_lost_job_again_stops_the_first_handler(troubled: TroubledApp) -> None:
    """Both claims have the same job id: the newer run must not replace the older one in the worker."""
    job = await troubled.wait.enqueue()
    async with troubled.running_worker() as worker:
        await wait_until(lambda: troubled.began)
        await troubled.app.engine.submit(Upkeep(dead=(worker.id,)))

        await wait_until(lambda: len(troubled.began) == 2)
        await wait_until(lambda: troubled.ended)
        troubled.may_finish.set()
        assert await job.result(timeout=30) == "done"

    assert troubled.ended == ["canceled"]
    assert (await troubled.app.client.record(job.id)).attempts == 2


async def test_a_background_loop_goes_on_after_an_unexpected_error(
    troubled: TroubledApp, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unexpected error pauses a loop; it must not end the renewals."""
    monkeypatch.setattr(background, "LOOP_RESTART_DELAY", 0.01)
    errors = [ValueError("a bug"), ValueError("another")]

    async def fail() -> None:
        if errors:
            raise errors.pop()

    async with troubled.running_worker():
        troubled.store.before_read["cancels"] = troubled.store.before_read["workers"] = fail
        job = await troubled.wait.enqueue()
        await wait_until(lambda: troubled.began and not errors)
        await troubled.app.cancel(job.id)
        await wait_until(lambda: troubled.ended)

    assert await troubled.state(job.id) is State.CANCELED
    assert caplog.text.count("unexpected error in a background loop") == 2


async def test_a_renewal_that_hangs_does_not_make_the_worker_spin(
    troubled: TroubledApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock_reads = 0
    clock = troubled.app.clock

    class CountingClock:
        time = staticmethod(clock.time)

        @staticmethod
        def monotonic() -> float:
            nonlocal clock_reads
            clock_reads += 1
            return clock.monotonic()

    second_leases = leases.Leases(troubled.app.engine, CountingClock(), "worker", 0.3, 0.1)
    error = StoreUnavailable("memory", "not reachable")
    troubled.store.error_for = lambda command: error if isinstance(command, Renew) else None
    await troubled.wait.enqueue()
    async with troubled.running_worker() as worker:
        await wait_until(lambda: troubled.began)
        [run] = worker._slots.runs
        second_leases.add(run)

        async def renew() -> None:
            async with asyncio.timeout(0.5):
                await second_leases.renew_forever()

        with pytest.raises(TimeoutError):
            await troubled.app.engine.call(renew)
        troubled.store.error_for = lambda _: None

    assert clock_reads < 60


async def test_an_outcome_is_sent_again_when_the_disk_is_full(
    troubled: TroubledApp, caplog: pytest.LogCaptureFixture
) -> None:
    job = await troubled.wait.enqueue()
    errors = [FULL, FULL]
    troubled.store.error_for = lambda command: (
        errors.pop() if isinstance(command, Settle) and errors else None
    )
    troubled.may_finish.set()

    async with troubled.running_worker():
        assert await job.result(timeout=30) == "done"

    assert (await troubled.app.client.record(job.id)).attempts == 1
    assert caplog.text.count("cannot write the outcome of") == 1


async def test_an_outcome_that_the_store_refuses_is_reported(
    troubled: TroubledApp, caplog: pytest.LogCaptureFixture
) -> None:
    await troubled.wait.enqueue()
    error = StoreRefused("memory", "damaged")
    troubled.store.error_for = lambda command: error if isinstance(command, Settle) else None
    troubled.may_finish.set()

    async with troubled.running_worker() as worker:
        await wait_until(lambda: "could not be written: memory: damaged" in caplog.text)

    assert worker.health().running == 0


async def test_a_stop_waits_for_outcomes_that_are_still_being_written(
    troubled: TroubledApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("errandry.worker.worker.STOP_TIMEOUT", 0.0)
    job = await troubled.wait.enqueue()
    errors = [FULL]
    troubled.store.error_for = lambda command: (
        errors.pop() if isinstance(command, Settle) and errors else None
    )
    async with troubled.running_worker(grace=30.0):
        await wait_until(lambda: troubled.began)
        troubled.may_finish.set()
        await wait_until(lambda: not errors)

    assert await troubled.state(job.id) is State.COMPLETED


async def test_a_canceled_worker_releases_its_jobs(troubled: TroubledApp) -> None:
    """As in a program that runs a worker as one of its tasks."""
    jobs = [await troubled.wait.enqueue() for _ in range(3)]
    work = asyncio.create_task(Worker(troubled.app, WorkerOptions(grace=60.0)).run())
    await wait_until(lambda: len(troubled.began) == 3)

    work.cancel()
    await asyncio.wait({work}, timeout=WAIT_TIMEOUT)

    assert work.cancelled()
    for job in jobs:
        record = await troubled.app.client.record(job.id)
        assert (record.state, record.attempts, record.errors) == (State.WAITING, 0, ())


async def test_a_claim_in_flight_when_the_worker_is_canceled_is_released(troubled: TroubledApp) -> None:
    job = await troubled.wait.enqueue()
    claiming = threading.Event()

    def block(command: Command) -> None:
        if isinstance(command, Claim):
            claiming.set()
            troubled.may_commit.wait(WAIT_TIMEOUT)

    troubled.store.error_for = block
    work = asyncio.create_task(Worker(troubled.app, WorkerOptions(grace=60.0)).run())
    await wait_until(claiming.is_set)

    work.cancel()
    troubled.may_commit.set()
    await asyncio.wait({work}, timeout=WAIT_TIMEOUT)

    record = await troubled.app.client.record(job.id)
    assert (record.state, record.attempts, record.crashes) == (State.WAITING, 0, 0)


async def test_a_start_in_flight_when_the_worker_stops_is_released(
    troubled: TroubledApp, caplog: pytest.LogCaptureFixture
) -> None:
    """Its handler does not begin, so the attempt is given back, even if the start was written."""
    caplog.set_level(logging.INFO, "errandry.worker")
    first, prefetched = [await troubled.wait.enqueue() for _ in range(2)]
    starting = threading.Event()

    def block(command: Command) -> None:
        if isinstance(command, Start):
            starting.set()
            troubled.may_commit.wait(WAIT_TIMEOUT)

    troubled.store.error_for = block
    async with troubled.running_worker(concurrency=1, prefetch=1, grace=0.0) as worker:
        await wait_until(lambda: troubled.began)
        await wait_until_async(lambda: is_in(troubled, prefetched.id, State.CLAIMED))
        worker.pause()  # else its stop would wait for a claim
        troubled.may_finish.set()
        await wait_until(starting.is_set)
        worker.stop()
        await wait_until(
            lambda: "did not finish within the grace" in caplog.text
        )  # before that, it may still begin
        troubled.may_commit.set()

    assert await troubled.state(first.id) is State.COMPLETED
    record = await troubled.app.client.record(prefetched.id)
    assert (record.state, record.attempts, record.releases) == (State.WAITING, 0, 1)


async def is_in(troubled: TroubledApp, job_id: str, state: State) -> bool:
    return await troubled.state(job_id) is state


async def test_all_jobs_of_a_dead_worker_expire_even_in_several_passes(
    troubled: TroubledApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock file proves the death. It is deleted only after the last pass that needs the proof."""
    dead = liveness.Liveness()
    file = Path(dead.path)
    beat = Beat(worker="dead", host=os.uname().nodename, alive=dead.path)
    await troubled.app.engine.submit(beat)
    os.close(dead._lock)
    passes = [UpkeepResult(more=True), UpkeepResult(more=True), UpkeepResult()]
    file_existed: list[bool] = []

    async def commit(commands: Sequence[Command]) -> list[Answer]:
        answers = await troubled.store.store.commit(commands)
        for index, command in enumerate(commands):
            if isinstance(command, Upkeep) and command.dead and passes:
                file_existed.append(file.exists())
                answers[index] = passes.pop(0)
        return answers

    monkeypatch.setattr(troubled.store, "commit", commit)
    async with troubled.running_worker():
        await wait_until(lambda: not file.exists())

    assert file_existed == [True, True, True]


async def test_a_file_that_no_worker_made_proves_nothing_and_is_not_deleted(
    troubled: TroubledApp, tmp_path: Path
) -> None:
    """Beats come from the store, and a program that writes there must not be able to delete files here."""
    other_file = tmp_path / "other_file.alive"
    other_file.touch()
    link = Path(liveness.lock_folder()) / f"{tmp_path.name}-{os.getpid()}.alive"
    link.symlink_to(other_file)
    try:
        for path in (str(other_file), str(link), "", "/", str(link.parent / ".." / "x.alive")):
            assert not liveness.is_dead(path), path
    finally:
        link.unlink()
    assert other_file.exists()


async def test_a_worker_that_cannot_create_a_lock_file_works(
    troubled: TroubledApp, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/proc/nowhere")
    troubled.may_finish.set()
    job = await troubled.wait.enqueue()

    async with troubled.running_worker():
        assert await job.result(timeout=30) == "done"
        workers = await troubled.app.engine.call(troubled.app.store.workers)

    assert [worker.beat.alive for worker in workers] == [""]
    assert "cannot lock a liveness file" in caplog.text


async def test_no_two_workers_have_the_same_id(troubled: TroubledApp) -> None:
    """A worker that finds another one dead expires all leases under its id."""
    first, second = (Worker(troubled.app, WorkerOptions(id="mail")) for _ in range(2))

    assert first.id != second.id
    assert first.id.startswith("mail-")
