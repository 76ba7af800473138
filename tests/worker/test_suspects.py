"""Suspects: which of them run beside each other, and that only the job that kills workers fails for it.

The simulation runs the commands of real workers against the memory store in virtual time: claims with the
turns of `SuspectTurns`, renewals, heartbeats, upkeep. Poison jobs kill their worker, or all workers of its
host, while they run.
"""

import fcntl
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest

from errandry.claims.liveness import remove_stale_lock_files
from errandry.claims.suspect_lock import SuspectLock
from errandry.claims.suspect_turns import LAST_PAUSE, LOCKED_PAUSE, SuspectTurns
from errandry.core.answer import Claims, Lost, Renewed
from errandry.core.command import Beat, Claim, Command, CompleteOutcome, Insert, Ref, Renew, Settle, Upkeep
from errandry.core.job import JobRecord, NewJob
from errandry.core.state import Reason, State
from errandry.core.suspect import SuspectKind
from errandry.store.memory.driver import MemoryStore
from errandry.testing.clock import FakeClock

SHARED, ISOLATED = SuspectKind.SHARED, SuspectKind.ISOLATED
TICK = 0.1
LEASE, BEAT_EVERY, RENEW_EVERY, UPKEEP_EVERY, RESTART_AFTER = 30.0, 5.0, 10.0, 1.0, 1.0


class HostLock:
    """What `SuspectLock` is on a host, without files."""

    def __init__(self) -> None:
        self.holders: set[object] = set()
        self.is_alone = False
        self.next: object = None

    def try_take(self, worker: object, alone: bool) -> bool:
        if self.next not in (None, worker) or (self.holders and (alone or self.is_alone)):
            if alone and self.next is None:
                self.next = worker
            return False
        self.holders.add(worker)
        self.is_alone, self.next = alone, None
        return True

    def release(self, worker: object) -> None:
        self.holders.discard(worker)
        if self.next is worker:
            self.next = None


@dataclass(eq=False)
class SimulatedWorker:
    """One worker process. Its slots are all of one runner."""

    id: str
    host: int
    slots: int
    lock: HostLock
    clock: FakeClock
    running: dict[str, tuple[JobRecord, float]] = field(default_factory=dict)
    suspects_ended: int = 0
    dead_since: float | None = None
    cut_off_until: float = 0.0
    next_beat: float = 0.0
    next_renewal: float = 0.0
    next_upkeep: float = 0.0
    waiting: tuple[SuspectKind, ...] = ()

    def __post_init__(self) -> None:
        self.turns = SuspectTurns(self, self, self.clock)

    @property
    def suspects_held(self) -> int:
        return sum(job.crashes > 0 for job, _ in self.running.values())

    def try_take(self, alone: bool) -> bool:
        return self.lock.try_take(self, alone)

    def release(self) -> None:
        self.lock.release(self)

    def end(self, job_id: str) -> JobRecord:
        job, _ = self.running.pop(job_id)
        self.suspects_ended += job.crashes > 0
        return job


