"""The state machine: random histories of commands, reads, passing time and reopened stores.

`pair` compares the answers of the stores; `promises` checks the promises on the memory store. `reached`
counts the commands, answers and events of a history; `pytest --hypothesis-show-statistics` prints it.
"""

import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar

from hypothesis import event, note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from errandry.clock import Clock
from errandry.core.answer import Answer, Claims, Moved, Renewed
from errandry.core.command import (
    CancelJobs,
    Claim,
    Command,
    Ref,
    ReleaseOutcome,
    Settle,
    Start,
    Upkeep,
    touched_ids,
)
from errandry.core.gate import GateKind, Pause, Resume
from errandry.core.job import JobRecord
from errandry.core.state import State
from errandry.store.contract import RANK, Store, StoreLimits
from errandry.testing.clock import FakeClock
from tests.model.commands import BOUNDS, EVERYDAY, IDS, KINDS, WORKERS, Chance, Seen
from tests.model.pair import Cursors, Look, Pair
from tests.model.passes import Pass
from tests.model.promises import Promises

Opener = Callable[[], Store]
Subject = Callable[[Path, Clock, StoreLimits], Opener]
"""Makes an opener for a folder. Each call of the opener returns another store object for the same data."""

seeds = st.integers(0, 2**32)


class History(RuleBasedStateMachine):
    """A random history. Subclasses set the store to compare."""

    subject: ClassVar[Subject]

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="errandry-model-"))
        self.clock = FakeClock()
        make = type(self).subject(self.folder, self.clock, BOUNDS)
        self.pair = Pair(make, self.clock, BOUNDS, IDS, WORKERS)
        self.promises = Promises()
        self.seen = Seen()
        self.jobs: dict[str, JobRecord] = {}
        self.sent: list[list[Command]] = []
        self.cursors: list[Cursors] = [(None, None)]
        self.is_set_back = False
        self.reached: dict[str, int] = {}

    def teardown(self) -> None:
        for name, count in self.reached.items():
            event(name, "once" if count == 1 else "some" if count < 5 else "often")
        try:
            self.pair.close()
        finally:
            shutil.rmtree(self.folder)

    @initialize(seed=seeds)
    def there_are_some_jobs(self, seed: int) -> None:
        self.pair.open()
        chance = Chance(seed, self.seen)
        for _ in range(3):
            self.commit([chance.insert()])

    # Rules.

    @rule(seed=seeds, times=st.integers(1, 8))
    def some_commands_come(self, seed: int, times: int) -> None:
        chance = Chance(seed, self.seen)
        for _ in range(times):
            self.commit([chance.command(*EVERYDAY * 2, *KINDS)])

    @rule(seed=seeds, times=st.integers(1, 4))
    def some_passes_come(self, seed: int, times: int) -> None:
        chance = Chance(seed, self.seen)
        for _ in range(times):
            self.commit(in_order([chance.command(*EVERYDAY, *KINDS) for _ in range(chance.of(2, 3, 6))]))

    @rule(seed=seeds, times=st.integers(1, 4))
    def workers_work(self, seed: int, times: int) -> None:
        """Claim jobs, then start and settle each one, or abandon it. Some jobs are canceled meanwhile."""
        chance = Chance(seed, self.seen)
        self.commit([chance.command("insert", "insert", "rerun")])
        for job in [job for _ in range(times) for job in self.claim(chance.claim())]:
            ref = Ref(job.id, job.fence)
            if job.state is State.CLAIMED and chance.of(True, False):
                self.commit([Start(ref)])
            if chance.one_in(3):
                self.commit([CancelJobs(ids=(job.id,))])
            if chance.of(True, True, False):
                self.commit([Settle(ref, chance.outcome())])

    @rule(seed=seeds)
    def a_reply_is_lost_and_all_is_sent_again(self, seed: int) -> None:
        self.commit(Chance(seed, self.seen).of(*self.sent))

    @rule(seed=seeds, times=st.sampled_from([1, 1, 2, 25]))
    def jobs_are_passed_around(self, seed: int, times: int) -> None:
        """Claim and release jobs repeatedly."""
        chance = Chance(seed, self.seen)
        worker, start = chance.of(*WORKERS), chance.of(True, False)
        for _ in range(times):
            jobs = self.claim(Claim(worker=worker, nonce=self.seen.new_nonce(), limit=3, start=start))
            if not jobs:
                break
            self.commit([Settle(Ref(job.id, job.fence), ReleaseOutcome()) for job in jobs])

    @rule(seconds=st.sampled_from([0.125, 1.0, 5.0, 5.0, 10.0, 30.0, 30.0, 301.0, 4_000.0, 90_000.0]))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.look()

    @rule(seed=seeds)
    def the_next_moment_comes(self, seed: int) -> None:
        """Advance to the exact moment at which a lease ends, or a job is due, lapses or expires."""
        jobs = self.jobs.values()
        moments = {
            m for job in jobs for m in (job.lease_until, job.run_at, job.deadline, job.expires_at) if m
        }
        ahead = [moment - self.seen.now for moment in moments if moment > self.seen.now]
        if ahead:
            self.clock.advance(min(ahead))
            self.commit(
                [Chance(seed, self.seen).command("settle", "start", "renew", "note", "claim", "upkeep")]
            )

    @rule(seconds=st.sampled_from([-0.25, -10.0, -3_600.0, 10.0, 3_600.0]))
    def the_wall_clock_is_set(self, seconds: float) -> None:
        self.pair.read_the_clocks()
        self.clock.jump(seconds)
        self.is_set_back |= seconds < 0
        self.look()

    @rule(seed=seeds, limit=st.sampled_from([1, 3, 50]))
    def some_reads_come(self, seed: int, limit: int) -> None:
        chance = Chance(seed, self.seen)
        self.pair.page_through(chance.query(), limit)
        self.pair.get(chance.some([*IDS, "unknown"], 4))
        self.cursors = [*self.cursors, self.pair.events(chance.of(*self.cursors), limit)][-20:]

    @rule(which=st.integers(0, 1))
    def a_store_is_closed_and_opened_again(self, which: int) -> None:
        # A store that opens continues from the time of the last pass with an event, so make one.
        self.commit([Pause(GateKind.WORKER, "unknown"), Resume(GateKind.WORKER, "unknown")])
        self.pair.reopen(which)
        self.count("reopened")
        self.look()

    # Helpers of the rules.

    def claim(self, claim: Claim) -> Sequence[JobRecord]:
        [answer] = self.commit([claim])
        assert isinstance(answer, Claims)
        return answer.jobs

    def commit(self, commands: list[Command]) -> Sequence[Answer]:
        for command in commands:
            note(f"→ {command}")
        self.sent = [*self.sent, commands][-12:]
        answers, before = self.pair.commit(commands), self.jobs
        for command, answer in zip(commands, answers, strict=True):
            note(f"← {answer}")
            self.learn(command, answer)
        look = self.look()
        state = look.new_events, closed(look), look.rules, look.schedules, look.edges, look.steps
        pass_ = Pass(commands, answers, self.seen.now, before, self.jobs, *state)
        self.promises.check(pass_)
        self.count_what_was_reached(pass_)
        return answers

    def look(self) -> Look:
        """Compare the stores, and remember the state for the next commands."""
        self.seen.now = self.pair.now
        look = self.pair.look()
        self.jobs = look.jobs
        jobs = sorted(self.jobs.values(), key=lambda job: job.seq)
        self.seen.live = [job.id for job in jobs if not job.finished]
        self.seen.finished = [job.id for job in jobs if job.finished]
        self.seen.held = [Ref(job.id, job.fence) for job in jobs if job.lease_until is not None]
        steps = [step for steps in look.steps.values() for step in steps]
        self.seen.awaited = [(step.job, step.name) for step in steps if step.at is None]
        self.cursors = [*self.cursors, self.pair.last_cursors][-20:]
        self.promises.check_counts(self.jobs, look.counts, look.totals, look.new_events)
        if self.is_set_back:
            self.pair.read_the_clocks()
        return look

    def learn(self, command: Command, answer: Answer) -> None:
        seen = self.seen
        match command, answer:
            case Claim(worker=worker, nonce=nonce), Claims(jobs=jobs) if jobs:
                seen.nonces[worker] = nonce
                seen.refs += [Ref(job.id, job.fence) for job in jobs]
            case Upkeep(), _:
                self.promises.claims.forget(self.pair.now - BOUNDS.workers_age)
            case _, Moved(below=below) if below is not None:
                seen.below = below

    def count_what_was_reached(self, pass_: Pass) -> None:
        for entry in pass_.events:
            self.count(f"event {entry.event.kind}")
        for command, answer in pass_.pairs:
            self.count(f"{name_of(command)}: {name_of_answer(answer)}")
        for job in pass_.after.values():
            if job.finished and job != pass_.before.get(job.id):
                self.count(f"ended {job.state}: {job.reason or job.settled or 'by hand'}")

    def count(self, name: str) -> None:
        self.reached[name] = self.reached.get(name, 0) + 1


def in_order(commands: Sequence[Command]) -> list[Command]:
    """The commands as the committer sends them: by rank, and at most one for each job."""
    touched: set[str] = set()
    selected: list[Command] = []
    for command in commands:
        ids = set(touched_ids(command))
        if not ids & touched:
            touched |= ids
            selected.append(command)
    return sorted(selected, key=lambda command: RANK[type(command)])


def closed(look: Look) -> frozenset[tuple[str, ...]]:
    groups = [("group", gate.name, gate.group) for gate in look.rules if gate.group and gate.paused]
    return frozenset([*groups, *((str(kind), name) for kind, names in look.paused.items() for name in names)])


def name_of(command: Command) -> str:
    return type(command.outcome if isinstance(command, Settle) else command).__name__


def name_of_answer(answer: Answer) -> str:
    match answer:
        case Moved(moved=moved, already=already, refused=refused):
            return "moved" if moved else "already" if already else "refused" if refused else "none"
        case Claims(jobs=jobs):
            return "some" if jobs else "none"
        case Renewed(acks=acks):
            return " ".join(sorted({name_of_answer(ack) for ack in acks}))
        case _:
            return str(getattr(answer, "cause", answer if isinstance(answer, str) else type(answer).__name__))
