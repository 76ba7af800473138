"""How many handlers run, of which kind, and how many more may."""

import asyncio

from errandry.worker.options import WorkerOptions
from errandry.worker.run import Run


class Slots:
    """The running jobs, by kind. `changed` is set whenever a slot becomes free."""

    def __init__(self, options: WorkerOptions) -> None:
        self._options = options
        self._runs: dict[Run, bool] = {}
        self._threads = 0
        self._suspects = 0
        self.changed = asyncio.Event()

    @property
    def runs(self) -> list[Run]:
        return list(self._runs)

    @property
    def is_empty(self) -> bool:
        return not self._runs

    @property
    def free_async(self) -> int:
        return max(0, self._options.concurrency - (len(self._runs) - self._threads))

    @property
    def free_threads(self) -> int:
        return max(0, self._options.threads - self._threads)

    @property
    def has_suspect(self) -> bool:
        """Whether a job runs that was running when its worker died: such jobs run one at a time."""
        return self._suspects > 0

    def take(self, run: Run, in_thread: bool) -> None:
        self._runs[run] = in_thread
        self._threads += in_thread
        self._suspects += run.job.crashes > 0

    def give(self, run: Run) -> None:
        if run in self._runs:
            self._threads -= self._runs.pop(run)
            self._suspects -= run.job.crashes > 0
            self.changed.set()
