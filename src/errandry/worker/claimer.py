"""Claims jobs for free slots, and waits while there is nothing to claim.

Runs on the engine's loop, so that no thread has to wait for another between the moment a job becomes ready
and its claim. A piggyback claim goes along with each pass of this process, and claims the jobs that the pass
makes ready. The claimer's own claims find the rest: older jobs, jobs of other processes, and due jobs.
"""

import asyncio
import itertools
import logging
import secrets
from collections.abc import Callable, Coroutine
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

from errandry.api.app import Errandry
from errandry.api.task import Runner, Task
from errandry.claims.log_record import log_expiries
from errandry.claims.suspect_turns import SuspectTurns
from errandry.claims.throttled_log import ThrottledLog
from errandry.claims.trouble import TroubleReporter
from errandry.core.answer import LOCKED_RETRY_AFTER, Answer, Claims, Lost, Renewed
from errandry.core.batch import CLAIM_MAX, BatchSpec
from errandry.core.command import Claim, Ref, Renew
from errandry.core.job import JobRecord
from errandry.errors import ErrandryError, ReplyLost, StoreRefused, StoreUnavailable
from errandry.store.engine.backlog import Callback
from errandry.store.engine.change_counter import ChangeCounter
from errandry.worker.dispatcher import Dispatcher, batch_specs
from errandry.worker.options import WorkerOptions
from errandry.worker.slots import Slots

log = logging.getLogger("errandry.worker")

POLL_INTERVAL = 1.0
"""Maximum seconds between two claims of an idle worker: notifications of changes may be lost."""
AVOID_DELAYS = 12
"""Number of release delays for which the worker claims no jobs of an unknown task, after it met one."""
AVOIDED_TASKS_MAX = 100
"""Maximum number of unknown tasks to remember."""

TaskNames = tuple[str, ...]
ClaimKind = tuple[Runner, TaskNames | None, TaskNames]
"""A runner, the tasks to claim for it (None: all), and the tasks to exclude."""


class ClaimRequest(NamedTuple):
    """How many jobs to claim, the tasks to claim (None: all), and the tasks to exclude.

    Jobs that are prefetched, or join a lingering batch, stay `claimed`; others start at once.
    """

    limit: int
    tasks: TaskNames | None
    without: TaskNames = ()
    runner: Runner = Runner.ASYNC
    is_prefetch: bool = False
    joins_batch: bool = False


class ClaimConditions(NamedTuple):
    """Functions that return whether every job that this worker has claimed is settled, and whether the loop
    that begins handlers is blocked. A blocked worker claims nothing.
    """

    is_idle: Callable[[], bool]
    is_blocked: Callable[[], bool]


