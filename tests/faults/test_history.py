"""The history checker can fail: it accepts a correct history, and names each violation of a broken one."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

import pytest
from msgspec.structs import replace

from errandry.core.answer import Answer
from errandry.core.command import Claim, Command, Insert
from errandry.core.event import EventKind, EventRecord
from errandry.core.job import JobRecord, NewJob
from errandry.core.move import created
from errandry.core.state import Reason, State
from errandry.errors import ReplyLost
from errandry.store.contract import EventEntry, Store
from errandry.store.memory.driver import MemoryStore
from tests.faults.history import (
    Claimed,
    Ended,
    EnqueueAcked,
    EnqueueSent,
    Fact,
    Journal,
    LeaseRenewed,
    Settled,
    Started,
    StoreContents,
    violations,
)
from tests.faults.program import JournaledStore

LEASE = 10.0
NEW = NewJob(id="a", task="task", payload="{}")
TAKEN_OVER = replace(
    created(NEW, 1, 0.0),
    state=State.COMPLETED,
    attempts=2,
    crashes=1,
    fence=20,
    finished_at=22.0,
    result='{"fence":20}',
)
"""Claimed at 5 by process 1, which renewed its lease at 8, and at 19 by process 2, which completed it."""

FACTS: Sequence[Fact] = (
    EnqueueSent("a", 9, 1.0),
    EnqueueAcked("a", 9, 2.0),
    Claimed("a", 10, 1, LEASE, 5.0, 5.1),
    Started("a", 10, 1, 1, 5.2),
    LeaseRenewed("a", 10, 1, "held", LEASE, 8.0, 8.1),
    Claimed("a", 20, 2, LEASE, 19.0, 19.1),
    Started("a", 20, 2, 2, 19.2),
    LeaseRenewed("a", 10, 1, "lost", LEASE, 19.5, 19.6),
    Ended("a", 10, 1, "canceled", 19.7),
    Settled("a", 10, 1, "complete", "lost", 19.8, 19.9),
    Ended("a", 20, 2, "returned", 21.0),
    Settled("a", 20, 2, "complete", "written", 21.1, 21.2),
)
KINDS = (
    *(EventKind.WAITING, EventKind.CLAIMED, EventKind.STARTED, EventKind.STALLED, EventKind.WAITING),
    *(EventKind.CLAIMED, EventKind.STARTED, EventKind.COMPLETED),
)
COUNTS = {"default": {"completed": 1}}
TOTALS = {"default": {"inserted": 1, "completed": 1, "expired": 1}}


def make_contents(
    job: JobRecord | None = TAKEN_OVER,
    kinds: Sequence[EventKind] = KINDS,
    counts: dict[str, dict[str, int]] = COUNTS,
    totals: dict[str, dict[str, int]] = TOTALS,
    figures: dict[str, dict[str, int]] | None = None,
) -> StoreContents:
    events = [
        EventEntry(str(n), float(n), EventRecord(kind, "a", "default", "task"))
        for n, kind in enumerate(kinds)
    ]
    began = {"default": {"0": sum(kind is EventKind.STARTED for kind in kinds)}}
    return StoreContents([] if job is None else [job], events, counts, totals, figures or totals, began)


def without(kind: type[Fact], fence: int) -> list[Fact]:
    return [fact for fact in FACTS if not (isinstance(fact, kind) and getattr(fact, "fence", 0) == fence)]


def changed(kind: type[Fact], fence: int, **changes: object) -> list[Fact]:
    """The facts; those of this kind and fence with changes."""
    return [
        replace(fact, **changes) if isinstance(fact, kind) and getattr(fact, "fence", 0) == fence else fact
        for fact in FACTS
    ]


def test_a_correct_history_passes() -> None:
    assert violations(FACTS, make_contents()) == []


def test_a_job_that_was_not_acknowledged_may_exist_or_not() -> None:
    assert violations([fact for fact in FACTS if not isinstance(fact, EnqueueAcked)], make_contents()) == []


def test_a_renewal_that_is_answered_with_cancel_may_be_too_late() -> None:
    facts = [
        replace(fact, answer="cancel") if isinstance(fact, LeaseRenewed) and fact.answer == "lost" else fact
        for fact in FACTS
    ]

    assert violations(facts, make_contents()) == []


def test_a_killed_worker_writes_no_end() -> None:
    killed = [fact for fact in FACTS if fact.pid != 1 or fact.at < 8.0]

    assert violations(killed, make_contents()) == []


def test_a_released_job_may_run_again_at_once() -> None:
    released = [
        *FACTS[:5],
        Ended("a", 10, 1, "canceled", 9.0),
        Settled("a", 10, 1, "release", "written", 9.1, 9.2),
        Claimed("a", 20, 2, LEASE, 9.1, 9.15),
        *FACTS[6:7],
        *FACTS[10:],
    ]
    kinds = [kind for kind in KINDS if kind is not EventKind.STALLED]
    job = replace(TAKEN_OVER, attempts=1, releases=1, crashes=0)

    assert (
        violations(released, make_contents(job, kinds, totals={"default": {"inserted": 1, "completed": 1}}))
        == []
    )


def test_a_worker_lost_before_the_handler_began_is_no_crash() -> None:
    kinds = [EventKind.WAITING, EventKind.CLAIMED, EventKind.STALLED, EventKind.WAITING, *KINDS[5:]]
    facts = [fact for fact in FACTS if fact.pid != 1]

    assert (
        violations(facts, make_contents(replace(TAKEN_OVER, attempts=1, releases=1, crashes=0), kinds)) == []
    )


Broken = Callable[[], list[str]]
BROKEN: dict[str, Broken] = {
    "P1: job a was acked and is gone": lambda: violations(FACTS[:2], make_contents(None, (), {}, {})),
    "P2: job a is still waiting": lambda: violations(
        FACTS[:2],
        make_contents(
            created(NEW, 1, 0.0),
            [EventKind.WAITING],
            {"default": {"waiting": 1}},
            {"default": {"inserted": 1}},
        ),
    ),
    "P3: job a was claimed while it was held": lambda: violations(
        FACTS, make_contents(kinds=[*KINDS[:3], EventKind.CLAIMED, *KINDS[3:]])
    ),
    "P3: job a ran in 2 under fence 20, which it had not claimed": lambda: violations(
        without(Claimed, 20), make_contents()
    ),
    "P3: job a ran 2 times under fence 20": lambda: violations(
        [*FACTS, Started("a", 20, 2, 2, 20.0)], make_contents()
    ),
    "P3: job a ran under fence 20 while 10 held its lease": lambda: violations(
        changed(Claimed, 20, sent=15.0, at=15.1), make_contents()
    ),
    "P3: job a was taken from fence 10 before its lease ran out": lambda: violations(
        changed(Settled, 10, sent=9.0, at=9.1), make_contents()
    ),
    "P4: job a was held under fence 10, after 20": lambda: violations(
        changed(LeaseRenewed, 10, answer="held", sent=19.5), make_contents()
    ),
    "P4: job a was written under fence 10, after 20": lambda: violations(
        changed(Settled, 10, answer="written", move="retry"), make_contents()
    ),
    "P4: job a was completed under fence 10 and is completed": lambda: violations(
        changed(Settled, 10, answer="written", sent=19.05), make_contents()
    ),
    "P4: job a has the result of 10, not of 20": lambda: violations(
        FACTS, make_contents(replace(TAKEN_OVER, result='{"fence":10}'))
    ),
    "P5: job a: fence 20 was given twice": lambda: violations(
        [*FACTS, Claimed("a", 20, 1, LEASE, 19.0, 19.1)], make_contents()
    ),
    "P5: job a: fence 5 was given after 20": lambda: violations(
        [*FACTS, Claimed("a", 5, 1, LEASE, 30.0, 30.1)], make_contents()
    ),
    "P5: job a went back from fence 20 to 15": lambda: violations(
        FACTS, make_contents(replace(TAKEN_OVER, fence=15, result=None))
    ),
    "P6: job a has 4 crashes in 2 attempts": lambda: violations(
        FACTS, make_contents(replace(TAKEN_OVER, crashes=4))
    ),
    "P6: job a has 1 crashes in 6 attempts": lambda: violations(
        FACTS, make_contents(replace(TAKEN_OVER, attempts=6))
    ),
    "P6: job a stalled 1 times but has 2 crashes": lambda: violations(
        FACTS, make_contents(replace(TAKEN_OVER, crashes=2))
    ),
    "P6: job a has 1 attempts of 2 claims and 0 releases": lambda: violations(
        FACTS, make_contents(replace(TAKEN_OVER, attempts=1))
    ),
    "P6: job a ran 3 times for 2 claims": lambda: violations(
        [*FACTS, Started("a", 20, 2, 2, 20.0)], make_contents()
    ),
    "P6: job a was given up after 1 crashes": lambda: violations(
        FACTS, make_contents(replace(TAKEN_OVER, state=State.FAILED, reason=Reason.WORKER_LOST, result=None))
    ),
    "P7: job a went on after it had completed: waiting": lambda: violations(
        FACTS, make_contents(kinds=[*KINDS, EventKind.WAITING])
    ),
    "P7: job a is completed, which its events do not show": lambda: violations(
        FACTS, make_contents(kinds=KINDS[:-1])
    ),
    "P8: counters say {'default': {'completed': 2}}, a recount {'default': {'completed': 1}}": lambda: (
        violations(FACTS, make_contents(counts={"default": {"completed": 2}}))
    ),
    "P8: 2 inserted into default, but 1 are accounted for": lambda: violations(
        FACTS, make_contents(totals={"default": TOTALS["default"] | {"inserted": 2}})
    ),
    "P8: 0 expired in default, but 1 events": lambda: violations(
        FACTS, make_contents(totals={"default": {"inserted": 1, "completed": 1}})
    ),
    "P8: the totals of default are {'inserted': 1, 'completed': 1, 'expired': 1}, its figures {}": lambda: (
        violations(FACTS, make_contents(figures={"default": {}}))
    ),
    "P8: no producer enqueued job a": lambda: violations(FACTS[1:], make_contents()),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_promise_is_reported(broken: str) -> None:
    assert broken in BROKEN[broken]()


def test_every_promise_has_a_history_that_breaks_it() -> None:
    assert {broken[:2] for broken in BROKEN} == {f"P{n}" for n in range(1, 9)}


def test_a_journal_returns_what_was_written(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    journal.write(*FACTS[:6])
    Journal(tmp_path / "journal").write(*FACTS[6:])

    assert journal.read() == list(FACTS)
    assert journal.read_new() == list(FACTS)
    assert journal.read_new() == []
    assert [run.fence for run in journal.started("a")] == [10, 20]
    assert [end.ending for end in journal.ended("a")] == ["canceled", "returned"]


def test_half_a_line_in_a_journal_is_ignored(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    with journal.path.open("ab") as file:
        file.write(b'\n{"type":"EnqueueAcked","job":"lo')
    assert journal.read_new() == []
    journal.write(*FACTS)

    assert journal.read() == list(FACTS)
    assert journal.read_new() == list(FACTS)


class ReplyLosingStore(MemoryStore):
    """Loses its first reply."""

    has_lost_reply = False

    async def commit(self, commands: Sequence[Command]) -> list[Answer]:
        answers = await super().commit(commands)
        if not self.has_lost_reply:
            self.has_lost_reply = True
            raise ReplyLost("memory", "the connection was lost during a commit")
        return answers


async def test_a_lease_counts_from_the_first_time_that_its_claim_was_sent(tmp_path: Path) -> None:
    """A repeated claim gets the answer of the first one, whose lease began earlier."""
    store, journal = ReplyLosingStore(), Journal(tmp_path / "journal")
    await store.open()
    await MemoryStore.commit(store, [Insert((NEW,))])
    journaled = JournaledStore(cast("Store", store), journal)
    claim = Claim(worker="w", nonce="n", limit=1, start=True, lease=LEASE)
    with pytest.raises(ReplyLost):
        await journaled.commit([claim])
    repeated_at = time.time()

    await journaled.commit([claim])

    [fact] = journal.read()
    assert isinstance(fact, Claimed)
    assert (fact.job, fact.sent < repeated_at < fact.at) == ("a", True)
