"""The worker: wiring, start, drain, stop."""

import asyncio
import logging
import os
import secrets
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from msgspec import Struct

from errandry.api.app import Errandry
from errandry.api.completion import first
from errandry.api.task import Runner
from errandry.core.answer import Answer
from errandry.core.command import Beat, ReleaseOutcome, Settle, SlotShare
from errandry.core.job import JobRecord
from errandry.errors import ErrandryError, StoreError
from errandry.worker.archiver import archive_forever
from errandry.worker.children.pool import ChildPool
from errandry.worker.children.process import refuse_in_child
from errandry.worker.claimer import Claimer
from errandry.worker.dispatcher import Dispatcher, batches
from errandry.worker.executor import Executor
from errandry.worker.handler_call import HandlerCall, JobRun, StopReason
from errandry.worker.leases import Leases
from errandry.worker.liveness import Liveness
from errandry.worker.log_capture import JobLogHandler
from errandry.worker.observers import Observers
from errandry.worker.options import WorkerOptions
from errandry.worker.slots import Slots
from errandry.worker.upkeep import UpkeepLoop
from errandry.worker.watchdog import Watchdog

log = logging.getLogger("errandry.worker")

SWITCH = 1e-4
"""A busy main loop starves the engine's thread at Python's default of 5 ms. Much less than this, and the two
spend an eighth of their time on taking turns."""
LAST_CALL = 1.0
"""How long handlers that were told to stop have before their jobs are given back without them."""
LAST_WORDS = 2.0
"""How long a worker with nothing left to do waits for a store that does not answer."""
RECOVERY = 1.0
"""How long a loop that broke rests."""


class Health(Struct, frozen=True):
    """Ages in seconds of what must not stand still; None if it never happened."""

    last_pass: float | None
    last_upkeep: float | None
    running: int


