"""Why a job is not running: each reason with its code and its text."""

from typing import Any

import pytest
from msgspec.structs import replace

from errandry.core import check
from errandry.core.argument_version import with_version
from errandry.core.command import Beat, SlotShare, TaskVersion, WorkerRecord
from errandry.core.gate import GateKind, GateRecord, GateStatus, PauseRecord
from errandry.core.job import AttemptError, JobRecord, NewJob
from errandry.core.move import created
from errandry.core.rule import rate
from errandry.core.state import Move, Reason, State
from errandry.core.step import StepState
from errandry.core.unique import UniqueKey, UniqueScope
from errandry.core.why import CHECKS, Why, WhyCode, WhyFacts, why

NOW = 1_800_000_000.0
WAITING = created(NewJob(id="a", task="send", payload="{}", queue="mail"), 1, NOW - 60)
ERROR = AttemptError(1, "w", NOW - 9, NOW - 8, Reason.ERROR, "ValueError", "no such address")
SIGNALED: dict[str, Any] = {"state": State.SCHEDULED, "settled": Move.WAIT, "steps": StepState(1, "approval")}
FREE = Beat(worker="w-1", queues=None, tasks=("send",), concurrency=10)


def worker_info(beat: Beat = FREE, ago: float = 1.0, paused: PauseRecord | None = None) -> WorkerRecord:
    return WorkerRecord(beat, NOW - ago, paused)


def job(**changes: Any) -> JobRecord:
    return replace(WAITING, **changes)


def running(count: int, **changes: Any) -> tuple[JobRecord, ...]:
    """`count` running jobs of the worker w-1."""
    return (job(state=State.RUNNING, worker="w-1", **changes),) * count


def gate(kind: GateKind, /, **known: Any) -> GateStatus:
    """The status of a gate of the waiting job."""
    name = "send" if kind is GateKind.TASK else "mail"
    numbers: dict[str, Any] = {"limit": None, "rate": None, "held": 0, "wait": 0.0}
    numbers |= {field: known.pop(field) for field in list(known) if field in numbers}
    return GateStatus(
        gate=GateRecord(kind, name, "acme" if kind is GateKind.GROUP else "", **known), **numbers
    )


def explained(job: JobRecord, *workers: WorkerRecord, **facts: Any) -> Why:
    return why(WhyFacts(job=job, now=NOW, workers=workers or (worker_info(),), **facts))


