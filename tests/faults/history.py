"""What happened, told by those who took part, and whether the promises P1 to P8 of proof.md were kept.

Producers, handlers and the stores in front of them write facts into one journal, a line each, flushed at
once: a process that is killed has written everything it did. `violations` holds them against what is found in
the store at the end. It never asks the code under test what is right.

A fact between processes is only used where it is certain. `sent` is before the store decided, `at` after:
a lease was given at `sent` at the earliest, so it lasts until `sent + lease` at least, and a claim that
was answered before that overlaps it for sure.
"""

import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from math import inf
from pathlib import Path

import msgspec
from msgspec import Struct

from errandry.core.event import EventKind
from errandry.core.job import JobRecord
from errandry.core.state import Reason, State
from errandry.store.contract import EventEntry

Counts = Mapping[str, Mapping[str, int]]


class Asked(Struct, frozen=True, tag=True):
    """A producer is about to enqueue this job."""

    job: str
    pid: int
    at: float


class Acked(Struct, frozen=True, tag=True):
    """It was told that the job is durable."""

    job: str
    pid: int
    at: float


class Claimed(Struct, frozen=True, tag=True):
    job: str
    fence: int
    pid: int
    lease: float
    sent: float
    at: float


class LeaseRenewed(Struct, frozen=True, tag=True):
    """`mark` is what the store answered: held, cancel, or lost."""

    job: str
    fence: int
    pid: int
    mark: str
    lease: float
    sent: float
    at: float


class Settled(Struct, frozen=True, tag=True):
    """`mark` is what the store answered: written, already, or lost; unknown if its reply was lost."""

    job: str
    fence: int
    pid: int
    move: str
    mark: str
    sent: float
    at: float


class Started(Struct, frozen=True, tag=True):
    """A handler's first line."""

    job: str
    fence: int
    attempt: int
    pid: int
    at: float


class Ended(Struct, frozen=True, tag=True):
    """A handler's last line; `how` is returned, raised or canceled."""

    job: str
    fence: int
    pid: int
    how: str
    at: float


Fact = Asked | Acked | Claimed | LeaseRenewed | Settled | Started | Ended
_fact = msgspec.json.Decoder(Fact).decode


