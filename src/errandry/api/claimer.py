"""`Claimer`: claims jobs for a program that runs them itself, instead of a `Worker`."""

import asyncio
import itertools
import logging
import os
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from errandry.api.claimed_job import ClaimedJob, check_same_process
from errandry.api.completion import wait_for_first
from errandry.api.observer_calls import ObserverCalls
from errandry.api.options import Duration
from errandry.claims.background import LoopFunction, start_loops
from errandry.claims.leases import Leases, settle_all
from errandry.claims.log_record import log_expiries
from errandry.claims.open_claim import OpenClaim
from errandry.claims.presence import CLOSE_TIMEOUT, Presence, new_worker_id
from errandry.claims.suspect_lock import SuspectLock
from errandry.claims.suspect_turns import SuspectTurns
from errandry.claims.throttled_log import log_of_writes
from errandry.claims.trouble import TroubleReporter
from errandry.claims.upkeep import UpkeepLoop
from errandry.clock import Clock
from errandry.core import check
from errandry.core.answer import LOCKED_RETRY_AFTER, Answer, Claims
from errandry.core.command import BEAT_INTERVAL, DEFAULT_LEASE, Beat, Claim, listed_tasks
from errandry.core.duration import seconds
from errandry.errors import CommandFailed, InvalidValue, ReplyLost, StoreClosed, StoreUnavailable

if TYPE_CHECKING:
    from errandry.api.app import Errandry

log = logging.getLogger("errandry.claimer")

CLAIM_LIMIT_MAX = 10_000
"""Maximum number of jobs of one claim."""
LOCKED_WAIT = 1.0
"""Maximum seconds to wait, in addition, for a due job that another pass has locked: it is making it ready."""
POLL_INTERVAL = 1.0
"""Maximum seconds between two claims of a waiting caller: notifications of changes may be lost."""


class ClaimedJobs(NamedTuple):
    """The jobs of one claim, and what its answer says about other jobs (see `Claims`)."""

    jobs: list[ClaimedJob]
    due_in: float | None
    has_locked: bool


