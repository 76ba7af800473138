"""The history of a fault test, and a check that the promises P1 to P8 of proof.md were kept.

Producers, handlers and stores write facts to one journal, one line each, flushed at once. So a process that
is killed has written all that it did. `violations` compares the facts with the contents of the store at the
end. It never asks the code under test what is right.

Times of several processes are compared only where the order is certain. `sent` is before the store decided,
`at` after it. A lease begins at `sent` at the earliest, so it lasts until `sent + lease` at least, and a
claim that was answered before that time overlaps it.
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


class EnqueueSent(Struct, frozen=True, tag=True):
    """A producer is about to enqueue this job."""

    job: str
    pid: int
    at: float


class EnqueueAcked(Struct, frozen=True, tag=True):
    """The store has acknowledged the job to the producer."""

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
    """`answer` is the answer of the store: held, cancel, or lost."""

    job: str
    fence: int
    pid: int
    answer: str
    lease: float
    sent: float
    at: float


class Settled(Struct, frozen=True, tag=True):
    """`answer` is the answer of the store: written, already, or lost; unknown if the reply was lost."""

    job: str
    fence: int
    pid: int
    move: str
    answer: str
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
    """A handler's last line; `ending` is returned, raised or canceled."""

    job: str
    fence: int
    pid: int
    ending: str
    at: float


Fact = EnqueueSent | EnqueueAcked | Claimed | LeaseRenewed | Settled | Started | Ended
_fact = msgspec.json.Decoder(Fact).decode


