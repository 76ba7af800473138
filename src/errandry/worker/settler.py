"""Writing down how attempts ended, for as long as their leases stand."""

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from errandry.api.app import Errandry
from errandry.core.answer import ALREADY, WRITTEN, Answer
from errandry.core.command import CompleteOutcome, FailOutcome, Outcome, RemoveJobs, Settle
from errandry.core.job import Failure
from errandry.core.state import Reason
from errandry.errors import ErrandryError, InvalidValue, ReplyLost, StoreClosed, StoreUnavailable
from errandry.worker.handler_call import JobRun
from errandry.worker.options import WorkerOptions

log = logging.getLogger("errandry.worker")

AGAIN = 1.0
"""How long an outcome that could not be written waits for another try."""

OnSettled = Callable[[JobRun], None]


class Settler:
    """Has outcomes written. A job whose handler is done needs no task to wait for that."""

    def __init__(self, app: Errandry, options: WorkerOptions) -> None:
        self._app, self._options = app, options
        self._open = 0
        self._rest: asyncio.Future[None] | None = None

    @property
    def rest(self) -> asyncio.Future[None] | None:
        """Done when nothing is left to be written; None if nothing is."""
        if self._open and self._rest is None:
            self._rest = asyncio.get_running_loop().create_future()
        return self._rest

    def settle(self, run: JobRun, outcome: Outcome | None, over: OnSettled) -> None:
        """Have an outcome written, if there is one. `over` is told when it is, or never will be.

        While the store cannot, its lease is kept.
        """
        self._open += 1
        if outcome is None:
            self._over(run, over)
        else:
            self._send(run, outcome, over)

    def discard(self, run: JobRun, over: OnSettled) -> None:
        """Have a job removed whose handler cannot be called."""
        self.settle(run, CompleteOutcome(), partial(self._remove, over))

    def _remove(self, over: OnSettled, run: JobRun) -> None:
        self._open += 1
        removed = partial(self._removed, run, over)
        try:
            self._app.engine.send(RemoveJobs(ids=(run.job.id,)), removed, run.loop)
        except ErrandryError as error:
            removed(error)

    def _removed(self, run: JobRun, over: OnSettled, answer: Answer) -> None:
        if isinstance(answer, ErrandryError):
            log.warning("%s could not be removed: %s", run, answer)
        self._over(run, over)

    def note(self, run: JobRun) -> None:
        """Have what a run has noted written."""
        if (note := run.notes()) is not None:
            try:
                self._app.engine.send(note, partial(_noted, run), run.loop)
            except ErrandryError as error:
                _noted(run, error)

    def _send(
        self, run: JobRun, outcome: Outcome, over: OnSettled, is_news: bool = True, in_doubt: bool = False
    ) -> None:
        """Send what was noted, and then how it ended. `in_doubt`, it may be written: only the store knows."""
        if in_doubt and self._app.clock.monotonic() >= run.lease_until:
            log.error("%s: nobody could say whether its outcome was written", run)
            self._over(run, over)
            return
        if run.is_lost and not in_doubt:
            log.error("%s: its outcome is lost with its lease", run)
            self._over(run, over)
            return
        run.is_settling = True
        self.note(run)
        answered = partial(self._answered, run, outcome, over, is_news, in_doubt)
        try:
            self._app.engine.send(Settle(run.ref, outcome), answered, run.loop)
        except ErrandryError as error:
            answered(error)

    def _answered(
        self, run: JobRun, outcome: Outcome, over: OnSettled, is_news: bool, in_doubt: bool, answer: Answer
    ) -> None:
        if answer is not WRITTEN and answer is not ALREADY:
            match answer:
                case StoreUnavailable() if not isinstance(answer, StoreClosed):
                    if is_news:
                        log.warning("%s: its outcome cannot be written yet: %s", run, answer)
                    in_doubt |= isinstance(answer, ReplyLost)
                    run.is_settling = in_doubt  # what is written has no lease to be kept, or lost
                    wait = min(AGAIN, self._options.renewal)
                    run.loop.call_later(wait, self._send, run, outcome, over, False, in_doubt)
                    return
                case InvalidValue() if isinstance(
                    outcome, CompleteOutcome
                ):  # a result the store does not take
                    failure = Failure(Reason.UNRECOVERABLE, type(answer).__name__, str(answer))
                    self._send(run, FailOutcome(failure), over, is_news)
                    return
                case ErrandryError():
                    log.error("%s: its outcome could not be written: %s", run, answer)
                case _:
                    log.warning("%s: its outcome came too late: %s", run, answer)
        self._over(run, over)

    def _over(self, run: JobRun, over: OnSettled) -> None:
        self._open -= 1
        if self._rest is not None and not self._open:
            self._rest.set_result(None)
            self._rest = None
        over(run)


def _noted(run: JobRun, answer: Answer) -> None:
    if isinstance(answer, ErrandryError):
        log.warning("%s: what it noted could not be written: %s", run, answer)