class SlotClaimer:
    """Claims as many jobs as there are free slots of each runner."""

    def __init__(
        self,
        app: Errandry,
        trouble: TroubleReporter,
        options: WorkerOptions,
        slots: Slots,
        dispatcher: Dispatcher,
        turns: SuspectTurns,
        conditions: ClaimConditions,
    ) -> None:
        self._app, self._trouble, self._options, self._slots = app, trouble, options, slots
        self._dispatcher, self._turns, self._conditions = dispatcher, turns, conditions
        self._turn_numbers = itertools.count()
        prefix = secrets.token_hex(8)
        self._nonces = (f"{prefix}-{number}" for number in itertools.count())
        self._wakeups = ChangeCounter()
        self._paused = self._stopped = False
        self._due_in: float | None = None
        self._has_locked = False
        # The store's version at which nothing was left to claim for the free slots; None if unknown.
        self._exhausted_version: int | None = None
        self._is_claiming = False
        self._tasks: tuple[Task[..., Any], ...] | None = None
        self._claim_kinds: list[ClaimKind] = []
        self._batch_specs: tuple[BatchSpec, ...] = ()
        self._in_flight: set[asyncio.Future[None] | asyncio.Task[bool]] = set()
        self._avoided_until: dict[str, float] = {}
        self._claim_log = ThrottledLog(
            app.clock, "cannot claim jobs, retrying", "jobs can be claimed again", trouble.report
        )
        self._watch_log = ThrottledLog(
            app.clock,
            f"cannot watch the store for changes, polling every {POLL_INTERVAL:g} s",
            "the store can be watched for changes again",
            trouble.report,
        )

    async def run(self) -> None:
        """Claim until stopped; in a burst, until nothing is left to do."""
        self._app.engine.add_piggyback_claims(self._piggyback_claims)
        watching = asyncio.create_task(self._watch_store())
        try:
            while not self._stopped and not await self._claim_or_wait():
                pass
        finally:
            watching.cancel()
            self._app.engine.remove_piggyback_claims(self._piggyback_claims)
            while self._in_flight:
                await asyncio.wait(self._in_flight)  # the jobs they claim belong to this worker
            self._dispatcher.close()
            self._turns.close()

    def wake(self) -> None:
        """Claim again: a slot became free without a settle, which would carry a claim. From any thread."""
        self._exhausted_version = None
        self._wakeups.increment()

    def pause(self, paused: bool) -> None:
        """Stop claiming for a while, or continue. From any thread."""
        self._paused = paused
        self.wake()

    def stop(self) -> None:
        """Claim no more. `run` returns after the claims in flight are answered. From any thread."""
        self._stopped = True
        self._wakeups.increment()

    @property
    def _may_claim(self) -> bool:
        return not self._paused and not self._conditions.is_blocked()

    async def _claim_or_wait(self) -> bool:
        """Claim, or wait until there may be something to claim. True when a burst is over."""
        wakeups, version = self._wakeups.version, self._app.store.version()
        was_idle = (
            not self._in_flight and self._conditions.is_idle()
        )  # if not, a job that ends now may make others ready
        is_last = self._options.burst and was_idle and self._may_claim
        try:
            if version != self._exhausted_version or is_last or self._turns.begin():
                claimed = await self._claim(version)
                self._claim_log.report_recovery()
                if claimed or (is_last and not self._turns.has_untried and not self._has_locked):
                    return not claimed
        except ErrandryError as error:
            if self._options.burst and isinstance(error, StoreRefused):
                raise  # a burst does not wait until someone grants a missing permission
            self._claim_log.report_failure(error)
        timeout = POLL_INTERVAL if self._due_in is None else min(POLL_INTERVAL, self._due_in)
        if self._has_locked:
            timeout = LOCKED_RETRY_AFTER
        retry_in = self._turns.retry_in
        if retry_in is not None and retry_in < timeout:
            await self._wakeups.wait(wakeups, retry_in)
        elif not await self._wakeups.wait(wakeups, timeout):
            self._exhausted_version = None
        return False

    async def _claim(self, version: int) -> bool:
        """Claim for the free slots; whether that brought any jobs."""
        while self._in_flight:
            await asyncio.wait(self._in_flight)  # their jobs may take the slots that are free now
        may_claim = self._may_claim
        claimed, is_exhausted, self._is_claiming, self._due_in = False, may_claim, True, None
        self._has_locked = False
        if not may_claim:
            self._turns.yield_place()
        try:
            for request in self._requests():
                if self._stopped:
                    break
                sent_at = self._app.clock.monotonic()
                command = self._claim_command(request, self._suspect_quota(request))
                try:
                    answer = await self._app.engine.submit(command)
                except ReplyLost:
                    claimed |= await self._recover_claim(command, request, sent_at)
                    is_exhausted = False
                    continue
                if isinstance(answer, Claims):
                    self._turns.note_waiting(answer.waiting_suspects)
                    log_expiries(answer.expiries)
                    self._avoid_unknown_tasks(answer.jobs)
                    claimed |= await self._dispatch(request, answer.jobs, sent_at)
                    is_exhausted &= self._has_exhausted(answer.jobs)
                    self._due_in = answer.due_in
                    self._has_locked |= answer.has_locked
        finally:
            self._is_claiming = False
            self._turns.end_claim()
        if is_exhausted:
            self._note_exhausted(version, claimed)
        return claimed

    def _piggyback_claims(self) -> list[tuple[Claim, Callback]]:
        """Claims to add to a pass that is about to be written."""
        if self._is_claiming or self._in_flight or self._stopped:
            return []
        sent_at, version = self._app.clock.monotonic(), self._app.store.version()
        loop, claims, requests = asyncio.get_running_loop(), [], self._requests()
        # The claims of a pass would not know of each other's suspects: one of them may take some.
        turn = next(self._turn_numbers) % len(requests) if requests else 0
        for number, request in enumerate(requests):
            answered: asyncio.Future[None] = loop.create_future()
            self._in_flight.add(answered)
            command = self._claim_command(request, self._suspect_quota(request) if number == turn else 0)
            callback = Callback(partial(self._handle_answer, command, request, sent_at, version, answered))
            claims.append((command, callback))
        return claims

    def _handle_answer(
        self,
        command: Claim,
        request: ClaimRequest,
        sent_at: float,
        version: int,
        answered: asyncio.Future[None],
        answer: Answer,
    ) -> None:
        answered.set_result(None)
        if isinstance(answer, ReplyLost):
            self._follow_up(self._recover_claim(command, request, sent_at))
        elif isinstance(answer, Claims):
            self._take_jobs(answer, request, sent_at, version)
        self._end_flight(answered)

    def _take_jobs(self, answer: Claims, request: ClaimRequest, sent_at: float, version: int) -> None:
        self._turns.note_waiting(answer.waiting_suspects)
        log_expiries(answer.expiries)
        if not answer.jobs:
            # If a job becomes due sooner, the claimer must ask itself to learn when.
            if answer.due_in is None or answer.due_in >= POLL_INTERVAL:
                self._note_exhausted(version, claimed=True)
            return
        self._avoid_unknown_tasks(answer.jobs)
        if self._is_late(sent_at):
            self._follow_up(self._dispatch(request, answer.jobs, sent_at))
        else:
            self._dispatcher.dispatch(answer.jobs, sent_at, request.is_prefetch)
        if self._has_exhausted(answer.jobs):
            self._note_exhausted(version, claimed=True)
        else:
            self.wake()

    def _follow_up(self, follow_up: Coroutine[Any, Any, bool]) -> None:
        """Run this in a task; no claims are sent until it ends."""
        task = asyncio.create_task(follow_up)
        self._in_flight.add(task)
        task.add_done_callback(self._end_flight)

    def _end_flight(self, claim: asyncio.Future[None] | asyncio.Task[bool]) -> None:
        self._in_flight.discard(claim)
        if not self._in_flight:
            self._turns.end_claim()

    def _suspect_quota(self, request: ClaimRequest) -> int:
        """How many suspects a claim may take; they share no batch."""
        if request.joins_batch:
            return 0
        slots, runner = self._slots, request.runner
        return self._turns.quota(slots.slots_of(runner), slots.suspects_of(runner))

    async def _recover_claim(self, command: Claim, request: ClaimRequest, sent_at: float) -> bool:
        """Get the jobs of a claim whose reply was lost, by sending it again: the store answers the same jobs.

        It does not if another claim of this worker was written since, or the lease has expired.
        """
        while True:
            try:
                answer = await self._app.engine.submit(command)
            except ErrandryError as error:
                self._trouble.report("cannot recover a claim after a lost reply", error)
                is_expired = self._app.clock.monotonic() >= sent_at + self._options.lease
                if self._stopped or is_expired or not isinstance(error, StoreUnavailable):
                    log.warning(
                        "cannot recover a claim after a lost reply, its jobs wait for their lease to end: %s",
                        error,
                    )
                    return False
                log.warning("cannot recover a claim after a lost reply, retrying: %s", error)
                await asyncio.sleep(POLL_INTERVAL)
                continue
            self.wake()
            if isinstance(answer, Claims):
                log_expiries(answer.expiries)
            return isinstance(answer, Claims) and await self._dispatch(request, answer.jobs, sent_at)

    def _has_exhausted(self, jobs: tuple[JobRecord, ...]) -> bool:
        """Whether a claim with these jobs left nothing for the free slots.

        One that brings jobs of batch tasks stops at `CLAIM_MAX`, although there may be more.
        """
        return len(jobs) < CLAIM_MAX or not any(map(self._is_batched, {job.task for job in jobs}))

    def _is_batched(self, name: str) -> bool:
        task = self._app.tasks.get(name)
        return task is not None and task.run_rules.batch is not None

    def _note_exhausted(self, version: int, claimed: bool) -> None:
        """Note that nothing is left to claim since `version`, unless the store has changed since.

        The commit of the claim itself has raised the version by one, which does not count.
        """
        if self._app.store.version() == version + claimed:
            self._exhausted_version = version + claimed

    async def _watch_store(self) -> None:
        """Wake the claimer when other processes change the store."""
        store = self._app.store
        version = store.version()
        while True:
            try:
                await store.wait_for_change(version, POLL_INTERVAL)
                version = store.version()
                if version != self._exhausted_version:
                    self._wakeups.increment()
                self._watch_log.report_recovery()
            except ErrandryError as error:
                self._watch_log.report_failure(error)
                await asyncio.sleep(POLL_INTERVAL)

    async def _dispatch(self, request: ClaimRequest, jobs: tuple[JobRecord, ...], sent_at: float) -> bool:
        """Run claimed jobs; whether there are any. After a slow claim, renew their leases first.

        The lease counts from the moment the claim was sent, so it could expire before a handler has begun.
        """
        if jobs and self._is_late(sent_at):
            return await self._renew_and_dispatch(request, jobs, sent_at)
        if jobs:
            self._dispatcher.dispatch(jobs, sent_at, request.is_prefetch)
        return bool(jobs)

    async def _renew_and_dispatch(
        self, request: ClaimRequest, jobs: tuple[JobRecord, ...], sent_at: float
    ) -> bool:
        """Renew each job with its own command, so that one locked row does not hold up the others."""
        lease, has_some = self._options.lease, False
        expires_at = sent_at + lease
        while jobs:
            now = self._app.clock.monotonic()
            renewals = [Renew((Ref(job.id, job.fence),), lease) for job in jobs]
            answers = list(zip(jobs, await self._app.engine.submit_all(renewals), strict=True))
            renewed = tuple(job for job, answer in answers if _is_renewed(answer))
            if renewed:
                has_some = True
                self._dispatcher.dispatch(renewed, now, request.is_prefetch)
            failed = [(job, answer) for job, answer in answers if isinstance(answer, StoreUnavailable)]
            jobs = tuple(job for job, _ in failed)
            if failed:
                self._trouble.report("cannot renew the jobs of a slow claim", failed[0][1])
                if self._stopped or self._app.clock.monotonic() >= expires_at:
                    log.warning(
                        "cannot renew %d jobs of a slow claim, they wait until their leases expire", len(jobs)
                    )
                    break
                log.warning("cannot renew %d jobs of a slow claim, retrying", len(jobs))
                await asyncio.sleep(min(POLL_INTERVAL, lease / 10))
        return has_some

    def _is_late(self, sent_at: float) -> bool:
        return self._app.clock.monotonic() - sent_at >= self._options.renewal

    def _requests(self) -> list[ClaimRequest]:
        """The claims to make: for lingering batches, for each runner with free slots, and prefetched jobs for
        the first runner without free slots."""
        if not self._may_claim:
            return []
        slots, kinds = self._slots, self._kinds()
        if self._avoided_until and (avoided := self._avoided_tasks()):
            kinds = [(runner, tasks, (*without, *avoided)) for runner, tasks, without in kinds]
        requests = [
            ClaimRequest(room, (task,), joins_batch=True) for task, room in self._dispatcher.open_batches
        ]
        requests += [
            ClaimRequest(free, tasks, without, runner)
            for runner, tasks, without in kinds
            if (free := slots.free_slots(runner))
        ]
        if limit := slots.free_prefetch:
            full = (kind for kind in kinds if not slots.free_slots(kind[0]))
            requests += [
                ClaimRequest(limit, tasks, without, runner, is_prefetch=True)
                for runner, tasks, without in islice(full, 1)
            ]
        return requests

    def _avoid_unknown_tasks(self, jobs: tuple[JobRecord, ...]) -> None:
        """Exclude the unknown tasks of these jobs from claims for a while: the worker has to release them."""
        unknown = {job.task for job in jobs} - self._app.tasks.keys()
        if not unknown or self._options.on_unknown == "fail":
            return
        if len(self._avoided_until) + len(unknown) > AVOIDED_TASKS_MAX:
            self._avoided_until = {}
        delay = AVOID_DELAYS * self._options.release_delay
        for task in sorted(unknown):
            text = (
                "task %s is not declared in this worker: it releases the job and claims none of them for %g s"
            )
            log.warning(text, task, delay)
            self._avoided_until[task] = self._app.clock.monotonic() + delay

    def _avoided_tasks(self) -> TaskNames:
        """The unknown tasks whose jobs are left to other workers for now."""
        now = self._app.clock.monotonic()
        self._avoided_until = {
            task: until
            for task, until in self._avoided_until.items()
            if until > now and task not in self._app.tasks
        }
        return tuple(self._avoided_until)

    def _kinds(self) -> list[ClaimKind]:
        """The claim kinds, computed again when the app has declared another task."""
        tasks = tuple(self._app.tasks.values())
        if tasks != self._tasks:
            self._tasks, self._claim_kinds = tasks, self._tasks_by_kind()
            self._batch_specs = batch_specs(self._app)
        return self._claim_kinds

    def _tasks_by_kind(self) -> list[ClaimKind]:
        """The tasks of each runner; without a filter, unknown tasks are claimed with the async ones."""
        only, names = self._options.tasks, {runner: list[str]() for runner in Runner}
        for name, task in sorted(self._app.tasks.items()):
            names[task.runner].append(name)
        not_async = (*names[Runner.THREAD], *names[Runner.PROCESS])
        if only is None:
            kinds: list[ClaimKind] = [(Runner.ASYNC, None, not_async)]
        else:
            kinds = [(Runner.ASYNC, tuple(name for name in names[Runner.ASYNC] if name in only), ())]
        for runner in (Runner.THREAD, Runner.PROCESS):
            kinds.append((runner, tuple(name for name in names[runner] if only is None or name in only), ()))
        return [kind for kind in kinds if kind[1] is None or kind[1]]

    def _claim_command(self, request: ClaimRequest, suspects: int) -> Claim:
        start = not request.is_prefetch and not request.joins_batch
        return Claim(
            worker=self._trouble.worker,
            nonce=next(self._nonces),
            limit=request.limit,
            queues=self._options.queues,
            tasks=request.tasks,
            without=request.without,
            suspects=suspects,
            suspect_kind=self._turns.kind,
            start=start,
            batches=self._batch_specs if start else (),
            lease=self._options.lease,
            queue_order=self._options.queue_order,
        )


def _is_renewed(answer: Answer) -> bool:
    return isinstance(answer, Renewed) and not isinstance(answer.acks[0], Lost)