class Journal:
    """The file all processes of a test append to, one fact a line.

    A process can be killed in the middle of a line, or the file be read there: half a line is ignored.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._facts: list[Fact] = []
        self._offset = self._read_count = 0

    def write(self, *facts: Fact) -> None:
        if facts:
            os.write(self._file, b"".join(b"\n" + msgspec.json.encode(fact) + b"\n" for fact in facts))

    def read(self) -> list[Fact]:
        """All facts so far. Tests read often, so the file is read only from where the last call stopped."""
        with self.path.open("rb") as file:
            file.seek(self._offset)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._offset += len(whole)
        self._facts += [_fact(line) for line in whole.split(b"\n") if line.endswith(b"}")]
        return list(self._facts)

    def read_new(self) -> list[Fact]:
        """The facts since the last call."""
        new = self.read()[self._read_count :]
        self._read_count += len(new)
        return new

    def started(self, job: str) -> list[Started]:
        return [fact for fact in self.read() if isinstance(fact, Started) and fact.job == job]

    def ended(self, job: str) -> list[Ended]:
        return [fact for fact in self.read() if isinstance(fact, Ended) and fact.job == job]


class StoreContents(Struct, frozen=True):
    """The contents of a store at the end."""

    jobs: Sequence[JobRecord]
    events: Sequence[EventEntry]
    counts: Counts
    totals: Counts
    figures: Counts
    waits: Counts


def violations(facts: Sequence[Fact], contents: StoreContents) -> list[str]:
    """The broken promises, each with its job; empty if all were kept."""
    history = _History(facts, contents)
    return [
        *history.acked_jobs_exist(),
        *history.jobs_have_ended(),
        *history.leases_exclude_each_other(),
        *history.leases_are_not_taken_early(),
        *history.stale_fences_changed_nothing(),
        *history.fences_rise(),
        *history.crashes_are_counted_and_bounded(),
        *history.finished_jobs_stay_finished(),
        *history.counters_are_exact(),
    ]


_RELEASING = {
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

    def __init__(self, facts: Sequence[Fact], contents: StoreContents) -> None:
        self.facts, self.contents = facts, contents
        self.jobs = {job.id: job for job in contents.jobs}
        self.claims: dict[str, list[Claimed]] = defaultdict(list)
        self.writes: dict[str, list[LeaseRenewed | Settled]] = defaultdict(list)
        self.runs: dict[str, list[Started]] = defaultdict(list)
        self.ends: dict[tuple[str, int], Ended] = {}
        self.alive: dict[int, float] = {}
        self.kinds: dict[str, list[EventKind]] = defaultdict(list)
        for fact in facts:
            self._sort(fact)
        for entry in contents.events:
            self.kinds[entry.event.job].append(entry.event.kind)

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

    def acked_jobs_exist(self) -> Iterator[str]:
        for fact in self.facts:
            if isinstance(fact, EnqueueAcked) and fact.job not in self.jobs:
                yield f"P1: job {fact.job} was acked and is gone"

    def jobs_have_ended(self) -> Iterator[str]:
        for job in self.contents.jobs:
            if not job.finished:
                yield f"P2: job {job.id} is still {job.state}"

    def leases_exclude_each_other(self) -> Iterator[str]:
        """By the events of the store, and by the runs of the handlers."""
        for job, kinds in self.kinds.items():
            is_held = False
            for kind in kinds:
                if kind is EventKind.CLAIMED and is_held:
                    yield f"P3: job {job} was claimed while it was held"
                is_held = kind is EventKind.CLAIMED or (is_held and kind not in _RELEASING)
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
        """Two handlers at a time, although the lease of the first was valid when the second was claimed."""
        for first, second in combinations(runs, 2):
            ended = self.ends.get((job, first.fence))
            end = ended.at if ended is not None else self.alive[first.pid]
            claim = claims.get((second.fence, second.pid))
            if claim is not None and claim.at < min(end, self._lease_end(job, first.fence)):
                if not self._was_released(job, first.fence, claim.at):
                    yield f"P3: job {job} ran under fence {second.fence} while {first.fence} held its lease"

    def leases_are_not_taken_early(self) -> Iterator[str]:
        """No worker gets the answer `lost` before its lease has expired or it has released the job itself."""
        for job, writes in self.writes.items():
            for write in writes:
                if write.answer == "lost" and write.at < self._lease_end(job, write.fence, write.sent):
                    if not self._was_released(job, write.fence, write.at):
                        yield f"P3: job {job} was taken from fence {write.fence} before its lease ran out"

    def _lease_end(self, job: str, fence: int, before: float = inf) -> float:
        """The earliest time at which the lease under `fence` expired, counting renewals sent before `before`.

        A renewal with the answer `cancel` does not count: the worker may have lost the job before that.
        """
        leases: list[Claimed | LeaseRenewed] = [claim for claim in self.claims[job] if claim.fence == fence]
        leases += [
            write
            for write in self.writes[job]
            if isinstance(write, LeaseRenewed) and write.fence == fence and write.answer == "held"
        ]
        return max((lease.sent + lease.lease for lease in leases if lease.sent < before), default=0.0)

    def _was_released(self, job: str, fence: int, at: float) -> bool:
        return any(
            isinstance(write, Settled)
            and write.fence == fence
            and write.answer != "lost"
            and write.sent <= at
            for write in self.writes[job]
        )

    def stale_fences_changed_nothing(self) -> Iterator[str]:
        for job, writes in self.writes.items():
            for write in writes:
                newer = [c for c in self.claims[job] if c.fence > write.fence and c.at < write.sent]
                if newer and write.answer in ("held", "written"):
                    fences = f"fence {write.fence}, after {newer[0].fence}"
                    yield f"P4: job {job} was {write.answer} under {fences}"
                final = self.jobs.get(job)
                ends = isinstance(write, Settled) and write.move == "complete" and write.answer == "written"
                if not ends or final is None or final.cancel_requested:  # a cancel request takes precedence
                    continue
                if (final.fence, final.state) != (write.fence, "completed"):
                    yield f"P4: job {job} was completed under fence {write.fence} and is {final.state}"
        for record in self.contents.jobs:
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
        for job in self.contents.jobs:
            kinds = Counter(self.kinds[job.id])
            claimed, stalled = kinds[EventKind.CLAIMED], self._crash_count(job.id)
            if job.crashes > job.max_crashes or job.attempts > job.max_attempts:
                yield f"P6: job {job.id} has {job.crashes} crashes in {job.attempts} attempts"
            if job.crashes > stalled:  # fewer, if heartbeats took crashes back
                yield f"P6: job {job.id} stalled {stalled} times but has {job.crashes} crashes"
            if job.attempts != claimed - job.releases:
                given = f"{claimed} claims and {job.releases} releases"
                yield f"P6: job {job.id} has {job.attempts} attempts of {given}"
            if len(self.runs[job.id]) > claimed:
                yield f"P6: job {job.id} ran {len(self.runs[job.id])} times for {claimed} claims"
            may_fail = job.crashes >= job.max_crashes or job.attempts >= job.max_attempts
            if job.reason is Reason.WORKER_LOST and not (may_fail and job.state is State.FAILED):
                yield f"P6: job {job.id} was given up after {job.crashes} crashes"

    def _crash_count(self, job: str) -> int:
        """How often the worker of a job was lost after its handler may have begun."""
        count, is_active = 0, False
        for kind in self.kinds[job]:
            count += is_active and kind is EventKind.STALLED
            is_active = kind is EventKind.STARTED or (is_active and kind not in _RELEASING)
        return count

    def finished_jobs_stay_finished(self) -> Iterator[str]:
        for job, all_kinds in self.kinds.items():
            kinds = all_kinds[:-1] if all_kinds[-1] is EventKind.REMOVED else all_kinds
            ends = [index for index, kind in enumerate(kinds) if kind in _FINAL]
            if job and ends and ends[0] != len(kinds) - 1:
                yield f"P7: job {job} went on after it had {kinds[ends[0]]}: {kinds[ends[0] + 1]}"
            record = self.jobs.get(job)
            if record is not None and record.finished != bool(ends):
                yield f"P7: job {job} is {record.state}, which its events do not show"

    def counters_are_exact(self) -> Iterator[str]:
        recount: dict[str, Counter[str]] = defaultdict(Counter)
        for job in self.contents.jobs:
            recount[job.queue][str(job.state)] += 1
        counts = {queue: dict(states) for queue, states in self.contents.counts.items() if states}
        counted = {queue: dict(states) for queue, states in recount.items()}
        if counts != counted:
            yield f"P8: counters say {counts}, a recount {counted}"
        emitted = Counter((entry.event.queue, entry.event.kind) for entry in self.contents.events)
        for queue, totals in self.contents.totals.items():
            accounted = sum(recount[queue].values()) + totals.get("removed", 0)
            if totals.get("inserted", 0) != accounted:
                inserted = f"{totals.get('inserted', 0)} inserted into {queue}"
                yield f"P8: {inserted}, but {accounted} are accounted for"
            for kind, name in _TOTALS.items():
                if totals.get(name, 0) != emitted[queue, kind]:
                    yield f"P8: {totals.get(name, 0)} {name} in {queue}, but {emitted[queue, kind]} events"
            figures = self.contents.figures.get(queue, {})
            if totals != figures:
                yield f"P8: the totals of {queue} are {totals}, its figures {figures}"
            waits = sum(self.contents.waits.get(queue, {}).values())
            if waits != emitted[queue, EventKind.STARTED]:
                yield f"P8: {waits} waited in {queue}, but {emitted[queue, EventKind.STARTED]} began"
        sent = {fact.job for fact in self.facts if isinstance(fact, EnqueueSent)}
        for job_id in self.jobs.keys() - sent:
            yield f"P8: no producer enqueued job {job_id}"
