"""`jobs.sync`, `task.sync` and `job.sync`: blocking methods for code without an event loop.

Scripts, threads, Flask and Django views use them. Every call runs the async method on the engine's thread and
waits for it. `python -m tools.sync` writes this module from the async classes: change those.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Literal,
    ParamSpec,
    Self,
    SupportsFloat,
    TypeVar,
    Unpack,
    overload,
)

from errandry import event_loop
from errandry.api.blocking import Blocking
from errandry.api.job_view import JobPage, JobView
from errandry.core.command import DEFAULT_LEASE
from errandry.errors import StoreClosed

if TYPE_CHECKING:
    from errandry.api.app import Errandry
    from errandry.api.claimed_job import ClaimedJob
    from errandry.api.claimer import Claimer
    from errandry.api.context import Child
    from errandry.api.events import Event
    from errandry.api.flow import Flow, Parallel
    from errandry.api.gate_info import GateInfo, GroupInfo, PauseInfo, QueueInfo
    from errandry.api.gates import GateHandle, RuleOptions
    from errandry.api.job import Job
    from errandry.api.options import Duration, EditOptions, EnqueueOptions, Moment, UseOptions
    from errandry.api.queue import Queue
    from errandry.api.run_options import RunWorkerOptions
    from errandry.api.schedule import Schedule
    from errandry.api.schedule_options import TimingChanges, TimingOptions
    from errandry.api.schedules import Schedulable, Schedules, ScheduleTiming
    from errandry.api.steps import Step
    from errandry.api.task import Call, Task
    from errandry.api.transaction import SyncBoundApp
    from errandry.api.workers import WorkerInfo, Workers
    from errandry.core.answer import Moved
    from errandry.core.event import EventKind, EventName
    from errandry.core.gate import GateKind
    from errandry.core.job import JobRecord
    from errandry.core.rule import Rule
    from errandry.core.stats import Stats
    from errandry.core.why import Why

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class SyncJob(JobView[R_co], Blocking):
    """`Job` with blocking methods."""

    _mirrored: Job[R_co]

    def __init__(self, mirrored: Job[R_co]) -> None:
        self._mirrored, self._client = mirrored, mirrored._app.client
        self._app, self._codec = mirrored._app, mirrored._codec
        self.existed, self.replaced = mirrored.existed, mirrored.replaced

    @property
    def record(self) -> JobRecord:
        """The job as the store has it, with times as numbers and documents as JSON text."""
        return self._mirrored.record

    def refresh(self) -> Self:
        """Read the job again; raises UnknownJob if it was removed."""
        self._wait(self._mirrored.refresh())
        self._codec = self._mirrored._codec
        return self

    def wait(self, timeout: Duration | None = None) -> Self:
        """Wait until the job has completed, failed or been canceled; TimeoutError after `timeout`."""
        self._wait(self._mirrored.wait(timeout))
        return self

    def result(self, timeout: Duration | None = None) -> R_co:
        """Wait for the job and return its handler's result; raises JobFailed or JobCanceled otherwise."""
        return self._wait(self._mirrored.result(timeout))

    def observe(self) -> Iterator[Event]:
        """Yield the events of the job until it has finished."""
        yield from self._iterate(self._mirrored.observe())

    def cancel(self, *, children: bool = True) -> None:
        """Cancel the job: at once if it is not running, else by asking its handler to stop."""
        self._wait(self._mirrored.cancel(children=children))

    def signal(self, name: str, payload: Any = None) -> bool:
        """Send it a signal for `ctx.wait_for(name)`; False if it has got a signal of this name already."""
        return self._wait(self._mirrored.signal(name, payload))

    def rerun(self, *, reset_attempts: bool = False, from_start: bool = False) -> None:
        """Run a finished job again; `result` then waits for the new run."""
        self._wait(self._mirrored.rerun(reset_attempts=reset_attempts, from_start=from_start))


