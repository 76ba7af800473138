"""Writes the results of steps while their handlers wait."""

import logging
from concurrent.futures import Future
from functools import partial

from errandry.api.app import Errandry
from errandry.claims.trouble import OnTrouble
from errandry.codec.json_codec import DocumentInfo
from errandry.codec.redaction import redact_text
from errandry.core.answer import ALREADY, WRITTEN, Answer, Lost
from errandry.core.command import PutStep
from errandry.core.step import StepKind
from errandry.errors import CommandFailed, ErrandryError, LeaseLost, StoreClosed, StoreUnavailable
from errandry.worker.handler_call import JobRun

log = logging.getLogger("errandry.worker")

RETRY_AFTER = 0.5
"""Seconds before a step result that the store could not write is sent again."""


class StepWriter:
    """Writes step results under the fence of their run, and stops a handler whose lease is lost.

    The effects of a step cannot be undone, so its result is retried until it is written or the run stops.
    """

    def __init__(self, app: Errandry, on_trouble: OnTrouble) -> None:
        self._app, self._on_trouble = app, on_trouble

    def save(self, run: JobRun, name: str, text: str) -> "Future[None]":
        """A future that is done when the result is durable, or raises LeaseLost. From any thread."""
        saved: Future[None] = Future()
        saved.set_running_or_notify_cancel()  # from now on, a caller that stops waiting cannot cancel it
        sealed = self._app.codec.seal(text, DocumentInfo(run.job.id, run.job.task, f"{StepKind.STEP} {name}"))
        run.loop.call_soon_threadsafe(self._send, run, PutStep(run.ref, name, sealed), saved)
        return saved

    def _send(self, run: JobRun, command: PutStep, saved: "Future[None]") -> None:
        on_answer = partial(self._handle_answer, run, command, saved)
        try:
            self._app.engine.send(command, on_answer, run.loop)
        except ErrandryError as error:
            on_answer(error)

    def _handle_answer(self, run: JobRun, command: PutStep, saved: "Future[None]", answer: Answer) -> None:
        if answer is WRITTEN or answer is ALREADY:
            saved.set_result(None)
            return
        match answer:
            case Lost(cause=cause):
                log.warning(
                    "%s: step %s came too late, its lease is lost; stopping its handler: %s",
                    run,
                    command.name,
                    cause,
                )
                run.mark_lost(cause)
                saved.set_exception(LeaseLost(run.job.id, run.job.fence, cause))
            case StoreUnavailable() if not isinstance(answer, StoreClosed) and run.stop_reason is None:
                log.warning("%s: step %s cannot be written yet, retrying: %s", run, command.name, answer)
                redact = partial(redact_text, jobs=(run.job,), codec=self._app.codec)
                self._on_trouble("cannot write step results, retrying", answer, redact)
                run.loop.call_later(RETRY_AFTER, self._send, run, command, saved)
            case ErrandryError():
                saved.set_exception(answer)
            case _:
                saved.set_exception(CommandFailed("PutStep", f"the store answered {answer!r}"))