class Journal:
    """The file all processes of a test append to, one fact a line.

    A process can be killed in the middle of a line, or be read there: half a line says nothing.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._facts: list[Fact] = []
        self._end = self._told = 0

    def write(self, *facts: Fact) -> None:
        if facts:
            os.write(self._file, b"".join(b"\n" + msgspec.json.encode(fact) + b"\n" for fact in facts))

    def read(self) -> list[Fact]:
        """Everything so far. Tests look all the time: what was read before is not read again."""
        with self.path.open("rb") as file:
            file.seek(self._end)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._end += len(whole)
        self._facts += [_fact(line) for line in whole.split(b"\n") if line.endswith(b"}")]
        return list(self._facts)

    def news(self) -> list[Fact]:
        """What was written since the last time."""
        new = self.read()[self._told :]
        self._told += len(new)
        return new

    def started(self, job: str) -> list[Started]:
        return [fact for fact in self.read() if isinstance(fact, Started) and fact.job == job]

    def ended(self, job: str) -> list[Ended]:
        return [fact for fact in self.read() if isinstance(fact, Ended) and fact.job == job]


class Found(Struct, frozen=True):
    """What a store holds at the end."""

    jobs: Sequence[JobRecord]
    events: Sequence[EventEntry]
    counts: Counts
    totals: Counts
    figures: Counts
    waits: Counts


def violations(facts: Sequence[Fact], found: Found) -> list[str]:
    """Every promise that was broken, with the job it was broken for; empty if all were kept."""
    history = _History(facts, found)
    return [
        *history.acked_jobs_are_there(),
        *history.jobs_have_ended(),
        *history.leases_exclude_each_other(),
        *history.leases_last(),
        *history.stale_fences_changed_nothing(),
        *history.fences_rise(),
        *history.crashes_are_counted_and_bounded(),
        *history.the_end_is_the_end(),
        *history.everything_is_counted(),
    ]


_LETS_GO = {
    *(EventKind.STALLED, EventKind.RETRYING, EventKind.WAITING, EventKind.SCHEDULED),
    *(EventKind.COMPLETED, EventKind.FAILED, EventKind.CANCELED),
}
_FINAL = {EventKind.COMPLETED, EventKind.FAILED, EventKind.CANCELED}
_TOTALS = {
    EventKind.COMPLETED: "completed",
    EventKind.FAILED: "failed",
    EventKind.CANCELED: "canceled",
    EventKind.STALLED: "expired",
}


class _History:
    """The facts by job, and the checks."""

    def __init__(self, facts: Sequence[Fact], found: Found) -> None:
        self.facts, self.found = facts, found
        self.jobs = {job.id: job for job in found.jobs}
        self.claims: dict[str, list[Claimed]] = defaultdict(list)
        self.writes: dict[str, list[LeaseRenewed | Settled]] = defaultdict(list)
        self.runs: dict[str, list[Started]] = defaultdict(list)
        self.ends: dict[tuple[str, int], Ended] = {}
        self.alive: dict[int, float] = {}
        self.kinds: dict[str, list[EventKind]] = defaultdict(list)
        for fact in facts:
            self._sort(fact)
        for happened in found.events:
            self.kinds[happened.event.job].append(happened.event.kind)

    def _sort(self, fact: Fact) -> None:
        self.alive[fact.pid] = max(fact.at, self.alive.get(fact.pid, 0.0))
        match fact:
            case Claimed():
                self.claims[fact.job].append(fact)
            case LeaseRenewed() | Settled():
                self.writes[fact.job].append(fact)
            case Started():
                self.runs[fact.job].append(fact)
            case Ended():
                self.ends[fact.job, fact.fence] = fact
            case _:
                pass

    def acked_jobs_are_there(self) -> Iterator[str]:
        for fact in self.facts:
            if isinstance(fact, Acked) and fact.job not in self.jobs:
                yield f"P1: job {fact.job} was acked and is gone"

    def jobs_have_ended(self) -> Iterator[str]:
        for job in self.found.jobs:
            if not job.finished:
                yield f"P2: job {job.id} is still {job.state}"

    def leases_exclude_each_other(self) -> Iterator[str]:
        """In the store, and as the handlers ran."""
        for job, kinds in self.kinds.items():
            held = False
            for kind in kinds:
                if kind is EventKind.CLAIMED and held:
                    yield f"P3: job {job} was claimed while it was held"
                held = kind is EventKind.CLAIMED or (held and kind not in _LETS_GO)
        for job, runs in self.runs.items():
            by = {(claim.fence, claim.pid): claim for claim in self.claims[job]}
            for run in runs:
                if (run.fence, run.pid) not in by:
                    yield f"P3: job {job} ran in {run.pid} under fence {run.fence}, which it had not claimed"
            for fence, times in Counter(run.fence for run in runs).items():
                if times > 1:
                    yield f"P3: job {job} ran {times} times under fence {fence}"
            yield from self._overlaps(job, sorted(runs, key=lambda run: run.fence), by)

    def _overlaps(
        self, job: str, runs: list[Started], claims: Mapping[tuple[int, int], Claimed]
    ) -> Iterator[str]:
        """Two handlers at a time, though the lease of the first stood when the second was claimed."""
        for first, second in combinations(runs, 2):
            ended = self.ends.get((job, first.fence))
            until = ended.at if ended is not None else self.alive[first.pid]
            claim = claims.get((second.fence, second.pid))
            if claim is not None and claim.at < min(until, self._lease_end(job, first.fence)):
                if not self._was_let_go(job, first.fence, claim.at):
                    yield f"P3: job {job} ran under fence {second.fence} while {first.fence} held its lease"

    def leases_last(self) -> Iterator[str]:
        """Nobody is told that its claim is void before its lease has run out, or it has let go itself."""
        for job, writes in self.writes.items():
            for write in writes:
                if write.mark == "lost" and write.at < self._lease_end(job, write.fence, write.sent):
                    if not self._was_let_go(job, write.fence, write.at):
                        yield f"P3: job {job} was taken from fence {write.fence} before its lease ran out"

    def _lease_end(self, job: str, fence: int, before: float = inf) -> float:
        """When the lease under `fence` ran out, at the earliest, as far as it was prolonged `before` then.

        Who is answered that a cancel was asked for may have lost the job before, and been canceled with it.
        """
        kept: list[Claimed | LeaseRenewed] = [claim for claim in self.claims[job] if claim.fence == fence]
        kept += [
            write
            for write in self.writes[job]
            if isinstance(write, LeaseRenewed) and write.fence == fence and write.mark == "held"
        ]
        return max((one.sent + one.lease for one in kept if one.sent < before), default=0.0)

    def _was_let_go(self, job: str, fence: int, at: float) -> bool:
        return any(
            isinstance(write, Settled) and write.fence == fence and write.mark != "lost" and write.sent <= at
            for write in self.writes[job]
        )

    def stale_fences_changed_nothing(self) -> Iterator[str]:
        for job, writes in self.writes.items():
            for write in writes:
                newer = [c for c in self.claims[job] if c.fence > write.fence and c.at < write.sent]
                if newer and write.mark in ("held", "written"):
                    yield f"P4: job {job} was {write.mark} under fence {write.fence}, after {newer[0].fence}"
                final = self.jobs.get(job)
                ends = isinstance(write, Settled) and write.move == "complete" and write.mark == "written"
                if not ends or final is None or final.cancel_requested:  # who asks for a cancel wins
                    continue
                if (final.fence, final.state) != (write.fence, "completed"):
                    yield f"P4: job {job} was completed under fence {write.fence} and is {final.state}"
        for record in self.found.jobs:
            if record.state is State.COMPLETED and record.result is not None:
                returned = msgspec.json.decode(record.result)
                if returned["fence"] != record.fence:
                    yield f"P4: job {record.id} has the result of {returned['fence']}, not of {record.fence}"

    def fences_rise(self) -> Iterator[str]:
        for job, claims in self.claims.items():
            ordered = sorted(claims, key=lambda claim: claim.fence)
            for lower, higher in combinations(ordered, 2):
                if lower.fence == higher.fence and lower.pid != higher.pid:
                    yield f"P5: job {job}: fence {lower.fence} was given twice"
                if lower.fence < higher.fence and higher.at < lower.sent:
                    yield f"P5: job {job}: fence {lower.fence} was given after {higher.fence}"
            record = self.jobs.get(job)
            if record is not None and record.fence < ordered[-1].fence:
                yield f"P5: job {job} went back from fence {ordered[-1].fence} to {record.fence}"

    def crashes_are_counted_and_bounded(self) -> Iterator[str]:
        for job in self.found.jobs:
            kinds = Counter(self.kinds[job.id])
            claimed, stalled = kinds[EventKind.CLAIMED], self._stalled(job.id)
            if job.crashes > job.max_crashes or job.attempts > job.max_attempts:
                yield f"P6: job {job.id} has {job.crashes} crashes in {job.attempts} attempts"
            if job.crashes != stalled:
                yield f"P6: job {job.id} stalled {stalled} times but has {job.crashes} crashes"
            if job.attempts != claimed - job.releases:
                given = f"{claimed} claims and {job.releases} releases"
                yield f"P6: job {job.id} has {job.attempts} attempts of {given}"
            if len(self.runs[job.id]) > claimed:
                yield f"P6: job {job.id} ran {len(self.runs[job.id])} times for {claimed} claims"
            lost = job.crashes >= job.max_crashes or job.attempts >= job.max_attempts
            if job.reason is Reason.WORKER_LOST and not (lost and job.state is State.FAILED):
                yield f"P6: job {job.id} was given up after {job.crashes} crashes"

    def _stalled(self, job: str) -> int:
        """How often its worker was lost after its handler may have begun."""
        times, active = 0, False
        for kind in self.kinds[job]:
            times += active and kind is EventKind.STALLED
            active = kind is EventKind.STARTED or (active and kind not in _LETS_GO)
        return times

    def the_end_is_the_end(self) -> Iterator[str]:
        for job, told in self.kinds.items():
            kinds = told[:-1] if told[-1] is EventKind.REMOVED else told
            ends = [index for index, kind in enumerate(kinds) if kind in _FINAL]
            if job and ends and ends[0] != len(kinds) - 1:
                yield f"P7: job {job} went on after it had {kinds[ends[0]]}: {kinds[ends[0] + 1]}"
            record = self.jobs.get(job)
            if record is not None and record.finished != bool(ends):
                yield f"P7: job {job} is {record.state}, which its events do not tell"

    def everything_is_counted(self) -> Iterator[str]:
        recount: dict[str, Counter[str]] = defaultdict(Counter)
        for job in self.found.jobs:
            recount[job.queue][str(job.state)] += 1
        counts = {queue: dict(states) for queue, states in self.found.counts.items() if states}
        counted = {queue: dict(states) for queue, states in recount.items()}
        if counts != counted:
            yield f"P8: counters say {counts}, a recount {counted}"
        told = Counter((happened.event.queue, happened.event.kind) for happened in self.found.events)
        for queue, totals in self.found.totals.items():
            there = sum(recount[queue].values()) + totals.get("removed", 0)
            if totals.get("inserted", 0) != there:
                yield f"P8: {totals.get('inserted', 0)} inserted into {queue}, but {there} are accounted for"
            for kind, name in _TOTALS.items():
                if totals.get(name, 0) != told[queue, kind]:
                    yield f"P8: {totals.get(name, 0)} {name} in {queue}, but {told[queue, kind]} events"
            if totals != self.found.figures.get(queue, {}):
                yield f"P8: the totals of {queue} are {totals}, its figures {self.found.figures.get(queue)}"
            waits = sum(self.found.waits.get(queue, {}).values())
            if waits != told[queue, EventKind.STARTED]:
                yield f"P8: {waits} waited in {queue}, but {told[queue, EventKind.STARTED]} began"
        asked = {fact.job for fact in self.facts if isinstance(fact, Asked)}
        for job_id in self.jobs.keys() - asked:
            yield f"P8: nobody asked for job {job_id}"
