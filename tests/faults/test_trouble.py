"""A store in trouble under a worker in this process: what it holds it keeps or gives up, never forgets."""

import asyncio
import logging
import os
import tempfile
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from errandry import Errandry, JobContext, Worker, WorkerOptions
from errandry.clock import SystemClock
from errandry.core.answer import Answer, UpkeepResult
from errandry.core.command import Beat, Claim, Command, Renew, Settle, Start, Upkeep, WorkerInfo
from errandry.core.state import State
from errandry.errors import StoreFull, StoreRefused, StoreUnavailable
from errandry.store.contract import Store
from errandry.store.memory.driver import MemoryStore
from errandry.worker import leases, liveness, worker
from tests.faults.process import LIMIT, until, until_said

FULL = StoreFull("memory", "no space left")
LEASE = 60.0


class Troubled:
    """A store that refuses what `refuses` says, and whose reads do what `reads` says first."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.seen: list[Command] = []
        self.refuses: Callable[[Command], Exception | None] = lambda _: None
        self.reads: dict[str, Callable[[], Awaitable[Any]]] = {}

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.store, name)
        if name not in self.reads:
            return found

        async def read(*args: Any) -> Any:
            await self.reads[name]()
            return await found(*args)

        return read

    async def commit(self, commands: Sequence[Command]) -> list[Answer]:
        self.seen += commands
        for command in commands:
            if (error := self.refuses(command)) is not None:
                raise error
        return await self.store.commit(commands)

    def sent(self, kind: type[Command]) -> int:
        return sum(isinstance(command, kind) for command in self.seen)


class Ahead(SystemClock):
    """The clock of a machine that has slept for so many seconds, which its store has not."""

    slept = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.slept


class Place:
    """An app on a troubled store, with an async task and a thread task that wait to be let go.

    Leases are so long that a busy machine keeps them; where one must run out, the clock is set ahead.
    """

    def __init__(self) -> None:
        self.store, self.clock = Troubled(), Ahead()
        self.app = Errandry(store=cast("Store", self.store), clock=self.clock)
        self.go, self.hold = asyncio.Event(), threading.Event()
        self.began: list[str] = []
        self.ended: list[str] = []

        @self.app.task
        async def wait(ctx: JobContext) -> str:
            self.began.append(ctx.id)
            try:
                await self.go.wait()
            except asyncio.CancelledError:
                self.ended.append("canceled")
                raise
            return "done"

        @self.app.task
        def answer(ctx: JobContext) -> str:
            self.began.append(ctx.id)
            return "done"

        self.wait, self.answer = wait, answer

    @asynccontextmanager
    async def working(self, **options: Any) -> AsyncIterator[Worker]:
        given = {"lease": LEASE, "renew_every": 0.05, "grace": 0.1, "upkeep_every": 0.02} | options
        worker = Worker(self.app, WorkerOptions(**given))
        work = asyncio.create_task(worker.run())
        try:
            yield worker
        finally:
            worker.stop()
            await work

    async def state(self, job_id: str) -> State:
        return (await self.app.record(job_id)).state


@pytest.fixture
async def place() -> AsyncIterator[Place]:
    place = Place()
    async with place.app:
        yield place


async def test_what_was_claimed_runs_though_the_next_claim_was_refused(place: Place) -> None:
    """One claim for async handlers, one for threads: the trouble of the second is not the first one's."""
    job = await place.wait.enqueue()
    place.store.refuses = lambda one: FULL if isinstance(one, Claim) and one.tasks == ("answer",) else None
    place.go.set()

    async with place.working():
        assert await job.result(timeout=30) == "done"

    assert place.began == [job.id]


async def test_a_claim_that_took_longer_than_its_lease_is_renewed_before_its_job_runs(place: Place) -> None:
    """As on a machine that slept with the claim on its way: the store gave the lease only afterwards."""
    job = await place.wait.enqueue()

    def slow(command: Command) -> None:
        if isinstance(command, Claim) and not place.store.sent(Renew):
            place.clock.slept += 1.5 * LEASE

    place.store.refuses = slow
    async with place.working(upkeep=False):
        await until(lambda: place.began)
        renewals = place.store.sent(Renew)
        await until(lambda: place.store.sent(Renew) > renewals + 3)
        place.go.set()
        assert await job.result(timeout=30) == "done"

    assert place.ended == []
    assert (await place.app.record(job.id)).attempts == 1


async def test_leases_are_renewed_while_reads_hang(place: Place) -> None:
    job = await place.wait.enqueue()
    async with place.working() as worker:
        await until(lambda: place.began)
        place.store.reads["cancels"] = asyncio.Event().wait
        place.store.reads["workers"] = asyncio.Event().wait
        renewals = place.store.sent(Renew)
        await until(lambda: place.store.sent(Renew) > renewals + 6)
        place.go.set()
        await until(lambda: worker.health().running == 0)

    assert (place.ended, place.began) == ([], [job.id])
    assert await place.state(job.id) is State.COMPLETED


