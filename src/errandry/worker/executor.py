"""Executes handler calls: reads the arguments, calls the handler, and settles an outcome for each job."""

import asyncio
import contextvars
import logging
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

from errandry import failpoint
from errandry.api.app import Errandry
from errandry.api.flow import ChildResults, read_child_results
from errandry.api.job import Job
from errandry.api.task import Runner, Task
from errandry.api.threads import ThreadPool
from errandry.claims.failure import failure
from errandry.claims.trouble import OnTrouble, ignore_trouble
from errandry.codec.json_codec import DocumentInfo, document_info
from errandry.codec.redaction import redact_text, stored_redactor
from errandry.core.answer import ALREADY, WRITTEN, Answer
from errandry.core.argument_version import version_of
from errandry.core.command import CompleteOutcome, FailOutcome, Outcome, Start
from errandry.core.job import Failure, JobRecord
from errandry.core.state import Reason, State
from errandry.errors import (
    ErrandryError,
    InvalidArguments,
    ProcessDied,
    SealBroken,
    short_repr,
)
from errandry.worker.attempt import AttemptRunner, EndReason, HandlerArguments, Outcomes, go_on
from errandry.worker.children.pool import ChildPool
from errandry.worker.handler_call import HandlerCall, JobRun
from errandry.worker.options import WorkerOptions
from errandry.worker.settler import Settler
from errandry.worker.step_writer import StepWriter
from errandry.worker.unhandled import UnhandledJobs

log = logging.getLogger("errandry.worker")

_NO_LIMIT = nullcontext()
"""Used for calls without a timeout: with it, a handler that does nothing takes 5 to 8 % less time."""


