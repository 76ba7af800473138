"""The worker: it connects its parts, starts them, and drains them when it stops."""

import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Coroutine
from concurrent.futures import Future
from contextlib import asynccontextmanager, nullcontext, suppress
from typing import Any

from msgspec import Struct

from errandry.api.app import Errandry
from errandry.api.completion import wait_for_first
from errandry.api.task import Runner
from errandry.claims.background import LoopFunction, start_loops
from errandry.claims.leases import Leases, StopReason
from errandry.claims.presence import CLOSE_TIMEOUT, Presence, new_worker_id
from errandry.claims.suspect_lock import SuspectLock
from errandry.claims.suspect_turns import SuspectTurns
from errandry.claims.throttled_log import log_of_writes
from errandry.claims.trouble import TroubleReporter
from errandry.claims.upkeep import UpkeepLoop
from errandry.core.argument_version import FIRST_VERSION
from errandry.core.command import Beat, SlotShare, TaskVersion, listed_tasks
from errandry.core.job import JobRecord
from errandry.errors import StoreError, StoreReplaced
from errandry.worker.archiver import archive_forever
from errandry.worker.children.pool import ChildPool
from errandry.worker.children.process import refuse_in_child
from errandry.worker.claimer import ClaimConditions, SlotClaimer
from errandry.worker.dispatcher import Dispatcher, batch_specs
from errandry.worker.engine_task import EngineTask
from errandry.worker.executor import Executor
from errandry.worker.handler_call import HandlerCall, JobRun
from errandry.worker.log_capture import JobLogHandler
from errandry.worker.observers import Observers
from errandry.worker.options import WorkerOptions
from errandry.worker.slots import Slots
from errandry.worker.stop_signals import StopSignals
from errandry.worker.watchdog import Watchdog

log = logging.getLogger("errandry.worker")

SWITCH_INTERVAL = 1e-4
"""Seconds between thread switches of the interpreter while a worker runs.

At Python's default of 5 ms, a busy main loop starves the engine's thread. With much less than this value, the
two threads spend an eighth of their time on switching.
"""
STOP_TIMEOUT = 1.0
"""Seconds that stopped handlers have to end before the worker releases their jobs."""
END_TIMEOUT = 10.0
"""Seconds that closing an app waits for the end of its worker."""


class Health(Struct, frozen=True):
    """Seconds since the last pass and the last upkeep, None if there was none; number of held jobs."""

    last_pass: float | None
    last_upkeep: float | None
    running: int


