"""One call of a handler, end to end: arguments read, an attempt made of each job, their outcomes settled."""

import asyncio
import contextvars
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from errandry import failpoint
from errandry.api.app import Errandry
from errandry.api.flow import ChildResults
from errandry.api.task import Runner, Task
from errandry.codec.argument_version import version_of
from errandry.codec.json_codec import DocumentInfo, about
from errandry.core.answer import ALREADY, WRITTEN, Answer
from errandry.core.command import CompleteOutcome, FailOutcome, Outcome, ReleaseOutcome, Start
from errandry.core.job import Failure, JobRecord
from errandry.core.state import Reason, State
from errandry.errors import (
    ErrandryError,
    InvalidArguments,
    ProcessDied,
    SealBroken,
)
from errandry.worker.attempt import AttemptRunner, HandlerArguments, Outcomes, failure
from errandry.worker.children.pool import ChildPool
from errandry.worker.handler_call import HandlerCall, JobRun
from errandry.worker.options import WorkerOptions
from errandry.worker.settler import Settler
from errandry.worker.step_writer import StepWriter
from errandry.worker.threads import ThreadPool

log = logging.getLogger("errandry.worker")


class Executor:
    """Runs handlers on the loop it is made on, in threads, and in `children` where there are any.

    `returned` is told when a handler is done, so that its slot is free while outcomes are being written, but
    not that of a suspect; `over` when the outcome of a job is written, or never will be.
    """

    def __init__(
        self,
        app: Errandry,
        options: WorkerOptions,
        returned: Callable[[HandlerCall], None],
        over: Callable[[JobRun], None],
        children: ChildPool | None = None,
    ) -> None:
        self._app, self._options, self._returned, self._over = app, options, returned, over
        self._threads, self._children, self._settler = ThreadPool(), children, Settler(app, options)
        self._attempts = AttemptRunner(app, app.codec, self._in_thread)
        self.keep = StepWriter(app).keep
        self._calls: dict[HandlerCall, asyncio.Task[None]] = {}

    @property
    def work(self) -> set[asyncio.Future[None]]:
        """What is to be waited for until no handler runs and everything is written; empty when that is so."""
        rest = self._settler.rest
        return {*self._calls.values()} if rest is None else {*self._calls.values(), rest}

    def start(self, batch: HandlerCall, turn: Coroutine[Any, Any, None] | None = None) -> None:
        """Call the handler, in a context of its own; what was claimed ahead, when its `turn` has come."""
        work, context = self._execute(batch, turn), contextvars.Context()
        self._calls[batch] = batch.loop.create_task(work, context=context)

    def close(self) -> None:
        self._threads.close()

    async def _execute(self, batch: HandlerCall, turn: Coroutine[Any, Any, None] | None) -> None:
        batch.handler = self._calls[batch]  # not before: canceled then, it would never get here
        outcomes: Outcomes = []
        try:
            if turn is not None or batch.runs[0].job.state is State.CLAIMED:
                await self._begin(batch, turn)
            outcomes = await self._outcomes(batch)
        except asyncio.CancelledError as error:
            outcomes = self._attempts.stopped(batch, error) if batch.is_stopped else []
        except Exception as error:  # not the handler's: what it needs could not be read
            log.warning("%s could not be called: %s", str(batch), error, exc_info=error)
            outcomes = [self._attempts.retry(run.job, failure(error)) for run in batch.runs]
        finally:
            batch.handler = None
            del self._calls[batch]
        failpoint.reach("after_handler")
        runs, over = batch.runs, self._over
        if batch.is_suspect and runs:
            over = partial(self._cleared, batch)
        else:
            self._end(batch)
        for run, outcome in zip(runs, outcomes or [None] * len(runs), strict=True):
            self._settler.settle(run, outcome, over)

    def _end(self, batch: HandlerCall) -> None:
        self._returned(batch)
        batch.end()

    def _cleared(self, batch: HandlerCall, run: JobRun) -> None:
        """A suspect has its slot until its outcome is written: the next one may end this process."""
        self._end(batch)
        self._over(run)

    def _leave(self, run: JobRun, outcome: Outcome | None) -> None:
        """Settle one job before the call, which goes on without it."""
        run.batch.leave(run)
        self._settler.settle(run, outcome, self._over)

    async def _begin(self, batch: HandlerCall, turn: Coroutine[Any, Any, None] | None) -> None:
        """Wait for the turn of what was claimed ahead; a handler begins only after each Start is written."""
        if turn is not None:
            if batch.is_stopped:  # told so when there was nothing to be stopped yet
                batch.heed(batch.runs)
            await turn
        self._leave_stopped(batch)
        runs = list(batch.runs)
        answers = await self._answers([Start(run.ref) for run in runs])
        for run, answer in zip(runs, answers, strict=True):
            if answer not in (WRITTEN, ALREADY):
                log.log(
                    logging.WARNING if isinstance(answer, ErrandryError) else logging.INFO,
                    "%s does not begin: %s",
                    run,
                    answer,
                )
                self._leave(run, None)
        if batch.runs:
            batch.begins(self._app.clock.monotonic(), self._options.grace)

    async def _answers(self, commands: list[Start]) -> list[Answer]:
        """What the store says to each; an error is a value, too."""
        try:
            return await self._app.engine.submit_all(commands)
        except ErrandryError as error:
            return [error] * len(commands)

    def _leave_stopped(self, batch: HandlerCall) -> None:
        for run in [run for run in batch.runs if run.stopped is not None]:
            self._leave(run, self._attempts.stop(run, asyncio.CancelledError()))

    async def _outcomes(self, batch: HandlerCall) -> Outcomes:
        """How the call ended for each job that had not left before."""
        task = self._app.tasks.get(batch.task)
        if task is None:
            return [self._unknown(run.job) for run in batch.runs]
        families: dict[JobRun, ChildResults] = {}
        for run in batch.runs:
            job = run.job
            if job.children:
                families[run] = await self._app.family(job.id)
                run.ctx.adopt(families[run].children)
            if job.steps is not None:
                run.ctx.load_steps(await self._app.read_steps(job))
        payloads, arguments = self._read(batch, task, families)
        if not batch.runs:
            return []
        if self._children is not None and task.runner is Runner.PROCESS:
            return await self._in_child(self._children, batch, task, payloads)
        if batch.timeout is None:
            return await self._attempts.outcomes(batch, task, arguments)
        with batch.timed():
            return await self._attempts.outcomes(batch, task, arguments)

    def _read(
        self, batch: HandlerCall, task: Task[..., Any], families: dict[JobRun, ChildResults]
    ) -> tuple[list[str], list[HandlerArguments]]:
        """What the jobs were enqueued with, as it is and as the handler takes it. Others leave."""
        payloads, arguments = [], []
        for run in list(batch.runs):
            if run.stopped is not None:
                self._leave(run, self._attempts.stop(run, asyncio.CancelledError()))
                continue
            job = run.job
            try:
                payload = self._app.codec.unseal(job.payload, about(job, "payload"))
                if run in families:
                    payload = families[run].filled(payload)
                if (version := version_of(job.metadata)) != task.rules.version:
                    if version > task.rules.version:
                        self._leave(run, self._newer(job, version))
                        continue
                    payload = task.upgrades.apply(payload, version)
                arguments.append(task.signature.read(payload))
                payloads.append(payload)
            except InvalidArguments as error:
                self._invalid(run, task, error)
            except SealBroken as error:  # and never will be better
                self._leave(run, FailOutcome(failure(error, Reason.INVALID_PAYLOAD)))
            except Exception as error:  # a codec that cannot read it: another worker may
                self._leave(run, self._attempts.retry(job, failure(error)))
        return payloads, arguments

    async def _in_thread(self, function: Callable[[], Any], batch: HandlerCall) -> Any:
        """A thread cannot be stopped: it is asked, waited for so long, and then left behind."""
        call = asyncio.ensure_future(self._threads.call(function))
        try:
            return await asyncio.shield(call)
        except asyncio.CancelledError:
            batch.ctx.stop()
            await asyncio.wait({call}, timeout=self._options.grace)
            if not call.cancel() and call.exception() is not None:
                log.debug("%s raised while it was stopped", str(batch), exc_info=call.exception())
            raise

    async def _in_child(
        self, children: ChildPool, batch: HandlerCall, task: Task[..., Any], payloads: list[str]
    ) -> Outcomes:
        """The same in another process, whose end is an error of this call like any other."""
        try:
            outcomes = await children.attempt(batch, task, payloads)
            return [self._sealed(*one) for one in zip(batch.runs, outcomes, strict=True)]
        except asyncio.CancelledError as error:
            return self._attempts.stopped(batch, error)
        except ProcessDied as error:
            dead = error.with_traceback(None)  # it would tell of this worker
            return self._attempts.raised(batch, task, dead)
        except Exception as error:
            return self._attempts.raised(batch, task, error)

    def _sealed(self, run: JobRun, outcome: Outcome | None) -> Outcome | None:
        if isinstance(outcome, CompleteOutcome) and outcome.result is not None:
            return CompleteOutcome(
                self._app.codec.seal(outcome.result, DocumentInfo(run.job.id, run.job.task, "result"))
            )
        return outcome

    def write_notes(self, run: JobRun) -> None:
        """Have what a run has noted written."""
        if run.batch.handler is not None:
            self._settler.note(run)

    def _newer(self, job: JobRecord, version: int) -> Outcome:
        """Its arguments are of a version that only a newer program knows: that may come."""
        log.info(
            "job %s (%s) has arguments of version %d: another worker may know it", job.id, job.task, version
        )
        return ReleaseOutcome(self._options.release_delay, Reason.NO_HANDLER)

    def _unknown(self, job: JobRecord) -> Outcome:
        if self._options.on_unknown == "fail":
            return FailOutcome(
                Failure(Reason.NO_HANDLER, "UnknownTask", f"no task {job.task!r} is declared in this worker")
            )
        return ReleaseOutcome(self._options.release_delay, Reason.NO_HANDLER)

    def _invalid(self, run: JobRun, task: Task[..., Any], error: InvalidArguments) -> None:
        """Arguments the task does not take: it fails, or goes, by the rules of the task."""
        if task.rules.on_invalid == "fail":
            self._leave(run, FailOutcome(Failure(Reason.INVALID_PAYLOAD, type(error).__name__, str(error))))
            return
        log.warning("job %s (%s) is discarded: %s", run.job.id, run.job.task, error)
        run.batch.leave(run)
        self._settler.discard(run, self._over)