CASES: list[tuple[str, Why, list[str], str]] = [
    (
        "a signal",
        explained(job(**SIGNALED, run_at=NOW + 3_600)),
        ["signal"],
        "It waits for the signal 'approval', or goes on without in 60 min, at ",
    ),
    (
        "a signal, for as long as it takes",
        explained(job(**SIGNALED, run_at=NOW + check.SPAN_MAX)),
        ["signal"],
        "It waits for the signal 'approval'.",
    ),
    (
        "a unique key outlives its job",
        explained(
            job(
                state=State.COMPLETED,
                finished_at=NOW - 300,
                unique=UniqueKey("k", UniqueScope.WINDOW, 3_600.0),
            )
        ),
        ["completed", "unique"],
        "Its unique key 'k' is held for 1h from the insert: no other job gets it.",
    ),
    (
        "a unique key that is free again",
        explained(job(state=State.COMPLETED, finished_at=NOW - 300, unique=UniqueKey("k"))),
        ["completed"],
        "completed 5 min ago",
    ),
    (
        "completed",
        explained(job(state=State.COMPLETED, finished_at=NOW - 300, attempts=2)),
        ["completed"],
        "completed 5 min ago, in attempt 2",
    ),
    (
        "failed",
        explained(
            job(state=State.FAILED, reason=Reason.ERROR, finished_at=NOW - 8, attempts=5, errors=(ERROR,))
        ),
        ["failed"],
        "failed 8 s ago (error) after attempt 5 of 5, last with ValueError: no such address.",
    ),
    (
        "failed without an attempt",
        explained(job(state=State.FAILED, reason=Reason.DEADLINE, finished_at=NOW - 8, max_attempts=1)),
        ["failed"],
        "failed 8 s ago (deadline) before attempt 1 of 1. A rerun",
    ),
    (
        "completed without an attempt",
        explained(job(state=State.COMPLETED, finished_at=NOW - 300)),
        ["completed"],
        "completed 5 min ago, before an attempt.",
    ),
    (
        "rerun later with its attempts reset",
        explained(
            job(
                state=State.SCHEDULED,
                run_at=NOW + 60,
                settled=Move.RETRY,
                errors=(ERROR,),
                attempts=0,
                max_attempts=1,
            )
        ),
        ["scheduled"],
        "It is scheduled to run in 60 s, at 2027-01-15T08:01:00Z.",
    ),
    ("canceled", explained(job(state=State.CANCELED, finished_at=NOW - 1)), ["canceled"], "canceled 1 s ago"),
    (
        "running",
        explained(
            job(state=State.RUNNING, worker="w-1", started_at=NOW - 90, attempts=1, lease_until=NOW + 20)
        ),
        ["running"],
        "running on w-1, started 90 s ago (attempt 1 of 5); its lease lasts 20 s more.",
    ),
    (
        "cancel requested",
        explained(job(state=State.RUNNING, worker="w-1", lease_until=NOW + 20, cancel_requested=True)),
        ["running", "canceling"],
        "A cancel was requested",
    ),
    (
        "lease ran out",
        explained(job(state=State.RUNNING, worker="w-1", lease_until=NOW - 2)),
        ["running", "lease_expired"],
        "its lease ran out 2 s ago",
    ),
    (
        "worker silent",
        explained(job(state=State.RUNNING, worker="w-1", lease_until=NOW + 2), worker_info(ago=40)),
        ["running", "worker_silent"],
        "The worker has been silent for 40 s.",
    ),
    (
        "worker unknown",
        explained(job(state=State.RUNNING, worker="w-0", lease_until=NOW + 2)),
        ["running", "worker_silent"],
        "The worker is no longer known.",
    ),
    (
        "claimed",
        explained(job(state=State.CLAIMED, worker="w-1", claimed_at=NOW - 1, lease_until=NOW + 9)),
        ["claimed"],
        "w-1 claimed it 1 s ago and has no free slot yet",
    ),
    (
        "blocked",
        explained(job(state=State.BLOCKED, open_children=1)),
        ["blocked"],
        "waits for 1 child to end",
    ),
    (
        "scheduled",
        explained(job(state=State.SCHEDULED, run_at=NOW + 180)),
        ["scheduled"],
        "scheduled to run in 3 min, at 2027-01-15T08:03:00Z.",
    ),
    (
        "retry",
        explained(
            job(state=State.SCHEDULED, run_at=NOW + 9, attempts=1, settled=Move.RETRY, errors=(ERROR,))
        ),
        ["retry"],
        "will be tried again in 9 s, at 2027-01-15T08:00:09Z: attempt 1 of 5 ended with ValueError: "
        "no such address.",
    ),
    (
        "snoozed",
        explained(job(state=State.SCHEDULED, run_at=NOW + 9, settled=Move.SNOOZE)),
        ["scheduled"],
        ": its handler snoozed it.",
    ),
    ("due", explained(job(state=State.SCHEDULED, run_at=NOW - 2)), ["due"], "It was due 2 s ago"),
    (
        "due, but no worker",
        why(WhyFacts(job=job(state=State.SCHEDULED, run_at=NOW - 2), now=NOW)),
        ["due", "no_worker"],
        "No worker is running.",
    ),
    ("lapsed", explained(job(deadline=NOW - 5)), ["lapsed"], "Its deadline passed 5 s ago: it will fail."),
    (
        "will lapse",
        explained(job(state=State.SCHEDULED, run_at=NOW + 9, deadline=NOW + 5)),
        ["lapsed", "scheduled"],
        "Its deadline is before its scheduled time",
    ),
    (
        "queue paused",
        explained(WAITING, gates=(gate(GateKind.QUEUE, paused=PauseRecord(NOW - 7_300, "ada")),)),
        ["queue_paused"],
        "The queue mail was paused 2 h ago by ada.",
    ),
    (
        "task paused",
        explained(WAITING, gates=(gate(GateKind.TASK, paused=PauseRecord(NOW - 3, "")),)),
        ["task_paused"],
        "The task send was paused 3 s ago.",
    ),
    (
        "group paused",
        explained(WAITING, gates=(gate(GateKind.GROUP, paused=PauseRecord(NOW - 3, "ada")),)),
        ["group_paused"],
        "The group acme of queue mail was paused 3 s ago by ada.",
    ),
    (
        "group closed",
        explained(WAITING, gates=(gate(GateKind.GROUP, closed_until=NOW + 20),)),
        ["closed"],
        "The group acme of queue mail is closed for 20 s more: a handler asked to slow down.",
    ),
    (
        "queue at its limit",
        explained(WAITING, gates=(gate(GateKind.QUEUE, limit=20, held=20),), ahead=3),
        ["limit", "in_line"],
        "The queue mail is at its limit: 20 of 20 running. 3 jobs are before it",
    ),
    (
        "task at its rate",
        explained(WAITING, gates=(gate(GateKind.TASK, rate=rate("100/minute"), wait=4.0),)),
        ["rate"],
        "The task send is at its rate of 100/minute: the next job may begin in 4 s.",
    ),
    (
        "gates that let it through",
        explained(
            WAITING,
            gates=(
                gate(GateKind.QUEUE, limit=20, held=19),
                gate(GateKind.TASK, rate=rate("100/minute"), wait=0.0),
                gate(GateKind.GROUP, closed_until=NOW),
            ),
        ),
        ["any_moment"],
        "Nothing holds it back",
    ),
    ("no worker", why(WhyFacts(job=WAITING, now=NOW)), ["no_worker"], "No worker is running."),
    (
        "no worker fits",
        explained(
            WAITING,
            worker_info(replace(FREE, worker="w-1", queues=("bulk", "slow"))),
            worker_info(replace(FREE, worker="w-2", tasks=("bill",))),
            worker_info(replace(FREE, worker="w-3"), paused=PauseRecord(NOW - 4, "ada")),
            worker_info(replace(FREE, worker="w-4"), ago=50),
            worker_info(replace(FREE, worker="w-5", draining=True)),
        ),
        ["no_worker"],
        "No worker takes jobs of task send from queue mail: w-1 only serves queues bulk, slow; "
        "w-2 only has task bill; w-3 was paused 4 s ago by ada; w-4 has been silent for 50 s; "
        "w-5 is stopping and claims no more jobs.",
    ),
    (
        "no worker of its version",
        explained(
            job(metadata=with_version(None, 3)),
            worker_info(),
            worker_info(replace(FREE, worker="w-2", versions=(TaskVersion("send", 2),))),
        ),
        ["no_worker"],
        "w-1 has version 1 of the task, older than version 3 of the job; "
        "w-2 has version 2 of the task, older than version 3 of the job.",
    ),
    (
        "given back",
        explained(job(unhandled_since=NOW - 7_200)),
        ["unhandled"],
        "Workers have given it back for 2 h: the programs of those that claimed it have no task send, or not "
        "all of its arguments. It fails if that lasts for their unknown_timeout, by default 24 hours, "
        "unless a live worker has the task.",
    ),
    (
        "given back, until its next claim",
        explained(
            job(
                state=State.SCHEDULED,
                settled=Move.RELEASE,
                run_at=NOW + 9,
                unhandled_since=NOW - 60,
                metadata=with_version(None, 3),
            )
        ),
        ["scheduled", "unhandled"],
        "have no task send of version 3, or not all of its arguments",
    ),
    (
        "busy",
        explained(
            WAITING, worker_info(), worker_info(replace(FREE, worker="w-2", queues=())), held=running(10)
        ),
        ["workers_busy"],
        "All slots of the workers that could run it are taken: w-1 10 of 10.",
    ),
    (
        "blocked",
        explained(WAITING, worker_info(replace(FREE, blocked_by="task report (job 7)"))),
        ["workers_blocked"],
        "Workers with a blocked event loop claim nothing: w-1 by task report (job 7).",
    ),
    (
        "one blocked, one busy",
        explained(
            WAITING,
            worker_info(),
            worker_info(replace(FREE, worker="w-2", blocked_by="something")),
            held=running(10),
        ),
        ["workers_blocked", "workers_busy"],
        "nothing: w-2 by something. All slots of the workers that could run it are taken: w-1 10 of 10.",
    ),
    (
        "one blocked, one free",
        explained(WAITING, worker_info(), worker_info(replace(FREE, worker="w-2", blocked_by="something"))),
        ["any_moment"],
        "a worker should claim it at any moment",
    ),
    (
        "running beside a handler that blocks",
        explained(
            job(state=State.RUNNING, worker="w-1", lease_until=NOW + 2),
            worker_info(replace(FREE, blocked_by="task report (job 7)")),
        ),
        ["running", "workers_blocked"],
        "The event loop of this worker is blocked by task report (job 7): async handlers wait.",
    ),
    (
        "reserved slots taken",
        explained(WAITING, worker_info(replace(FREE, shares=(SlotShare(("send",), 2),))), held=running(2)),
        ["workers_busy"],
        "w-1 2 of 2",
    ),
    (
        "slots reserved for another task taken",
        explained(
            WAITING,
            worker_info(replace(FREE, shares=(SlotShare(("bill",), 10),))),
            held=running(10, task="bill"),
        ),
        ["any_moment"],
        "a worker should claim it at any moment",
    ),
    (
        "suspect",
        explained(job(crashes=1), held=running(1, crashes=1)),
        ["suspect"],
        "It was running when its worker was lost, 1 of 3 times: such jobs share a quarter",
    ),
    (
        "isolated suspect",
        explained(job(crashes=2), held=running(1, crashes=1)),
        ["suspect"],
        "2 of 3 times: the next loss would fail it, so it waits until no other such job runs on the host.",
    ),
    ("in line", explained(WAITING, ahead=1), ["in_line"], "1 job is before it in queue mail."),
    (
        "in a long line",
        explained(WAITING, ahead=None, in_queue=80_000),
        ["in_line"],
        "80,000 jobs wait in queue mail.",
    ),
    ("any moment", explained(WAITING), ["any_moment"], "Nothing holds it back"),
]


@pytest.mark.parametrize(
    ("answer", "codes", "text"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_each_reason_has_its_code_and_text(answer: Why, codes: list[str], text: str) -> None:
    assert [reason.code for reason in answer.reasons] == codes
    assert text in " ".join(reason.text for reason in answer.reasons)


def test_every_code_has_a_case_and_every_state_a_check() -> None:
    assert {reason.code for case in CASES for reason in case[1].reasons} == set(WhyCode)
    assert set(CHECKS) == set(State)


def test_every_reason_that_holds_a_job_back_is_listed() -> None:
    paused = tuple(gate(kind, paused=PauseRecord(NOW, "")) for kind in (GateKind.QUEUE, GateKind.TASK))

    answer = explained(WAITING, held=running(10), gates=paused, ahead=3)

    assert [reason.code for reason in answer.reasons] == [
        *("queue_paused", "task_paused", "workers_busy", "in_line")
    ]
