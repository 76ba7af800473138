"""Durable steps: what a handler has done and need not do again, its sleeps, and the signals sent to its job.

Code is not replayed: a handler that runs again begins at its beginning, and is given the results of the
steps that were finished.
"""

from enum import StrEnum
from typing import ClassVar

from msgspec import Struct

from errandry.core import check
from errandry.core.state import Move

STEPS_MAX = 1_000
"""So many steps, sleeps and signals has a job: they are all read whenever it begins."""


class StepKind(StrEnum):
    """What a step is. Names are unique among those of a kind, so that a signal cannot pose as a step."""

    STEP = "step"
    SLEEP = "sleep"
    SIGNAL = "signal"


class Step(Struct, frozen=True, gc=False):
    """One step as it is stored, the `n`th of its job; `result` is JSON text.

    `at` is when it was done, or begun if it is a sleep, or when the signal came: None as long as that is
    awaited. `until` is when a sleep or a wait ends.
    """

    job: str
    n: int
    kind: StepKind
    name: str
    result: str | None = None
    at: float | None = None
    until: float | None = None


class StepState(Struct, frozen=True, omit_defaults=True, gc=False):
    """What the record of a job says of its steps: how many there are, and which signal it awaited last."""

    count: int
    signal: str | None = None


class WaitOutcome(Struct, frozen=True, gc=False, tag="wait"):
    """Run again when the signal is there, or after `timeout`; this attempt does not count.

    The time counts from when the job began to wait for this signal, however often it has been run since.
    """

    move: ClassVar[Move] = Move.WAIT
    name: str
    timeout: float = check.SPAN_MAX

    def __post_init__(self) -> None:
        check.name("signal", self.name)
        check.span("timeout", self.timeout)


class SendSignal(Struct, frozen=True, gc=False):
    """Tell a job that has not finished what it waits for, or will. Answer: WRITTEN, or ALREADY for another
    of the name: the first one counts."""

    job: str
    name: str
    payload: str = "null"

    def __post_init__(self) -> None:
        check.name("job", self.job)
        check.name("signal", self.name)
        check.document("payload", self.payload)
