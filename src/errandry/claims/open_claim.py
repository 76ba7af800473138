"""The lease of a job that a program has claimed with `jobs.claimer`."""

from collections.abc import Callable

from errandry.claims.leases import StopReason
from errandry.clock import Clock
from errandry.core.command import Ref
from errandry.core.job import JobRecord


class OpenClaim:
    """A claim until its job is settled or its lease is lost; then it calls `on_end`, from any thread.

    The lease and the timeout of the job count from `sent_at`, the monotonic time at which the claim was sent.
    After the timeout the lease is no longer renewed, so that a program that hangs loses the job.
    """

    def __init__(
        self,
        record: JobRecord,
        clock: Clock,
        lease: float,
        sent_at: float,
        renews: bool,
        on_end: Callable[["OpenClaim"], None],
    ) -> None:
        self.record, self.ref, self.lease = record, Ref(record.id, record.fence), lease
        self.lease_until = sent_at + lease
        self.is_lost = self.is_settling = False
        self._clock, self._renews, self._on_end = clock, renews, on_end
        self._timeout_at = None if record.timeout is None else sent_at + record.timeout
        self._stop_reason: StopReason | None = None

    def __str__(self) -> str:
        return f"job {self.record.id} ({self.record.task})"

    @property
    def stop_reason(self) -> StopReason | None:
        """Why the program should stop; the first reason counts."""
        if self._timeout_at is not None and self._clock.monotonic() >= self._timeout_at:
            self.stop(StopReason.TIMEOUT)
        return self._stop_reason

    @property
    def should_stop(self) -> bool:
        return self.stop_reason is not None or self._clock.monotonic() >= self.lease_until

    def needs_renewal(self, now: float) -> bool:
        """Whether its lease should be renewed without being asked."""
        if self.is_lost or self.is_settling or not self._renews:
            return False
        return self._timeout_at is None or now < self._timeout_at

    def stop_renewing(self) -> None:
        """Let the lease run out: the program has let go of the job, and its outcome could not be written."""
        self._renews = False

    def stop(self, reason: StopReason) -> None:
        """Ask the program to stop; the first reason counts. From any thread."""
        self._stop_reason = self._stop_reason or reason

    def mark_lost(self, cause: str) -> None:  # noqa: ARG002 - the log has the cause
        """Note that the program no longer has its lease, and ask it to stop. From any thread."""
        self.is_lost = True
        self.stop(StopReason.LOST)
        self.end()

    def end(self) -> None:
        """Note that nothing more is written under this claim."""
        self._on_end(self)
