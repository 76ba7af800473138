"""Slots for handlers: which calls have one, how many are free, and which prefetched calls wait for one."""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from threading import Lock

from errandry.api.task import Runner
from errandry.worker.handler_call import HandlerCall, JobRun
from errandry.worker.options import WorkerOptions


class Slots:
    """The slots of a worker, by runner. Each call takes one slot, also when it has many jobs.

    Claims take slots on the engine's loop; handlers release them on theirs. `extra_process_jobs` returns how
    many jobs may be claimed for processes beyond their slots.
    """

    def __init__(self, options: WorkerOptions, extra_process_jobs: Callable[[], int]) -> None:
        self._options, self._extra_process_jobs = options, extra_process_jobs
        self._lock = Lock()
        self._calls: dict[HandlerCall, None] = {}
        self._prefetched: dict[Runner, dict[HandlerCall, None]] = {runner: {} for runner in Runner}
        self._waiters: dict[Runner, dict[HandlerCall, asyncio.Future[None]]] = {
            runner: {} for runner in Runner
        }
        self._totals = {
            Runner.ASYNC: options.concurrency,
            Runner.THREAD: options.thread_slots,
            Runner.PROCESS: options.process_slots,
        }
        self._free = dict(self._totals)
        self._suspects = dict.fromkeys(Runner, 0)
        self.suspects_ended = 0

    @property
    def calls(self) -> list[HandlerCall]:
        """All calls this worker holds: with a slot, or prefetched."""
        with self._lock:
            return [*self._calls, *self._prefetched_calls()]

    @property
    def runs(self) -> list[JobRun]:
        """The runs of all calls."""
        return [run for call in self.calls for run in list(call.runs)]

    @property
    def taken_count(self) -> int:
        """Number of slots that are taken."""
        return len(self._calls)

    @property
    def prefetched(self) -> list[HandlerCall]:
        with self._lock:
            return list(self._prefetched_calls())

    def free_slots(self, runner: Runner) -> int:
        """Slots of this runner that no call has or waits for."""
        with self._lock:
            extra = self._extra_process_jobs() if runner is Runner.PROCESS else 0
            return max(0, self._free[runner] + extra - len(self._prefetched[runner]))

    @property
    def free_prefetch(self) -> int:
        """How many more jobs may be prefetched."""
        return max(0, self._options.prefetch - sum(len(call.runs) for call in self.prefetched))

    @property
    def suspects_held(self) -> int:
        """Number of suspects that are held: jobs that were running when their worker was lost."""
        return sum(self._suspects.values())

    def suspects_of(self, runner: Runner) -> int:
        """Number of suspects that are held for this runner."""
        return self._suspects[runner]

    def slots_of(self, runner: Runner) -> int:
        """All slots of this runner, free or taken."""
        return self._totals[runner]

    def take(self, calls: Iterable[HandlerCall]) -> None:
        """Give slots to calls whose jobs were claimed for free slots."""
        with self._lock:
            for call in calls:
                self._take(call)

    def add_prefetched(self, calls: Iterable[HandlerCall]) -> None:
        """Hold prefetched calls; each gets a slot by `wait_for_slot`."""
        with self._lock:
            for call in calls:
                self._prefetched[call.runner][call] = None
                self._suspects[call.runner] += call.is_suspect

    async def wait_for_slot(self, call: HandlerCall) -> None:
        """Return when a prefetched call has a slot; calls get slots in the order in which they asked."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        with self._lock:
            self._waiters[call.runner][call] = waiter
            self._assign_slots(call.runner)
        try:
            await waiter
        except asyncio.CancelledError:
            with self._lock:
                self._remove_waiting(call)
            raise

    def release(self, call: HandlerCall) -> None:
        """Free the slot of a call. Called on the loop of the calls that wait for slots."""
        with self._lock:
            if call not in self._calls:
                return
            del self._calls[call]
            self._free[call.runner] += 1
            self._suspects[call.runner] -= call.is_suspect
            self.suspects_ended += call.is_suspect
            self._assign_slots(call.runner)

    def _prefetched_calls(self) -> Iterator[HandlerCall]:
        return chain.from_iterable(self._prefetched.values())

    def _take(self, call: HandlerCall) -> None:
        self._calls[call] = None
        self._free[call.runner] -= 1
        self._suspects[call.runner] += call.is_suspect

    def _assign_slots(self, runner: Runner) -> None:
        """Give free slots of this runner to waiting calls."""
        while self._free[runner] > 0 and (call := self._first_waiting(runner)) is not None:
            waiter = self._waiters[runner][call]
            self._remove_waiting(call)
            self._take(call)
            waiter.set_result(None)

    def _first_waiting(self, runner: Runner) -> HandlerCall | None:
        """The call that asked first and still waits."""
        return next((call for call, waiter in self._waiters[runner].items() if not waiter.done()), None)

    def _remove_waiting(self, call: HandlerCall) -> None:
        self._waiters[call.runner].pop(call, None)
        if call in self._prefetched[call.runner]:
            del self._prefetched[call.runner][call]
            self._suspects[call.runner] -= call.is_suspect
