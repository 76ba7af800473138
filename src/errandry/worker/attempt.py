"""One attempt: the handler called through the middleware, and an outcome made of how that ended.

The same in a worker and in a child process of it: nothing here reads or writes the store.
"""

import asyncio
import logging
import os
import traceback
from collections.abc import Awaitable, Callable
from functools import partial
from types import TracebackType
from typing import Any

from errandry import failpoint
from errandry import outcome as said
from errandry.app import Call, Errandry
from errandry.codec import About, Codec, to_json
from errandry.context import JobContext, enter
from errandry.core.command import Complete, Fail, GiveUp, Outcome, Release, Retry, Snooze
from errandry.core.job import Failure, Job
from errandry.core.state import Reason
from errandry.errors import InvalidValue
from errandry.task import Task
from errandry.worker.run import Run, Stop

log = logging.getLogger("errandry.worker")

Arguments = dict[str, Any]
Plain = Callable[[Callable[[], Any], Run], Awaitable[Any]]
"""How a plain function is called: it may block, so not on a loop that others share."""


class Attempts:
    """Calls async handlers on the loop it is used on, plain functions as `call` does it.

    Results are sealed by `codec`.
    """

    def __init__(self, app: Errandry, codec: Codec, call: Plain) -> None:
        self._app, self._codec, self._call = app, codec, call

    async def outcome(self, run: Run, task: Task[..., Any], arguments: Arguments) -> Outcome | None:
        """How the attempt ended; None if nothing may be written any more."""
        try:
            value = await self._called(run, task, arguments)
            return self._completed(run.job, value)
        except asyncio.CancelledError as error:
            return self.stopped(run, error)
        except BaseException as error:
            return self.raised(run, task, error.with_traceback(_outside(error.__traceback__)))

    def stopped(self, run: Run, error: BaseException) -> Outcome | None:
        """What becomes of a job whose handler was told to stop and did, or had to be left."""
        match run.stopped:
            case Stop.CANCEL:
                return GiveUp()
            case Stop.TIMEOUT:
                why = f"the handler ran longer than {run.job.timeout:g} s"
                return self.retry(run.job, Failure(Reason.TIMEOUT, "TimeoutError", why))
            case Stop.SHUTDOWN:
                return Release()
            case Stop.LOST:
                return None
            case None:
                return self.retry(run.job, failure(error))

    def raised(self, run: Run, task: Task[..., Any], error: BaseException) -> Outcome | None:
        """What becomes of a job whose handler raised `error`, by the rules of its task."""
        if run.stopped is not None:
            return self.stopped(run, error)
        match error:
            case said.Retry(after=after):
                return (
                    Retry(failure(error), after) if after is not None else self.retry(run.job, failure(error))
                )
            case said.Snooze(after=after):
                return Snooze(after)
            case said.Fail():
                return Fail(failure(error, Reason.UNRECOVERABLE))
            case said.Cancel():
                return GiveUp(failure(error, Reason.CANCELED))
        job, rules = run.job, task.rules
        where = f"attempt {job.attempts} of {job.max_attempts}"
        log.warning("job %s (%s), %s raised %s", job.id, job.task, where, failure(error).type, exc_info=error)
        if isinstance(error, Exception) and (
            isinstance(error, rules.fail_on) or not isinstance(error, rules.retry_on)
        ):
            return Fail(failure(error, Reason.UNRECOVERABLE))
        return self.retry(run.job, failure(error))

    def retry(self, job: Job, failure: Failure) -> Outcome:
        """Another try, after what a registered function says if the job names one."""
        name = job.backoff.function if job.backoff is not None else None
        if name not in self._app.backoffs:
            return Retry(failure)
        try:
            return Retry(failure, self._app.backoffs[name](job.attempts))
        except Exception as error:
            log.warning("job %s (%s): its backoff %s is of no use: %s", job.id, job.task, name, error)
            return Retry(failure)

    async def _called(self, run: Run, task: Task[..., Any], arguments: Arguments) -> Any:
        enter(run.ctx)
        if self._app.middlewares:
            return await self._wrapped(run, task, arguments)(run.ctx)
        return await self.handle(run, task, arguments, run.ctx)

    def _wrapped(self, run: Run, task: Task[..., Any], arguments: Arguments) -> Call:
        call: Call = partial(self.handle, run, task, arguments)
        for middleware in reversed(self._app.middlewares):
            call = partial(_through, middleware, call)
        return call

    async def handle(self, run: Run, task: Task[..., Any], arguments: Arguments, ctx: JobContext) -> Any:
        """Call the handler itself. The watchdog finds `run` in this frame."""
        failpoint.reach("before_handler")
        if task.signature.context is not None:
            arguments = {**arguments, task.signature.context: ctx}
        if task.is_async:
            return await task.function(**arguments)
        return await self._call(partial(task.function, **arguments), run)

    def _completed(self, job: Job, value: Any) -> Outcome:
        try:
            text = to_json("result", value)
        except InvalidValue as error:
            return Fail(Failure(Reason.UNRECOVERABLE, type(error).__name__, str(error)))
        return Complete(self._codec.seal(text, About(job.id, job.task, "result")))


def failure(error: BaseException, kind: Reason = Reason.ERROR) -> Failure:
    """`error` for the record of a job."""
    trace = "".join(traceback.format_exception(error))
    try:
        message = str(error)
    except Exception:
        message = "it has no message that could be read"
    return Failure(kind, type(error).__name__, message, trace)


def _outside(trace: TracebackType | None) -> TracebackType | None:
    """A traceback from where it leaves Errandry: people look for their own code in it."""
    outer = trace
    while outer is not None and outer.tb_frame.f_code.co_filename.startswith(_HERE):
        outer = outer.tb_next
    return outer or trace


_HERE = os.path.dirname(__file__)


async def _through(middleware: Any, call: Call, ctx: JobContext) -> Any:
    return await middleware(ctx, call)