class SyncGateHandle(Blocking):
    """`GateHandle` with blocking methods."""

    _mirrored: GateHandle

    def __init__(self, mirrored: GateHandle) -> None:
        self._mirrored, self._client = mirrored, mirrored._client.client

    @property
    def kind(self) -> GateKind:
        return self._mirrored.kind

    @property
    def name(self) -> str:
        return self._mirrored.name

    @property
    def group_key(self) -> str:
        return self._mirrored.group_key

    def __str__(self) -> str:
        return self._mirrored.__str__()

    def pause(self, *, by: str = "") -> bool:
        """Stop claims until it is resumed; running jobs go on."""
        return self._wait(self._mirrored.pause(by=by))

    def resume(self) -> bool:
        """Allow claims again, also if a handler closed the group or task: `Retry(after=…, pause_group=True)`."""
        return self._wait(self._mirrored.resume())

    def rules(self) -> Rule:
        """The rules in force; `NO_RULE` if it has none."""
        return self._wait(self._mirrored.rules())

    def set_rules(self, *, by: str = "", **changes: Unpack[RuleOptions]) -> Rule:
        """Change the given rules for all workers at once: `set_rules(limit=20, rate="100/minute")`."""
        return self._wait(self._mirrored.set_rules(by=by, **changes))

    def reset_rules(self, *fields: str, declared: bool = False, by: str = "") -> Rule:
        """Drop what `set_rules` has changed, all of it or only these fields: `reset_rules("limit", "rate")`."""
        return self._wait(self._mirrored.reset_rules(*fields, declared=declared, by=by))


class SyncQueue(SyncGateHandle):
    """`Queue` with blocking methods."""

    _mirrored: Queue

    def __init__(self, mirrored: Queue) -> None:
        self._mirrored, self._client = mirrored, mirrored._client.client

    def group(self, key: str) -> SyncGateHandle:
        """A group of the queue, the jobs with this `group`: pause it or give it a limit, rate or weight."""
        return SyncGateHandle(self._mirrored.group(key))

    def query(self, *states: str, more: str = "") -> str:
        """The query for jobs of this queue in these states, or in any; `more` is added to it."""
        return self._mirrored.query(*states, more=more)

    def purge(self, *states: str, dry_run: bool = False) -> Moved:
        """Delete jobs no worker has claimed: waiting, scheduled and blocked, or only the given states."""
        return self._wait(self._mirrored.purge(*states, dry_run=dry_run))

    def clean(self, *states: str, older: Duration = 0, dry_run: bool = False) -> Moved:
        """Delete jobs that finished longer ago than `older`, in all final states or in the given states."""
        return self._wait(self._mirrored.clean(*states, older=older, dry_run=dry_run))

    def rerun(
        self,
        query: str = "",
        *,
        reset_attempts: bool = False,
        from_start: bool = False,
        delay: Duration | None = None,
        run_at: Moment | None = None,
        dry_run: bool = False,
    ) -> Moved:
        """Run all failed jobs again, or those that match `query`; the options are those of `jobs.rerun`."""
        return self._wait(
            self._mirrored.rerun(
                query,
                reset_attempts=reset_attempts,
                from_start=from_start,
                delay=delay,
                run_at=run_at,
                dry_run=dry_run,
            )
        )

    def promote(self, query: str = "", *, dry_run: bool = False) -> Moved:
        """Run all scheduled jobs now, or those that match `query`."""
        return self._wait(self._mirrored.promote(query, dry_run=dry_run))

    def move(self, to: str, query: str = "", *, dry_run: bool = False) -> Moved:
        """Move jobs that no worker has claimed to another queue, all or those that match `query`."""
        return self._wait(self._mirrored.move(to, query, dry_run=dry_run))

    def obliterate(
        self, *, force: bool = False, dry_run: bool = False, progress: Callable[[int], object] | None = None
    ) -> Moved:
        """Delete all jobs of the queue, its rules and those of its groups; its lifetime totals are kept."""
        return self._wait(self._mirrored.obliterate(force=force, dry_run=dry_run, progress=progress))

    def held_count(self) -> int:
        """The number of jobs of the queue that workers hold."""
        return self._wait(self._mirrored.held_count())