class Worker:
    """Runs the handlers of an app's tasks until it is stopped.

    `await worker.run()` returns after `stop()`, or after SIGTERM, SIGINT or SIGHUP if it handles `signals`.
    The worker then claims no more jobs, lets handlers finish for `grace` seconds, stops the others and
    releases their jobs. A second SIGTERM or SIGINT skips the grace.
    """

    def __init__(self, app: Errandry, options: WorkerOptions | None = None) -> None:
        self.app, self.options = app, options or WorkerOptions()
        self.id = new_worker_id(self.options.id)
        self._stopping = asyncio.Event()
        self._skip_grace = asyncio.Event()
        self._has_abandoned_claim = self._is_draining = self._is_program = False
        self._lost_store: StoreReplaced | None = None
        self._task: asyncio.Task[Any] | None = None
        self._trouble = TroubleReporter(app.engine, app.clock, self.id)
        self._children = ChildPool(app, self.options, self._trouble.report)
        self._slots = Slots(self.options, self._children.extra_jobs)
        self._leases = Leases(
            app.engine,
            app.clock,
            self.id,
            self.options.lease,
            self.options.renewal,
            self._trouble.report,
            self._beat_soon,
        )
        self._dispatcher = Dispatcher(app, self.options, self._slots, self._make_run, self._begin_calls)
        turns = SuspectTurns(SuspectLock(lambda: app.store.identity), self._slots, app.clock)
        self._claimer = SlotClaimer(
            app,
            self._trouble,
            self.options,
            self._slots,
            self._dispatcher,
            turns,
            ClaimConditions(self._leases.is_idle, lambda: self._watchdog.is_blocked),
        )
        self._watchdog = Watchdog(
            app.clock,
            self.options.stall_after,
            self._trouble.report,
            self._claimer.wake,
            self._give_back_jobs,
            self._beat_soon,
        )
        self._background: set[asyncio.Task[None]] = set()
        self._executor = Executor(
            app,
            self.options,
            self._slots.release,
            self._end_run,
            self._trouble.report,
            self._children,
            self._end_reason,
        )
        self._upkeep_loop = UpkeepLoop(
            app.engine, app.clock, self._trouble, lambda: app.archiver is None, self.options.upkeep_every
        )
        self._started_at = app.clock.time()

    async def run(self, *, signals: bool = False, is_program: bool = False) -> None:
        """Work until stopped, then drain. If canceled, release all jobs without waiting for handlers.

        `is_program`: the program is this worker and nothing else. If it ends although nothing has stopped it,
        a handler may be the cause: for the jobs that run, this counts like the death of the worker.
        Raises StoreReplaced, without waiting for handlers, if the store is deleted or replaced.
        """
        refuse_in_child()
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        self._is_program, self._has_ended = is_program, Future[None]()
        self._has_ended.set_running_or_notify_cancel()  # so that a canceled wait does not cancel it
        self._trouble.watch_for_lost_store(self._report_lost_store)
        self.app.client.before_close.append(self._end_with_app)
        try:
            async with self._services(signals):
                await self._claim_until_stopped()
        finally:
            self.app.client.before_close.remove(self._end_with_app)
            self._has_ended.set_result(None)
        if self._lost_store is not None:
            raise self._lost_store

    async def _claim_until_stopped(self) -> None:
        claiming = EngineTask(self.app.engine, self._claimer.run)
        try:
            await claiming.start()
            await wait_for_first(claiming.wait(), self._stopping.wait())
        except BaseException:
            self._skip_grace.set()
            if self._end_reason() is StopReason.CRASH:
                log.error("worker %s ends although nothing has stopped it: it releases its jobs", self.id)
            raise
        finally:
            self._claimer.stop()
            if claiming.error is not None:
                self._trouble.report("cannot claim jobs, stopping", claiming.error)
            await self._drain(claiming)
        if claiming.error is not None and not self._has_abandoned_claim:
            raise claiming.error

    def stop(self) -> None:
        """Drain and end; a second call skips the grace."""
        if self._stopping.is_set():
            log.info("worker %s was stopped again: it stops its handlers without waiting for them", self.id)
            self._skip_grace.set()
        self._claimer.stop()  # at once: a pass on the engine's thread may be about to claim
        self._stopping.set()

    def _report_lost_store(self, error: StoreReplaced) -> None:
        """Called from any thread."""
        with suppress(RuntimeError):  # the loop was closed: the worker has ended
            self._loop.call_soon_threadsafe(self._lose_store, error)

    def _lose_store(self, error: StoreReplaced) -> None:
        """Stop: nothing can be written any more, not even the outcomes of the running handlers."""
        if self._lost_store is None:
            log.error("worker %s stops, its store is gone: %s", self.id, error)
            self._lost_store = error
            self._skip_grace.set()
            self.stop()

    def pause(self) -> None:
        """Claim nothing until resumed; running handlers go on."""
        self._claimer.pause(True)

    def resume(self) -> None:
        """Claim again."""
        self._claimer.pause(False)

    def health(self) -> Health:
        """Figures for a health check: both times are a few seconds at most if the worker is well."""
        now = self.app.clock.monotonic()
        upkeep_age = None if self._upkeep_loop.last_run is None else now - self._upkeep_loop.last_run
        return Health(self.app.engine.stats().age, upkeep_age, len(self._slots.runs))

    def _make_run(self, job: JobRecord, sent_at: float) -> JobRun:
        """Make a run of a job that was just claimed and hold its lease. Called on the engine's loop."""
        run = JobRun(job, sent_at + self.options.lease, self._executor, self._loop)
        self._leases.add(run)
        return run

    def _begin_calls(self, calls: list[HandlerCall], prefetched: bool) -> None:
        """Start these calls on the main loop. Called on the engine's loop.

        Calls of an abandoned claim are dropped: other workers get their jobs when the leases expire.
        """
        if not self._has_abandoned_claim:
            self._loop.call_soon_threadsafe(self._start_calls, calls, prefetched)

    def _start_calls(self, calls: list[HandlerCall], prefetched: bool) -> None:
        for call in calls:
            self._executor.start(call, self._slots.wait_for_slot(call) if prefetched else None)
            if prefetched and self._stopping.is_set():  # claimed after `_drain` has stopped prefetched calls
                call.stop(StopReason.SHUTDOWN)

    def _end_run(self, run: JobRun) -> None:
        self._leases.remove(run)
        if not run.is_settling or run.call.is_suspect or (self.options.burst and self._leases.is_idle()):
            self._claimer.wake()

    def _end_reason(self) -> StopReason | None:
        """Why the worker is ending; None if it goes on. If it is ending, it claims no more."""
        if self._stopping.is_set():
            return StopReason.SHUTDOWN
        if self._task is not None and self._task.cancelling():
            self._claimer.stop()  # at once: the release of a job would carry its next claim
            return StopReason.CRASH if self._is_program else StopReason.SHUTDOWN
        return None

    async def _end_with_app(self) -> None:
        """End at once, because the app is being closed; return when the jobs are released."""
        with suppress(RuntimeError, TimeoutError):  # the loop was closed, or it is blocked
            self._loop.call_soon_threadsafe(self._stop_at_once)
            async with asyncio.timeout(END_TIMEOUT):
                await asyncio.wrap_future(self._has_ended)

    def _stop_at_once(self) -> None:
        self._skip_grace.set()
        self._claimer.stop()
        self._stopping.set()

    def _give_back_jobs(self) -> None:
        """Release the jobs that the blocked main loop could not begin. Called on the engine's loop."""
        if runs := self._dispatcher.give_back():
            log.warning(
                "the event loop is blocked by %s: giving back %d job%s that could not begin",
                self._watchdog.blocked_by or "something",
                len(runs),
                "" if len(runs) == 1 else "s",
            )
            self._start_in_background(self._release(runs))

    def _beat_soon(self) -> None:
        self._presence.report_soon()

    def _start_in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _release(self, runs: list[JobRun]) -> None:
        await self._executor.release_all(runs, CLOSE_TIMEOUT)
        for run in runs:
            self._leases.remove(run)

    async def _drain(self, claiming: EngineTask) -> None:
        """Let handlers finish for `grace`, then stop them and release the remaining jobs.

        This includes the jobs of a claim that was in flight when the worker stopped. A cancel ends the grace.
        """
        self._is_draining = True
        self._beat_soon()  # so that it is listed as draining
        try:
            await self._let_finish(claiming)
        except asyncio.CancelledError:
            self._skip_grace.set()
            await claiming.wait(CLOSE_TIMEOUT)
            await self._release_remaining(claiming)
            raise
        await self._release_remaining(claiming)

    async def _let_finish(self, claiming: EngineTask) -> None:
        """Wait for the claims in flight, then up to `grace` for the handlers."""
        await claiming.wait(CLOSE_TIMEOUT)
        log.info("worker %s claims no more; handlers may finish for %g s", self.id, self.options.grace)
        for call in self._slots.prefetched:
            call.stop(StopReason.SHUTDOWN)
        try:
            async with asyncio.timeout(self.options.grace):
                while (left := self._executor.pending) and not self._skip_grace.is_set():
                    await wait_for_first(asyncio.wait(left), self._skip_grace.wait())
        except TimeoutError:
            count = len(self._slots.calls)
            log.warning(
                "%d handler%s did not finish within the grace: the worker stops them and releases their jobs",
                count,
                "" if count == 1 else "s",
            )

    async def _release_remaining(self, claiming: EngineTask) -> None:
        """Stop all handlers, and release the jobs of those that do not end."""
        self._has_abandoned_claim = not claiming.is_done
        if self._has_abandoned_claim:
            claiming.cancel()
            log.warning(
                "the store does not answer: jobs of the last claim stay claimed until their leases expire"
            )
        reason = self._end_reason() or StopReason.SHUTDOWN
        for call in self._slots.calls:
            call.stop(reason if call.has_begun else StopReason.SHUTDOWN)
        if left := self._executor.pending:
            await asyncio.wait(left, timeout=STOP_TIMEOUT)
        remaining = self._slots.runs
        for call in self._slots.calls:
            self._slots.release(call)
        for run in remaining:
            self._leases.remove(run)
        await self._release(remaining)

    def _make_beat(self) -> Beat:
        declared, only = self.app.tasks, self.options.tasks
        tasks = [name for name in declared if only is None or name in only]
        versions = {name: declared[name].run_rules.version for name in listed_tasks(tasks) or ()}
        return Beat(
            worker=self.id,
            queues=self.options.queues,
            tasks=listed_tasks(tasks),
            concurrency=self.options.concurrency,
            running=self._slots.taken_count,
            blocked_by=self._watchdog.blocked_by,
            shares=self._slot_shares(),
            batches=batch_specs(self.app),
            versions=tuple([TaskVersion(*pair) for pair in versions.items() if pair[1] != FIRST_VERSION]),
            started_at=self._started_at,
            lease=self.options.lease,
            interval=self.options.beat_every,
            draining=self._is_draining,
        )

    def _slot_shares(self) -> tuple[SlotShare, ...]:
        """The slots that only thread tasks and only process tasks can use."""
        slots = {Runner.THREAD: self.options.thread_slots, Runner.PROCESS: self.options.process_slots}
        tasks_by_runner = {
            runner: tuple(n for n, t in self.app.tasks.items() if t.runner is runner) for runner in slots
        }
        return tuple(SlotShare(tasks, slots[runner]) for runner, tasks in tasks_by_runner.items() if tasks)

    async def _put_declared(self) -> None:
        """Store what is declared in code. An invalid declaration is an error of the program and is raised."""
        try:
            await self.app.put_declared(prune=self.options.prune_declared)
        except StoreError as error:
            log.warning(
                "cannot store the declared schedules and rules, continuing with those in the store: %s", error
            )
            self._trouble.report("cannot store the declared schedules and rules", error)

    @asynccontextmanager
    async def _services(self, signals: bool) -> AsyncIterator[None]:
        """Start everything that runs beside the handlers; stop it when the block ends."""
        await self.app.engine.start()
        switch_interval, capture = sys.getswitchinterval(), JobLogHandler()
        sys.setswitchinterval(min(switch_interval, SWITCH_INTERVAL))
        logging.getLogger().addHandler(capture)
        presence = Presence(self.app.engine, self._trouble, self._make_beat, self.options.beat_every)
        self._presence = presence
        observers, tasks = Observers(self.app, self._trouble), list[asyncio.Task[None]]()
        writes = log_of_writes(self.app.clock, self._trouble.report)
        engine = self.app.engine
        engine.watch_writes(writes)
        self._children.lock_descriptor = presence.descriptor
        storing = asyncio.create_task(self.app.engine.call(self._trouble.store_forever))
        try:
            with StopSignals(self.stop) if signals else nullcontext():
                await presence.report()
                await observers.start()
                await self._put_declared()
                loops = self._background_loops(presence)
                tasks += start_loops(self.app.engine, loops, self._trouble.report)
                if self.options.upkeep and (archive := self.app.archiver) is not None:
                    interval = self.options.upkeep_every
                    archiving = archive_forever(self.app, archive, interval, self._trouble.report)
                    tasks.append(asyncio.create_task(archiving))
                yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await observers.close()
            self._trouble.close()
            if not self._has_abandoned_claim:
                await presence.report(gone=True)
            await self._trouble.finish_storing(storing, 0.0 if self._has_abandoned_claim else CLOSE_TIMEOUT)
            self._executor.close()
            await self._children.close()
            presence.close()
            engine.unwatch_writes(writes)
            logging.getLogger().removeHandler(capture)
            sys.setswitchinterval(switch_interval)

    def _background_loops(self, presence: Presence) -> list[LoopFunction]:
        """The loops that run beside the handlers, on the engine's loop."""
        self._watchdog.attach()
        loops: list[LoopFunction] = [self._leases.renew_forever, self._leases.watch_cancels]
        loops.append(self._watchdog.run)
        loops.append(presence.report_forever)
        if self.options.upkeep:
            loops.append(self._upkeep_loop.run)
        return loops
