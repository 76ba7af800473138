"""The log line at the end of each attempt: how it ended, how long it took, and what comes next.

Fields of the record, for log systems: `job`, `task`, `queue`, `attempt`, `fence`, `outcome`, and where
they apply `duration` in seconds, `retry_at`, `reason`, `error_type` and `error`.
"""

import logging
from datetime import UTC, datetime
from typing import Any

from msgspec.structs import replace

from errandry.api.app import Errandry
from errandry.api.outcome import Cancel, Fail, Retry
from errandry.claims.leases import StopReason
from errandry.claims.log_record import log_with_fields
from errandry.codec.redaction import Redactor, stored_redactor
from errandry.core import move
from errandry.core.command import CompleteOutcome, Outcome, ReleaseOutcome, RetryOutcome, SnoozeOutcome
from errandry.core.duration import rough_duration
from errandry.core.flow import AwaitOutcome
from errandry.core.job import Failure, JobRecord
from errandry.core.printable import log_line
from errandry.core.state import CANCELED, FAILED, RUNNING, Reason
from errandry.core.step import WaitOutcome
from errandry.worker.handler_call import JobRun

log = logging.getLogger("errandry.worker")

ERROR_MAX = 1_000
"""Maximum number of characters of an error's message in a line."""
_ON_PURPOSE = {kind.__name__ for kind in (Retry, Fail, Cancel)}


class AttemptLog:
    """Writes one line for each attempt that has ended: errors of handlers without redacted arguments."""

    def __init__(self, app: Errandry) -> None:
        self._app = app

    def note_end(self, run: JobRun, outcome: Outcome | None) -> None:
        """Take the time at which an attempt ends, before its outcome is written."""
        if type(outcome) is not CompleteOutcome or log.isEnabledFor(logging.INFO):
            run.ended_at = self._app.clock.monotonic()

    def write(self, run: JobRun, outcome: Outcome) -> None:
        """Log that an attempt has ended with this outcome, which is written."""
        if type(outcome) is CompleteOutcome and (run.ended_at is None or run.is_discarded):
            return  # most lines are of this kind, and most workers that are busy do not log them
        now = self._app.clock.time()
        after = _job_after(run, outcome, now)
        if after.state is FAILED:
            self._write_failure(run, after, outcome)
        elif isinstance(outcome, RetryOutcome) and after.state is not CANCELED:
            self._write_retry(run, after, outcome.failure, now)
        elif log.isEnabledFor(logging.INFO):
            word, more = _describe_end(run, after, outcome, now)
            is_unhandled = isinstance(outcome, ReleaseOutcome) and outcome.unhandled
            fields = {"reason": str(Reason.NO_HANDLER)} if is_unhandled else {}
            self._write_line(logging.INFO, run, word, f"{word}{self._after(run)}{more}", fields)

    def write_loss(self, run: JobRun, why: str) -> None:
        """Log that an attempt has ended whose lease is lost, so that nothing is written for its job."""
        text = f"has ended{self._after(run)}, its outcome is discarded: {why}"
        self._write_line(logging.WARNING, run, "lost", text)

    def write_discard(self, run: JobRun, why: str) -> None:
        """Log that a job is removed because its arguments are invalid and its task discards such jobs."""
        text = f"did not begin, discarding the job: {log_line(why, ERROR_MAX)}"
        self._write_line(logging.WARNING, run, "discarded", text)

    def _write_retry(self, run: JobRun, after: JobRecord, failure: Failure, now: float) -> None:
        run_at = now if after.run_at is None else after.run_at
        fields = {"retry_at": datetime.fromtimestamp(run_at, UTC).isoformat(timespec="milliseconds")}
        text = f"failed{self._after(run)}, retrying {_next_time(run_at, now)}"
        self._write_error(logging.WARNING, run, "retrying", text, failure, fields)

    def _write_failure(self, run: JobRun, after: JobRecord, outcome: Outcome) -> None:
        failure: Failure | None = getattr(outcome, "failure", None)
        if failure is None:  # released too often: the store has recorded why
            recorded = after.errors[-1]
            failure = Failure(recorded.kind, recorded.type, recorded.message)
        text = f"failed for good{self._after(run)}"
        self._write_error(logging.ERROR, run, "failed", text, failure, {})

    def _write_error(
        self, level: int, run: JobRun, word: str, text: str, failure: Failure, fields: dict[str, Any]
    ) -> None:
        if not log.isEnabledFor(level):
            return
        redact = self._redactor(run).text
        kind, error = log_line(failure.type, ERROR_MAX), log_line(redact(failure.message), ERROR_MAX)
        fields |= {"reason": str(failure.kind), "error_type": kind, "error": error}
        self._write_line(
            level, run, word, f"{text}: {kind}: {error}", fields, redact(_new_traceback(run, failure))
        )

    def _write_line(
        self,
        level: int,
        run: JobRun,
        word: str,
        text: str,
        fields: dict[str, Any] | None = None,
        trace: str = "",
    ) -> None:
        job, duration = run.job, self._duration(run)
        own: dict[str, Any] = {
            "job": job.id,
            "task": job.task,
            "queue": job.queue,
            "attempt": job.attempts,
            "fence": job.fence,
            "outcome": word,
        }
        if duration is not None:
            own["duration"] = round(duration, 6)
        message = f"{run}: attempt {job.attempts} of {job.max_attempts} {text}"
        log_with_fields(log, level, message, {**own, **(fields or {})}, trace)

    def _redactor(self, run: JobRun) -> Redactor:
        """Replaces the redacted arguments of the job in texts."""
        task = self._app.tasks.get(run.job.task)
        declared = () if task is None else task.run_rules.redact
        return stored_redactor((run.job,), self._app.codec, declared)

    def _duration(self, run: JobRun) -> float | None:
        """Seconds from the call of the handler to its end; None if it was not called."""
        begun_at = run.call.begun_at
        if begun_at is None:
            return None
        return (self._app.clock.monotonic() if run.ended_at is None else run.ended_at) - begun_at

    def _after(self, run: JobRun) -> str:
        duration = self._duration(run)
        return "" if duration is None else f" after {duration:.3f} s"


