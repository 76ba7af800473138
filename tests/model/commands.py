"""Random commands that often refer to existing jobs and valid claims: there are only a few names.

Hypothesis draws one seed for each step, and the commands of the step are derived from it. Drawing every field
would spend the choices of a history on the first few jobs. A failing history shrinks by steps, not by fields.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeVar

from msgspec.structs import replace

from errandry.core.batch import BatchSpec
from errandry.core.command import (
    STRICT,
    Beat,
    CancelJobs,
    Claim,
    Command,
    CompleteOutcome,
    EditJobs,
    FailOutcome,
    GiveUpOutcome,
    Insert,
    Note,
    Outcome,
    PostponeJobs,
    PromoteJobs,
    PutStep,
    Ref,
    ReleaseOutcome,
    RemoveJobs,
    Renew,
    ReportTrouble,
    RerunJobs,
    ResolveJobs,
    RetryOutcome,
    Settle,
    SnoozeOutcome,
    Start,
    Upkeep,
)
from errandry.core.flow import AwaitOutcome, Edge, Policy
from errandry.core.gate import (
    RULE_FIELDS,
    DeclareRule,
    GateCommand,
    GateKind,
    Pause,
    PutRule,
    ResetRule,
    Resume,
)
from errandry.core.job import Failure, Keep, LogLine, NewJob, Progress
from errandry.core.query import Query, parse
from errandry.core.retry import Backoff, Curve
from errandry.core.rule import NO_RULE, OnReturn, Overflow, Rate, Rule
from errandry.core.schedule import (
    Backfill,
    CatchUp,
    DeclareSchedule,
    Overlap,
    PauseSchedule,
    PutSchedule,
    RemoveSchedule,
    ResetSchedule,
    ResumeSchedule,
    RunSchedule,
    ScheduleCommand,
    SchedulePlan,
)
from errandry.core.state import Reason, State
from errandry.core.step import SendSignal, WaitOutcome
from errandry.core.unique import Conflict, UniqueKey, UniqueScope
from errandry.store.contract import StoreLimits

T = TypeVar("T")

BOUNDS = StoreLimits(
    payload=120, result=100, step=80, events=60, events_age=7_200.0, workers_age=3_600.0, scan=6
)
TOO_LARGE = '"' + "x" * 120 + '"'

IDS = [f"job-{number:02}" for number in range(32)]
QUEUES = ["default", "mail"]
TASKS = ["send", "resize"]
GROUPS = ["acme", "busy"]
WORKERS = ["ann", "bob", "cy"]
SCHEDULES = ["daily", "größe"]
STEPS = ["go", "größe"]
NAMES = {
    GateKind.QUEUE: QUEUES,
    GateKind.TASK: TASKS,
    GateKind.GROUP: QUEUES,
    GateKind.WORKER: WORKERS,
}
TERMS = [
    *(f"state:{state}" for state in State),
    *("-state:completed", "state:failed,canceled", "reason:worker_lost,error", "-reason:error"),
    *("task:send", "-queue:mail", "group:acme", "worker:ann,bob", "-worker:ann"),
    *(f"id:{IDS[0]},{IDS[1]}", "id~-0", "task~SEND", "-worker~n", "group~AC", "-group~ac"),
    *("tag:red", "tag:red,größe", "-tag:blue", "tag:größe tag:blue"),
    *(
        "payload~bob",
        "payload~Ärger",
        "result~OK",
        "-result~ok",
        "error~timeout",
        "-error~took",
        "error~\ufffd",
    ),
    *("priority>0", "priority:0,5", "attempts>=2", "attempts<1", "-attempts:1"),
    *("children>0", "children:1,2", "parents<1", "-parents:1"),
    *("since:20s", "until:20s", "created>1h", "finished<5s", "finished>=1m", "due<=+20s", "due>1s"),
    *("expires<=+30s", "expires>0s"),
]


@dataclass
class Seen:
    """The jobs, claims, nonces and signals that a random command may refer to."""

    now: float = 0.0
    live: list[str] = field(default_factory=list)
    finished: list[str] = field(default_factory=list)
    held: list[Ref] = field(default_factory=list)
    refs: list[Ref] = field(default_factory=list)
    nonces: dict[str, str] = field(default_factory=dict)
    awaited: list[tuple[str, str]] = field(default_factory=list)
    below: int | None = None
    claims: int = 0

    def new_nonce(self) -> str:
        self.claims += 1
        return f"nonce-{self.claims}"


class Chance:
    """Makes random commands of any kind, which refer to what has been seen."""

    def __init__(self, seed: int, seen: Seen) -> None:
        self.random, self.seen = Random(seed), seen

    def of(self, *choices: T) -> T:
        return self.random.choice(choices)

    def one_in(self, times: int) -> bool:
        return self.random.randrange(times) == 0

    def some(self, choices: list[T], most: int) -> list[T]:
        return self.random.sample(choices, min(len(choices), self.random.randint(1, most)))

    def command(self, *kinds: str) -> Command:
        return KINDS[self.of(*kinds)](self)

    def insert(self) -> Insert:
        taken = {*self.seen.live, *self.seen.finished}
        free = [job_id for job_id in IDS if job_id not in taken]
        ids = self.some(IDS if self.one_in(5) else free or IDS, 4)
        jobs = tuple(self.new_job(job_id) for job_id in ids)
        return Insert(jobs, self.edges([job.id for job in jobs]) if self.one_in(2) else ())

    def edges(self, ids: list[str], awaiting: str | None = None) -> tuple[Edge, ...]:
        """Random edges from these jobs to later ones, and from `awaiting` to the first two."""
        pairs = [(parent, child) for n, parent in enumerate(ids) for child in ids[n + 1 :]]
        chosen = [pair for pair in pairs if self.of(True, False)]
        if awaiting is not None:
            chosen += [(awaiting, job_id) for job_id in ids[:2]]
        return tuple(Edge(*pair, self.of(Policy.FAIL, *Policy)) for pair in chosen)

    def awaiting(self, ref: Ref) -> AwaitOutcome:
        taken = {*self.seen.live, *self.seen.finished, ref.job}
        free = [job_id for job_id in IDS if job_id not in taken]
        ids = self.some(free, 3) if free and not self.one_in(8) else []
        return AwaitOutcome(tuple(self.new_job(job_id) for job_id in ids), self.edges(ids, ref.job))

    def new_job(self, job_id: str) -> NewJob:
        times: dict[str, Any] = self.of(*[{}] * 6, {"delay": 0}, {"delay": 10.0}, {"run_at": self.moment()})
        return NewJob(
            id=job_id,
            task=self.of(*TASKS),
            payload=self.of(*["{}", '{"to":"Bob"}', "[1,2.5,null]", '"Ärger ☂ \\u0001"'] * 5, TOO_LARGE),
            queue=self.of(*QUEUES),
            group=self.of("", "", *GROUPS),
            priority=self.of(0, 0, -1, 5),
            lifo=self.of(False, False, True),
            max_attempts=self.of(1, 1, 2, 3, 5),
            max_crashes=self.of(1, 2, 3, 3),
            timeout=self.of(None, 2.5),
            deadline=self.moment() if self.one_in(6) else None,
            backoff=self.of(None, *(Backoff(curve, 4.0, 30.0, 0) for curve in Curve), Backoff(start=0)),
            keep=self.of(
                *(None, None, Keep(0, 0, 0), Keep(30.0, 30.0, 30.0), Keep(completed=0), Keep(failed=0)),
                *(Keep(last_completed=2, last_failed=1), Keep(last_completed=1, last_canceled=2)),
            ),
            tags=self.of((), ("red",), ("größe", "blue")),
            metadata=self.of(None, '{"traceparent":"00"}'),
            unique=self.of(None, None, self.unique()),
            on_conflict=self.of(*Conflict),
            **times,
        )

    def unique(self) -> UniqueKey:
        """One of a few keys, with any scope."""
        scope = self.of(*[UniqueScope.ALIVE] * 6, UniqueScope.WINDOW, UniqueScope.WINDOW, *UniqueScope)
        window = self.of(20.0, 3_600.0) if scope is UniqueScope.WINDOW else None
        return UniqueKey(self.of("k", "K", "größe"), scope, window, per_queue=self.one_in(3))

    def moment(self) -> float:
        """A time close to now, rarely far away."""
        return max(0.0, self.seen.now + self.of(20.0, 0.0, -1.0, 1.0, 5.0, 40.0, 100.0, 4_000.0, -4_000.0))

    def claim(self) -> Claim:
        worker = self.of(*WORKERS)
        nonce = self.seen.nonces.get(worker)
        queues = self.of(*[None] * 5, ("default",), ("mail",), ("mail", "default"), ("nowhere",))
        order = self.of(None, None, STRICT, tuple(range(1, len(queues) + 1))) if queues else None
        return Claim(
            worker=worker,
            nonce=nonce if nonce and self.one_in(6) else self.seen.new_nonce(),
            limit=self.of(1, 1, 2, 3, 50),
            queues=queues,
            tasks=self.of(*[None] * 5, ("send",), ("resize",), ("resize", "send"), ()),
            without=self.of((), (), (), (), ("send",)),
            suspects=self.of(None, None, None, 0, 1),
            start=self.of(True, True, False),
            batches=self.of(
                *[()] * 3,
                (BatchSpec("send", 3),),
                (BatchSpec("send", 2, start=False), BatchSpec("resize", 9)),
            ),
            lease=self.lease(),
            queue_order=order,
        )

    def lease(self) -> float:
        return self.of(5.0, 30.0, 30.0, 300.0)

    def ref(self) -> Ref:
        """A ref of a valid claim mostly, of a stale or forged one sometimes."""
        if self.seen.held and not self.one_in(4):
            return self.of(*self.seen.held)
        if self.seen.refs and not self.one_in(4):
            return self.of(*self.seen.refs)
        ref = self.of(*self.seen.refs, Ref(IDS[0], 0))
        return Ref(self.of(ref.job, ref.job, *IDS[:3]), max(0, ref.fence + self.of(1, -1, 0)))

    def start(self) -> Start:
        return Start(self.ref())

    def renew(self) -> Renew:
        return Renew(tuple({ref.job: ref for ref in (self.ref(), self.ref())}.values()), self.lease())

    def note(self) -> Note:
        lines = (
            LogLine(0.0, "halfway"),
            LogLine(12.5, "y" * 2_500, "warning"),
            LogLine(1, "surrogate \udcff"),
        )
        progress = self.of(None, Progress(0, "begun"), Progress(0.25), Progress(1, "done"))
        return Note(self.ref(), progress, lines[: self.of(0, 1, 3)])

    def step(self) -> PutStep:
        return PutStep(self.ref(), self.of(*STEPS), self.of("null", "[1]", '"Ärger"', TOO_LARGE))

    def signal(self) -> SendSignal:
        pool = self.seen.live if self.seen.live and not self.one_in(6) else IDS
        job, name = self.of(*pool), self.of(*STEPS)
        if self.seen.awaited and self.one_in(2):
            job, name = self.of(*self.seen.awaited)
        return SendSignal(job, name, self.of("null", "[1]", "[2]", TOO_LARGE))

    def settle(self) -> Settle:
        ref = self.ref()
        return Settle(ref, self.awaiting(ref) if self.one_in(8) else self.outcome())

    def outcome(self) -> Outcome:
        outcomes: tuple[Outcome, ...] = (
            CompleteOutcome(self.of(None, "null", '{"ok":true}', "[1]", TOO_LARGE)),
            CompleteOutcome('{"ok":true}'),
            RetryOutcome(self.failure(), self.of(None, None, 0, 0.5, 20.0)),
            RetryOutcome(self.failure(), 0),
            RetryOutcome(self.failure(), self.of(None, 5.0, 30.0), pause_group=True),
            FailOutcome(self.failure()),
            SnoozeOutcome(self.of(0, 5.0, 60.0), self.of(None, None, *STEPS)),
            WaitOutcome(self.of(*STEPS), self.of(0, 5.0, 60.0, 4_000.0)),
            ReleaseOutcome(self.of(0, 0, 15.0), self.of(False, False, True)),
            ReleaseOutcome(crashed=True),
            GiveUpOutcome(self.of(None, self.failure())),
        )
        return self.of(*outcomes)

    def failure(self) -> Failure:
        return Failure(
            self.of(Reason.ERROR, Reason.TIMEOUT, Reason.UNRECOVERABLE, Reason.INVALID_PAYLOAD),
            self.of("", "TimeoutError", "KeyError"),
            self.of("", "took too long", "NUL \0 and surrogate \ud800"),
            self.of("", "line 1\nline 2"),
        )

    def selection(self, candidates: list[str]) -> dict[str, Any]:
        """Random ids, mostly of jobs that can make the move; or a query in small slices."""
        if self.one_in(3):
            below = self.of(None, None, self.seen.below)
            return {"query": self.query(), "limit": self.of(1, 2, 500), "below": below}
        pool = (
            candidates
            if candidates and not self.one_in(4)
            else [*self.seen.live, *self.seen.finished, *IDS[:2]]
        )
        return {"ids": tuple(self.some(pool, 3)), "query": self.query() if self.one_in(4) else None}

    def query(self) -> Query:
        return parse(" ".join(self.some(TERMS, 2))) if self.one_in(4) else parse(self.of("", *TERMS))

    def cancel(self) -> CancelJobs:
        return CancelJobs(
            **self.selection(self.seen.live),
            force=self.of(False, False, True),
            children=self.of(True, True, False),
        )

    def rerun(self) -> RerunJobs:
        when: dict[str, Any] = self.of({}, {}, {"delay": 8.0}, {"run_at": self.moment()})
        how: dict[str, Any] = {"reset_attempts": self.of(False, True), "from_start": self.one_in(3)}
        return RerunJobs(**self.selection(self.seen.finished), **when, **how)

    def edit(self) -> EditJobs:
        return EditJobs(
            **self.selection(self.seen.live),
            payload=self.of(None, None, None, "[7]", TOO_LARGE),
            metadata=self.of(None, None, '{"errandry.version":2}'),
            priority=self.of(None, 3, -2),
            run_at=self.of(None, None, self.moment()),
            max_attempts=self.of(None, 1, 4),
            tags=self.of(None, (), ("red", "größe")),
            queue=self.of(None, None, *QUEUES),
        )

    def postpone(self) -> PostponeJobs:
        when: dict[str, Any] = self.of({"delay": 0}, {"delay": 30.0}, {"run_at": self.moment()})
        return PostponeJobs(**self.selection(self.seen.live), **when)

    def promote(self) -> PromoteJobs:
        return PromoteJobs(**self.selection(self.seen.live))

    def resolve(self) -> ResolveJobs:
        return ResolveJobs(
            **self.selection(self.seen.live),
            state=self.of(State.COMPLETED, State.FAILED),
            result=self.of(None, None, "[8]", TOO_LARGE),
            message=self.of("", "by hand"),
        )

    def remove(self) -> RemoveJobs:
        candidates = [ref.job for ref in self.seen.held] if self.one_in(2) else self.seen.finished
        return RemoveJobs(**self.selection(candidates), force=self.of(False, True))

    def gate(self) -> Pause | Resume:
        kind = self.of(*GateKind)
        name = self.of(*NAMES[kind])
        group = self.of(*GROUPS) if kind is GateKind.GROUP else ""
        return Pause(kind, name, self.of("", "op"), group) if self.one_in(3) else Resume(kind, name, group)

    def rule(self) -> GateCommand:
        kind = self.of(GateKind.QUEUE, GateKind.QUEUE, GateKind.TASK, GateKind.GROUP)
        name, by, rule = self.of(*NAMES[kind]), self.of("", "op"), self.of(*self.rules(kind))
        if kind is not GateKind.GROUP and self.one_in(3):
            return DeclareRule(kind, name, rule, self.of("app", "app", "other"))
        group = self.of(*GROUPS) if kind is GateKind.GROUP else ""
        fields = self.of(None, None, RULE_FIELDS[kind][:1], RULE_FIELDS[kind][1:])
        if self.one_in(4):
            return ResetRule(kind, name, group, by, fields)
        return PutRule(kind, name, rule, group, by, fields)

    def rules(self, kind: GateKind) -> list[Rule]:
        few, rate = self.of(1, 2, 3), self.of(Rate(1, 5.0, 1), Rate(3, 1.0, 2), Rate(10, 60.0, 4))
        found = [NO_RULE, NO_RULE, Rule(limit=few), Rule(rate=rate), Rule(limit=few, rate=rate)]
        if kind is GateKind.GROUP:
            found += [Rule(weight=self.of(0.5, 3.0)), Rule(weight=2.0, limit=few)]
        if kind is GateKind.QUEUE:
            found += [
                Rule(max_size=self.of(1, 4), overflow=self.of(None, Overflow.DROP_OLDEST)),
                Rule(group_max_size=2, overflow=self.of(None, Overflow.DROP_OLDEST, Overflow.WAIT)),
                Rule(ageing=self.of(5.0, 60.0)),
                Rule(ageing=30.0, limit=few, max_size=8),
                Rule(on_return=OnReturn.KEEP_PLACE),
                Rule(on_return=OnReturn.HOLD_GROUP, group_limit=1),
                Rule(group_limit=few),
                Rule(group_rate=rate),
                Rule(limit=4, group_limit=1, group_rate=rate),
            ]
        return found

    def schedule(self) -> ScheduleCommand:
        """A command about one of a few schedules, so that each is changed often."""
        name, now = self.of(*SCHEDULES), self.seen.now
        choices: tuple[ScheduleCommand, ...] = (
            PutSchedule(name, self.plan(), self.of("", "op")),
            DeclareSchedule(name, self.plan(), self.of("app", "other")),
            DeclareSchedule(name, None, self.of("app", "other")),
            ResetSchedule(name, self.of("", "op")),
            PauseSchedule(name, self.of("", "op")),
            ResumeSchedule(name),
            ResumeSchedule(name),
            RemoveSchedule(name),
            RunSchedule(name, f"{name}@{self.of(1, 2, 3)}"),
            Backfill(name, max(0.0, now - self.of(20.0, 100.0)), now + self.of(0.0, 50.0), self.of(2, 1_000)),
        )
        return self.of(*choices)

    def plan(self) -> SchedulePlan:
        """A plan with many or few ticks between two steps of a history."""
        when: dict[str, Any] = self.of(
            {"every": 5.0}, {"every": 30.0}, {"cron": "* * * * *"}, {"cron": "*/20 * * * * *"}
        )
        fields = self.new_job("-")
        start, end = self.of(None, None, self.moment()), self.of(None, None, self.seen.now + 500.0)
        return SchedulePlan(
            job=replace(fields, run_at=None, delay=None, deadline=None, unique=None),
            start=start,
            end=end if start is None or end is None else max(end, start + 500.0),
            limit=self.of(None, None, 3),
            jitter=self.of(0.0, 0.0, 4.0),
            overlap=self.of(*Overlap),
            catch_up=self.of(*CatchUp),
            **when,
        )

    def beat(self) -> Beat:
        return Beat(
            worker=self.of(*WORKERS),
            host=self.of("", "host-1"),
            queues=self.of(None, ("mail",)),
            running=self.of(0, 3),
            gone=self.one_in(3),
        )

    def report(self) -> ReportTrouble:
        texts = ("cannot claim jobs: StoreFull: größe", "x" * 300, "surrogate \udcff and \0", "")
        return ReportTrouble(self.of(*WORKERS), tuple(self.some(list(texts), 3)))

    def upkeep(self) -> Upkeep:
        dead = self.of(*[()] * 4, ("ann",), ("bob", "cy"), ("unknown",))
        return Upkeep(limit=self.of(1_000, 1_000, 1, 2, 3), dead=dead, prune=not self.one_in(5))


KINDS: dict[str, Callable[[Chance], Command]] = {
    "insert": Chance.insert,
    "claim": Chance.claim,
    "start": Chance.start,
    "renew": Chance.renew,
    "note": Chance.note,
    "step": Chance.step,
    "signal": Chance.signal,
    "settle": Chance.settle,
    "cancel": Chance.cancel,
    "rerun": Chance.rerun,
    "edit": Chance.edit,
    "postpone": Chance.postpone,
    "promote": Chance.promote,
    "resolve": Chance.resolve,
    "remove": Chance.remove,
    "gate": Chance.gate,
    "rule": Chance.rule,
    "schedule": Chance.schedule,
    "beat": Chance.beat,
    "report": Chance.report,
    "upkeep": Chance.upkeep,
}
EVERYDAY = (
    *("insert", "insert", "claim", "claim", "start", "renew", "note", "step", "signal"),
    *("settle", "settle", "settle", "settle", "upkeep", "cancel", "rerun", "schedule"),
)
