"""How many handlers run, of which kind, how many more may, and what was claimed ahead of a slot."""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from threading import Lock

from errandry.api.task import Runner
from errandry.worker.handler_call import HandlerCall, JobRun
from errandry.worker.options import WorkerOptions


class Slots:
    """The calls of handlers, by kind, and those that wait for a slot. A batch of jobs is one call.

    Claims take slots on the engine's loop, handlers give them back on theirs. `spare` says how many more jobs
    may be claimed for processes than there are.
    """

    def __init__(self, options: WorkerOptions, spare: Callable[[], int]) -> None:
        self._options, self._spare = options, spare
        self._lock = Lock()
        self._taken: dict[HandlerCall, None] = {}
        self._ahead: dict[Runner, dict[HandlerCall, None]] = {runner: {} for runner in Runner}
        self._turns: dict[Runner, dict[HandlerCall, asyncio.Future[None]]] = {runner: {} for runner in Runner}
        self._free = {
            Runner.ASYNC: options.concurrency,
            Runner.THREAD: options.threads,
            Runner.PROCESS: options.processes,
        }
        self._suspects = 0

    @property
    def batches(self) -> list[HandlerCall]:
        """Everything this worker holds: running, or claimed ahead."""
        with self._lock:
            return [*self._taken, *self._waiting()]

    @property
    def runs(self) -> list[JobRun]:
        """The jobs of all these."""
        return [run for batch in self.batches for run in list(batch.runs)]

    @property
    def taken(self) -> int:
        """How many slots are taken."""
        return len(self._taken)

    @property
    def ahead(self) -> list[HandlerCall]:
        with self._lock:
            return list(self._waiting())

    def free(self, runner: Runner) -> int:
        """Slots for handlers of this kind that nobody has or waits for."""
        with self._lock:
            spare = self._spare() if runner is Runner.PROCESS else 0
            return max(0, self._free[runner] + spare - len(self._ahead[runner]))

    @property
    def free_ahead(self) -> int:
        """How many jobs may be claimed ahead of a free slot."""
        return max(0, self._options.prefetch - sum(len(batch.runs) for batch in self.ahead))

    @property
    def has_suspect(self) -> bool:
        """Whether a job is held that was running when its worker died: such jobs run one at a time."""
        return self._suspects > 0

    def take(self, calls: Iterable[HandlerCall]) -> None:
        """Give slots to jobs that were claimed for one."""
        with self._lock:
            for batch in calls:
                self._take(batch)

    def line_up(self, calls: Iterable[HandlerCall]) -> None:
        """Have jobs that were claimed ahead of a slot wait for one."""
        with self._lock:
            for batch in calls:
                self._ahead[batch.runner][batch] = None
                self._suspects += batch.is_suspect

    async def turn(self, batch: HandlerCall) -> None:
        """Return when what waits for a slot has one, first come, first served."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        with self._lock:
            self._turns[batch.runner][batch] = turn
            self._call_next(batch.runner)
        try:
            await turn
        except asyncio.CancelledError:
            with self._lock:
                self._leave_line(batch)
            raise

    def give(self, batch: HandlerCall) -> None:
        """It needs its slot no more. On the loop of those who wait for a turn."""
        with self._lock:
            if batch not in self._taken:
                return
            del self._taken[batch]
            self._free[batch.runner] += 1
            self._suspects -= batch.is_suspect
            self._call_next(batch.runner)

    def _waiting(self) -> Iterator[HandlerCall]:
        return chain.from_iterable(self._ahead.values())

    def _take(self, batch: HandlerCall) -> None:
        self._taken[batch] = None
        self._free[batch.runner] -= 1
        self._suspects += batch.is_suspect

    def _call_next(self, runner: Runner) -> None:
        """Give free slots to who waits for one of this kind."""
        while self._free[runner] > 0 and (batch := self._next(runner)) is not None:
            turn = self._turns[runner][batch]
            self._leave_line(batch)
            self._take(batch)
            turn.set_result(None)

    def _next(self, runner: Runner) -> HandlerCall | None:
        """Who has asked first and still waits."""
        return next((batch for batch, turn in self._turns[runner].items() if not turn.done()), None)

    def _leave_line(self, batch: HandlerCall) -> None:
        self._turns[batch.runner].pop(batch, None)
        if batch in self._ahead[batch.runner]:
            del self._ahead[batch.runner][batch]
            self._suspects -= batch.is_suspect
