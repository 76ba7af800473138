"""Writes the outcomes of attempts, and retries while their leases last."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial

from errandry.api.app import Errandry
from errandry.claims.leases import StopReason, settle_all
from errandry.claims.pending_outcome import RETRY_AFTER, PendingOutcome
from errandry.claims.trouble import OnTrouble
from errandry.codec.redaction import redact_text
from errandry.core.answer import ALREADY, WRITTEN, Answer, Lost
from errandry.core.command import CompleteOutcome, FailOutcome, Outcome, ReleaseOutcome, RemoveJobs, Settle
from errandry.core.job import Failure
from errandry.core.state import Reason
from errandry.errors import ErrandryError, InvalidValue, describe_loss
from errandry.worker.attempt_log import AttemptLog
from errandry.worker.handler_call import JobRun
from errandry.worker.options import WorkerOptions

log = logging.getLogger("errandry.worker")

OnSettled = Callable[[JobRun], None]


class Settler:
    """Writes outcomes by callbacks, so that no task has to wait for the answer."""

    def __init__(self, app: Errandry, options: WorkerOptions, on_trouble: OnTrouble) -> None:
        self._app, self._options, self._on_trouble = app, options, on_trouble
        self._attempt_log = AttemptLog(app)
        self._open_count = 0
        self._pending: asyncio.Future[None] | None = None

    @property
    def pending(self) -> asyncio.Future[None] | None:
        """A future that is done when all outcomes are written; None if they are."""
        if self._open_count and self._pending is None:
            self._pending = asyncio.get_running_loop().create_future()
        return self._pending

    def settle(self, run: JobRun, outcome: Outcome | None, on_settled: OnSettled) -> None:
        """Write an outcome, if there is one; call `on_settled` when it is written, or never will be.

        The lease is renewed while the store cannot write the outcome.
        """
        self._open_count += 1
        self._attempt_log.note_end(run, outcome)
        if outcome is None or run.is_released:
            self._finish(run, on_settled)
            if run.is_lost and not run.is_released:
                self._attempt_log.write_loss(run, "its lease is lost, another worker may run the job")
        else:
            self._send(run, PendingOutcome(run, outcome), on_settled)

    def discard(self, run: JobRun, why: str, on_settled: OnSettled) -> None:
        """Complete and remove a job whose handler cannot be called."""
        run.is_discarded = True
        self.settle(run, CompleteOutcome(), partial(self._send_removal, on_settled))
        self._attempt_log.write_discard(run, why)

    def _send_removal(self, on_settled: OnSettled, run: JobRun) -> None:
        self._open_count += 1
        on_answer = partial(self._handle_removal, run, on_settled)
        try:
            self._app.engine.send(RemoveJobs(ids=(run.job.id,)), on_answer, run.loop)
        except ErrandryError as error:
            on_answer(error)

    def _handle_removal(self, run: JobRun, on_settled: OnSettled, answer: Answer) -> None:
        if isinstance(answer, ErrandryError):
            log.warning("cannot remove %s, it stays as completed: %s", run, answer)
            self._report("cannot remove a job that was discarded", run, answer)
        self._finish(run, on_settled)

    async def release_all(self, runs: Sequence[JobRun], timeout: float) -> None:
        """Release these jobs; what their handlers return later is not written."""
        for run in runs:
            run.is_released = True
        releases = [
            Settle(run.ref, ReleaseOutcome(crashed=run.stop_reason is StopReason.CRASH)) for run in runs
        ]
        answers = await settle_all(self._app.engine, releases, self._on_trouble, timeout)
        for run, release, answer in zip(runs, releases, answers, strict=True):
            if answer in (WRITTEN, ALREADY):
                self._attempt_log.write(run, release.outcome)

    def note(self, run: JobRun) -> None:
        """Write what a run has noted."""
        if (note := run.take_notes()) is not None:
            try:
                self._app.engine.send(note, partial(self._handle_note, run), run.loop)
            except ErrandryError as error:
                self._handle_note(run, error)

    def _handle_note(self, run: JobRun, answer: Answer) -> None:
        if isinstance(answer, ErrandryError):
            log.warning("%s: its progress and log lines could not be written, dropping them: %s", run, answer)
            self._report("cannot write progress and log lines of jobs", run, answer)

    def _send(self, run: JobRun, pending: PendingOutcome, on_settled: OnSettled) -> None:
        """Send the notes of a run, then its outcome."""
        if pending.is_too_late(self._app.clock.monotonic(), self._on_trouble):
            self._finish(run, on_settled)
            return
        run.is_settling = True
        self.note(run)
        on_answer = partial(self._handle_answer, run, pending, on_settled)
        try:
            self._app.engine.send(Settle(run.ref, pending.outcome), on_answer, run.loop)
        except ErrandryError as error:
            on_answer(error)

    def _handle_answer(
        self, run: JobRun, pending: PendingOutcome, on_settled: OnSettled, answer: Answer
    ) -> None:
        is_written = answer is WRITTEN or answer is ALREADY
        if not is_written and not run.is_released:
            if pending.should_retry(answer, self._on_trouble, self._redactor_for(run)):
                run.is_settling = pending.in_doubt  # if it was written, there is no lease to renew or to lose
                delay = min(RETRY_AFTER, self._options.renewal)
                run.loop.call_later(delay, self._send, run, pending, on_settled)
                return
            if isinstance(answer, InvalidValue) and isinstance(pending.outcome, CompleteOutcome):
                failure = Failure(Reason.UNRECOVERABLE, type(answer).__name__, str(answer))  # of its result
                self._send(run, PendingOutcome(run, FailOutcome(failure)), on_settled)
                return
        try:
            if is_written:
                self._attempt_log.write(run, pending.outcome)
            elif not run.is_released:
                self._log_unwritten(run, answer)
        finally:  # a filter of the program's logging may raise
            self._finish(run, on_settled)

    def _log_unwritten(self, run: JobRun, answer: Answer) -> None:
        """Log and report that the outcome of a run is given up."""
        if isinstance(answer, ErrandryError):
            log.error("%s: giving up on its outcome, which could not be written: %s", run, answer)
            self._report("gave up on an outcome", run, answer)
        else:
            why = describe_loss(answer.cause) if isinstance(answer, Lost) else answer
            self._attempt_log.write_loss(run, f"it came too late, {why}")

    def _report(self, what: str, run: JobRun, error: ErrandryError) -> None:
        self._on_trouble(what, error, self._redactor_for(run))

    def _redactor_for(self, run: JobRun) -> Callable[[str], str]:
        """A function that removes the redacted arguments of the job from a text."""
        return partial(redact_text, jobs=(run.job,), codec=self._app.codec)

    def _finish(self, run: JobRun, on_settled: OnSettled) -> None:
        self._open_count -= 1
        if self._pending is not None and not self._open_count:
            self._pending.set_result(None)
            self._pending = None
        on_settled(run)
