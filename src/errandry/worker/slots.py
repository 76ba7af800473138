"""How many handlers run, of which kind, how many more may, and which jobs were claimed ahead of a slot."""

import asyncio

from errandry.worker.options import WorkerOptions
from errandry.worker.run import Run


class Slots:
    """The running jobs, by kind, and those that wait for a slot; `changed` is set when one becomes free."""

    def __init__(self, options: WorkerOptions) -> None:
        self._options = options
        self._runs: dict[Run, bool] = {}
        self._ahead: dict[Run, tuple[bool, asyncio.Future[None]]] = {}
        self._threads = 0
        self._suspects = 0
        self.changed = asyncio.Event()

    @property
    def runs(self) -> list[Run]:
        """Everything this worker holds: running, or claimed ahead."""
        return [*self._runs, *self._ahead]

    @property
    def ahead(self) -> list[Run]:
        return list(self._ahead)

    @property
    def free_async(self) -> int:
        """Slots nobody has or waits for."""
        return max(0, self._free(in_thread=False) - self._waiting(in_thread=False))

    @property
    def free_threads(self) -> int:
        return max(0, self._free(in_thread=True) - self._waiting(in_thread=True))

    @property
    def free_ahead(self) -> int:
        """How many jobs may be claimed ahead of a free slot."""
        return max(0, self._options.prefetch - len(self._ahead))

    @property
    def has_room(self) -> bool:
        """Whether there is any point in claiming."""
        return bool(self.free_async or self.free_threads or self.free_ahead)

    @property
    def has_suspect(self) -> bool:
        """Whether a job is held that was running when its worker died: such jobs run one at a time."""
        return self._suspects > 0

    def take(self, run: Run, in_thread: bool) -> None:
        self._runs[run] = in_thread
        self._threads += in_thread
        self._suspects += run.job.crashes > 0

    async def wait(self, run: Run, in_thread: bool) -> None:
        """Take a slot when there is one, first come, first served."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ahead[run] = (in_thread, turn)
        self._suspects += run.job.crashes > 0
        try:
            self._call_next()
            await turn
        except asyncio.CancelledError:
            if self._ahead.pop(run, None) is not None:
                self._suspects -= run.job.crashes > 0
            raise

    def give(self, run: Run) -> None:
        if run in self._runs:
            self._threads -= self._runs.pop(run)
            self._suspects -= run.job.crashes > 0
            self._call_next()
            self.changed.set()

    def _call_next(self) -> None:
        """Give free slots to who waits for one."""
        for run, (in_thread, turn) in list(self._ahead.items()):
            if self._free(in_thread) and not turn.done():
                del self._ahead[run]
                self._suspects -= run.job.crashes > 0
                self.take(run, in_thread)
                turn.set_result(None)

    def _free(self, in_thread: bool) -> int:
        if in_thread:
            return self._options.threads - self._threads
        return self._options.concurrency - (len(self._runs) - self._threads)

    def _waiting(self, in_thread: bool) -> int:
        return sum(kind is in_thread for kind, _ in self._ahead.values())
