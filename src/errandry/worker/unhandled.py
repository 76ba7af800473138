"""What a worker does with a job that it cannot run because the job seems to be of a newer program.

During a rolling deploy, workers of the older program claim jobs of the newer one: of a task that they do not
declare, of a newer version of its arguments, or with an argument that it does not have. They give such a job
back, for a worker of the newer program.
"""

import logging

from errandry.api.app import Errandry
from errandry.claims.trouble import OnTrouble
from errandry.core.argument_version import version_of
from errandry.core.command import FailOutcome, Outcome, ReleaseOutcome
from errandry.core.duration import rough_duration
from errandry.core.job import Failure, JobRecord
from errandry.core.state import Reason
from errandry.errors import ErrandryError
from errandry.worker.options import WorkerOptions

log = logging.getLogger("errandry.worker")

RELEASE_DELAY_MAX = 60.0
"""Maximum seconds that a job which was given back waits, unless `release_delay` is longer."""


class UnhandledJobs:
    """Gives jobs back, or fails them if that has lasted for `unknown_timeout`.

    All times are those of the store: a claimed job has the time of its claim. So neither the number of
    workers nor their clocks decide when a job fails.
    """

    def __init__(self, app: Errandry, options: WorkerOptions, on_trouble: OnTrouble) -> None:
        self._app, self._options, self._on_trouble = app, options, on_trouble

    async def unknown_task_outcome(self, job: JobRecord) -> Outcome:
        """The outcome of a job of a task that this worker does not declare."""
        return await self._outcome(job, "UnknownTask", f"no task {job.task!r} is declared")

    async def newer_version_outcome(self, job: JobRecord) -> Outcome:
        """The outcome of a job whose arguments have a newer version than its task in this worker."""
        why = f"no version {version_of(job.metadata)} of task {job.task!r} is declared"
        return await self._outcome(job, "NewerVersion", why)

    def should_release(self, job: JobRecord) -> bool:
        """Whether to give the job back, if no heartbeat can say whether another worker can run it."""
        return self._options.on_unknown == "release" and not self._is_over(job)

    def release(self, job: JobRecord, why: str) -> ReleaseOutcome:
        """Give the job back for as long as it has been given back so far, at most a minute."""
        delay = max(self._options.release_delay, min(_unhandled_time(job), RELEASE_DELAY_MAX))
        log.debug("job %s (%s) is given back for %g s, for another worker: %s", job.id, job.task, delay, why)
        return ReleaseOutcome(delay, unhandled=True)

    async def _outcome(self, job: JobRecord, kind: str, why: str) -> Outcome:
        if self._options.on_unknown == "fail":
            return FailOutcome(Failure(Reason.NO_HANDLER, kind, f"{why} in this worker"))
        if not self._is_over(job) or await self._has_worker(job):
            return self.release(job, f"{why} in this worker")
        lasted = rough_duration(_unhandled_time(job))
        message = f"{why} in any live worker; workers have given the job back for {lasted}"
        return FailOutcome(Failure(Reason.NO_HANDLER, kind, message))

    def _is_over(self, job: JobRecord) -> bool:
        return job.unhandled_since is not None and _unhandled_time(job) >= self._options.unknown_timeout

    async def _has_worker(self, job: JobRecord) -> bool:
        """Whether a live worker lists the task in the version of the job; also if that cannot be read."""
        try:
            workers = await self._app.engine.call(self._app.store.workers)
        except ErrandryError as error:
            self._on_trouble("cannot read which tasks the workers list", error)
            return True
        version, now = version_of(job.metadata), job.claimed_at or 0.0
        return any(
            now < worker.seen_at + worker.beat.silence_limit and worker.beat.lists(job.task, version)
            for worker in workers
        )


def _unhandled_time(job: JobRecord) -> float:
    """Seconds between the first time that the job was given back and its claim."""
    if job.unhandled_since is None or job.claimed_at is None:
        return 0.0
    return max(0.0, job.claimed_at - job.unhandled_since)
