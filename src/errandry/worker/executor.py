"""One job, end to end: arguments read, handler called, outcome settled."""

import asyncio
import contextvars
import logging
import traceback
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from errandry import failpoint
from errandry import outcome as said
from errandry.app import Call, Errandry
from errandry.codec import About, to_json
from errandry.context import JobContext, entered
from errandry.core.command import (
    ALREADY,
    WRITTEN,
    Command,
    Complete,
    Fail,
    GiveUp,
    Outcome,
    Release,
    Remove,
    Retry,
    Settle,
    Snooze,
    Start,
)
from errandry.core.job import Failure, Job
from errandry.core.state import Reason
from errandry.errors import ErrandryError, InvalidArguments, InvalidValue, StoreClosed, StoreUnavailable
from errandry.task import Task
from errandry.worker.options import WorkerOptions
from errandry.worker.run import Run, Stop
from errandry.worker.thread import Threads

log = logging.getLogger("errandry.worker")


SETTLE_AGAIN = 1.0
"""How long an outcome that could not be written waits for another try."""


class Executor:
    """Runs handlers on the loop it is made on, and in threads.

    `returned` is told when a handler is done, so that its slot is free while its outcome is being written;
    `over` when that is written, or never will be.
    """

    def __init__(
        self,
        app: Errandry,
        options: WorkerOptions,
        returned: Callable[[Run], None],
        over: Callable[[Run], None],
    ) -> None:
        self._app, self._options, self._returned, self._over = app, options, returned, over
        self._threads = Threads()
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
            if (outcome := self._stopped(run, error)) is not None:
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
        task = self._app.tasks.get(job.task)
        if task is None:
            return self._unknown(job)
        try:
            payload = self._app.codec.unseal(job.payload, About(job.id, job.task, "payload"))
            arguments = task.signature.read(payload)
        except InvalidArguments as error:
            return self._invalid(run, task, error)
        except Exception as error:  # a codec that cannot read it: another worker may
            return self._retry(job, _failure(error))
        try:
            value = await self._called(run, task, arguments)
            return self._completed(job, value)
        except asyncio.CancelledError as error:
            return self._stopped(run, error)
        except BaseException as error:
            return self._raised(run, task, error)

    async def _called(self, run: Run, task: Task[..., Any], arguments: dict[str, Any]) -> Any:
        with entered(run.ctx):
            timer = self._timer(run)
            try:
                if self._app.middlewares:
                    return await self._wrapped(run, task, arguments)(run.ctx)
                return await self.handle(run, task, arguments, run.ctx)
            finally:
                if timer is not None:
                    timer.cancel()

    def _wrapped(self, run: Run, task: Task[..., Any], arguments: dict[str, Any]) -> Call:
        call: Call = partial(self.handle, run, task, arguments)
        for middleware in reversed(self._app.middlewares):
            call = partial(_through, middleware, call)
        return call

    async def handle(self, run: Run, task: Task[..., Any], arguments: dict[str, Any], ctx: JobContext) -> Any:
        """Call the handler itself. The watchdog finds `run` in this frame."""
        failpoint.reach("before_handler")
        if task.signature.context is not None:
            arguments = {**arguments, task.signature.context: ctx}
        if task.is_async:
            return await task.function(**arguments)
        return await self._in_thread(partial(task.function, **arguments), run)

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

    def _timer(self, run: Run) -> asyncio.TimerHandle | None:
        if run.job.timeout is None:
            return None
        return asyncio.get_running_loop().call_later(run.job.timeout, run.stop, Stop.TIMEOUT)

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

    def _completed(self, job: Job, value: Any) -> Outcome:
        try:
            text = to_json("result", value)
        except InvalidValue as error:
            return Fail(Failure(Reason.UNRECOVERABLE, type(error).__name__, str(error)))
        return Complete(self._app.codec.seal(text, About(job.id, job.task, "result")))

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

    def _stopped(self, run: Run, error: BaseException) -> Outcome | None:
        match run.stopped:
            case Stop.CANCEL:
                return GiveUp()
            case Stop.TIMEOUT:
                why = f"the handler ran longer than {run.job.timeout:g} s"
                return self._retry(run.job, Failure(Reason.TIMEOUT, "TimeoutError", why))
            case Stop.SHUTDOWN:
                return Release()
            case Stop.LOST:
                return None
            case None:
                return self._retry(run.job, _failure(error))

    def _raised(self, run: Run, task: Task[..., Any], error: BaseException) -> Outcome | None:
        if run.stopped is not None:
            return self._stopped(run, error)
        match error:
            case said.Retry(after=after):
                return (
                    Retry(_failure(error), after)
                    if after is not None
                    else self._retry(run.job, _failure(error))
                )
            case said.Snooze(after=after):
                return Snooze(after)
            case said.Fail():
                return Fail(_failure(error, Reason.UNRECOVERABLE))
            case said.Cancel():
                return GiveUp(_failure(error, Reason.CANCELED))
        job, rules = run.job, task.rules
        where = f"attempt {job.attempts} of {job.max_attempts}"
        log.warning(
            "job %s (%s), %s raised %s", job.id, job.task, where, _failure(error).type, exc_info=error
        )
        if isinstance(error, Exception) and (
            isinstance(error, rules.fail_on) or not isinstance(error, rules.retry_on)
        ):
            return Fail(_failure(error, Reason.UNRECOVERABLE))
        return self._retry(run.job, _failure(error))

    def _retry(self, job: Job, failure: Failure) -> Outcome:
        """Another try, after what a registered function says if the job names one."""
        name = job.backoff.function if job.backoff is not None else None
        if name not in self._app.backoffs:
            return Retry(failure)
        try:
            return Retry(failure, self._app.backoffs[name](job.attempts))
        except Exception as error:
            log.warning("job %s (%s): its backoff %s is of no use: %s", job.id, job.task, name, error)
            return Retry(failure)


async def _through(middleware: Any, call: Call, ctx: JobContext) -> Any:
    return await middleware(ctx, call)


def _failure(error: BaseException, kind: Reason = Reason.ERROR) -> Failure:
    trace = "".join(traceback.format_exception(error))
    try:
        message = str(error)
    except Exception:
        message = "it has no message that could be read"
    return Failure(kind, type(error).__name__, message, trace)
