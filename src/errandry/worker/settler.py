"""Writing down how attempts ended, for as long as their leases stand."""

import asyncio
import logging
from collections.abc import Iterable, Sequence

from errandry.app import Errandry
from errandry.core.answer import ALREADY, WRITTEN, Answer
from errandry.core.command import Command, Complete, Fail, Note, Outcome, Settle
from errandry.core.job import Failure
from errandry.core.state import Reason
from errandry.errors import ErrandryError, InvalidValue, StoreClosed, StoreUnavailable
from errandry.worker.options import WorkerOptions
from errandry.worker.run import Run

log = logging.getLogger("errandry.worker")

AGAIN = 1.0
"""How long an outcome that could not be written waits for another try."""

End = tuple[Run, Outcome | None]
"""None: nothing is to be written."""


class Settler:
    """Has outcomes written, those of a call together."""

    def __init__(self, app: Errandry, options: WorkerOptions) -> None:
        self._app, self._options = app, options

    async def settle(self, ends: Iterable[End]) -> None:
        """Return when they are written, or never will be. While the store cannot, their leases are kept."""
        left = await self._send(ends, is_news=True)
        while left:
            for run, _ in left:
                run.is_settling = False
            await asyncio.sleep(min(AGAIN, self._options.renewal))
            left = await self._send(left, is_news=False)

    async def answers(self, commands: Sequence[Command]) -> list[Answer]:
        """What the store says to each; an error is a value, too."""
        try:
            return await self._app.engine.submit_all(commands)
        except ErrandryError as error:
            return [error] * len(commands)

    async def _send(self, ends: Iterable[End], is_news: bool) -> list[End]:
        """Send what was noted and how it ended; returns what the store cannot take at present."""
        sent: list[End] = []
        notes: list[Note] = []
        settles: list[Settle] = []
        for run, outcome in ends:
            if outcome is None:
                continue
            if run.is_lost:
                log.error("%s: its outcome is lost with its lease", run)
                continue
            run.is_settling = True
            if (note := run.notes()) is not None:
                notes.append(note)
            settles.append(Settle(run.ref, outcome))
            sent.append((run, outcome))
        if notes:
            await self.answers(notes)
        left: list[End] = []
        for end, answer in zip(sent, await self.answers(settles), strict=True):
            if answer is not WRITTEN and answer is not ALREADY:
                left += await self._refused(end, answer, is_news)
        return left

    async def _refused(self, end: End, answer: Answer, is_news: bool) -> list[End]:
        """What is still to be sent of an outcome that was not written."""
        run, outcome = end
        match answer:
            case StoreUnavailable() if not isinstance(answer, StoreClosed):
                if is_news:
                    log.warning("%s: its outcome cannot be written yet: %s", run, answer)
                return [end]
            case InvalidValue() if isinstance(outcome, Complete):  # a result the store does not take
                failure = Failure(Reason.UNRECOVERABLE, type(answer).__name__, str(answer))
                return await self._send([(run, Fail(failure))], is_news)
            case ErrandryError():
                log.error("%s: its outcome could not be written: %s", run, answer)
            case _:
                log.warning("%s: its outcome came too late: %s", run, answer)
        return []
