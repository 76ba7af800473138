"""How many handlers run, of which kind, how many more may, and which jobs were claimed ahead of a slot."""

import asyncio
from collections.abc import Callable
from threading import RLock

from errandry.task import Runner
from errandry.worker.options import WorkerOptions
from errandry.worker.run import Run


class Slots:
    """The running jobs, by kind, and those that wait for a slot.

    Claims take slots on the engine's loop, handlers give them back on theirs. `spare` says how many more jobs
    may be claimed for processes than there are.
    """

    def __init__(self, options: WorkerOptions, spare: Callable[[], int]) -> None:
        self._options, self._spare = options, spare
        self._lock = RLock()
        self._runs: dict[Run, Runner] = {}
        self._ahead: dict[Run, Runner] = {}
        self._turns: dict[Run, asyncio.Future[None]] = {}
        self._free = {
            Runner.ASYNC: options.concurrency,
            Runner.THREAD: options.threads,
            Runner.PROCESS: options.processes,
        }
        self._suspects = 0

    @property
    def runs(self) -> list[Run]:
        """Everything this worker holds: running, or claimed ahead."""
        with self._lock:
            return [*self._runs, *self._ahead]

    @property
    def ahead(self) -> list[Run]:
        with self._lock:
            return list(self._ahead)

    def free(self, runner: Runner) -> int:
        """Slots for handlers of this kind that nobody has or waits for."""
        with self._lock:
            waiting = sum(kind is runner for kind in self._ahead.values()) if self._ahead else 0
            spare = self._spare() if runner is Runner.PROCESS else 0
            return max(0, self._free[runner] + spare - waiting)

    @property
    def free_ahead(self) -> int:
        """How many jobs may be claimed ahead of a free slot."""
        return max(0, self._options.prefetch - len(self._ahead))

    @property
    def has_suspect(self) -> bool:
        """Whether a job is held that was running when its worker died: such jobs run one at a time."""
        return self._suspects > 0

    def take(self, run: Run, runner: Runner) -> None:
        """Give a slot to a job that was claimed for one."""
        with self._lock:
            self._runs[run] = runner
            self._free[runner] -= 1
            self._suspects += run.job.crashes > 0

    def line_up(self, run: Run, runner: Runner) -> None:
        """Have a job that was claimed ahead of a slot wait for one."""
        with self._lock:
            self._ahead[run] = runner
            self._suspects += run.job.crashes > 0

    async def turn(self, run: Run) -> None:
        """Return when a job that waits for a slot has one, first come, first served."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        with self._lock:
            self._turns[run] = turn
            self._call_next()
        try:
            await turn
        except asyncio.CancelledError:
            with self._lock:
                self._leave_line(run)
            raise

    def give(self, run: Run) -> None:
        """It needs its slot no more. On the loop of those who wait for a turn."""
        with self._lock:
            if run not in self._runs:
                return
            self._free[self._runs.pop(run)] += 1
            self._suspects -= run.job.crashes > 0
            if self._turns:
                self._call_next()

    def _call_next(self) -> None:
        """Give free slots to who waits for one."""
        for run, runner in list(self._ahead.items()):
            turn = self._turns.get(run)
            if turn is not None and not turn.done() and self._free[runner] > 0:
                self._leave_line(run)
                self.take(run, runner)
                turn.set_result(None)

    def _leave_line(self, run: Run) -> None:
        self._turns.pop(run, None)
        if self._ahead.pop(run, None) is not None:
            self._suspects -= run.job.crashes > 0