class Simulation:
    """Workers on some hosts, and what happens to them. `durations` says how long each job runs."""

    def __init__(self, random: Random, hosts: int, workers: int, slots: int) -> None:
        self.random, self.clock, self.slots = random, FakeClock(), slots
        self.store = MemoryStore(self.clock)
        self.locks = [HostLock() for _ in range(hosts)]
        self.durations: dict[str, float] = {}
        self.poison: dict[str, bool] = {}
        self.runs: dict[str, int] = {}
        self.began = self.clock.time()
        self.number = 0
        self.workers = [self.new_worker(number % hosts) for number in range(workers)]
        self.dead: list[SimulatedWorker] = []

    def new_worker(self, host: int) -> SimulatedWorker:
        self.number += 1
        return SimulatedWorker(f"worker-{self.number}", host, self.slots, self.locks[host], self.clock)

    async def insert(self, count: int, duration: float, **options: int) -> None:
        ids = [f"job-{len(self.durations) + number:03}" for number in range(count)]
        self.durations |= dict.fromkeys(ids, duration)
        jobs = tuple(NewJob(id=job_id, task="t", payload="{}", **options) for job_id in ids)  # type: ignore[arg-type]
        await self.store.commit([Insert(jobs)])

    async def send(self, command: Command) -> object:
        [answer] = await self.store.commit([command])
        return answer

    async def run(self, seconds: float) -> None:
        """Run until all jobs have ended, for at most `seconds`."""
        for _ in range(int(seconds / TICK)):
            await self.tick()
            if all(job.finished for job in await self.jobs()):
                return

    async def jobs(self) -> list[JobRecord]:
        return [job for job in await self.store.get(sorted(self.durations)) if job is not None]

    async def tick(self) -> None:
        self.clock.advance(TICK)
        for worker in self.random.sample(self.workers, len(self.workers)):
            if worker.dead_since is None:
                await self.step(worker)
        for worker in [w for w in self.workers if w.dead_since is not None]:
            if worker.dead_since is not None and self.clock.time() >= worker.dead_since + RESTART_AFTER:
                self.workers.remove(worker)
                self.workers.append(self.new_worker(worker.host))

    async def step(self, worker: SimulatedWorker) -> None:
        now = self.clock.time()
        for job, ends_at in list(worker.running.values()):
            if ends_at <= now and job.id in self.poison:
                self.kill(worker, all_of_host=self.poison[job.id])
                return
        if now < worker.cut_off_until:
            return
        if now >= worker.next_upkeep:
            dead = tuple(other.id for other in self.dead if other.host == worker.host)
            await self.send(Upkeep(dead=dead, worker=worker.id))
            worker.next_upkeep = now + UPKEEP_EVERY
        await self.renew(worker, now)
        if now >= worker.next_beat:
            await self.send(Beat(worker=worker.id, lease=LEASE, interval=BEAT_EVERY))
            worker.next_beat = now + BEAT_EVERY
        for job, ends_at in list(worker.running.values()):
            if ends_at <= now:
                await self.send(Settle(Ref(job.id, job.fence), CompleteOutcome()))
                worker.end(job.id)
        await self.claim(worker, now)

    async def renew(self, worker: SimulatedWorker, now: float) -> None:
        if now < worker.next_renewal or not worker.running:
            return
        worker.next_renewal = now + RENEW_EVERY
        refs = tuple(Ref(job.id, job.fence) for job, _ in worker.running.values())
        answer = await self.send(Renew(refs, LEASE))
        assert isinstance(answer, Renewed)
        for held, ack in zip(refs, answer.acks, strict=True):
            if isinstance(ack, Lost):
                worker.end(held.job)
                worker.next_beat = now  # as `Leases` asks for

    async def claim(self, worker: SimulatedWorker, now: float) -> None:
        while free := worker.slots - len(worker.running):
            self.number += 1
            quota = worker.turns.quota(worker.slots, worker.suspects_held)
            command = Claim(
                worker=worker.id,
                nonce=str(self.number),
                limit=free,
                suspects=quota,
                suspect_kind=worker.turns.kind,
                lease=LEASE,
            )
            answer = await self.send(command)
            assert isinstance(answer, Claims)
            for job in answer.jobs:
                worker.running[job.id] = job, now + self.durations[job.id] * self.random.uniform(0.5, 1)
                self.runs[job.id] = self.runs.get(job.id, 0) + 1
            self.check_neighbours(worker)
            worker.turns.note_waiting(answer.waiting_suspects)
            worker.turns.end_claim()
            if not answer.jobs and worker.turns.retry_in != 0:
                return

    def check_neighbours(self, worker: SimulatedWorker) -> None:
        """An isolated suspect runs with no other suspect on its host; others take a quarter of the slots."""
        host = [w for w in self.workers if w.host == worker.host and w.dead_since is None]
        suspects = [job for w in host for job, _ in w.running.values() if job.crashes]
        isolated = [
            job for job in suspects if job.crashes + 1 >= job.max_crashes or job.attempts >= job.max_attempts
        ]
        assert not isolated or len(suspects) == 1
        assert worker.suspects_held <= max(1, worker.slots // 4)

    def kill(self, worker: SimulatedWorker, *, all_of_host: bool) -> None:
        for other in self.workers:
            if other.dead_since is None and (other is worker or (all_of_host and other.host == worker.host)):
                other.dead_since = self.clock.time()
                other.running = {}
                other.lock.release(other)
                self.dead.append(other)


CASES = range(40)


@pytest.mark.parametrize("seed", CASES)
async def test_only_jobs_that_kill_workers_fail(seed: int) -> None:
    random = Random(seed)
    simulation = Simulation(
        random, random.randint(1, 2), random.randint(1, 4), random.choice([1, 2, 5, 12, 40])
    )
    options = {"max_attempts": random.choice([2, 3, 5]), "max_crashes": random.choice([2, 3, 4])}
    await simulation.insert(random.randint(5, 50), random.choice([0.2, 1.0, 4.0]), **options)
    for job_id in random.sample(sorted(simulation.durations), random.randint(1, 2)):
        simulation.poison[job_id] = random.random() < 0.5

    await simulation.run(1_500.0)

    jobs = await simulation.jobs()
    cap = min(options.values())
    for job in jobs:
        if job.id in simulation.poison:
            assert (job.state, job.reason) == (State.FAILED, Reason.WORKER_LOST), job
            assert simulation.runs[job.id] == cap, job
        else:
            assert job.state is State.COMPLETED, job
            assert job.crashes < options["max_crashes"], job


@pytest.mark.parametrize("seed", CASES)
async def test_an_outage_of_the_store_fails_no_job(seed: int) -> None:
    """Several times, all workers are cut off from the store for up to three leases."""
    await _run_with_outages(Random(seed), is_of_all=True, longest=3 * LEASE)


@pytest.mark.parametrize("seed", CASES)
async def test_an_outage_of_some_workers_fails_no_job_until_they_count_as_dead(seed: int) -> None:
    await _run_with_outages(Random(seed), is_of_all=False, longest=LEASE + BEAT_EVERY)


async def _run_with_outages(random: Random, *, is_of_all: bool, longest: float) -> None:
    simulation = Simulation(random, random.randint(1, 2), random.randint(1, 4), random.choice([2, 5, 20]))
    options = {"max_attempts": 100, "max_crashes": random.choice([1, 2, 3])}
    await simulation.insert(random.randint(5, 40), 20.0, **options)
    for _ in range(random.randint(1, 4)):
        await simulation.run(random.uniform(1.0, 10.0))
        count = len(simulation.workers)
        until = simulation.clock.time() + random.uniform(LEASE, longest)
        for worker in random.sample(simulation.workers, count if is_of_all else random.randint(1, count)):
            worker.cut_off_until = until
    await simulation.run(3_000.0)

    jobs = await simulation.jobs()
    assert {job.state for job in jobs} == {State.COMPLETED}
    assert max(job.attempts for job in jobs) <= 1 + 4


@pytest.mark.parametrize(("jobs", "slots", "limit"), [(100, 100, 12.0), (20, 20, 12.0), (400, 400, 12.0)])
async def test_jobs_that_lost_their_worker_are_back_soon(jobs: int, slots: int, limit: float) -> None:
    """Jobs of 2 s fill the slots of one worker, which is killed; then another one starts."""
    simulation = Simulation(Random(1), 1, 1, slots)
    await simulation.insert(jobs, 2.0)
    simulation.durations = dict.fromkeys(simulation.durations, 4.0)  # at least 2 s each
    await simulation.tick()
    simulation.kill(simulation.workers[0], all_of_host=False)
    killed_at = simulation.clock.time()
    simulation.durations = dict.fromkeys(simulation.durations, 2.0)

    await simulation.run(100.0)

    finished = [job.finished_at or 0.0 for job in await simulation.jobs()]
    assert len(finished) == jobs
    assert max(finished) - killed_at <= limit


# The turns of one worker.


class Held:
    def __init__(self) -> None:
        self.suspects_held = self.suspects_ended = 0

    def settle(self) -> None:
        self.suspects_held -= 1
        self.suspects_ended += 1


@dataclass
class OpenLock:
    is_free: bool = True
    taken: list[bool] = field(default_factory=list)
    releases: int = 0

    def try_take(self, alone: bool) -> bool:
        if self.is_free:
            self.taken.append(alone)
        return self.is_free

    def release(self) -> None:
        self.releases += 1


@dataclass
class Turns:
    """A worker's turns with the parts that a test moves."""

    held: Held = field(default_factory=Held)
    lock: OpenLock = field(default_factory=OpenLock)
    clock: FakeClock = field(default_factory=FakeClock)

    def __post_init__(self) -> None:
        self.turns = SuspectTurns(self.lock, self.held, self.clock)

    def claim(self, slots: int, suspects: int, *waiting: SuspectKind) -> int:
        """Claim with the quota of the turns; the claim brings at most `suspects`. Returns the quota."""
        quota = self.turns.quota(slots, self.held.suspects_held)
        self.held.suspects_held += min(quota, suspects)
        self.turns.note_waiting(waiting)
        self.turns.end_claim()
        return quota


def test_a_worker_takes_no_turn_while_no_suspects_wait() -> None:
    worker = Turns()

    assert worker.claim(100, 0) == 0
    assert (worker.lock.taken, worker.turns.retry_in) == ([], None)


def test_a_round_takes_a_quarter_of_the_slots_until_its_first_suspect_is_settled() -> None:
    worker = Turns()
    worker.claim(100, 0, SHARED)

    assert worker.claim(100, 20, SHARED) == 25
    assert worker.claim(100, 2, SHARED) == 5
    worker.held.settle()
    assert worker.claim(100, 9, SHARED) == 0
    for _ in range(21):
        worker.held.settle()
    assert worker.claim(100, 9, SHARED) == 25


def test_kinds_take_turns_and_an_isolated_suspect_takes_the_lock_alone() -> None:
    worker = Turns()
    worker.claim(100, 0, SHARED, ISOLATED)
    for kind, quota in ((SHARED, 25), (ISOLATED, 1), (SHARED, 25)):
        assert worker.claim(100, 1, SHARED, ISOLATED) == quota
        assert worker.turns.kind is kind
        worker.held.settle()

    assert worker.lock.taken == [False, True, False]


def test_turns_without_suspects_are_tried_less_and_less_often() -> None:
    worker = Turns()
    worker.claim(100, 0, SHARED)
    pauses = []
    for _ in range(8):
        assert worker.claim(100, 0, SHARED) == 25
        assert worker.claim(100, 0, SHARED) == 0
        assert worker.turns.retry_in is not None
        pauses.append(worker.turns.retry_in)
        worker.clock.advance(worker.turns.retry_in)

    assert pauses == sorted(pauses)
    assert pauses[-1] == pytest.approx(LAST_PAUSE)
    assert worker.lock.releases >= 8


def test_a_worker_tries_again_soon_while_another_one_of_its_host_has_the_lock() -> None:
    worker = Turns()
    worker.claim(100, 0, ISOLATED)
    worker.lock.is_free = False

    assert worker.claim(100, 1, ISOLATED) == 0
    assert worker.turns.retry_in == pytest.approx(LOCKED_PAUSE)
    assert worker.turns.has_untried


# The lock of a host.


@pytest.fixture
def locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[SuspectLock]]:
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    locks = [SuspectLock(lambda: "store") for _ in range(3)]
    yield locks
    for lock in locks:
        lock.release()