async def test_a_handler_whose_lease_cannot_be_renewed_is_stopped(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    await place.wait.enqueue()
    async with place.working():
        await until(lambda: place.began)
        place.store.refuses = lambda one: FULL if isinstance(one, Renew | Upkeep | Claim) else None
        place.clock.slept = 1.5 * LEASE

        await until(lambda: place.ended)

    assert place.ended == ["canceled"]
    assert caplog.text.count("its lease is lost") == 1


async def test_a_worker_that_gets_its_own_job_back_stops_the_handler_it_had_lost(place: Place) -> None:
    """Both have the same id: the older claim must not be forgotten for the newer one."""
    job = await place.wait.enqueue()
    async with place.working() as worker:
        await until(lambda: place.began)
        await place.app.engine.submit(Upkeep(dead=(worker.id,)))

        await until(lambda: len(place.began) == 2)
        await until(lambda: place.ended)
        place.go.set()
        assert await job.result(timeout=30) == "done"

    assert place.ended == ["canceled"]
    assert (await place.app.record(job.id)).attempts == 2


async def test_a_loop_that_breaks_goes_on(
    place: Place, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error nobody thought of costs a pause, never the renewals for good."""
    monkeypatch.setattr(worker, "RECOVERY", 0.01)
    errors = [ValueError("a bug"), ValueError("another")]

    async def broken() -> None:
        if errors:
            raise errors.pop()

    async with place.working():
        place.store.reads["cancels"] = place.store.reads["workers"] = broken
        job = await place.wait.enqueue()
        await until(lambda: place.began and not errors)
        await place.app.cancel(job.id)
        await until(lambda: place.ended)

    assert await place.state(job.id) is State.CANCELED
    assert caplog.text.count("something unforeseen happened") == 2


async def test_a_renewal_that_hangs_does_not_make_the_worker_spin(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0
    clock = place.app.clock

    class Counting:
        time = staticmethod(clock.time)

        @staticmethod
        def monotonic() -> float:
            nonlocal looks
            looks += 1
            return clock.monotonic()

    kept = leases.Leases(place.app.engine, Counting(), "worker", WorkerOptions(lease=0.3))
    away = StoreUnavailable("memory", "away")
    place.store.refuses = lambda one: away if isinstance(one, Renew) else None
    await place.wait.enqueue()
    async with place.working() as working:
        await until(lambda: place.began)
        [run] = working._slots.runs
        kept.take(run)

        async def keep() -> None:
            async with asyncio.timeout(0.5):
                await kept.keep()

        with pytest.raises(TimeoutError):
            await place.app.engine.call(keep)
        place.store.refuses = lambda _: None

    assert looks < 60


async def test_an_outcome_the_store_has_no_room_for_is_sent_again(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    job = await place.wait.enqueue()
    refusals = [FULL, FULL]
    place.store.refuses = lambda one: refusals.pop() if isinstance(one, Settle) and refusals else None
    place.go.set()

    async with place.working():
        assert await job.result(timeout=30) == "done"

    assert (await place.app.record(job.id)).attempts == 1
    assert caplog.text.count("its outcome cannot be written yet") == 1


async def test_an_outcome_the_store_will_never_take_is_reported(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    await place.wait.enqueue()
    refusal = StoreRefused("memory", "damaged")
    place.store.refuses = lambda one: refusal if isinstance(one, Settle) else None
    place.go.set()

    async with place.working() as worker:
        await until(lambda: "its outcome could not be written: memory: damaged" in caplog.text)

    assert worker.health().running == 0


async def test_a_stop_waits_for_outcomes_that_are_still_being_written(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "LAST_CALL", 0.0)
    job = await place.wait.enqueue()
    refusals = [FULL]
    place.store.refuses = lambda one: refusals.pop() if isinstance(one, Settle) and refusals else None
    async with place.working(grace=30.0):
        await until(lambda: place.began)
        place.go.set()
        await until(lambda: not refusals)

    assert await place.state(job.id) is State.COMPLETED


async def test_a_worker_that_is_canceled_gives_its_jobs_back(place: Place) -> None:
    """Its loop ends with it, as in a program that runs it beside other things."""
    jobs = [await place.wait.enqueue() for _ in range(3)]
    work = asyncio.create_task(Worker(place.app, WorkerOptions(grace=60.0)).run())
    await until(lambda: len(place.began) == 3)

    work.cancel()
    await asyncio.wait({work}, timeout=LIMIT)

    assert work.cancelled()
    for job in jobs:
        record = await place.app.record(job.id)
        assert (record.state, record.attempts, record.errors) == (State.WAITING, 0, ())


async def test_a_claim_on_its_way_when_the_worker_is_canceled_is_given_back(place: Place) -> None:
    job = await place.wait.enqueue()
    claiming = threading.Event()

    def refuse(command: Command) -> None:
        if isinstance(command, Claim):
            claiming.set()
            place.hold.wait(LIMIT)

    place.store.refuses = refuse
    work = asyncio.create_task(Worker(place.app, WorkerOptions(grace=60.0)).run())
    await until(claiming.is_set)

    work.cancel()
    place.hold.set()
    await asyncio.wait({work}, timeout=LIMIT)

    record = await place.app.record(job.id)
    assert (record.state, record.attempts, record.crashes) == (State.WAITING, 0, 0)


async def test_a_start_on_its_way_when_the_worker_stops_is_given_back(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    """Its handler has not begun and will not: the attempt is unspent, be the Start written or not."""
    caplog.set_level(logging.INFO, "errandry.worker")
    first, ahead = [await place.wait.enqueue() for _ in range(2)]
    starting = threading.Event()

    def refuse(command: Command) -> None:
        if isinstance(command, Start):
            starting.set()
            place.hold.wait(LIMIT)

    place.store.refuses = refuse
    async with place.working(concurrency=1, prefetch=1, grace=0.0) as worker:
        await until(lambda: place.began)
        await until_said(lambda: is_in(place, ahead.id, State.CLAIMED))
        worker.pause()  # or its stop would wait for a claim
        place.go.set()
        await until(starting.is_set)
        worker.stop()
        await until(lambda: "did not finish within the grace" in caplog.text)  # before that it may begin
        place.hold.set()

    assert await place.state(first.id) is State.COMPLETED
    record = await place.app.record(ahead.id)
    assert (record.state, record.attempts, record.releases) == (State.WAITING, 0, 1)


async def is_in(place: Place, job_id: str, state: State) -> bool:
    return await place.state(job_id) is state


async def test_all_jobs_of_a_dead_worker_are_taken_from_it_however_many(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lock file is the proof: it goes only when there is nothing more to prove."""
    told = liveness.Liveness()
    file = Path(told.path)
    beat = Beat(worker="dead", host=os.uname().nodename, alive=told.path)
    await place.app.engine.submit(beat)
    os.close(told._lock)
    passes = [UpkeepResult(more=True), UpkeepResult(more=True), UpkeepResult()]
    proofs: list[bool] = []

    async def commit(commands: Sequence[Command]) -> list[Answer]:
        answers = await place.store.store.commit(commands)
        for index, command in enumerate(commands):
            if isinstance(command, Upkeep) and command.dead and passes:
                proofs.append(file.exists())
                answers[index] = passes.pop(0)
        return answers

    monkeypatch.setattr(place.store, "commit", commit)
    async with place.working():
        await until(lambda: not file.exists())

    assert proofs == [True, True, True]


async def test_a_file_that_is_not_a_workers_is_neither_believed_nor_touched(
    place: Place, tmp_path: Path
) -> None:
    """Beats come out of the store, and whoever can write there must not be able to delete files here."""
    precious = tmp_path / "precious.alive"
    precious.touch()
    link = Path(liveness._folder()) / f"{tmp_path.name}-{os.getpid()}.alive"
    link.symlink_to(precious)
    try:
        for path in (str(precious), str(link), "", "/", str(link.parent / ".." / "x.alive")):
            assert not liveness.is_dead(path), path
    finally:
        link.unlink()
    assert precious.exists()


async def test_a_worker_without_a_place_for_its_lock_works_all_the_same(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/proc/nowhere")
    place.go.set()
    job = await place.wait.enqueue()

    async with place.working():
        assert await job.result(timeout=30) == "done"
        infos: list[WorkerInfo] = await place.app.workers()

    assert [info.beat.alive for info in infos] == [""]
    assert "no lock file can be kept" in caplog.text


async def test_no_two_workers_have_the_same_id(place: Place) -> None:
    """Whoever finds one of them dead expires all leases under its id."""
    first, second = (Worker(place.app, WorkerOptions(id="mail")) for _ in range(2))

    assert first.id != second.id
    assert first.id.startswith("mail-")


async def test_of_the_jobs_that_lost_a_worker_one_runs_at_a_time(place: Place) -> None:
    """Whether it runs on the loop or in a thread."""
    for task in (place.wait, place.answer):
        job = await task.enqueue()
        command = Claim(worker="dead", nonce=job.id)
        await place.app.engine.submit(command)
    await place.app.engine.submit(Upkeep(dead=("dead",)))

    async with place.working() as worker:
        await until(lambda: place.began)
        claims = place.store.sent(Claim)
        await until(lambda: place.store.sent(Claim) > claims)
        assert len(place.began) == 1
        place.go.set()
        await until(lambda: len(place.began) == 2)
        await until(lambda: worker.health().running == 0)
