"""Claiming jobs for free slots, resting until there may be one.

Runs on the engine's loop: from a job that becomes ready to its claim, no thread waits for another. What this
process makes ready is claimed in the very pass that makes it so. For all else the claimer asks by itself:
what was there before, what other processes make ready, what becomes due.
"""

import asyncio
import itertools
import logging
import secrets
from collections.abc import Callable, Coroutine
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

from errandry.api.app import Errandry
from errandry.api.task import Runner, Task
from errandry.core.answer import Answer, Claims, Lost, Renewed
from errandry.core.batch import CLAIM_MAX, BatchSpec
from errandry.core.command import Claim, Ref, Renew
from errandry.core.job import JobRecord
from errandry.errors import ErrandryError, ReplyLost, StoreRefused, StoreUnavailable
from errandry.store.engine.backlog import Callback
from errandry.store.engine.change_counter import ChangeCounter
from errandry.worker.dispatcher import Dispatcher, batches
from errandry.worker.options import WorkerOptions
from errandry.worker.slots import Slots
from errandry.worker.throttled_log import ThrottledLog

log = logging.getLogger("errandry.worker")

BACKSTOP = 1.0
"""Wakes may be lost; nothing waits longer than this for a look."""
STRANGE, STRANGE_MAX = 12, 100
"""Jobs of a task that is not known here are left to others for so many times the delay with which they are
given back; those of so many tasks at most."""

TaskNames = tuple[str, ...]
ClaimKind = tuple[Runner, TaskNames | None, TaskNames]
"""A kind of handler, its tasks (None: all), and those that are not among them."""


class ClaimRequest(NamedTuple):
    """How many jobs, of which tasks, without which.

    `ahead` of a slot they do not start at once; nor do those that join `others` in a batch.
    """

    limit: int
    tasks: TaskNames | None
    without: TaskNames = ()
    ahead: bool = False
    others: bool = False


