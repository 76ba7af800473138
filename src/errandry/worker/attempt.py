"""Calls a handler through the middleware and turns how the call ended into an outcome for each job.

Used by workers and by their child processes, so it never touches the store.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Any

from errandry import failpoint
from errandry.api.app import CallNext, Errandry
from errandry.api.attempt_outcome import (
    complete_outcome,
    error_outcome,
    retry_outcome,
    stop_outcome,
)
from errandry.api.context import JobContext, set_current
from errandry.api.flow import spawned_jobs
from errandry.api.outcome import (
    SuspendForChildren,
    SuspendForSignal,
    SuspendForSleep,
    returned_outcome,
    unwrap_group,
)
from errandry.api.task import RunRules, Task
from errandry.claims.failure import failure
from errandry.claims.leases import StopReason
from errandry.codec.json_codec import Codec
from errandry.codec.redaction import Redactor, all_redacted_names
from errandry.core.command import (
    FailOutcome,
    Outcome,
    RetryOutcome,
    Settle,
    SnoozeOutcome,
)
from errandry.core.flow import AwaitOutcome
from errandry.core.job import Failure, JobRecord
from errandry.core.state import Reason
from errandry.core.step import WaitOutcome
from errandry.errors import InvalidValue
from errandry.worker.handler_call import HandlerCall, JobRun

HandlerArguments = dict[str, Any]
Outcomes = list[Outcome | None]
"""One outcome for each run of a call, in their order; None if nothing may be written for the job."""
CallPlainHandler = Callable[[Callable[[], Any], HandlerCall], Awaitable[Any]]
"""Calls a plain function, which may block, away from any event loop that handlers share."""


EndReason = Callable[[], StopReason | None]
"""Returns why the worker is ending; None if it goes on."""


def go_on() -> None:
    """The `EndReason` where nothing but a stop ends the handler."""


class AttemptRunner:
    """Calls async handlers on the running loop, plain functions by `call_plain`. `codec` seals results."""

    def __init__(
        self, app: Errandry, codec: Codec, call_plain: CallPlainHandler, end_reason: EndReason = go_on
    ) -> None:
        self._app, self._codec, self._call_plain, self._end_reason = app, codec, call_plain, end_reason

    async def outcomes(
        self, call: HandlerCall, task: Task[..., Any], arguments: list[HandlerArguments]
    ) -> Outcomes:
        """Call the handler; an outcome for each job of the call."""
        if call.size is not None:
            call.share_context()
        names = _redacted_names(call, task)
        redactor = Redactor(names, arguments) if names else None
        if redactor is not None:
            for ctx in {call.ctx, *(run.ctx for run in call.runs)}:
                ctx._redact_with(redactor.text)
        try:
            outcomes = self._return_outcomes(call, task, await self._enter_call(call, task, arguments))
        except asyncio.CancelledError as error:
            outcomes = self.stop_outcomes(call, error)
        except BaseException as error:
            self._note_end(call)
            error = unwrap_group(error.with_traceback(_app_traceback(error.__traceback__)))
            outcomes = self.error_outcomes(call, task, error)
        return outcomes if redactor is None else [redactor.outcome(outcome) for outcome in outcomes]

    def stop_outcomes(self, call: HandlerCall, error: BaseException) -> Outcomes:
        """Outcomes of jobs whose handler was asked to stop, and stopped or was abandoned."""
        self._note_end(call)
        return [self.stop_outcome(run, error) for run in call.runs]

    def _note_end(self, call: HandlerCall) -> None:
        """Note that the jobs were stopped if their handler was canceled together with its worker.

        `asyncio.run` cancels all tasks when its program ends. The handler has not failed then.
        """
        if call.is_stopped or (reason := self._end_reason()) is None:
            return
        if (task := asyncio.current_task()) is not None and task.cancelling():
            for run in call.runs:
                run.mark_stopped(reason if call.has_begun else StopReason.SHUTDOWN)

    def error_outcomes(self, call: HandlerCall, task: Task[..., Any], error: BaseException) -> Outcomes:
        """Outcomes of jobs whose handler raised `error`, by the rules of their task."""
        return [self._error_outcome(run, task, error) for run in call.runs]

    def stop_outcome(self, run: JobRun, error: BaseException) -> Outcome | None:
        """The outcome of a job that was asked to stop, or whose handler raised CancelledError by itself."""
        if run.stop_reason is None:
            return self.retry_outcome(run.job, failure(error))
        task = self._app.tasks.get(run.job.task)
        rules = RunRules() if task is None else task.run_rules
        return stop_outcome(self._app.backoffs, run.job, rules, run.stop_reason, run.call.timeout)

    def retry_outcome(self, job: JobRecord, failure: Failure) -> RetryOutcome:
        """A retry; after the delay of a registered backoff function if the job names one."""
        return retry_outcome(self._app.backoffs, job, failure)

    def _enter_call(
        self, call: HandlerCall, task: Task[..., Any], arguments: list[HandlerArguments]
    ) -> Awaitable[Any]:
        """Set the current context, and return the handler's call through all middleware, to be awaited."""
        ctx = call.ctx
        set_current(ctx)
        given = arguments[0] if call.size is None else task.signature.batch_arguments(arguments)
        if self._app.middlewares:
            return self._wrap_in_middleware(call, task, given)(ctx)
        return self.call_handler(call, task, given, ctx)

    def _wrap_in_middleware(
        self, call: HandlerCall, task: Task[..., Any], arguments: HandlerArguments
    ) -> CallNext:
        call_next: CallNext = partial(self.call_handler, call, task, arguments)
        for middleware in reversed(self._app.middlewares):
            call_next = partial(_call_middleware, middleware, call_next)
        return call_next

    async def call_handler(
        self, call: HandlerCall, task: Task[..., Any], arguments: HandlerArguments, ctx: JobContext
    ) -> Any:
        """Call the handler itself. The watchdog reads `call` from this frame."""
        failpoint.reach("before_handler")
        if task.signature.context_parameter is not None:
            arguments = {**arguments, task.signature.context_parameter: ctx}
        if task.is_async:
            return await task.function(**arguments)
        return await self._call_plain(partial(task.function, **arguments), call)

    def _return_outcomes(self, call: HandlerCall, task: Task[..., Any], value: Any) -> Outcomes:
        if (returned := returned_outcome(value)) is not None:  # in a batch: for every job of the call
            return self.error_outcomes(call, task, returned)
        if task.run_rules.batch is None:
            return [self._complete_outcome(call.runs[0].job, value)]
        try:
            values = _results_per_job(task.name, value, len(call.runs))
        except InvalidValue as error:
            return [_invalid_value_outcome(error)] * len(call.runs)
        return [self._item_outcome(run, task, value) for run, value in zip(call.runs, values, strict=True)]

    def _item_outcome(self, run: JobRun, task: Task[..., Any], value: Any) -> Outcome | None:
        """The outcome of one job of a batch: by its result, or by an exception returned instead of one."""
        value = returned_outcome(value) or value
        if not isinstance(value, BaseException):
            return self._complete_outcome(run.job, value)
        return self._error_outcome(run, task, value)

    def _error_outcome(self, run: JobRun, task: Task[..., Any], error: BaseException) -> Outcome | None:
        """The outcome of one job for which `error` was raised."""
        if run.stop_reason is not None:
            return self.stop_outcome(run, error)
        if isinstance(error, SuspendForSleep | SuspendForSignal | SuspendForChildren):
            return _suspend_outcome(run, error)
        return error_outcome(self._app.backoffs, run.job, task.run_rules, error)

    def _complete_outcome(self, job: JobRecord, value: Any) -> Outcome:
        try:
            return complete_outcome(self._codec, self._app.tasks, job, value)
        except InvalidValue as error:
            return _invalid_value_outcome(error)


