"""Logs a repeated failure once, and its end, so that an unavailable store does not flood the log."""

import logging

from errandry.claims.trouble import OnTrouble, ignore_trouble
from errandry.clock import Clock

log = logging.getLogger("errandry.worker")

REPEAT_AFTER = 30.0
"""Minimum seconds between two warnings about the same failure."""


def log_of_writes(clock: Clock, on_trouble: OnTrouble) -> "ThrottledLog":
    """A log of failed passes: the engine retries them for a long time before a caller gets the error."""
    return ThrottledLog(
        clock, "cannot write to the store, retrying", "the store can be written again", on_trouble
    )


class ThrottledLog:
    """Log lines of a loop: `failure` as a warning while it fails, `recovery` once it succeeds again.

    Each failure is also passed to `on_trouble`.
    """

    def __init__(
        self, clock: Clock, failure: str, recovery: str, on_trouble: OnTrouble = ignore_trouble
    ) -> None:
        self._clock, self._failure, self._recovery = clock, failure, recovery
        self._on_trouble = on_trouble
        self._since: float | None = None
        self._last_warning = 0.0

    def report_failure(self, error: BaseException) -> None:
        now = self._clock.monotonic()
        is_due = self._since is None or now >= self._last_warning + REPEAT_AFTER
        if is_due:
            self._last_warning = now
        self._since = now if self._since is None else self._since
        log.log(logging.WARNING if is_due else logging.DEBUG, "%s: %s", self._failure, error)
        self._on_trouble(self._failure, error)

    def report_recovery(self) -> None:
        """Log the recovery if there was a failure."""
        if self._since is not None:
            log.info("%s, after %.0f s", self._recovery, self._clock.monotonic() - self._since)
            self._since = None