class Claimer:
    """Asks for as many jobs as there are free slots; async and thread handlers have slots of their own.

    `is_idle` says whether nothing that this worker has claimed is left to be done.
    """

    def __init__(
        self,
        app: Errandry,
        worker: str,
        options: WorkerOptions,
        slots: Slots,
        gatherer: Dispatcher,
        is_idle: Callable[[], bool],
    ) -> None:
        self._app, self._worker, self._options, self._slots = app, worker, options, slots
        self._gatherer, self._is_idle = gatherer, is_idle
        mark = secrets.token_hex(8)
        self._nonces = (f"{mark}-{number}" for number in itertools.count())
        self._stirred = ChangeCounter()
        self._paused = self._stopped = False
        self._due_in: float | None = None
        self._looked: int | None = None  # nothing was left that the free slots could have at this pulse
        self._is_asking = False
        self._tasks: tuple[Task[..., Any], ...] | None = None
        self._found: list[ClaimKind] = []
        self._batches: tuple[BatchSpec, ...] = ()
        self._along: set[asyncio.Future[None] | asyncio.Task[bool]] = set()
        self._strange: dict[str, float] = {}
        self._unclaimed = ThrottledLog(app.clock, "no jobs could be claimed", "jobs can be claimed again")
        self._unwatched = ThrottledLog(app.clock, "the store cannot be watched", "the store is watched again")

    async def run(self) -> None:
        """Claim until stopped; in a burst, until nothing is left to do."""
        self._app.engine.join(self._companion)
        watching = asyncio.create_task(self._watch())
        try:
            while not self._stopped and not await self._step():
                pass
        finally:
            watching.cancel()
            self._app.engine.leave(self._companion)
            while self._along:
                await asyncio.wait(self._along)  # what they bring is this worker's
            self._gatherer.close()

    def look(self) -> None:
        """Ask again: a slot has become free that no settle goes with. From any thread."""
        self._looked = None
        self._stirred.increment()

    def pause(self, paused: bool) -> None:
        """Claim nothing, or go on. From any thread."""
        self._paused = paused
        self.look()

    def stop(self) -> None:
        """Claim no more; what is being claimed just now is found before `run` returns. From any thread."""
        self._stopped = True
        self._stirred.increment()

    async def _step(self) -> bool:
        """Claim, or rest until there may be something to claim. True when a burst is over."""
        rings, pulse = self._stirred.count, self._app.store.version()
        was_idle = not self._along and self._is_idle()  # else what ends meanwhile may bring new work
        is_last = self._options.burst and was_idle and not self._paused
        try:
            if pulse != self._looked or is_last:
                claimed = await self._claim(pulse)
                self._unclaimed.end()
                if claimed or is_last:
                    return not claimed
        except ErrandryError as error:
            if self._options.burst and isinstance(error, StoreRefused):
                raise  # a right that is lacking is granted to those who wait, not in passing
            self._unclaimed.make(error)
        timeout = BACKSTOP if self._due_in is None else min(BACKSTOP, self._due_in)
        if not await self._stirred.wait(rings, timeout):
            self._looked = None
        return False

    async def _claim(self, pulse: int) -> bool:
        """Whether there was something for the free slots."""
        while self._along:
            await asyncio.wait(self._along)  # they may get the slots that seem free
        claimed, is_short, self._is_asking, self._due_in = False, True, True, None
        try:
            for wanted in self._wanted():
                if self._stopped:
                    break
                sent, command = self._app.clock.monotonic(), self._command(wanted, self._slots.has_suspect)
                try:
                    answer = await self._app.engine.submit(command)
                except ReplyLost:
                    claimed |= await self._recall(command, wanted, sent)
                    is_short = False
                    continue
                if isinstance(answer, Claims):
                    self._meet(answer.jobs)
                    claimed |= await self._take(wanted, answer.jobs, sent)
                    is_short &= self._is_short(answer.jobs)
                    self._due_in = answer.due_in
        finally:
            self._is_asking = False
        if is_short:
            self._has_looked(pulse, claimed)
        return claimed

    def _companion(self) -> list[tuple[Claim, Callback]]:
        """What to claim in a pass that is about to be written."""
        if self._is_asking or self._along or self._stopped:
            return []
        sent, pulse = self._app.clock.monotonic(), self._app.store.version()
        has_suspect, loop, claims = self._slots.has_suspect, asyncio.get_running_loop(), []
        for wanted in self._wanted():
            landed: asyncio.Future[None] = loop.create_future()
            self._along.add(landed)
            command = self._command(wanted, has_suspect)
            told = Callback(partial(self._answered, command, wanted, sent, pulse, landed))
            claims.append((command, told))
            has_suspect = has_suspect or not wanted.others  # two claims of a pass must not bring two suspects
        return claims

    def _answered(
        self,
        command: Claim,
        wanted: ClaimRequest,
        sent: float,
        pulse: int,
        landed: asyncio.Future[None],
        answer: Answer,
    ) -> None:
        self._along.discard(landed)
        landed.set_result(None)
        if isinstance(answer, ReplyLost):
            self._go_on(self._recall(command, wanted, sent))
        if not isinstance(answer, Claims):
            return
        if not answer.jobs:
            if answer.due_in is None or answer.due_in >= BACKSTOP:  # else the claimer is to know when
                self._has_looked(pulse, claimed=True)
            return
        self._meet(answer.jobs)
        if self._is_late(sent):
            self._go_on(self._take(wanted, answer.jobs, sent))
        else:
            self._gatherer.take(answer.jobs, sent, wanted.ahead)
        if self._is_short(answer.jobs):
            self._has_looked(pulse, claimed=True)
        else:
            self.look()

    def _go_on(self, taking: Coroutine[Any, Any, bool]) -> None:
        """Nothing is claimed before this is over."""
        task = asyncio.create_task(taking)
        self._along.add(task)
        task.add_done_callback(self._along.discard)

    async def _recall(self, command: Claim, wanted: ClaimRequest, sent: float) -> bool:
        """Take what a claim has brought though nobody heard of it: sent again, it brings the same.

        Unless another comes before it, or the lease is over by then.
        """
        while True:
            try:
                answer = await self._app.engine.submit(command)
            except ErrandryError as error:
                log.warning("what was claimed cannot be had yet: %s", error)
                is_over = self._app.clock.monotonic() >= sent + self._options.lease
                if self._stopped or is_over or not isinstance(error, StoreUnavailable):
                    return False
                await asyncio.sleep(BACKSTOP)
                continue
            self.look()
            return isinstance(answer, Claims) and await self._take(wanted, answer.jobs, sent)

    def _is_short(self, jobs: tuple[JobRecord, ...]) -> bool:
        """Whether nothing is left for the slots that were free: a claim of batches may stop before that."""
        return len(jobs) < CLAIM_MAX or not any(map(self._is_batched, {job.task for job in jobs}))

    def _is_batched(self, name: str) -> bool:
        task = self._app.tasks.get(name)
        return task is not None and task.rules.batch is not None

    def _has_looked(self, pulse: int, claimed: bool) -> None:
        """Note that nothing is left since `pulse`, unless others have rung: a pass that writes rings once."""
        if self._app.store.version() == pulse + claimed:
            self._looked = pulse + claimed

    async def _watch(self) -> None:
        """Wake up for what others do."""
        store = self._app.store
        pulse = store.version()
        while True:
            try:
                await store.wait_for_change(pulse, BACKSTOP)
                pulse = store.version()
                if pulse != self._looked:
                    self._stirred.increment()
                self._unwatched.end()
            except ErrandryError as error:
                self._unwatched.make(error)
                await asyncio.sleep(BACKSTOP)

    async def _take(self, wanted: ClaimRequest, jobs: tuple[JobRecord, ...], sent: float) -> bool:
        """Have claimed jobs run; of a claim long on its way, those that still stand, renewed.

        Counted from when it was sent, its lease could run out before any handler had begun.
        """
        if jobs and self._is_late(sent):
            return await self._take_late(wanted, jobs, sent)
        if jobs:
            self._gatherer.take(jobs, sent, wanted.ahead)
        return bool(jobs)

    async def _take_late(self, wanted: ClaimRequest, jobs: tuple[JobRecord, ...], sent: float) -> bool:
        """Each is renewed by itself, so that none has to wait for one that cannot be just now."""
        lease, has_some = self._options.lease, False
        over = sent + lease
        while jobs:
            now = self._app.clock.monotonic()
            renewals = [Renew((Ref(job.id, job.fence),), lease) for job in jobs]
            answers = list(zip(jobs, await self._app.engine.submit_all(renewals), strict=True))
            kept = tuple(job for job, answer in answers if _is_kept(answer))
            if kept:
                has_some = True
                self._gatherer.take(kept, now, wanted.ahead)
            jobs = tuple(job for job, answer in answers if isinstance(answer, StoreUnavailable))
            if jobs:
                log.warning("%d claimed jobs cannot be renewed yet", len(jobs))
                if self._stopped or self._app.clock.monotonic() >= over:
                    break
                await asyncio.sleep(min(BACKSTOP, lease / 10))
        return has_some

    def _is_late(self, sent: float) -> bool:
        return self._app.clock.monotonic() - sent >= self._options.renewal

    def _wanted(self) -> list[ClaimRequest]:
        """What to claim: for batches that linger, for each kind of handler, and ahead of slots for the first
        that has none free."""
        if self._paused:
            return []
        slots, kinds = self._slots, self._kinds()
        if self._strange and (others := self._others()):
            kinds = [(runner, tasks, (*without, *others)) for runner, tasks, without in kinds]
        found = [ClaimRequest(room, (task,), others=True) for task, room in self._gatherer.room]
        found += [
            ClaimRequest(free, tasks, without)
            for runner, tasks, without in kinds
            if (free := slots.free(runner))
        ]
        if ahead := slots.free_ahead:
            full = ((tasks, without) for runner, tasks, without in kinds if not slots.free(runner))
            found += [ClaimRequest(ahead, tasks, without, ahead=True) for tasks, without in islice(full, 1)]
        return found

    def _meet(self, jobs: tuple[JobRecord, ...]) -> None:
        """Leave those tasks to others for a while that are not known here: they will be given back."""
        strange = {job.task for job in jobs} - self._app.tasks.keys()
        if not strange or self._options.on_unknown == "fail":
            return
        if len(self._strange) + len(strange) > STRANGE_MAX:
            self._strange = {}
        rest = STRANGE * self._options.release_delay
        for task in sorted(strange):
            text = "no task %s is declared here: its jobs are given back, and left to other workers for %g s"
            log.warning(text, task, rest)
            self._strange[task] = self._app.clock.monotonic() + rest

    def _others(self) -> TaskNames:
        """The tasks that are left to others now."""
        now = self._app.clock.monotonic()
        self._strange = {
            task: until
            for task, until in self._strange.items()
            if until > now and task not in self._app.tasks
        }
        return tuple(self._strange)

    def _kinds(self) -> list[ClaimKind]:
        """Every kind of handler with its tasks, looked up again when another is declared."""
        tasks = tuple(self._app.tasks.values())
        if tasks != self._tasks:
            self._tasks, self._found, self._batches = tasks, self._sorted(), batches(self._app)
        return self._found

    def _sorted(self) -> list[ClaimKind]:
        """The tasks by kind; what is not known here goes with the async ones."""
        only, of = self._options.tasks, {runner: list[str]() for runner in Runner}
        for name, task in sorted(self._app.tasks.items()):
            of[task.runner].append(name)
        apart = (*of[Runner.THREAD], *of[Runner.PROCESS])
        if only is None:
            kinds: list[ClaimKind] = [(Runner.ASYNC, None, apart)]
        else:
            kinds = [(Runner.ASYNC, tuple(name for name in only if name not in apart), ())]
        for runner in (Runner.THREAD, Runner.PROCESS):
            kinds.append((runner, tuple(name for name in of[runner] if only is None or name in only), ()))
        return [kind for kind in kinds if kind[1] is None or kind[1]]

    def _command(self, wanted: ClaimRequest, has_suspect: bool) -> Claim:
        start = not wanted.ahead and not wanted.others
        return Claim(
            worker=self._worker,
            nonce=next(self._nonces),
            limit=wanted.limit,
            queues=self._options.queues,
            tasks=wanted.tasks,
            without=wanted.without,
            suspects=0 if has_suspect or wanted.others else 1,
            start=start,
            batches=self._batches if start else (),
            lease=self._options.lease,
            order=self._options.queue_order,
        )


def _is_kept(answer: Answer) -> bool:
    return isinstance(answer, Renewed) and not isinstance(answer.acks[0], Lost)