class Claimer:
    """Claims jobs by hand, with `jobs.claimer(…)`; open from the beginning of its block to its end.

    To the store it is a worker with the id `id`: it sends heartbeats, it is listed and can be paused, and the
    pauses, limits, rates and turns of queues, tasks and groups hold for it. When its block ends, it releases
    the jobs that are not settled; a job whose timeout is over is retried instead. If an exception ends the
    block and a single job is left, that job is settled with the exception.
    """

    def __init__(
        self,
        app: "Errandry",
        *,
        queues: Sequence[str] | str | None = None,
        tasks: Sequence[str] | str | None = None,
        lease: Duration = DEFAULT_LEASE,
        renew: bool = True,
        worker: str | None = None,
        upkeep: bool = True,
    ) -> None:
        self._app = app
        self._renews, self._runs_upkeep = check.flag("renew", renew), check.flag("upkeep", upkeep)
        self._queues, self._tasks = _names("queues", queues), _names("tasks", tasks)
        self._lease = seconds(lease, "lease")
        check.lease(self._lease)
        self._id = new_worker_id(None if worker is None else check.name("worker", worker))
        prefix = secrets.token_hex(8)
        self._nonces = (f"{prefix}-{number}" for number in itertools.count())
        self._jobs: dict[OpenClaim, ClaimedJob] = {}
        self._in_flight: set[asyncio.Task[ClaimedJobs] | asyncio.Task[None]] = set()
        self._loops: list[asyncio.Task[None]] = []
        self._suspects = _ClaimedSuspects(self._jobs, app.clock)
        self._turns = SuspectTurns(SuspectLock(lambda: app.store.identity), self._suspects, app.clock)
        self._is_claiming_suspects = False
        self._job_error: BaseException | None = None
        self._was_opened, self._closing = False, asyncio.Event()
        self._started_at, self._process = app.clock.time(), os.getpid()

    @property
    def id(self) -> str:
        """The id of this claimer as a worker, as in `jobs.workers`; unique for each claimer."""
        return self._id

    async def claim(self, limit: int = 1, wait: Duration = 0) -> list[ClaimedJob]:
        """Claim up to `limit` jobs, most urgent first, and start them.

        Waits for `wait` if there is none, and returns an empty list if none came. It waits up to a second
        longer while another program is making a job ready that is due. If the caller is canceled meanwhile,
        the jobs of a claim in flight are released.
        """
        check.whole("limit", limit, 1, CLAIM_LIMIT_MAX)
        check_same_process("claimer", self.id, self._process)
        give_up = asyncio.get_running_loop().time() + seconds(wait, "wait")
        try:
            return await self._claim_until(give_up, limit)
        finally:
            self._turns.yield_place()  # the program may not claim again for a long time

    async def _claim_until(self, give_up: float, limit: int) -> list[ClaimedJob]:
        loop, closing = asyncio.get_running_loop(), self._closing
        store, engine = self._app.store, self._app.engine
        while True:
            if not self._was_opened or closing.is_set():
                raise InvalidValue("claimer", self.id, "is not open: claim inside of its `async with` block")
            version = store.version()
            jobs, due_in, has_locked = await self._claim_once(limit)
            left = give_up - loop.time()
            if closing.is_set():  # the end of the block releases the jobs
                return []
            if jobs or left + (LOCKED_WAIT if has_locked else 0.0) <= 0:
                return jobs
            pauses = (left, POLL_INTERVAL, due_in, self._turns.retry_in)
            timeout = min(pause for pause in pauses if pause is not None)
            if has_locked:
                timeout = LOCKED_RETRY_AFTER
            await wait_for_first(engine.call(store.wait_for_change, version, timeout), closing.wait())
            if closing.is_set():
                return []

    async def __aenter__(self) -> Self:
        if self._was_opened:
            raise InvalidValue("claimer", self.id, "was opened before: make another one with jobs.claimer(…)")
        app, self._was_opened, self._process = self._app, True, os.getpid()
        await app.engine.start()
        self._trouble = TroubleReporter(app.engine, app.clock, self.id)
        self._observers = ObserverCalls(app, self._trouble)
        self._engine, self._writes = app.engine, log_of_writes(app.clock, self._trouble.report)
        self._engine.watch_writes(self._writes)
        self._leases = Leases(
            app.engine,
            app.clock,
            self.id,
            self._lease,
            self._lease / 3,
            self._trouble.report,
            self._beat_soon,
        )
        self._presence = Presence(app.engine, self._trouble, self._make_beat, BEAT_INTERVAL)
        try:
            await self._presence.report()
            await self._observers.start()
            self._storing = asyncio.create_task(app.engine.call(self._trouble.store_forever))
            self._loops = start_loops(app.engine, self._background_loops(), self._trouble.report)
        except BaseException:
            self._engine.unwatch_writes(self._writes)
            await self._observers.close()
            self._presence.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if os.getpid() != self._process:  # forked in the block: the jobs belong to the parent
            self._presence.close()
            return
        is_known = error is self._job_error  # it has ended the block of a job, which is settled with it
        is_of_many = isinstance(error, BaseExceptionGroup)
        closing = asyncio.create_task(self._close(None if is_known or is_of_many else error))
        canceled: asyncio.CancelledError | None = None
        while not closing.done():
            try:
                await asyncio.wait({closing})
            except asyncio.CancelledError as error_while_closing:  # first release the jobs
                canceled = error_while_closing
        closing.result()
        if canceled is not None:
            raise canceled

    async def _close(self, error: BaseException | None) -> None:
        """Settle the jobs that are left, and end the loops: in a few seconds if the store is unavailable."""
        self._closing.set()
        try:
            if self._in_flight:
                await self._finish_claims(self._in_flight)
            await self._release(list(self._jobs.values()), error)
        finally:
            for task in self._loops:
                task.cancel()
            await asyncio.gather(*self._loops, return_exceptions=True)
            await self._presence.report(gone=True)
            await self._trouble.finish_storing(self._storing, CLOSE_TIMEOUT)
            with suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_TIMEOUT):
                    await self._observers.finish()
            await self._observers.close()
            self._presence.close()
            self._turns.close()
            self._engine.unwatch_writes(self._writes)

    async def _finish_claims(self, claims: "set[asyncio.Task[ClaimedJobs] | asyncio.Task[None]]") -> None:
        """Wait for the claims in flight, whose jobs belong to this claimer."""
        _, unanswered = await asyncio.wait(claims, timeout=CLOSE_TIMEOUT)
        for task in unanswered:
            task.cancel()
        if unanswered:
            log.warning(
                "the store does not answer: jobs of the last claim stay claimed until their leases expire"
            )

    async def _claim_once(self, limit: int) -> ClaimedJobs:
        """Claim without waiting for jobs. If the caller is canceled, the claimed jobs are released."""
        claiming = asyncio.create_task(self._claim(limit))
        self._track(claiming)
        try:
            return await asyncio.shield(claiming)
        except asyncio.CancelledError:
            self._track(asyncio.create_task(self._release_unseen(claiming)))
            raise

    async def _claim(self, limit: int) -> ClaimedJobs:
        if self._is_claiming_suspects:
            return await self._claim_jobs(limit, 0)
        self._is_claiming_suspects, turns = True, self._turns
        try:
            claimed = await self._claim_jobs(limit, turns.quota(limit, self._suspects.suspects_held))
            if not claimed.jobs and turns.begin():  # only the answer has said that suspects wait
                quota = turns.quota(limit, self._suspects.suspects_held)
                return await self._claim_jobs(limit, quota)
            return claimed
        finally:
            self._is_claiming_suspects = False
            turns.end_claim()

    async def _claim_jobs(self, limit: int, suspects: int) -> ClaimedJobs:
        """Claim jobs. At most `suspects` of them were running when their worker was lost."""
        clock = self._app.clock
        sent_at = clock.monotonic()
        command = Claim(
            worker=self.id,
            nonce=next(self._nonces),
            limit=limit,
            queues=self._queues,
            tasks=self._tasks,
            suspects=suspects,
            suspect_kind=self._turns.kind,
            lease=self._lease,
        )
        answer = await self._submit_claim(command, sent_at + self._lease)
        if not isinstance(answer, Claims):
            raise CommandFailed("Claim", f"the store answered {answer!r}")
        self._turns.note_waiting(answer.waiting_suspects)
        self._suspects.claimed += sum(record.crashes > 0 for record in answer.jobs)
        log_expiries(answer.expiries)
        jobs = []
        for record in answer.jobs:
            claim = OpenClaim(record, clock, self._lease, sent_at, self._renews, self._forget)
            self._jobs[claim] = ClaimedJob(self._app, claim, self._trouble.report, self._note_job_error)
            self._leases.add(claim)
            jobs.append(self._jobs[claim])
        if clock.monotonic() - sent_at >= self._lease / 3:  # the leases count from the moment it was sent
            await self._app.engine.call(self._leases.renew_all)
        for job in jobs:
            await job._prepare()
        return ClaimedJobs(jobs, answer.due_in, answer.has_locked)

    async def _submit_claim(self, command: Claim, expires_at: float) -> Answer:
        """Send a claim; after a lost reply again until its leases expire: the store answers the same jobs."""
        in_doubt = False
        while True:
            try:
                return await self._app.engine.submit(command)
            except StoreUnavailable as error:
                in_doubt |= isinstance(error, ReplyLost)
                is_over = isinstance(error, StoreClosed) or self._app.clock.monotonic() >= expires_at
                if not in_doubt or is_over:
                    raise
                self._trouble.report("cannot recover a claim after a lost reply", error)
                log.warning("cannot recover a claim after a lost reply, retrying: %s", error)
                await asyncio.sleep(POLL_INTERVAL)

    async def _release_unseen(self, claiming: "asyncio.Task[ClaimedJobs]") -> None:
        """Release the jobs of a claim whose caller was canceled."""
        await asyncio.wait({claiming})
        if not claiming.cancelled() and claiming.exception() is None:
            await self._release(claiming.result().jobs)

    async def _release(self, jobs: Sequence[ClaimedJob], error: BaseException | None = None) -> None:
        """Settle the jobs that the program has not settled, as if their blocks had ended.

        `error` has ended the block of the claimer. If a single job is left, it is settled with that error.
        """
        if jobs:
            await asyncio.wait(
                [asyncio.create_task(job._finish_settling()) for job in jobs], timeout=CLOSE_TIMEOUT
            )
            for job in jobs:
                job._stop_settling()
        left = [job for job in jobs if not job.settled]
        cause = error if len(left) == 1 else None
        releases = [(job, settle) for job in left if (settle := job._begin_release(cause)) is not None]
        if releases:
            settles = [settle for _, settle in releases]
            answers = await settle_all(self._app.engine, settles, self._trouble.report, CLOSE_TIMEOUT)
            for (job, _), answer in zip(releases, answers, strict=True):
                job._end_release(answer)

    def _abandon(self, closed: StoreClosed) -> None:
        """Log that the jobs stay claimed, and unlock the file; for `SyncClaimer`, if the app was closed."""
        log.warning("claimer %s: its jobs stay claimed until their leases expire: %s", self.id, closed)
        self._presence.close()

    def _forget(self, claim: OpenClaim) -> None:
        """Remove a claim that is settled or lost. From any thread."""
        self._jobs.pop(claim, None)
        self._leases.remove(claim)
        if claim.record.crashes:
            self._turns.end_if_over()

    def _note_job_error(self, error: BaseException) -> None:
        """Note the error that has ended the block of a job: it is not that of another one."""
        self._job_error = error

    def _track(self, task: "asyncio.Task[ClaimedJobs] | asyncio.Task[None]") -> None:
        self._in_flight.add(task)
        task.add_done_callback(self._in_flight.discard)

    def _beat_soon(self) -> None:
        self._presence.report_soon()

    def _make_beat(self) -> Beat:
        return Beat(
            worker=self.id,
            queues=self._queues,
            tasks=listed_tasks(self._tasks),
            running=len(self._jobs),
            started_at=self._started_at,
            lease=self._lease,
        )

    def _background_loops(self) -> list[LoopFunction]:
        app, leases = self._app, self._leases
        loops: list[LoopFunction] = [
            leases.renew_forever,
            leases.watch_cancels,
            self._presence.report_forever,
        ]
        if self._runs_upkeep:
            loops.append(UpkeepLoop(app.engine, app.clock, self._trouble, lambda: app.archiver is None).run)
        return loops


class _ClaimedSuspects:
    """Counts the suspects among the jobs of a claimer. One whose lease has ended is not held any more."""

    def __init__(self, jobs: Mapping[OpenClaim, ClaimedJob], clock: Clock) -> None:
        self._jobs, self._clock, self.claimed = jobs, clock, 0

    @property
    def suspects_held(self) -> int:
        now = self._clock.monotonic()
        return sum(claim.record.crashes > 0 and claim.lease_until > now for claim in list(self._jobs))

    @property
    def suspects_ended(self) -> int:
        return self.claimed - self.suspects_held


def _names(field: str, given: Any) -> tuple[str, ...] | None:
    """Names of queues or tasks; None means all."""
    if given is None:
        return None
    names = (given,) if isinstance(given, str) else given
    if not isinstance(names, list | tuple) or not names:
        raise InvalidValue(field, given, "must be a list of names; leave it out for all")
    return tuple([check.name(field, name) for name in names])
