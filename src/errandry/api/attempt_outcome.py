"""Turns what an attempt returned or raised into the outcome to settle its job with."""

import logging
from collections.abc import Callable, Mapping
from typing import Any

from msgspec.structs import replace

from errandry.api.outcome import Cancel, Fail, Retry, Snooze
from errandry.api.task import RunRules, Task
from errandry.claims.failure import failure
from errandry.claims.leases import StopReason
from errandry.codec.json_codec import Codec, DocumentInfo, to_json
from errandry.codec.result_use import uses_of
from errandry.core.command import (
    CompleteOutcome,
    FailOutcome,
    GiveUpOutcome,
    Outcome,
    ReleaseOutcome,
    RetryOutcome,
    SnoozeOutcome,
)
from errandry.core.job import Failure, JobRecord
from errandry.core.state import Reason

log = logging.getLogger("errandry.worker")

Backoffs = Mapping[str, Callable[[int], float]]
"""The backoff functions of an app, by name."""


def complete_outcome(
    codec: Codec, tasks: Mapping[str, Task[..., Any]], job: JobRecord, result: Any
) -> CompleteOutcome:
    """The outcome with a result; InvalidValue if it cannot be written as JSON.

    The result of a flow's child must also fit the arguments that it fills, if `tasks` has their task in the
    version of the flow: InvalidArguments otherwise.
    """
    text = to_json("result", result)
    for use in uses_of(job.metadata):
        parent = tasks.get(use.task)
        if parent is not None and parent.run_rules.version == use.version:
            parent.signature.check_result(use.path, text, job.task)
    return CompleteOutcome(codec.seal(text, DocumentInfo(job.id, job.task, "result")))


def error_outcome(backoffs: Backoffs, job: JobRecord, rules: RunRules, error: BaseException) -> Outcome:
    """The outcome of an attempt that raised `error`, by the rules of its task."""
    match error:
        case Retry(after=after, pause_group=pause_group):
            failed = failure(error)
            outcome = retry_outcome(backoffs, job, failed) if after is None else RetryOutcome(failed, after)
            return replace(outcome, pause_group=pause_group)
        case Snooze(after=after):
            return SnoozeOutcome(after)
        case Fail():
            return FailOutcome(failure(error, Reason.UNRECOVERABLE))
        case Cancel():
            return GiveUpOutcome(failure(error, Reason.CANCELED))
    if isinstance(error, Exception) and _should_fail(type(error), rules):
        return FailOutcome(failure(error, Reason.UNRECOVERABLE))
    return retry_outcome(backoffs, job, failure(error))


def stop_outcome(
    backoffs: Backoffs, job: JobRecord, rules: RunRules, reason: StopReason, timeout: float | None
) -> Outcome | None:
    """The outcome of an attempt that was asked to stop; None if nothing may be written for the job.

    A timeout is a TimeoutError for the rules of the task.
    """
    match reason:
        case StopReason.CANCEL:
            return GiveUpOutcome()
        case StopReason.TIMEOUT:
            failed = Failure(Reason.TIMEOUT, "TimeoutError", f"the attempt took longer than {timeout:g} s")
            if _should_fail(TimeoutError, rules):
                return FailOutcome(failed)
            return retry_outcome(backoffs, job, failed)
        case StopReason.SHUTDOWN:
            return ReleaseOutcome()
        case StopReason.CRASH:
            return ReleaseOutcome(crashed=True)
        case StopReason.LOST:
            return None


def retry_outcome(backoffs: Backoffs, job: JobRecord, failed: Failure) -> RetryOutcome:
    """A retry; after the delay of a registered backoff function if the job names one."""
    name = job.backoff.function if job.backoff is not None else None
    if name is None or name not in backoffs:
        return RetryOutcome(failed)
    try:
        return RetryOutcome(failed, backoffs[name](job.attempts))
    except Exception as error:
        log.warning(
            "backoff function %s failed for job %s (%s), using the job's stored curve: %s",
            name,
            job.id,
            job.task,
            error,
        )
        return RetryOutcome(failed)


def _should_fail(error: type[Exception], rules: RunRules) -> bool:
    """Whether an error of this type fails the job at once."""
    return issubclass(error, rules.fail_on) or not issubclass(error, rules.retry_on)
