"""How long a failed job waits before it is tried again."""

from enum import StrEnum
from hashlib import blake2b

from msgspec import Struct

from errandry.core import check
from errandry.errors import InvalidValue


class Curve(StrEnum):
    FIXED = "fixed"
    LINEAR = "linear"
    EXPONENTIAL = "exponential"


class Backoff(Struct, frozen=True, omit_defaults=True, gc=False):
    """The delay before attempt n + 1, as stored with the job.

    `jitter` spreads it by that share up and down; `cap` is applied last. `function` names a
    function a worker has registered: the worker then says the delay, and the curve serves
    only where no worker can be asked.
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

    def delay(self, attempt: int, seed: str) -> float:
        """Seconds to wait after `attempt` (1 is the first). The same seed gives the same jitter."""
        growth = {
            Curve.FIXED: 1.0,
            Curve.LINEAR: float(attempt),
            Curve.EXPONENTIAL: 2.0 ** min(attempt - 1, 63),
        }
        plain = self.start * growth[self.curve]
        if self.jitter:
            plain *= 1 + self.jitter * (2 * _share(f"{seed}:{attempt}") - 1)
        return min(plain, self.cap)


DEFAULT_BACKOFF = Backoff()


def _share(seed: str) -> float:
    """A number from 0 up to 1, spread evenly over seeds: two stores compute the same delay."""
    return int.from_bytes(blake2b(seed.encode(), digest_size=6).digest()) / 2**48