def test_rounds_share_the_lock_and_an_isolated_suspect_has_it_alone(locks: list[SuspectLock]) -> None:
    first, second, third = locks
    assert first.try_take(alone=False)
    assert second.try_take(alone=False)
    assert not third.try_take(alone=True)
    first.release()
    second.release()
    assert third.try_take(alone=True)

    assert not first.try_take(alone=False)
    assert not second.try_take(alone=True)


def test_no_round_begins_while_a_worker_waits_to_have_the_lock_alone(locks: list[SuspectLock]) -> None:
    first, second, third = locks
    assert first.try_take(alone=False)
    assert not second.try_take(alone=True)
    assert not third.try_take(alone=False)
    first.release()
    assert not third.try_take(alone=False)
    assert second.try_take(alone=True)
    second.release()

    assert third.try_take(alone=False)


def test_a_lock_that_cannot_be_made_holds_up_no_worker(
    locks: list[SuspectLock], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise OSError(30, os.strerror(30))

    monkeypatch.setattr(fcntl, "flock", fail)

    assert locks[0].try_take(alone=True)
    assert locks[1].try_take(alone=True)
    assert "cannot lock a file of this host" in caplog.text


def test_the_files_of_a_store_that_is_no_longer_used_are_removed(
    locks: list[SuspectLock], tmp_path: Path
) -> None:
    first, second, _ = locks
    assert first.try_take(alone=False)
    for file in tmp_path.rglob("*.suspects"):
        os.utime(file, (0, 0))
    remove_stale_lock_files()
    [held] = tmp_path.rglob("*.suspects")
    assert not second.try_take(alone=True)  # the lock is held still

    second.release()
    first.release()
    for file in tmp_path.rglob("*.suspects"):
        os.utime(file, (0, 0))
    remove_stale_lock_files()

    assert "turn" in held.name
    assert list(tmp_path.rglob("*.suspects")) == []


def test_a_worker_that_will_not_claim_gives_up_its_place_in_the_queue(locks: list[SuspectLock]) -> None:
    """As one that is paused, or a claimer whose program works on its jobs."""
    first, second, third = locks
    clock, held = FakeClock(), Held()
    assert first.try_take(alone=False)
    turns = SuspectTurns(second, held, clock)
    turns.note_waiting((ISOLATED,))
    assert not turns.begin()
    assert not third.try_take(alone=False)

    turns.yield_place()

    assert third.try_take(alone=False)


def test_a_turn_goes_on_while_its_suspects_run(locks: list[SuspectLock]) -> None:
    turns = SuspectTurns(locks[0], held := Held(), FakeClock())
    turns.note_waiting((ISOLATED,))
    assert turns.quota(1, 0) == 1
    held.suspects_held = 1
    turns.end_claim()

    turns.yield_place()

    assert not locks[1].try_take(alone=False)


def test_a_forked_child_does_not_keep_the_lock(locks: list[SuspectLock]) -> None:
    assert locks[0].try_take(alone=True)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(write)
        os.read(read, 1)  # until the parent has closed its end
        os._exit(0)
    locks[0].release()

    assert locks[1].try_take(alone=True)

    os.close(write)
    os.waitpid(child, 0)
    os.close(read)
