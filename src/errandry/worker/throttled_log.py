"""Saying once what goes wrong again and again, and that it is over: a store that is away fills no log."""

import logging

from errandry.clock import Clock

log = logging.getLogger("errandry.worker")

AGAIN = 30.0
"""So many seconds pass until the same is said again."""


class ThrottledLog:
    """What a loop of a worker has to say of its store: `what` while it fails, `over` when it does no more."""

    def __init__(self, clock: Clock, what: str, over: str) -> None:
        self._clock, self._what, self._over = clock, what, over
        self._since: float | None = None
        self._said = 0.0

    def make(self, error: BaseException) -> None:
        now = self._clock.monotonic()
        is_due = self._since is None or now >= self._said + AGAIN
        if is_due:
            self._said = now
        self._since = now if self._since is None else self._since
        log.log(logging.WARNING if is_due else logging.DEBUG, "%s: %s", self._what, error)

    def end(self) -> None:
        """Nothing is wrong now."""
        if self._since is not None:
            log.info("%s, after %.0f s", self._over, self._clock.monotonic() - self._since)
            self._since = None
