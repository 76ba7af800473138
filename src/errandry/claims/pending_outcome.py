"""Decides whether an unwritten outcome is sent again, for workers and claimers."""

import logging
from collections.abc import Callable

from errandry.claims.leases import HeldClaim
from errandry.claims.trouble import OnTrouble
from errandry.core.answer import Answer
from errandry.core.command import Outcome
from errandry.errors import ReplyLost, StoreClosed, StoreUnavailable

log = logging.getLogger("errandry.worker")

RETRY_AFTER = 1.0
"""Maximum seconds before an outcome that the store could not write is sent again."""


class PendingOutcome:
    """An outcome of a claim, and what the store has answered to it so far.

    It is sent again while the store is unavailable and the lease lasts. While the claim `is_settling`, its
    lease is not renewed. `in_doubt`: a reply was lost, so the outcome may be written.
    """

    __slots__ = ("_has_failed", "claim", "in_doubt", "outcome")

    def __init__(self, claim: HeldClaim, outcome: Outcome) -> None:
        self.claim, self.outcome = claim, outcome
        self.in_doubt = self._has_failed = False

    def should_retry(self, answer: Answer, on_trouble: OnTrouble, redact: Callable[[str], str]) -> bool:
        """Return True if the outcome should be sent again later, after this answer. Reports errors."""
        if not isinstance(answer, StoreUnavailable) or isinstance(answer, StoreClosed):
            return False
        if not self._has_failed:
            log.warning("cannot write the outcome of %s, retrying: %s", self.claim, answer)
        on_trouble("cannot write outcomes, retrying", answer, redact)
        self._has_failed = True
        self.in_doubt |= isinstance(answer, ReplyLost)
        return True

    def is_too_late(self, now: float, on_trouble: OnTrouble) -> bool:
        """Whether the lease has ended before the outcome was written, so that it is given up."""
        claim = self.claim
        if not claim.is_settling:
            if claim.is_lost:
                log.error("discarding the outcome of %s: its lease is lost, another worker may run it", claim)
            return claim.is_lost
        if not self._has_failed or now < claim.lease_until:  # nothing renews the lease meanwhile
            return False
        unwritten = "may be unwritten" if self.in_doubt else "is unwritten"
        log.error("giving up on the outcome of %s: it %s, and the lease has expired", claim, unwritten)
        on_trouble("gave up on an outcome: the lease expired before the store could write it")
        return True