def _job_after(run: JobRun, outcome: Outcome, now: float) -> JobRecord:
    """The job after this outcome, as the store has written it as far as the worker knows."""
    requested = run.stop_reason is StopReason.CANCEL
    job = replace(run.job, state=RUNNING, cancel_requested=requested or run.job.cancel_requested)
    return move.settled(job, outcome, now)


def _new_traceback(run: JobRun, failure: Failure) -> str:
    """The traceback, unless the line of another job of the same call has it.

    An outcome that was raised on purpose has none, unless it has a cause.
    """
    trace = failure.traceback.rstrip("\n")
    if failure.type in _ON_PURPOSE and trace.count("Traceback (most recent call last):") < 2:
        return ""
    if trace == run.call.logged_traceback:
        return ""
    run.call.logged_traceback = trace
    return trace


def _describe_end(run: JobRun, after: JobRecord, outcome: Outcome, now: float) -> tuple[str, str]:
    """The outcome in a word, and what comes next."""
    if after.state is CANCELED:
        failure: Failure | None = getattr(outcome, "failure", None)
        reason = "" if failure is None or failure.type != Cancel.__name__ else failure.message
        return "canceled", f": {log_line(reason, ERROR_MAX)}" if reason else ""
    run_at = now if after.run_at is None else after.run_at
    match outcome:
        case SnoozeOutcome():
            return "snoozed", f", running again {_next_time(run_at, now)}"
        case WaitOutcome(name=name):
            return "suspended", f", waiting for the signal {log_line(name, ERROR_MAX)}"
        case AwaitOutcome():
            return "suspended", ", waiting for its child jobs"
        case ReleaseOutcome(unhandled=unhandled):
            if unhandled:
                return "released", f", this worker cannot run it: claimable again {_next_time(run_at, now)}"
            return "released", ", the worker stops" if run.stop_reason is StopReason.SHUTDOWN else ""
    return "completed", ""


def _next_time(run_at: float, now: float) -> str:
    """When a job runs again: `at once`, or `at 2026-11-20 08:30:00 (in 40 s)`."""
    if run_at - now < 0.001:
        return "at once"
    wait = run_at - now
    length = f"{wait:.2g} s" if wait < 10 else rough_duration(wait)
    return f"at {datetime.fromtimestamp(run_at).astimezone():%Y-%m-%d %H:%M:%S} (in {length})"
