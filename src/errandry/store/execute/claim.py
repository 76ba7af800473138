"""Claims: which waiting jobs go to a worker, as gates, turns and urgency say.

Tables find lanes and jobs, `core.permit` says how many may pass, `core.pick` which are next. Where no rule
says anything and no group waits, the most urgent jobs are taken as they stand.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any

from msgspec.structs import replace

from errandry.core import move
from errandry.core.answer import Claims, LossCause
from errandry.core.batch import CLAIM_MAX, call_count, free_places
from errandry.core.command import Claim, Ref
from errandry.core.event import EventKind
from errandry.core.fair_queueing import OpenLane, PickRules, aged, by_urgency, in_turn, picked, ranks, served
from errandry.core.gate import GateKind
from errandry.core.job import JobRecord
from errandry.core.permit import Permits
from errandry.core.state import Move
from errandry.store.execute import upkeep
from errandry.store.execute.unit_of_work import UnitOfWork
from errandry.store.tables.protocol import ClaimedRefs, Tables

FEW = 8
WIDEST = 1_000
"""So many lanes of a queue and task are looked at together, at most."""


def claim(ledger: UnitOfWork, command: Claim) -> Claims:
    tables, now = ledger.tables, ledger.now
    ledger.flush()
    claims = ledger.claims_of(command.worker)
    brought = claims.get(command.nonce)
    if brought is not None:  # guard: nonce_repeat
        return Claims(tuple(_still_held(ledger, brought)), due_in(tables, ledger.permits(), now))
    upkeep.before_claim(ledger)
    taken = _taken(ledger, command)
    if command.batches:
        _fill(ledger, command, taken)
    if taken:
        claims[command.nonce] = [
            (fence, [job.id for job in jobs]) for fence, jobs in groupby(taken, attrgetter("fence"))
        ]
        tables.save_claims(command.worker, claims, now)
        for queue in {job.queue: None for job in taken}:
            if tables.is_drained(queue):
                ledger.tell(EventKind.DRAINED, queue)
                if queue in ledger.turning:
                    tables.reset_turns(queue)
    return Claims(tuple(taken), due_in(tables, ledger.permits(), now))


def due_in(tables: Tables, permits: Permits | None, now: float) -> float | None:
    """Seconds until the next job is due, or until something opens that is closed for a time."""
    marks = tables.due_times()
    opens = None if permits is None or not permits.is_timed else permits.due(tables.queue_task_pairs())
    times = [at for at in (marks.run_at, marks.open_at, marks.tick_at, opens) if at is not None]
    return max(0.0, min(times) - now) if times else None


def _taken(ledger: UnitOfWork, command: Claim) -> list[JobRecord]:
    """The most urgent jobs, claimed; what has lapsed fails instead, and suspects beyond their number stay."""
    permits = ledger.permits()
    if permits is not None and permits.is_paused(GateKind.WORKER, command.worker):  # guard: worker_gate
        return []
    take = _Take(ledger, command, permits)
    while take.room and take.look():
        ledger.flush()
    ledger.flush()
    take.close()
    return take.taken


def _fill(ledger: UnitOfWork, command: Claim, taken: list[JobRecord]) -> None:
    """Where jobs share calls there are more to take: for the calls left, and for what room batches have."""
    asked, brought = command.limit, len(taken)
    while brought == asked and (left := command.limit - call_count(taken, command.batches)):
        asked = min(left, CLAIM_MAX - len(taken))
        if asked <= 0:
            break
        suspects = command.suspects
        if suspects is not None:
            suspects -= sum(job.crashes > 0 for job in taken)
        more = _taken(ledger, replace(command, limit=asked, suspects=suspects))
        brought = len(more)
        taken += more
    for batch in command.batches:
        if free := free_places(taken, batch):
            taken += _taken(ledger, replace(command, tasks=(batch.task,), without=(), limit=free, suspects=0))


class _Take:
    """One claim under way: looks again until it has enough, or there is nothing more to have."""

    def __init__(self, ledger: UnitOfWork, command: Claim, permits: Permits | None) -> None:
        self.taken: list[JobRecord] = []
        self._ledger, self._tables, self._command, self._permits = ledger, ledger.tables, command, permits
        self._ranks = ranks(command)
        self._suspects = command.suspects
        self._later = {batch.task for batch in command.batches if not batch.start}
        self._width = command.limit + 1
        self._tried: set[Any] = set()
        self._passed: set[Any] = set()

    @property
    def room(self) -> int:
        return self._command.limit - len(self.taken)

    def look(self) -> bool:
        """Take what is next; False if another look is of no use: nothing has changed, or nothing is left."""
        wanted = self._command
        if self.taken:
            wanted = replace(wanted, limit=self.room, suspects=self._suspects)
        lines = self._lines(wanted)
        is_all = False
        if self._is_plain(lines, wanted.limit):
            jobs = self._tables.best_jobs(lines, wanted.limit, wanted.suspects != 0)
            is_all = self._permits is None and max(len(jobs), len(lines)) < wanted.limit
            self._tried = set() if jobs or not lines else {min(lines, key=by_urgency).lane}
        elif parked := self._park(lines):
            self._width = min(WIDEST, 2 * self._width)
            return parked
        else:
            jobs = self._picked(lines, wanted)
        if not jobs and self._tried:  # somebody else has them just now: nobody in other lanes waits for that
            self._passed |= self._tried
            return True
        before = len(self.taken)
        changed = [job for job in jobs if self._have(job)]
        self._turn(self.taken[before:], lines)
        return bool(changed) and not is_all

    def close(self) -> None:
        """Write down where rates are."""
        if self._permits is not None and (spent := self._permits.newly_spent()):
            self._tables.put_rate_state(spent)

    def _lines(self, wanted: Claim) -> list[OpenLane]:
        permits, passed = self._permits or _NO_PERMITS, self._passed
        if passed:
            wanted = replace(wanted, limit=wanted.limit + len(passed))
        queues, tasks = permits.closed(GateKind.QUEUE), permits.closed(GateKind.TASK)
        lines = self._tables.open_lanes(wanted, queues, tasks, self._width + len(passed))
        return [line for line in lines if line.lane not in passed] if passed else lines

    def _is_plain(self, lines: Sequence[OpenLane], number: int) -> bool:
        """Whether the most urgent jobs of all lanes are next, and so many of them may go."""
        if self._ranks or any(line.group for line in lines):
            return False
        permits = self._permits
        return permits is None or all(permits.is_plain(line, number) for line in lines)

    def _park(self, lines: Sequence[OpenLane]) -> bool:
        """Lay aside the lanes whose group nothing may be claimed of; whether there were some."""
        permits = self._permits
        groups = {(line.queue, line.group) for line in lines if line.group}
        if permits is None or not groups:
            return False
        found, busy = self._tables.group_gates(sorted(groups))
        permits.update(found)
        permits.leave(busy)
        if any(permits.has_group_limit(*group) for group in groups):
            permits.hold(self._tables.held_counts())
        shut = [line for line in lines if line.group and permits.room(line.keys[2]) <= 0]
        return bool(shut) and self._tables.park_lanes(
            [(line, permits.opens_at(line.keys[2])) for line in shut if line.keys[2] not in busy],
            self._ledger.now,
        )

    def _picked(self, lines: Sequence[OpenLane], wanted: Claim) -> list[JobRecord]:
        permits = self._permits or _NO_PERMITS
        limit, with_suspects = wanted.limit, wanted.suspects != 0
        each = limit if len(lines) <= FEW else max(2, 2 * limit // len(lines))
        spots = self._tables.positions(lines, each, with_suspects)
        longer = {lane for lane, own in spots.items() if len(own) == each}
        for queue in {line.queue for line in lines}:
            if (ageing := permits.rule(queue).ageing) is not None:
                lanes = [line.lane for line in lines if line.queue == queue]
                elders = self._tables.oldest_jobs(lanes, each, with_suspects)
                for spot in reversed(aged(elders, self._ledger.now - ageing)):
                    spots[spot.lane] = [spot, *(one for one in spots[spot.lane] if one.seq != spot.seq)]
                longer.update(elder.spot.lane for elder in elders if len(elders) >= each)
        rules = PickRules(permits.room, permits.weight)
        next_ = picked(lines, spots, longer, limit, rules, self._ranks)
        self._tried = {spot.lane for spot in next_}
        return self._tables.take(next_, with_suspects)

    def _have(self, job: JobRecord) -> bool:
        """Claim a job, or let it lapse; False if it stays where it is."""
        now, ledger, command = self._ledger.now, self._ledger, self._command
        if job.deadline is not None and job.deadline <= now:  # guard: lapsed_claim
            ledger.move(Move.LAPSE, job, move.lapsed(job, now))
            return True
        if job.crashes and self._suspects is not None:
            if not self._suspects:
                return False
            self._suspects -= 1
        start = command.start and job.task not in self._later
        held = move.claimed(job, command.worker, command.lease, start, now)
        self.taken.append(ledger.move(Move.CLAIM, job, held))
        if self._permits is not None:
            self._permits.take(job)
        return True

    def _turn(self, jobs: Sequence[JobRecord], lines: Sequence[OpenLane]) -> None:
        """Whose turn it was has it again after the others of its queue."""
        turning = in_turn(lines)
        if not turning:
            return
        turns = {(line.queue, line.group): line.turn for line in sorted(lines, key=lambda line: line.turn)}
        rounds = {line.queue: line.round for line in lines}
        weight = (self._permits or _NO_PERMITS).weight
        moved: dict[str, dict[str, float]] = {}
        for job in jobs:
            if job.queue in turning:
                group = job.queue, job.group
                # guard: turns
                turns[group], rounds[job.queue] = served(turns[group], rounds[job.queue], weight(*group))
                moved.setdefault(job.queue, {})[job.group] = turns[group]
        for queue, groups in moved.items():
            self._tables.put_turns(queue, groups, rounds[queue])
        self._ledger.turning.update(moved)


_NO_PERMITS = Permits((), 0.0)


def _still_held(ledger: UnitOfWork, brought: ClaimedRefs) -> Iterator[JobRecord]:
    refs = [Ref(job, fence) for fence, jobs in brought for job in jobs]
    ledger.load(ref.job for ref in refs)
    for ref in refs:
        job = move.held(ledger.get(ref.job), ref, Move.RENEW, ledger.now)
        if not isinstance(job, LossCause):
            yield job
