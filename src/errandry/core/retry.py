"""The delay before a failed job is tried again."""

from enum import StrEnum
from hashlib import blake2b

from msgspec import Struct

from errandry.core import check
from errandry.core.duration import format_duration
from errandry.errors import InvalidValue


class Curve(StrEnum):
    FIXED = "fixed"
    LINEAR = "linear"
    EXPONENTIAL = "exponential"


class Backoff(Struct, frozen=True, omit_defaults=True, gc=False):
    """The delay before the next attempt, as stored with the job.

    `start` and `cap` are seconds. `jitter` varies the delay by that share up and down; `cap` is applied last.
    `function` names a function that is registered in the worker, which then computes the delay. The curve is
    used only where no worker is involved.
    """

    curve: Curve = Curve.EXPONENTIAL
    start: float = 1.0
    cap: float = 3600.0
    jitter: float = 0.25
    function: str | None = None

    def __post_init__(self) -> None:
        check.span("backoff.start", self.start)
        check.span("backoff.cap", self.cap)
        if type(self.jitter) not in (int, float) or not 0 <= self.jitter <= 1:
            raise InvalidValue("backoff.jitter", self.jitter, "must be a share from 0 to 1")
        if self.function is not None:
            check.name("backoff.function", self.function)

    def __str__(self) -> str:
        """The delays in words: "30s", "linear from 1s", "exponential from 1s up to 10m, jitter 10%"."""
        if self.function is not None:
            return self.function
        if self.curve is Curve.FIXED and not self.jitter:
            return format_duration(min(self.start, self.cap))
        cap = "" if self.cap == DEFAULT_BACKOFF.cap else f" up to {format_duration(self.cap)}"
        jitter = "" if self.jitter == DEFAULT_BACKOFF.jitter else f", jitter {self.jitter:.4g}"
        return f"{self.curve} from {format_duration(self.start)}{cap}{jitter}"

    def delay(self, attempt: int, seed: str) -> float:
        """Seconds to wait after `attempt` (1 is the first).

        The jitter depends only on `seed` and `attempt`.
        """
        growth = {
            Curve.FIXED: 1.0,
            Curve.LINEAR: float(attempt),
            Curve.EXPONENTIAL: 2.0 ** min(attempt - 1, 63),
        }
        plain = self.start * growth[self.curve]
        if self.jitter:
            plain *= 1 + self.jitter * (2 * _fraction(f"{seed}:{attempt}") - 1)
        return min(plain, self.cap)


DEFAULT_BACKOFF = Backoff()


def _fraction(seed: str) -> float:
    """A number from 0 to 1, evenly distributed over seeds. Every store computes the same number."""
    return int.from_bytes(blake2b(seed.encode(), digest_size=6).digest()) / 2**48
