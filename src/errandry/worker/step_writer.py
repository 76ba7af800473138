"""Keeping the results of steps while their handlers wait for it."""

import logging
from concurrent.futures import Future
from functools import partial

from errandry.api.app import Errandry
from errandry.codec.json_codec import DocumentInfo
from errandry.core.answer import ALREADY, WRITTEN, Answer, Lost
from errandry.core.command import PutStep
from errandry.core.step import StepKind
from errandry.errors import CommandFailed, ErrandryError, LeaseLost, StoreClosed, StoreUnavailable
from errandry.worker.handler_call import JobRun, StopReason

log = logging.getLogger("errandry.worker")

AGAIN = 0.5
"""How long a result that could not be written waits for another try."""


class StepWriter:
    """Has results written under the fence of their run, and stops a handler whose lease is lost.

    What a step has done cannot be taken back, so its result is sent for as long as the lease stands.
    """

    def __init__(self, app: Errandry) -> None:
        self._app = app

    def keep(self, run: JobRun, name: str, text: str) -> "Future[None]":
        """Done when the result is durable; LeaseLost if it never will be. From any thread."""
        kept: Future[None] = Future()
        kept.set_running_or_notify_cancel()  # who no longer waits must not take it back
        sealed = self._app.codec.seal(text, DocumentInfo(run.job.id, run.job.task, f"{StepKind.STEP} {name}"))
        run.loop.call_soon_threadsafe(self._send, run, PutStep(run.ref, name, sealed), kept)
        return kept

    def _send(self, run: JobRun, command: PutStep, kept: "Future[None]") -> None:
        told = partial(self._answered, run, command, kept)
        try:
            self._app.engine.send(command, told, run.loop)
        except ErrandryError as error:
            told(error)

    def _answered(self, run: JobRun, command: PutStep, kept: "Future[None]", answer: Answer) -> None:
        if answer is WRITTEN or answer is ALREADY:
            kept.set_result(None)
            return
        match answer:
            case Lost(cause=cause):
                log.warning("%s: step %s came too late: %s", run, command.name, cause)
                run.is_lost = True
                run.stop(StopReason.LOST)
                kept.set_exception(LeaseLost(run.job.id, run.job.fence, cause))
            case StoreUnavailable() if not isinstance(answer, StoreClosed) and run.stopped is None:
                log.warning("%s: step %s cannot be written yet: %s", run, command.name, answer)
                run.loop.call_later(AGAIN, self._send, run, command, kept)
            case ErrandryError():
                kept.set_exception(answer)
            case _:
                kept.set_exception(CommandFailed("PutStep", f"the store answered {answer!r}"))
