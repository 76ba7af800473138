"""Makes handler calls of claimed jobs: one call per job, or one for many jobs of a batch task.

Runs on the engine's loop, like the claimer.
"""

import asyncio
from collections.abc import Callable, Iterable
from functools import partial

from errandry.api.app import Errandry
from errandry.api.task import Runner
from errandry.claims.leases import StopReason
from errandry.core.batch import BatchSpec
from errandry.core.job import JobRecord
from errandry.core.state import State
from errandry.worker.handler_call import HandlerCall, JobRun
from errandry.worker.options import WorkerOptions
from errandry.worker.slots import Slots

MakeRun = Callable[[JobRecord, float], JobRun]
"""Makes a run of a claimed job; the second argument is the monotonic time at which its lease began."""
BeginCalls = Callable[[list[HandlerCall], bool], None]
"""Begins these calls; the second argument says whether they were prefetched."""


class Dispatcher:
    """Gives slots to calls and begins them.

    The call of a batch task with `linger` holds its slot while it waits for more jobs: until it is full or
    its linger time is over.
    """

    def __init__(
        self, app: Errandry, options: WorkerOptions, slots: Slots, make_run: MakeRun, begin_calls: BeginCalls
    ) -> None:
        self._app, self._options, self._slots = app, options, slots
        self._make_run, self._begin_calls = make_run, begin_calls
        self._lingering: dict[str, HandlerCall] = {}
        self._timers: dict[HandlerCall, asyncio.TimerHandle] = {}

    @property
    def open_batches(self) -> list[tuple[str, int]]:
        """The tasks with a lingering call, and how many more jobs each call has room for."""
        return [(task, (call.size or 1) - len(call.runs)) for task, call in self._lingering.items()]

    def dispatch(self, jobs: tuple[JobRecord, ...], sent_at: float, prefetched: bool) -> None:
        """Run the jobs of a claim that was sent at this monotonic time, for free slots or prefetched."""
        runs = [self._make_run(job, sent_at) for job in jobs]
        if self._lingering:
            runs = [run for run in runs if not self._join_lingering(run)]
        calls = group_calls(self._app, runs)
        if prefetched:
            self._slots.add_prefetched(calls)
        else:
            self._slots.take(calls)
            for call in calls:
                if call.runs[0].job.state is State.RUNNING:
                    call.start_timeout(sent_at, self._options.grace)
            calls = [call for call in calls if call.size is None or not self._start_lingering(call)]
        if calls:
            self._begin_calls(calls, prefetched)

    def give_back(self) -> list[JobRun]:
        """Take the jobs of all calls that have not begun, to release them. Their calls end without them."""
        runs: list[JobRun] = []
        for call in self._slots.calls:
            if taken := call.give_back():
                runs += taken
                if call in self._timers:
                    self._end_lingering(call)
        return runs

    def close(self) -> None:
        """Stop lingering calls, which releases their jobs."""
        for call in list(self._lingering.values()):
            call.stop(StopReason.SHUTDOWN)
            self._end_lingering(call)

    def _join_lingering(self, run: JobRun) -> bool:
        """Add a run to the lingering call of its task; False if there is none, or the run is a suspect."""
        call = self._lingering.get(run.job.task)
        if call is None or run.job.crashes:
            return False
        call.add(run)
        if call.is_full:
            self._end_lingering(call)
        return True

    def _start_lingering(self, call: HandlerCall) -> bool:
        """Let a call wait for more jobs if its task says so; False if it can begin at once."""
        if call.is_full or call.is_suspect:
            return False
        linger = self._app.tasks[call.task].run_rules.linger
        if not linger:
            return False
        self._lingering[call.task] = call
        self._timers[call] = asyncio.get_running_loop().call_later(linger, partial(self._end_lingering, call))
        return True

    def _end_lingering(self, call: HandlerCall) -> None:
        self._timers.pop(call).cancel()
        del self._lingering[call.task]
        self._begin_calls([call], False)


def group_calls(app: Errandry, runs: Iterable[JobRun]) -> list[HandlerCall]:
    """Calls for these runs, in their order: jobs of a batch task share calls, except suspects."""
    calls: list[HandlerCall] = []
    last: dict[str, HandlerCall] = {}
    for run in runs:
        job, task = run.job, app.tasks.get(run.job.task)
        size, runner = (None, Runner.ASYNC) if task is None else (task.run_rules.batch, task.runner)
        if size is None or job.crashes:
            calls.append(HandlerCall(run, size, runner))
        elif job.task in last and not last[job.task].is_full:
            last[job.task].add(run)
        else:
            last[job.task] = HandlerCall(run, size, runner)
            calls.append(last[job.task])
    return calls


def batch_specs(app: Errandry) -> tuple[BatchSpec, ...]:
    """The batch tasks of an app as claims describe them."""
    return tuple(
        BatchSpec(name, task.run_rules.batch, start=not task.run_rules.linger)
        for name, task in app.tasks.items()
        if task.run_rules.batch is not None
    )