class Worker:
    """Runs the handlers of an app's tasks until it is stopped.

    `await worker.run()` returns after `stop()`, or SIGTERM or SIGINT where `signals` are handled: no more
    claims, handlers may finish for `grace`, then they are stopped and their jobs given back. A second signal
    does not wait.
    """

    def __init__(self, app: Errandry, options: WorkerOptions | None = None) -> None:
        self.app, self.options = app, options or WorkerOptions()
        # A mark of its own for every start: who finds this worker dead expires all leases under its id.
        name = (self.options.id or socket.gethostname())[:100]
        self.id = f"{name}-{os.getpid()}-{secrets.token_hex(4)}"
        self._stopping = asyncio.Event()
        self._hurry = asyncio.Event()
        self._is_over = False
        self._children = ChildPool(app, self.options)
        self._slots = Slots(self.options, self._children.spare)
        self._leases = Leases(app.engine, app.clock, self.id, self.options)
        self._gatherer = Dispatcher(app, self.options, self._slots, self._made, self._begin)
        self._claimer = Claimer(app, self.id, self.options, self._slots, self._gatherer, self._leases.is_idle)
        self._executor = Executor(app, self.options, self._slots.give, self._over, self._children)
        self._upkeeper = UpkeepLoop(app, self.id, self.options.upkeep_every)
        self._started_at = app.clock.time()

    async def run(self, *, signals: bool = False) -> None:
        """Work until stopped, then drain. Canceled, it gives everything back without waiting for handlers."""
        refuse_in_child()
        self._loop = asyncio.get_running_loop()
        async with self._surroundings(signals):
            claiming = asyncio.create_task(self.app.engine.call(self._claimer.run))
            stopping = asyncio.create_task(self._stopping.wait())
            try:
                await asyncio.wait([claiming, stopping], return_when=asyncio.FIRST_COMPLETED)
            except BaseException:
                self._hurry.set()
                raise
            finally:
                stopping.cancel()
                self._claimer.stop()
                await self._drain(claiming)
            if not self._is_over:
                claiming.result()

    def stop(self) -> None:
        """Drain and end; a second call does not wait for handlers."""
        if self._stopping.is_set():
            log.info("worker %s does not wait for its handlers", self.id)
            self._hurry.set()
        self._claimer.stop()  # now: a pass on the engine's thread may be about to claim
        self._stopping.set()

    def pause(self) -> None:
        """Claim nothing until resumed; what runs goes on."""
        self._claimer.pause(True)

    def resume(self) -> None:
        self._claimer.pause(False)

    def health(self) -> Health:
        now = self.app.clock.monotonic()
        upkept = None if self._upkeeper.last is None else now - self._upkeeper.last
        return Health(self.app.engine.stats().age, upkept, len(self._slots.runs))

    def _made(self, job: JobRecord, sent: float) -> JobRun:
        """Hold a job that was claimed just now. On the engine's loop, like `_begin`."""
        run = JobRun(job, sent + self.options.lease, self._executor, self._loop)
        self._leases.take(run)
        return run

    def _begin(self, batches: list[HandlerCall], ahead: bool) -> None:
        if not self._is_over:  # else nobody waits for it: it is somebody else's when its lease is over
            self._loop.call_soon_threadsafe(self._start, batches, ahead)

    def _start(self, batches: list[HandlerCall], ahead: bool) -> None:
        for batch in batches:
            self._executor.start(batch, self._slots.turn(batch) if ahead else None)
            if ahead and self._stopping.is_set():  # its claim was on the way: `_drain` has not seen it
                batch.stop(StopReason.SHUTDOWN)

    def _over(self, run: JobRun) -> None:
        self._leases.drop(run)
        if not run.is_settling or run.batch.is_suspect or (self.options.burst and self._leases.is_idle()):
            self._claimer.look()

    async def _drain(self, claiming: asyncio.Task[None]) -> None:
        """Let handlers finish for `grace`, then stop them and give back what is left.

        What was being claimed when the worker stopped is this worker's, too.
        """
        await asyncio.wait([claiming], timeout=LAST_WORDS)
        log.info("worker %s claims no more; handlers may finish for %g s", self.id, self.options.grace)
        for batch in self._slots.ahead:
            batch.stop(StopReason.SHUTDOWN)
        try:
            async with asyncio.timeout(self.options.grace):
                while (left := self._executor.work) and not self._hurry.is_set():
                    await first(asyncio.wait(left), self._hurry.wait())
        except TimeoutError:
            late = len(self._slots.batches)
            log.warning(
                "%d handler%s did not finish within the grace: stopped, and given back",
                late,
                "" if late == 1 else "s",
            )
        self._is_over = not claiming.done()
        if self._is_over:
            claiming.cancel()
            log.warning(
                "the store does not answer: what was just being claimed stays until its lease is over"
            )
        for batch in self._slots.batches:
            batch.stop(StopReason.SHUTDOWN)
        if left := self._executor.work:
            await asyncio.wait(left, timeout=LAST_CALL)
        kept = self._slots.runs
        for batch in self._slots.batches:
            self._slots.give(batch)
        for run in kept:
            self._leases.drop(run)
        await self._submit(*(Settle(run.ref, ReleaseOutcome()) for run in kept), limit=LAST_WORDS)

    async def _beat(self, alive: str) -> None:
        while True:
            await asyncio.sleep(self.options.beat_every)
            await self._submit(self._sign(alive))

    def _sign(self, alive: str, gone: bool = False) -> Beat:
        return Beat(
            worker=self.id,
            host=socket.gethostname(),
            pid=os.getpid(),
            alive=alive,
            queues=self.options.queues,
            tasks=self.options.tasks or tuple(sorted(self.app.tasks)),
            concurrency=self.options.concurrency,
            running=self._slots.taken,
            shares=self._shares(),
            batches=batches(self.app),
            started_at=self._started_at,
            gone=gone,
        )

    def _shares(self) -> tuple[SlotShare, ...]:
        """Handlers in threads and in processes have slots of their own."""
        slots = {Runner.THREAD: self.options.threads, Runner.PROCESS: self.options.processes}
        apart = {
            runner: tuple(n for n, t in self.app.tasks.items() if t.runner is runner) for runner in slots
        }
        return tuple(SlotShare(tasks, slots[runner]) for runner, tasks in apart.items() if tasks)

    async def _schedule(self) -> None:
        """Put the schedules that are declared in code. What cannot be one is a mistake there, and raised."""
        try:
            if self.app.schedules.declared or self.options.prune_schedules:
                await self.app.schedules.sync(prune=self.options.prune_schedules)
        except StoreError as error:
            log.warning("schedules could not be put: %s", error)

    async def _submit(self, *commands: Beat | Settle, limit: float | None = None) -> None:
        """Have these written, if the store answers within the limit."""
        answers: list[Answer | TimeoutError]
        try:
            async with asyncio.timeout(limit):
                answers = [*await self.app.engine.submit_all(commands)]
        except (ErrandryError, TimeoutError) as error:
            answers = [error] * len(commands)
        for command, answer in zip(commands, answers, strict=True):
            if isinstance(answer, ErrandryError | TimeoutError):
                why = "the store did not answer in time" if isinstance(answer, TimeoutError) else answer
                what = "a sign of life" if isinstance(command, Beat) else "an outcome"
                log.warning("%s could not be written: %s", what, why)

    @asynccontextmanager
    async def _surroundings(self, signals: bool) -> AsyncIterator[None]:
        """Everything that is there only while the worker works; leaving goes backwards."""
        await self.app.engine.start()
        before, capture = sys.getswitchinterval(), JobLogHandler()
        sys.setswitchinterval(min(before, SWITCH))
        logging.getLogger().addHandler(capture)
        liveness, telling, tasks = Liveness(), Observers(self.app), []
        self._children.lock = liveness.descriptor
        try:
            with _Signals(self.stop if signals else None):
                # Before any claim: who claims and dies unannounced is not missed until its leases run out.
                await self._submit(self._sign(liveness.path))
                await telling.start()
                await self._schedule()
                tasks += [
                    asyncio.create_task(self.app.engine.call(_forever, loop))
                    for loop in self._loops(liveness)
                ]
                if self.options.upkeep and (archive := self.app.archiver) is not None:
                    every = self.options.upkeep_every
                    tasks.append(asyncio.create_task(archive_forever(self.app, archive, every)))
                yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await telling.close()
            if not self._is_over:
                await self._submit(self._sign(liveness.path, gone=True), limit=LAST_WORDS)
            self._executor.close()
            await self._children.close()
            liveness.close()
            logging.getLogger().removeHandler(capture)
            sys.setswitchinterval(before)

    def _loops(self, liveness: Liveness) -> "list[LoopFunction]":
        """What goes on beside the handlers, on the engine's loop."""
        dog = Watchdog(self.app.clock, self.options.stall_after)
        loops: list[LoopFunction] = [self._leases.keep, self._leases.watch, dog.run]
        loops.append(partial(self._beat, liveness.path))
        if self.options.upkeep:
            loops.append(self._upkeeper.run)
        return loops


class _Signals:
    """SIGTERM and SIGINT call `stop`, as long as the worker works."""

    def __init__(self, stop: Any) -> None:
        self._stop = stop

    def __enter__(self) -> None:
        if self._stop is not None:
            for number in (signal.SIGTERM, signal.SIGINT):
                asyncio.get_running_loop().add_signal_handler(number, self._stop)

    def __exit__(self, *_: object) -> None:
        if self._stop is not None:
            for number in (signal.SIGTERM, signal.SIGINT):
                asyncio.get_running_loop().remove_signal_handler(number)


LoopFunction = Callable[[], Coroutine[Any, Any, None]]


async def _forever(loop: LoopFunction) -> None:
    """A loop the worker cannot be without: whatever happens in it, it goes on."""
    while True:
        try:
            await loop()
        except Exception:
            log.exception("something unforeseen happened; the worker goes on")
            await asyncio.sleep(RECOVERY)
