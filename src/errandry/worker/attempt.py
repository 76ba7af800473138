"""One call of a handler through the middleware, and an outcome for each of its jobs made of how that ended.

The same in a worker and in a child process of it: nothing here reads or writes the store.
"""

import asyncio
import logging
import os
import traceback
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Any

from msgspec.structs import replace

from errandry import failpoint
from errandry.api.app import CallNext, Errandry
from errandry.api.context import JobContext, enter
from errandry.api.flow import spawned
from errandry.api.outcome import (
    Cancel,
    Fail,
    HandlerOutcome,
    Retry,
    Snooze,
    SuspendForChildren,
    SuspendForSignal,
    SuspendForSleep,
)
from errandry.api.task import Task
from errandry.codec.json_codec import Codec, DocumentInfo, to_json
from errandry.codec.redaction import Redactor
from errandry.core.command import (
    CompleteOutcome,
    FailOutcome,
    GiveUpOutcome,
    Outcome,
    ReleaseOutcome,
    RetryOutcome,
    Settle,
    SnoozeOutcome,
)
from errandry.core.flow import AwaitOutcome
from errandry.core.job import Failure, JobRecord
from errandry.core.state import Reason
from errandry.core.step import WaitOutcome
from errandry.errors import InvalidValue
from errandry.worker.handler_call import HandlerCall, JobRun, StopReason

log = logging.getLogger("errandry.worker")

HandlerArguments = dict[str, Any]
Outcomes = list[Outcome | None]
"""One for each run of a batch, in their order; None where nothing may be written any more."""
CallPlainHandler = Callable[[Callable[[], Any], HandlerCall], Awaitable[Any]]
"""How a plain function is called: it may block, so not on a loop that others share."""


class AttemptRunner:
    """Calls async handlers on the loop it is used on, plain functions as `call` does it.

    Results are sealed by `codec`.
    """

    def __init__(self, app: Errandry, codec: Codec, call: CallPlainHandler) -> None:
        self._app, self._codec, self._call = app, codec, call

    async def outcomes(
        self, batch: HandlerCall, task: Task[..., Any], arguments: list[HandlerArguments]
    ) -> Outcomes:
        """How the call ended for each of its jobs."""
        if batch.size is not None:
            batch.share()
        hiding = Redactor(task.rules.redact, arguments) if task.rules.redact else None
        if hiding is not None:
            for ctx in {batch.ctx, *(run.ctx for run in batch.runs)}:
                ctx.hide(hiding.text)
        try:
            outcomes = self._returned(batch, task, await self._call_of(batch, task, arguments))
        except asyncio.CancelledError as error:
            outcomes = self.stopped(batch, error)
        except BaseException as error:
            outcomes = self.raised(batch, task, error.with_traceback(_outside(error.__traceback__)))
        return outcomes if hiding is None else [hiding.outcome(one) for one in outcomes]

    def stopped(self, batch: HandlerCall, error: BaseException) -> Outcomes:
        """What becomes of jobs whose handler was told to stop and did, or had to be left."""
        return [self.stop(run, error) for run in batch.runs]

    def raised(self, batch: HandlerCall, task: Task[..., Any], error: BaseException) -> Outcomes:
        """What becomes of jobs whose handler raised `error`, by the rules of their task."""
        if not isinstance(error, HandlerOutcome) and not batch.is_stopped:
            job = batch.runs[0].job
            where = f"{batch}, attempt {job.attempts} of {job.max_attempts}"
            info = None if task.rules.redact else error  # whose words may be secret
            log.warning("%s raised %s", where, failure(error).type, exc_info=info)
        return [self._ended(run, task, error) for run in batch.runs]

    def stop(self, run: JobRun, error: BaseException) -> Outcome | None:
        """What becomes of one job that was told to stop, or whose handler ended with `error` by itself."""
        match run.stopped:
            case StopReason.CANCEL:
                return GiveUpOutcome()
            case StopReason.TIMEOUT:
                why = f"the handler ran longer than {run.batch.timeout:g} s"
                return self.retry(run.job, Failure(Reason.TIMEOUT, "TimeoutError", why))
            case StopReason.SHUTDOWN:
                return ReleaseOutcome()
            case StopReason.LOST:
                return None
            case None:
                return self.retry(run.job, failure(error))

    def retry(self, job: JobRecord, failure: Failure) -> RetryOutcome:
        """Another try, after what a registered function says if the job names one."""
        name = job.backoff.function if job.backoff is not None else None
        if name not in self._app.backoffs:
            return RetryOutcome(failure)
        try:
            return RetryOutcome(failure, self._app.backoffs[name](job.attempts))
        except Exception as error:
            log.warning("job %s (%s): its backoff %s is of no use: %s", job.id, job.task, name, error)
            return RetryOutcome(failure)

    def _call_of(
        self, batch: HandlerCall, task: Task[..., Any], arguments: list[HandlerArguments]
    ) -> Awaitable[Any]:
        """The call, to be awaited; its context is entered."""
        ctx = batch.ctx
        enter(ctx)
        given = arguments[0] if batch.size is None else task.signature.gathered(arguments)
        if self._app.middlewares:
            return self._wrapped(batch, task, given)(ctx)
        return self.handle(batch, task, given, ctx)

    def _wrapped(self, batch: HandlerCall, task: Task[..., Any], arguments: HandlerArguments) -> CallNext:
        call: CallNext = partial(self.handle, batch, task, arguments)
        for middleware in reversed(self._app.middlewares):
            call = partial(_through, middleware, call)
        return call

    async def handle(
        self, batch: HandlerCall, task: Task[..., Any], arguments: HandlerArguments, ctx: JobContext
    ) -> Any:
        """Call the handler itself. The watchdog finds `batch` in this frame."""
        failpoint.reach("before_handler")
        if task.signature.context is not None:
            arguments = {**arguments, task.signature.context: ctx}
        if task.is_async:
            return await task.function(**arguments)
        return await self._call(partial(task.function, **arguments), batch)

    def _returned(self, batch: HandlerCall, task: Task[..., Any], value: Any) -> Outcomes:
        if task.rules.batch is None:
            return [self._completed(batch.runs[0].job, value)]
        try:
            values = _each(task.name, value, len(batch.runs))
        except InvalidValue as error:
            log.warning("%s: %s", str(batch), error)
            return [_unusable(error)] * len(batch.runs)
        return [self._said(run, task, one) for run, one in zip(batch.runs, values, strict=True)]

    def _said(self, run: JobRun, task: Task[..., Any], value: Any) -> Outcome | None:
        """What a batch handler says of one of its jobs: an exception, as if it had raised it, or a result."""
        if not isinstance(value, BaseException):
            return self._completed(run.job, value)
        if not isinstance(value, HandlerOutcome):
            log.warning("job %s (%s) ended with %s", run.job.id, run.job.task, failure(value).type)
        return self._ended(run, task, value)

    def _ended(self, run: JobRun, task: Task[..., Any], error: BaseException) -> Outcome | None:
        """What becomes of one job for which `error` was raised."""
        if run.stopped is not None:
            return self.stop(run, error)
        match error:
            case Retry(after=after, pause_group=pause_group):
                why = failure(error)
                outcome = self.retry(run.job, why) if after is None else RetryOutcome(why, after)
                return replace(outcome, pause_group=pause_group)
            case Snooze(after=after):
                return SnoozeOutcome(after)
            case SuspendForSleep() | SuspendForSignal() | SuspendForChildren():
                return _going_on(run, error)
            case Fail():
                return FailOutcome(failure(error, Reason.UNRECOVERABLE))
            case Cancel():
                return GiveUpOutcome(failure(error, Reason.CANCELED))
        rules = task.rules
        if isinstance(error, Exception) and (
            isinstance(error, rules.fail_on) or not isinstance(error, rules.retry_on)
        ):
            return FailOutcome(failure(error, Reason.UNRECOVERABLE))
        return self.retry(run.job, failure(error))

    def _completed(self, job: JobRecord, value: Any) -> Outcome:
        try:
            text = to_json("result", value)
        except InvalidValue as error:
            return _unusable(error)
        return CompleteOutcome(self._codec.seal(text, DocumentInfo(job.id, job.task, "result")))