def _redacted_names(call: HandlerCall, task: Task[..., Any]) -> frozenset[str]:
    return all_redacted_names([run.job for run in call.runs], task.run_rules.redact)


def _results_per_job(task: str, value: Any, count: int) -> Sequence[Any]:
    """The results that a batch handler returned, one for each of its jobs."""
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


def _suspend_outcome(run: JobRun, error: SuspendForSleep | SuspendForSignal | SuspendForChildren) -> Outcome:
    """The outcome of a handler that is called again after a time, a signal, or the end of its children."""
    match error:
        case SuspendForSleep(after=after, name=name):
            return SnoozeOutcome(after, name)
        case SuspendForSignal(name=name, timeout=timeout):
            return WaitOutcome(name, timeout)
        case SuspendForChildren(calls=calls, policy=policy):
            return _await_outcome(run, calls, policy)


def _await_outcome(run: JobRun, calls: tuple[Any, ...], policy: str) -> Outcome:
    """Wait for new children; fail without a retry if they are invalid, because a retry would be the same."""
    try:
        if not calls:
            raise InvalidValue("calls", calls, "give at least one call to wait for")
        awaited = AwaitOutcome(*spawned_jobs(run.job.id, calls, policy))
        Settle(run.ref, awaited)
    except (InvalidValue, ValueError) as error:
        return FailOutcome(Failure(Reason.UNRECOVERABLE, type(error).__name__, str(error)))
    return awaited


def _invalid_value_outcome(error: InvalidValue) -> Outcome:
    """Fail without a retry: another attempt would return the same."""
    return FailOutcome(Failure(Reason.UNRECOVERABLE, type(error).__name__, str(error)))


def _app_traceback(trace: TracebackType | None) -> TracebackType | None:
    """The traceback without Errandry's own frames, so that it begins in the app's code."""
    outer = trace
    while outer is not None and outer.tb_frame.f_code.co_filename.startswith(_HERE):
        outer = outer.tb_next
    return outer or trace


_HERE = os.path.dirname(__file__)


async def _call_middleware(middleware: Any, call_next: CallNext, ctx: JobContext) -> Any:
    return await middleware(ctx, call_next)