class SyncSchedules(Blocking):
    """`Schedules` with blocking methods."""

    _mirrored: Schedules

    def __init__(self, mirrored: Schedules) -> None:
        self._mirrored, self._client = mirrored, mirrored._app.client

    def declare(
        self, name: str, call: Schedulable, when: ScheduleTiming, **timing: Unpack[TimingOptions]
    ) -> None:
        """Declare a schedule; workers that start, and `jobs.put_declared`, write it to the store."""
        self._mirrored.declare(name, call, when, **timing)

    @property
    def declared(self) -> tuple[str, ...]:
        """The names of the schedules declared in code."""
        return self._mirrored.declared

    def put(
        self,
        name: str,
        call: Schedulable,
        when: ScheduleTiming,
        *,
        by: str = "",
        **timing: Unpack[TimingOptions],
    ) -> Schedule:
        """Create or replace a schedule: `put("nightly", report.new(of="all"), "0 3 * * *", overlap="skip")`."""
        return self._wait(self._mirrored.put(name, call, when, by=by, **timing))

    def edit(
        self,
        name: str,
        *,
        arguments: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
        by: str = "",
        **timing: Unpack[TimingChanges],
    ) -> Schedule:
        """Change the given parts of a schedule, for all ticks from now on; the rest stays."""
        return self._wait(self._mirrored.edit(name, arguments=arguments, options=options, by=by, **timing))

    def reset(self, name: str, *, by: str = "") -> bool:
        """Put the plan that code declares in force again, in place of what `put` and `edit` have changed."""
        return self._wait(self._mirrored.reset(name, by=by))

    def list(self) -> builtins.list[Schedule]:
        """All schedules, by name."""
        return self._wait(self._mirrored.list())

    def get(self, name: str) -> Schedule:
        """The schedule with this name; raises UnknownSchedule if there is none."""
        return self._wait(self._mirrored.get(name))

    def pause(self, name: str, by: str = "") -> bool:
        """Stop its ticks until it is resumed; False if it was paused already."""
        return self._wait(self._mirrored.pause(name, by))

    def resume(self, name: str) -> bool:
        """Continue with its next tick; False if it was not paused."""
        return self._wait(self._mirrored.resume(name))

    def remove(self, name: str) -> bool:
        """Remove the schedule; a running job of it goes on. False if there was none."""
        return self._wait(self._mirrored.remove(name))

    def run(self, name: str) -> SyncJob[Any]:
        """Run the schedule's job once now, in addition to its ticks, even if it is paused."""
        return SyncJob(self._wait(self._mirrored.run(name)))

    def backfill(self, name: str, since: Moment, until: Moment | None = None) -> builtins.list[str]:
        """Run the ticks of a past span that have no job yet; returns the ids of the new jobs."""
        return self._wait(self._mirrored.backfill(name, since, until))


class SyncWorkers(Blocking):
    """`Workers` with blocking methods."""

    _mirrored: Workers

    def __init__(self, mirrored: Workers) -> None:
        self._mirrored, self._client = mirrored, mirrored._client.client

    def list(self) -> builtins.list[WorkerInfo]:
        """The workers that have reported recently."""
        return self._wait(self._mirrored.list())

    def pause(self, worker_id: str, *, by: str = "") -> bool:
        """Stop the claims of a worker until it is resumed; it finishes the jobs it runs."""
        return self._wait(self._mirrored.pause(worker_id, by=by))

    def resume(self, worker_id: str) -> bool:
        """Allow the claims of a worker again. False if it was not paused."""
        return self._wait(self._mirrored.resume(worker_id))


