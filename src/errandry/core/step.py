"""Durable steps: the finished steps of a handler, its sleeps, and the signals sent to its job.

Errandry does not replay code. A handler that runs again begins at its beginning and gets the stored results
of the steps that it has finished.
"""

from enum import StrEnum
from typing import ClassVar

from msgspec import Struct

from errandry.core import check
from errandry.core.once import OnceCommand
from errandry.core.state import Move

STEPS_MAX = 1_000
"""Maximum number of steps, sleeps and signals of a job. A worker reads all of them before each run."""


class StepKind(StrEnum):
    """The kind of a step. Names are unique within a kind, so that a signal cannot replace a step."""

    STEP = "step"
    SLEEP = "sleep"
    SIGNAL = "signal"


class StepRecord(Struct, frozen=True, gc=False):
    """A step as stored: number `n` of its job, counted from 0; `result` is JSON text.

    `at` is when the step was finished, the sleep began, or the signal came; None while the job waits for the
    signal. `until` is when a sleep or a wait ends.
    """

    job: str
    n: int
    kind: StepKind
    name: str
    result: str | None = None
    at: float | None = None
    until: float | None = None


class StepState(Struct, frozen=True, omit_defaults=True, gc=False):
    """The steps in the record of a job: their number, and the last signal that the job waited for."""

    count: int
    signal: str | None = None


class WaitOutcome(Struct, frozen=True, gc=False, tag="wait"):
    """Run again when the signal comes, or after `timeout` seconds; this attempt does not count.

    The timeout counts from when the job first waited for this signal, even if it has run again since.
    """

    move: ClassVar[Move] = Move.WAIT
    name: str
    timeout: float = check.SPAN_MAX

    def __post_init__(self) -> None:
        check.name("signal", self.name)
        check.span("timeout", self.timeout)


class SendSignal(OnceCommand, frozen=True, gc=False):
    """Send a signal to a job that has not finished, whether or not it waits for it already.

    Answer: WRITTEN, or ALREADY if the job has a signal of this name; the first one counts.
    """

    job: str
    name: str
    payload: str = "null"

    def __post_init__(self) -> None:
        super().__post_init__()
        check.name("job", self.job)
        check.name("signal", self.name)
        check.document("payload", self.payload)