class Executor:
    """Runs handlers on the loop of their call, in threads, and in `children` if there are any.

    `on_returned` is called when a handler has ended, so that its slot is free while outcomes are being
    written; for a suspect only after its outcome is written. `on_settled` is called when the outcome of a job
    is written, or never will be.
    """

    def __init__(
        self,
        app: Errandry,
        options: WorkerOptions,
        on_returned: Callable[[HandlerCall], None],
        on_settled: Callable[[JobRun], None],
        on_trouble: OnTrouble = ignore_trouble,
        children: ChildPool | None = None,
        end_reason: EndReason = go_on,
    ) -> None:
        self._app, self._options, self._on_returned, self._on_settled = app, options, on_returned, on_settled
        self._threads, self._children, self._on_trouble = ThreadPool(), children, on_trouble
        self._settler = Settler(app, options, on_trouble)
        self._attempts = AttemptRunner(app, app.codec, self._call_in_thread, end_reason)
        self._unhandled = UnhandledJobs(app, options, on_trouble)
        self.save_step = StepWriter(app, on_trouble).save
        self._tasks: dict[HandlerCall, asyncio.Task[None]] = {}
        self._abandoned: set[asyncio.Task[None]] = set()

    @property
    def pending(self) -> set[asyncio.Future[None]]:
        """Futures of running calls and of unwritten outcomes; empty when there are none."""
        unwritten = self._settler.pending
        return {*self._tasks.values()} if unwritten is None else {*self._tasks.values(), unwritten}

    def start(self, call: HandlerCall, slot_wait: Coroutine[Any, Any, None] | None = None) -> None:
        """Call the handler in its own context; for prefetched jobs, after `slot_wait` has returned."""
        execution, context = self._execute(call, slot_wait), contextvars.Context()
        self._tasks[call] = call.loop.create_task(execution, context=context)

    async def release_all(self, runs: Sequence[JobRun], timeout: float) -> None:
        """Release jobs whose handlers did not end in time."""
        await self._settler.release_all(runs, timeout)

    def close(self) -> None:
        self._threads.close()

    async def _execute(self, call: HandlerCall, slot_wait: Coroutine[Any, Any, None] | None) -> None:
        # Not earlier: a task that is canceled before its first step would never settle its jobs.
        call.handler = self._tasks[call]
        outcomes: Outcomes = []
        try:
            if slot_wait is not None or call.runs[0].job.state is State.CLAIMED:
                await self._start_jobs(call, slot_wait)
            outcomes = await self._outcomes(call)
        except asyncio.CancelledError as error:
            outcomes = self._attempts.stop_outcomes(call, error)
        except (Exception, SystemExit) as error:  # not from the handler: what it needs cannot be read
            outcomes = [self._attempts.retry_outcome(run.job, failure(error)) for run in call.runs]
        finally:
            call.handler = None
            self._tasks.pop(call, None)
        failpoint.reach("after_handler")
        if call.is_abandoned:
            call.end()
        else:
            self._settle_call(call, outcomes if call.begin() else [])

    def _settle_call(self, call: HandlerCall, outcomes: Outcomes) -> None:
        """Free the slot of a call and settle its jobs; without outcomes nothing is written for them."""
        runs, on_settled = call.runs, self._on_settled
        if call.is_suspect and runs:
            on_settled = partial(self._end_suspect, call)
        else:
            self._end_call(call)
        for run, outcome in zip(runs, outcomes or [None] * len(runs), strict=True):
            self._settler.settle(run, outcome, on_settled)

    def _end_call(self, call: HandlerCall) -> None:
        self._on_returned(call)
        if not call.is_abandoned:
            call.end()

    def _abandon(self, call: HandlerCall) -> None:
        """Settle the jobs of a call that has gone on for the grace after its timeout, and free its slot.

        What the handler returns later is discarded.
        """
        if (handler := call.handler) is None:
            return
        log.warning(
            "%s has gone on for %g s after its timeout: the worker gives up its slot and discards its result",
            str(call),
            self._options.grace,
        )
        call.handler, call.is_abandoned = None, True
        del self._tasks[call]
        self._abandoned.add(handler)
        handler.add_done_callback(self._abandoned.discard)
        self._settle_call(call, self._attempts.stop_outcomes(call, asyncio.CancelledError()))

    def _end_suspect(self, call: HandlerCall, run: JobRun) -> None:
        """Free the slot of a suspect after its outcome is written: the next one may end this process."""
        self._end_call(call)
        self._on_settled(run)

    def _settle_early(self, run: JobRun, outcome: Outcome | None) -> None:
        """Settle one job before the call begins; the call goes on without it."""
        self._settler.settle(run, outcome if run.call.remove(run) else None, self._on_settled)

    async def _start_jobs(self, call: HandlerCall, slot_wait: Coroutine[Any, Any, None] | None) -> None:
        """Wait for a slot if the jobs are prefetched, then write a Start for each.

        A handler begins only after the Start of its job is written.
        """
        if slot_wait is not None:
            if call.is_stopped:  # before there was a task to cancel: cancel it now
                call.request_stop(call.runs)
            await slot_wait
        self._settle_stopped(call)
        runs, sent_at = list(call.runs), self._app.clock.monotonic()
        answers = await self._submit_starts([Start(run.ref) for run in runs])
        for run, answer in zip(runs, answers, strict=True):
            if answer not in (WRITTEN, ALREADY):
                if isinstance(answer, ErrandryError):
                    self._on_trouble("cannot start claimed jobs", answer)
                log.log(
                    logging.WARNING if isinstance(answer, ErrandryError) else logging.INFO,
                    "not starting %s, the store did not accept its start: %s",
                    run,
                    answer,
                )
                self._settle_early(run, None)
        if call.runs:
            call.start_timeout(sent_at, self._options.grace)

    async def _submit_starts(self, commands: list[Start]) -> list[Answer]:
        """The store's answer to each command; errors are returned as answers."""
        try:
            return await self._app.engine.submit_all(commands)
        except ErrandryError as error:
            return [error] * len(commands)

    def _settle_stopped(self, call: HandlerCall) -> None:
        for run in [run for run in call.runs if run.stop_reason is not None]:
            self._settle_early(run, self._attempts.stop_outcome(run, asyncio.CancelledError()))

    async def _outcomes(self, call: HandlerCall) -> Outcomes:
        """Call the handler; an outcome for each job that was not settled early."""
        task = self._app.tasks.get(call.task)
        if task is None:
            return [await self._unhandled.unknown_task_outcome(run.job) for run in call.runs]
        if not call.runs:
            return []
        if self._children is not None and task.runner is Runner.PROCESS:
            payloads, _ = await self._prepare(call, task)
            return await self._call_in_child(self._children, call, task, payloads) if call.runs else []
        with _NO_LIMIT if call.timeout is None else self._time_limit(call):
            _, arguments = await self._prepare(call, task)
            if not call.runs or not call.begin():
                return []
            call.begun_at = self._app.clock.monotonic()
            return await self._attempts.outcomes(call, task, arguments)

    def _time_limit(self, call: HandlerCall) -> AbstractContextManager[None]:
        now, grace = self._app.clock.monotonic(), self._options.grace
        return call.time_limit(now, grace, partial(self._abandon, call))

    async def _prepare(
        self, call: HandlerCall, task: Task[..., Any]
    ) -> tuple[list[str], list[HandlerArguments]]:
        """Read what the handler needs: the steps and children of each job, and its arguments."""
        child_results: dict[JobRun, ChildResults] = {}
        for run in call.runs:
            job = run.job
            if job.children:
                child_results[run] = await read_child_results(self._app, job.id)
                run.ctx._set_children(child_results[run].children)
            if job.steps is not None:
                run.ctx._load_steps(await self._app.client.steps(job))
        return await self._read_arguments(call, task, child_results)

    async def _read_arguments(
        self, call: HandlerCall, task: Task[..., Any], child_results: dict[JobRun, ChildResults]
    ) -> tuple[list[str], list[HandlerArguments]]:
        """The payloads as JSON, and as arguments of the handler. Jobs that cannot run are settled early."""
        payloads, arguments = [], []
        for run in list(call.runs):
            if run.stop_reason is not None:
                self._settle_early(run, self._attempts.stop_outcome(run, asyncio.CancelledError()))
                continue
            job, payload, version = run.job, run.job.payload, version_of(run.job.metadata)
            try:
                payload = self._app.codec.unseal(job.payload, document_info(job, "payload"))
                if run in child_results:
                    payload = child_results[run].fill_payload(payload)
                if version != task.run_rules.version:
                    if version > task.run_rules.version:
                        self._settle_early(run, await self._unhandled.newer_version_outcome(job))
                        continue
                    payload = task.upgrades.apply(payload, version)
                arguments.append(task.signature.read(payload))
                payloads.append(payload)
            except InvalidArguments as error:
                unknown = task.signature.unknown_argument(payload)
                is_newer = unknown is not None and version == task.run_rules.version
                if is_newer and self._unhandled.should_release(job):
                    why = f"task {job.task!r} has no argument {short_repr(unknown)} in this worker"
                    self._settle_early(run, self._unhandled.release(job, why))
                else:
                    self._settle_invalid(run, task, error)
            except SealBroken as error:  # for good: a retry would read the same
                self._settle_early(run, FailOutcome(failure(error, Reason.INVALID_PAYLOAD)))
            except Exception as error:  # of an upgrade, or of this worker's codec: another worker may read it
                redactor = stored_redactor((job,), self._app.codec, task.run_rules.redact)
                outcome = self._attempts.retry_outcome(job, failure(error))
                self._settle_early(run, redactor.outcome(outcome))
        return payloads, arguments

    async def _call_in_thread(self, function: Callable[[], Any], call: HandlerCall) -> Any:
        """Call a plain function in a thread. On a stop, ask it to return; after the grace, abandon it.

        What it returns after a cancel request is kept. After another stop it may have left early, and the job
        runs again.
        """
        future = asyncio.ensure_future(self._threads.call(function))
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            call.ctx._request_stop()
            await asyncio.wait({future}, timeout=self._options.grace)
            if future.done() and call.is_canceled:
                return future.result()
            if not future.cancel() and future.exception() is not None:
                log.debug("%s raised while it was stopped", str(call), exc_info=future.exception())
            raise

    async def _call_in_child(
        self, children: ChildPool, call: HandlerCall, task: Task[..., Any], payloads: list[str]
    ) -> Outcomes:
        """Run a call in a child process. The death of the process is an error of the call like any other."""
        try:
            outcomes = await children.attempt(call, task, payloads)
            return [self._seal_result(*pair) for pair in zip(call.runs, outcomes, strict=True)]
        except asyncio.CancelledError as error:
            return self._attempts.stop_outcomes(call, error)
        except ProcessDied as error:
            death = error.with_traceback(None)  # its traceback would show this worker's code
            return self._attempts.error_outcomes(call, task, death)
        except Exception as error:
            return self._attempts.error_outcomes(call, task, error)

    def _seal_result(self, run: JobRun, outcome: Outcome | None) -> Outcome | None:
        if isinstance(outcome, CompleteOutcome) and outcome.result is not None:
            return CompleteOutcome(
                self._app.codec.seal(outcome.result, DocumentInfo(run.job.id, run.job.task, "result"))
            )
        return outcome

    def make_job(self, record: JobRecord) -> Job[Any]:
        return Job(self._app, record)

    def write_notes(self, run: JobRun) -> None:
        """Write the notes of a run while its call goes on; the settler writes the last ones."""
        if run.call.handler is not None:
            self._settler.note(run)

    def _settle_invalid(self, run: JobRun, task: Task[..., Any], error: InvalidArguments) -> None:
        """Fail or discard a job whose arguments the task does not accept, as its `on_invalid` says."""
        why = redact_text(str(error), (run.job,), self._app.codec, task.run_rules.redact)
        if task.run_rules.on_invalid == "fail":
            failed = Failure(Reason.INVALID_PAYLOAD, type(error).__name__, why)
            self._settle_early(run, FailOutcome(failed))
            return
        if run.call.remove(run):
            self._settler.discard(run, why, self._on_settled)
        else:
            self._settler.settle(run, None, self._on_settled)
