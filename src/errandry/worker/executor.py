"""One job, end to end: arguments read, an attempt made, its outcome settled."""

import asyncio
import contextvars
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from errandry import failpoint
from errandry.app import Errandry
from errandry.codec import About
from errandry.core.command import (
    ALREADY,
    WRITTEN,
    Command,
    Complete,
    Fail,
    Outcome,
    Release,
    Remove,
    Settle,
    Start,
)
from errandry.core.job import Failure, Job
from errandry.core.state import Reason
from errandry.errors import (
    ErrandryError,
    InvalidArguments,
    InvalidValue,
    ProcessDied,
    SealBroken,
    StoreClosed,
    StoreUnavailable,
)
from errandry.task import Runner, Task
from errandry.worker.attempt import Attempts, failure
from errandry.worker.children import Children
from errandry.worker.options import WorkerOptions
from errandry.worker.run import Run
from errandry.worker.thread import Threads

log = logging.getLogger("errandry.worker")


SETTLE_AGAIN = 1.0
"""How long an outcome that could not be written waits for another try."""


class Executor:
    """Runs handlers on the loop it is made on, in threads, and in `children` where there are any.

    `returned` is told when a handler is done, so that its slot is free while its outcome is being written;
    `over` when that is written, or never will be.
    """

    def __init__(
        self,
        app: Errandry,
        options: WorkerOptions,
        returned: Callable[[Run], None],
        over: Callable[[Run], None],
        children: Children | None = None,
    ) -> None:
        self._app, self._options, self._returned, self._over = app, options, returned, over
        self._threads, self._children = Threads(), children
        self._attempts = Attempts(app, app.codec, self._in_thread)
        self.tasks: set[asyncio.Task[None]] = set()

    def start(self, run: Run, turn: Coroutine[Any, Any, None] | None = None) -> None:
        """Call the handler, in a context of its own; a job claimed ahead, when its turn has come."""
        run.handler = self._background(self._execute(run, turn), contextvars.Context())

    def close(self) -> None:
        self._threads.close()

    def _background(
        self, work: Coroutine[Any, Any, None], context: contextvars.Context | None = None
    ) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, context=context)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    async def _execute(self, run: Run, turn: Coroutine[Any, Any, None] | None) -> None:
        outcome: Outcome | None
        try:
            if turn is None or await self._may_begin(run, turn):
                outcome = await self._attempt(run)
            else:
                outcome = None
        except asyncio.CancelledError:
            outcome = None
        run.handler = None
        failpoint.reach("after_handler")
        self._returned(run)
        if outcome is not None:
            await self._settle(run, outcome)
        self._over(run)

    async def _may_begin(self, run: Run, turn: Coroutine[Any, Any, None]) -> bool:
        """Wait for the turn of a job claimed ahead; the handler begins only after its Start is written."""
        try:
            await turn
            answer = await self._app.engine.submit(Start(run.ref))
        except asyncio.CancelledError as error:
            if (outcome := self._attempts.stopped(run, error)) is not None:
                await self._settle(run, outcome)
            return False
        except ErrandryError as error:
            log.warning("job %s (%s) could not be started: %s", run.job.id, run.job.task, error)
            return False
        if answer not in (WRITTEN, ALREADY):
            log.info("job %s (%s) does not begin: %s", run.job.id, run.job.task, answer)
            return False
        run.begins(self._app.clock.monotonic(), self._options.grace)
        return True

    async def _attempt(self, run: Run) -> Outcome | None:
        """How the attempt ended; None if nothing may be written any more."""
        job = run.job
        if run.stopped is not None:  # before it began
            return self._attempts.stopped(run, asyncio.CancelledError())
        task = self._app.tasks.get(job.task)
        if task is None:
            return self._unknown(job)
        try:
            payload = self._app.codec.unseal(job.payload, About(job.id, job.task, "payload"))
            arguments = task.signature.read(payload)
        except InvalidArguments as error:
            return self._invalid(run, task, error)
        except SealBroken as error:  # and never will be better
            return Fail(failure(error, Reason.INVALID_PAYLOAD))
        except Exception as error:  # a codec that cannot read it: another worker may
            return self._attempts.retry(job, failure(error))
        if self._children is not None and task.runner is Runner.PROCESS:
            return await self._in_child(self._children, run, task, payload)
        if job.timeout is None:
            return await self._attempts.outcome(run, task, arguments)
        with run.timed():
            return await self._attempts.outcome(run, task, arguments)

    async def _in_thread(self, function: Callable[[], Any], run: Run) -> Any:
        """A thread cannot be stopped: it is asked, waited for so long, and then left behind."""
        call = asyncio.ensure_future(self._threads.call(function))
        try:
            return await asyncio.shield(call)
        except asyncio.CancelledError:
            run.ctx.stop()
            await asyncio.wait({call}, timeout=self._options.grace)
            if not call.cancel() and call.exception() is not None:
                log.debug("job %s raised while it was stopped", run.job.id, exc_info=call.exception())
            raise

    async def _in_child(
        self, children: Children, run: Run, task: Task[..., Any], payload: str
    ) -> Outcome | None:
        """The same in another process, whose end is an error of this attempt like any other."""
        try:
            outcome = await children.attempt(run, task, payload)
            if isinstance(outcome, Complete) and outcome.result is not None:
                about = About(run.job.id, run.job.task, "result")
                return Complete(self._app.codec.seal(outcome.result, about))
            return outcome
        except asyncio.CancelledError as error:
            return self._attempts.stopped(run, error)
        except ProcessDied as error:
            return self._attempts.raised(
                run, task, error.with_traceback(None)
            )  # it would tell of this worker
        except Exception as error:
            return self._attempts.raised(run, task, error)

    def write_notes(self, run: Run) -> None:
        """Have what a run has noted written."""
        if run.handler is not None and (note := run.notes()) is not None:
            self._background(self._submitted(note))

    async def _submitted(self, command: Command) -> None:
        try:
            await self._app.engine.submit(command)
        except ErrandryError as error:
            log.warning("%s could not be written: %s", type(command).__name__, error)

    async def _settle(self, run: Run, outcome: Outcome) -> None:
        """Have the outcome written. While the store cannot, the lease is kept and it is sent again."""
        name, tries = f"job {run.job.id} ({run.job.task})", 0
        while not run.is_lost:
            run.is_settling = True
            try:
                await self._send(run, outcome)
                return
            except ErrandryError as error:
                if not isinstance(error, StoreUnavailable) or isinstance(error, StoreClosed):
                    log.error("%s: its outcome could not be written: %s", name, error)
                    return
                if not tries:
                    log.warning("%s: its outcome cannot be written yet: %s", name, error)
            tries, run.is_settling = tries + 1, False
            await asyncio.sleep(min(SETTLE_AGAIN, self._options.renewal))
        log.error("%s: its outcome is lost with its lease", name)

    async def _send(self, run: Run, outcome: Outcome) -> None:
        if (note := run.notes()) is not None:
            await self._app.engine.submit(note)
        try:
            answer = await self._app.engine.submit(Settle(run.ref, outcome))
        except InvalidValue as error:
            failure = Failure(Reason.UNRECOVERABLE, type(error).__name__, str(error))
            answer = await self._app.engine.submit(Settle(run.ref, Fail(failure)))
        if answer not in (WRITTEN, ALREADY):
            log.warning("job %s (%s): its outcome came too late: %s", run.job.id, run.job.task, answer)

    def _unknown(self, job: Job) -> Outcome:
        if self._options.on_unknown == "fail":
            return Fail(
                Failure(Reason.NO_HANDLER, "UnknownTask", f"no task {job.task!r} is declared in this worker")
            )
        return Release(self._options.release_delay, Reason.NO_HANDLER)

    def _invalid(self, run: Run, task: Task[..., Any], error: InvalidArguments) -> Outcome | None:
        if task.rules.on_invalid == "fail":
            return Fail(Failure(Reason.INVALID_PAYLOAD, type(error).__name__, str(error)))
        log.warning("job %s (%s) is discarded: %s", run.job.id, run.job.task, error)
        self._background(self._discard(run))
        return None

    async def _discard(self, run: Run) -> None:
        await self._settle(run, Complete())
        await self._submitted(Remove(ids=(run.job.id,)))