class SyncClaimedJob(Blocking):
    """`ClaimedJob` with blocking methods."""

    _mirrored: ClaimedJob

    def __init__(self, mirrored: ClaimedJob) -> None:
        self._mirrored, self._client = mirrored, mirrored._app.client

    @property
    def id(self) -> str:
        return self._mirrored.id

    @property
    def task(self) -> str:
        """The name of the task."""
        return self._mirrored.task

    @property
    def queue(self) -> str:
        return self._mirrored.queue

    @property
    def attempt(self) -> int:
        """The number of this attempt; 1 for the first."""
        return self._mirrored.attempt

    @property
    def fence(self) -> int:
        """The number of the claim, greater than those of all earlier claims of this job."""
        return self._mirrored.fence

    @property
    def job(self) -> SyncJob[Any]:
        """The job as it was claimed; its methods ask the store."""
        return SyncJob(self._mirrored.job)

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments by name, as plain JSON values, with the results of its children filled in."""
        return self._mirrored.arguments

    @property
    def should_stop(self) -> bool:
        """True if the program should stop: job canceled, timeout over, or lease lost."""
        return self._mirrored.should_stop

    @property
    def settled(self) -> bool:
        """True if its outcome is written."""
        return self._mirrored.settled

    def __repr__(self) -> str:
        return self._mirrored.__repr__()

    def renew(self) -> None:
        """Extend the lease: it then lasts as long as the lease of the claimer, from now."""
        self._wait(self._mirrored.renew())

    def progress(self, done: SupportsFloat, text: str = "", *, total: SupportsFloat | None = None) -> None:
        """Report progress: a share from 0 to 1, `progress(0.5)`, or a count, `progress(50, total=100)`."""
        self._wait(self._mirrored.progress(done, text, total=total))

    def log(self, text: Any, level: str | int = "info") -> None:
        """Add a line to the job's log. `level` is a name, such as "warning", or a number of `logging`."""
        self._wait(self._mirrored.log(text, level))

    def complete(self, result: Any = None) -> None:
        """Complete the job. The result must be a value that JSON has, no larger than the store's limit."""
        self._wait(self._mirrored.complete(result))

    def retry(self, error: BaseException | str, delay: Duration | None = None) -> None:
        """Record an error and run the job again after `delay`, by default after its backoff."""
        self._wait(self._mirrored.retry(error, delay))

    def fail(self, error: BaseException | str) -> None:
        """Record an error and fail the job for good, even if it has attempts left."""
        self._wait(self._mirrored.fail(error))

    def snooze(self, delay: Duration) -> None:
        """Run the job again after `delay`; this attempt does not count."""
        self._wait(self._mirrored.snooze(delay))

    def release(self) -> None:
        """Give the job back unfinished, for any worker to claim; this attempt does not count."""
        self._wait(self._mirrored.release())

    def cancel(self, reason: str = "") -> None:
        """Cancel the job."""
        self._wait(self._mirrored.cancel(reason))

    def __enter__(self) -> Self:
        self._wait(self._mirrored.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        return self._wait(self._mirrored.__aexit__(kind, error, trace))


class SyncClaimer(Blocking):
    """`Claimer` with blocking methods."""

    _mirrored: Claimer

    def __init__(self, mirrored: Claimer) -> None:
        self._mirrored, self._client = mirrored, mirrored._app.client

    @property
    def id(self) -> str:
        """The id of this claimer as a worker, as in `jobs.workers`; unique for each claimer."""
        return self._mirrored.id

    def claim(self, limit: int = 1, wait: Duration = 0) -> builtins.list[SyncClaimedJob]:
        """Claim up to `limit` jobs, most urgent first, and start them."""
        return [SyncClaimedJob(job) for job in self._wait(self._mirrored.claim(limit, wait))]

    def __enter__(self) -> Self:
        self._wait(self._mirrored.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._wait(self._mirrored.__aexit__(kind, error, trace))
        except StoreClosed as closed:
            self._mirrored._abandon(closed)


class SyncTask(Blocking, Generic[P, R_co]):
    """`Task` with blocking methods."""

    _mirrored: Task[P, R_co]

    def __init__(self, mirrored: Task[P, R_co]) -> None:
        self._mirrored, self._client = mirrored, mirrored.app.client

    @property
    def name(self) -> str:
        return self._mirrored.name

    def __repr__(self) -> str:
        return self._mirrored.__repr__()

    def using(self, **options: Unpack[UseOptions]) -> SyncTask[P, R_co]:
        """The task with other options for its jobs: `send.using(queue="mail").enqueue("ada")`."""
        return SyncTask(self._mirrored.using(**options))

    def bind(self, connection: object) -> SyncTask[P, R_co]:
        """The task, enqueued over your own connection, in its transaction: see `Errandry.bind`."""
        return self._mirrored.bind(connection).sync

    def new(self, *args: P.args, **kwargs: P.kwargs) -> Call[R_co]:
        """A call that is not enqueued yet, for `enqueue_many` and flows; its arguments are checked here."""
        return self._mirrored.new(*args, **kwargs)

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> SyncJob[R_co]:
        """Enqueue a call with these arguments, for a worker to run. Returns when the job is durable."""
        [job] = self._mirrored.app.sync.enqueue_many([self._mirrored.new(*args, **kwargs)])
        return job

    def pause(self, *, by: str = "") -> bool:
        """Stop claims of its jobs in all queues until it is resumed; running jobs go on."""
        return self._wait(self._mirrored.pause(by=by))

    def resume(self) -> bool:
        """Allow claims of its jobs again. False if it was not paused."""
        return self._wait(self._mirrored.resume())

    def rules(self) -> Rule:
        """The rules in force for its jobs; `NO_RULE` if it has none."""
        return self._wait(self._mirrored.rules())

    def set_rules(self, *, by: str = "", **changes: Unpack[RuleOptions]) -> Rule:
        """Change the given rules for all workers at once: `send.set_rules(limit=5, rate="100/minute")`."""
        return self._wait(self._mirrored.set_rules(by=by, **changes))

    def reset_rules(self, *fields: str, declared: bool = False, by: str = "") -> Rule:
        """Return these rules, or all, to the values that `@jobs.task` declares."""
        return self._wait(self._mirrored.reset_rules(*fields, declared=declared, by=by))


class SyncErrandry(Blocking):
    """`Errandry` with blocking methods."""

    _mirrored: Errandry

    def __init__(self, mirrored: Errandry) -> None:
        self._mirrored, self._client = mirrored, mirrored.client

    @property
    def schedules(self) -> SyncSchedules:
        return SyncSchedules(self._mirrored.schedules)

    @property
    def workers(self) -> SyncWorkers:
        return SyncWorkers(self._mirrored.workers)

    def subtree(self, *ids: str) -> tuple[str, ...]:
        """The ids of these jobs and of all their descendants; each once, parents before their children."""
        return self._wait(self._mirrored.subtree(*ids))

    def cancel(
        self,
        *ids: str,
        query: str | None = None,
        force: bool = False,
        flow: bool = False,
        children: bool = True,
        dry_run: bool = False,
    ) -> Moved:
        """Cancel jobs: at once if they are not running, else by asking their handlers to stop."""
        return self._wait(
            self._mirrored.cancel(
                *ids, query=query, force=force, flow=flow, children=children, dry_run=dry_run
            )
        )

    def rerun(
        self,
        *ids: str,
        query: str | None = None,
        reset_attempts: bool = False,
        from_start: bool = False,
        delay: Duration | None = None,
        run_at: Moment | None = None,
        flow: bool = False,
        dry_run: bool = False,
    ) -> Moved:
        """Run finished jobs again, now, after `delay` or at `run_at`."""
        return self._wait(
            self._mirrored.rerun(
                *ids,
                query=query,
                reset_attempts=reset_attempts,
                from_start=from_start,
                delay=delay,
                run_at=run_at,
                flow=flow,
                dry_run=dry_run,
            )
        )

    def edit(
        self, *ids: str, query: str | None = None, dry_run: bool = False, **changes: Unpack[EditOptions]
    ) -> Moved:
        """Change jobs that no worker has claimed: `jobs.edit(job_id, queue="slow", priority=5)`."""
        return self._wait(self._mirrored.edit(*ids, query=query, dry_run=dry_run, **changes))

    def postpone(
        self,
        *ids: str,
        query: str | None = None,
        delay: Duration | None = None,
        run_at: Moment | None = None,
        dry_run: bool = False,
    ) -> Moved:
        """Run waiting or scheduled jobs later: after `delay` or at `run_at`."""
        return self._wait(
            self._mirrored.postpone(*ids, query=query, delay=delay, run_at=run_at, dry_run=dry_run)
        )

    def promote(self, *ids: str, query: str | None = None, dry_run: bool = False) -> Moved:
        """Run scheduled jobs now."""
        return self._wait(self._mirrored.promote(*ids, query=query, dry_run=dry_run))

    def resolve(
        self,
        *ids: str,
        query: str | None = None,
        state: Literal["completed", "failed"] = "completed",
        result: Any = None,
        message: str = "",
        dry_run: bool = False,
    ) -> Moved:
        """Settle jobs that no worker has claimed: completed with a result, or failed with a message."""
        return self._wait(
            self._mirrored.resolve(
                *ids, query=query, state=state, result=result, message=message, dry_run=dry_run
            )
        )

    def remove(
        self,
        *ids: str,
        query: str | None = None,
        force: bool = False,
        flow: bool = False,
        dry_run: bool = False,
        progress: Callable[[int], object] | None = None,
    ) -> Moved:
        """Delete jobs; with `force`, also those that workers hold."""
        return self._wait(
            self._mirrored.remove(
                *ids, query=query, force=force, flow=flow, dry_run=dry_run, progress=progress
            )
        )

    def open(self) -> None:
        """Open the store now rather than on first use; reopens it after `close`."""
        self._mirrored.client.open_sync()

    def close(self, timeout: float | None = None) -> None:
        """Write what was accepted and close the store. Only `open` reopens it."""
        self._mirrored.client.close_sync(timeout)

    def get(self, job_id: str) -> SyncJob[Any]:
        """The job with this id; raises UnknownJob if there is none."""
        return SyncJob(self._wait(self._mirrored.get(job_id)))

    def signal(self, job_id: str, name: str, payload: Any = None) -> bool:
        """Send a signal to a job that waits for it now or later with `ctx.wait_for(name)`."""
        return self._wait(self._mirrored.signal(job_id, name, payload))

    def steps(self, job_id: str) -> builtins.list[Step]:
        """The steps and sleeps of a job and the signals sent to it, in the order they were begun."""
        return self._wait(self._mirrored.steps(job_id))

    def children(self, job_id: str) -> builtins.list[Child]:
        """The child jobs that a job waits for or has waited for, in their order, and how they ended."""
        return self._wait(self._mirrored.children(job_id))

    def ids(self, part: str, limit: int = 10) -> builtins.list[str]:
        """Job ids that begin or end with `part`."""
        return self._wait(self._mirrored.ids(part, limit))

    def list(self, query: str = "", *, cursor: str | None = None, limit: int = 50) -> JobPage[SyncJob[Any]]:
        """Jobs that match a query such as `state:failed task:send since:2h`, newest first."""
        return self._wait(self._mirrored.list(query, cursor=cursor, limit=limit)).map(SyncJob)

    def counts(self) -> dict[str, dict[str, int]]:
        """The number of jobs in each state, by queue."""
        return self._wait(self._mirrored.counts())

    def totals(self) -> dict[str, dict[str, int]]:
        """The lifetime totals of each queue: how many jobs were inserted, completed, failed, …"""
        return self._wait(self._mirrored.totals())

    def now(self) -> datetime:
        """The store's time, which delays, leases and deadlines follow; on a server, the server's clock."""
        return self._wait(self._mirrored.now())

    def stats(
        self,
        last: Duration = "1 hour",
        *,
        until: Moment | None = None,
        queue: str | None = None,
        task: str | None = None,
    ) -> Stats:
        """How many jobs completed, failed, …, and how long they waited and ran, in the span `last`."""
        return self._wait(self._mirrored.stats(last, until=until, queue=queue, task=task))

    def queues(self) -> builtins.list[QueueInfo]:
        """Every queue: its jobs by state, how long its next job has waited, whether it is paused."""
        return self._wait(self._mirrored.queues())

    def held(self, limit: int = 100) -> builtins.list[SyncJob[Any]]:
        """Jobs that workers hold, claimed or running, sorted by the end of their lease."""
        return [SyncJob(job) for job in self._wait(self._mirrored.held(limit))]

    def paused(self) -> dict[GateKind, dict[str, PauseInfo]]:
        """The queues, tasks and workers that are paused."""
        return self._wait(self._mirrored.paused())

    def why(self, job_id: str) -> Why:
        """Explain why a job is not running, or what it is doing: `print(await jobs.why(job.id))`."""
        return self._wait(self._mirrored.why(job_id))

    def rules(self) -> builtins.list[GateInfo]:
        """Every queue, task and group that is paused, has a rule, or was closed by a `pause_group`."""
        return self._wait(self._mirrored.rules())

    def groups(self, queue: str | None = None, limit: int = 100) -> builtins.list[GroupInfo]:
        """The groups of one queue or of all: how many jobs wait and run, and their rules."""
        return self._wait(self._mirrored.groups(queue, limit))

    def queue(self, name: str) -> SyncQueue:
        """A queue, to pause it, give it rules, or operate on all its jobs: `jobs.queue("mail").pause()`."""
        return SyncQueue(self._mirrored.queue(name))

    def latest_cursor(self, back: int = 0) -> str:
        """The cursor of this moment, or of `back` passes ago, for `events(after=cursor)`."""
        return self._wait(self._mirrored.latest_cursor(back))

    def events(
        self,
        after: str | None = None,
        *,
        kind: EventKind | EventName | Sequence[EventKind | EventName] = (),
        queue: str | Sequence[str] = (),
        task: str | Sequence[str] = (),
        job: str | Sequence[str] = (),
    ) -> Iterator[Event]:
        """Yield events as they happen, from the cursor `after` or from now on, filtered by the other options."""
        yield from self._iterate(self._mirrored.events(after, kind=kind, queue=queue, task=task, job=job))

    def schedule(
        self, name: str, call: Schedulable, when: ScheduleTiming, **timing: Unpack[TimingOptions]
    ) -> None:
        """Declare a schedule for a call: `jobs.schedule("nightly", report.new(), "0 3 * * *")`."""
        self._mirrored.schedule(name, call, when, **timing)

    def declare_queue(self, name: str, **rules: Unpack[RuleOptions]) -> SyncQueue:
        """Declare the rules of a queue: `mail = jobs.declare_queue("mail", limit=20, rate="100/minute")`."""
        return SyncQueue(self._mirrored.declare_queue(name, **rules))

    def put_declared(self, *, prune: bool = False) -> builtins.list[str]:
        """Write the declared schedules and rules to the store, as workers do when they start."""
        return self._wait(self._mirrored.put_declared(prune=prune))

    def prune(self, *ids: str, query: str | None = None, dry_run: bool = False) -> Moved:
        """Delete finished jobs by id or query; without both, those whose `keep` time is over."""
        return self._wait(self._mirrored.prune(*ids, query=query, dry_run=dry_run))

    def enqueue(
        self, task: str, arguments: Mapping[str, Any] | None = None, **options: Unpack[EnqueueOptions]
    ) -> SyncJob[Any]:
        """Enqueue a task by its name: `jobs.enqueue("send", {"to": "ada"}, queue="mail")`."""
        [job] = self._wait(self._mirrored._insert_jobs(self._mirrored._named_job(task, arguments, options)))
        return SyncJob(job)

    def enqueue_many(self, calls: builtins.list[Call[Any]]) -> builtins.list[SyncJob[Any]]:
        """Enqueue all calls or none, in one write: `jobs.enqueue_many([send.new(to=a), send.new(to=b)])`."""
        jobs = self._wait(self._mirrored._insert_jobs(self._mirrored._single_jobs(calls)))
        return [SyncJob(job) for job in jobs]

    @overload
    def enqueue_flow(self, flow: Call[R] | Flow[R]) -> SyncJob[R]: ...

    @overload
    def enqueue_flow(self, flow: Parallel[R]) -> builtins.list[SyncJob[R]]: ...

    def enqueue_flow(self, flow: Call[R] | Flow[R] | Parallel[R]) -> SyncJob[R] | builtins.list[SyncJob[R]]:
        """Enqueue all jobs of a flow or none, in one write."""
        jobs = self._wait(self._mirrored._insert_jobs(self._mirrored._flow_jobs(flow)))
        final = self._mirrored._final_jobs(flow, jobs)
        return [SyncJob(job) for job in final] if isinstance(final, list) else SyncJob(final)

    def bind(self, connection: object) -> SyncBoundApp:
        """Enqueue over your own connection, in its transaction: `jobs.bind(connection).enqueue_many(…)`."""
        return self._mirrored.bind(connection).sync

    def remote_task(self, name: str) -> SyncGateHandle:
        """A task that only other programs declare, to pause it or set its rules."""
        return SyncGateHandle(self._mirrored.remote_task(name))

    def claimer(
        self,
        *,
        queues: Sequence[str] | str | None = None,
        tasks: Sequence[str] | str | None = None,
        lease: Duration = DEFAULT_LEASE,
        renew: bool = True,
        worker: str | None = None,
        upkeep: bool = True,
    ) -> SyncClaimer:
        """Claim jobs by hand, for a program that runs them itself instead of a worker."""
        return SyncClaimer(
            self._mirrored.claimer(
                queues=queues, tasks=tasks, lease=lease, renew=renew, worker=worker, upkeep=upkeep
            )
        )

    def run_worker(self, *, signals: bool = False, **options: Unpack[RunWorkerOptions]) -> None:
        """Run a worker in this program until it is stopped."""
        self._refuse_running_loop("await jobs.run_worker(…)")
        event_loop.run(self._mirrored.run_worker(signals=signals, **options))

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