def _each(task: str, value: Any, count: int) -> Sequence[Any]:
    """What a batch handler has returned, for each of its jobs."""
    if value is None:
        return [None] * count
    if not isinstance(value, list | tuple):
        why = f"task {task} takes batches: return a list with a result for each job, or None"
        raise InvalidValue("results", type(value).__name__, why)
    if len(value) != count:
        raise InvalidValue(
            "results", len(value), f"task {task} was called for {count} jobs: return one for each"
        )
    return value


def _going_on(run: JobRun, word: SuspendForSleep | SuspendForSignal | SuspendForChildren) -> Outcome:
    """The handler is to be called again, when that is there which it needs."""
    match word:
        case SuspendForSleep(after=after, name=name):
            return SnoozeOutcome(after, name)
        case SuspendForSignal(name=name, timeout=timeout):
            return WaitOutcome(name, timeout)
        case SuspendForChildren(calls=calls, policy=policy):
            return _awaiting(run, calls, policy)


def _awaiting(run: JobRun, calls: tuple[Any, ...], policy: str) -> Outcome:
    """Refused for good what no other try would make right."""
    try:
        if not calls:
            raise InvalidValue("calls", calls, "give at least one call to wait for")
        awaited = AwaitOutcome(*spawned(run.job.id, calls, policy))
        Settle(run.ref, awaited)
    except (InvalidValue, ValueError) as error:
        return FailOutcome(Failure(Reason.UNRECOVERABLE, type(error).__name__, str(error)))
    return awaited


def _unusable(error: InvalidValue) -> Outcome:
    """For good: another try would return the same."""
    return FailOutcome(Failure(Reason.UNRECOVERABLE, type(error).__name__, str(error)))


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


async def _through(middleware: Any, call: CallNext, ctx: JobContext) -> Any:
    return await middleware(ctx, call)
