"""Making calls of claimed jobs: of one job each, or of many where their task takes batches.

On the engine's loop, like the claimer that brings them.
"""

import asyncio
from collections.abc import Callable, Iterable
from functools import partial

from errandry.api.app import Errandry
from errandry.api.task import Runner
from errandry.core.batch import BatchSpec
from errandry.core.job import JobRecord
from errandry.core.state import State
from errandry.worker.handler_call import HandlerCall, JobRun, StopReason
from errandry.worker.options import WorkerOptions
from errandry.worker.slots import Slots

MakeRun = Callable[[JobRecord, float], JobRun]
"""Makes a run of a job claimed just now, whose lease began then."""
BeginCalls = Callable[[list[HandlerCall], bool], None]
"""Takes calls to be made, and whether they were claimed ahead of a slot."""


class Dispatcher:
    """Gives calls their slots and has them begun. A batch that lingers keeps its slot meanwhile: until it is
    full, or has waited long enough."""

    def __init__(
        self, app: Errandry, options: WorkerOptions, slots: Slots, made: MakeRun, begin: BeginCalls
    ) -> None:
        self._app, self._options, self._slots = app, options, slots
        self._made, self._begin = made, begin
        self._open: dict[str, HandlerCall] = {}
        self._timers: dict[HandlerCall, asyncio.TimerHandle] = {}

    @property
    def room(self) -> list[tuple[str, int]]:
        """The tasks whose batches linger, and for how many more jobs."""
        return [(task, (batch.size or 1) - len(batch.runs)) for task, batch in self._open.items()]

    def take(self, jobs: tuple[JobRecord, ...], sent: float, ahead: bool) -> None:
        """Have jobs run that were claimed by a claim sent then, for free slots or `ahead` of one."""
        runs = [self._made(job, sent) for job in jobs]
        if self._open:
            runs = [run for run in runs if not self._joins(run)]
        calls = gathered(self._app, runs)
        if ahead:
            self._slots.line_up(calls)
        else:
            self._slots.take(calls)
            for batch in calls:
                if batch.runs[0].job.state is State.RUNNING:
                    batch.begins(sent, self._options.grace)
            calls = [batch for batch in calls if batch.size is None or not self._lingers(batch)]
        if calls:
            self._begin(calls, ahead)

    def close(self) -> None:
        """Give back what lingers: the worker stops."""
        for batch in list(self._open.values()):
            batch.stop(StopReason.SHUTDOWN)
            self._close(batch)

    def _joins(self, run: JobRun) -> bool:
        """Whether it goes with those of its task that wait for more."""
        batch = self._open.get(run.job.task)
        if batch is None or run.job.crashes:
            return False
        batch.add(run)
        if batch.is_full:
            self._close(batch)
        return True

    def _lingers(self, batch: HandlerCall) -> bool:
        """Whether it waits for more to come, which it does for as long as its task says."""
        if batch.is_full or batch.is_suspect:
            return False
        span = self._app.tasks[batch.task].rules.linger
        if not span:
            return False
        self._open[batch.task] = batch
        self._timers[batch] = asyncio.get_running_loop().call_later(span, partial(self._close, batch))
        return True

    def _close(self, batch: HandlerCall) -> None:
        self._timers.pop(batch).cancel()
        del self._open[batch.task]
        self._begin([batch], False)


def gathered(app: Errandry, runs: Iterable[JobRun]) -> list[HandlerCall]:
    """Calls for these jobs, in their order: those of a batch task together, but suspects alone."""
    found: list[HandlerCall] = []
    last: dict[str, HandlerCall] = {}
    for run in runs:
        job, task = run.job, app.tasks.get(run.job.task)
        size, runner = (None, Runner.ASYNC) if task is None else (task.rules.batch, task.runner)
        if size is None or job.crashes:
            found.append(HandlerCall(run, size, runner))
        elif job.task in last and not last[job.task].is_full:
            last[job.task].add(run)
        else:
            last[job.task] = HandlerCall(run, size, runner)
            found.append(last[job.task])
    return found


def batches(app: Errandry) -> tuple[BatchSpec, ...]:
    """What the store should know of the tasks that take batches."""
    return tuple(
        BatchSpec(name, task.rules.batch, start=not task.rules.linger)
        for name, task in app.tasks.items()
        if task.rules.batch is not None
    )
