"""Outcomes that a handler raises or returns, and the suspensions that end a run on its behalf.

A handler may raise or return an outcome, as an instance or a class: `raise Retry(after="10s")`,
`return Cancel`. Outcomes are ordinary exceptions, because the handler asks for them by name. `ctx.sleep`,
`ctx.wait_for` and `ctx.spawn` raise a suspension. It is a `BaseException`, as `CancelledError` is, so that an
`except Exception` in the handler does not swallow it.
"""

from collections.abc import Iterator
from datetime import timedelta

from errandry.core import check
from errandry.core.duration import seconds


class HandlerOutcome(Exception):
    """The handler's decision about its job. An exception, but not an error."""


class Retry(HandlerOutcome):
    """Retry the job `after` that time, by default after the task's backoff. Spends the attempt.

        raise Retry("rate limited", after=response.headers["Retry-After"], pause_group=True)

    With `pause_group`, no worker starts another job of the same group until then, or of the same task if the
    job has no group: for an API that says "slow down".
    """

    def __init__(
        self, message: object = "", *, after: float | timedelta | str | None = None, pause_group: bool = False
    ) -> None:
        self.message, self.after = _text(message), None if after is None else seconds(after, "after")
        super().__init__(self.message, self.after, pause_group)
        self.pause_group = pause_group

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (Retry, (self.message,), {"after": self.after, "pause_group": self.pause_group})

    def __str__(self) -> str:
        return self.message or "the handler asked for another try"


class Snooze(HandlerOutcome):
    """Run the job again `after` that time; this attempt does not count."""

    def __init__(self, after: float | timedelta | str) -> None:
        super().__init__(after)
        self.after = seconds(after, "after")

    def __str__(self) -> str:
        return f"snoozed for {self.after:g} s"


class Suspension(BaseException):
    """Ends this run; the handler is called again later. Let it pass, as you let CancelledError pass."""


class SuspendForSleep(Suspension):
    """Run the job again when its sleep is over; this attempt does not count. See `JobContext.sleep`."""

    def __init__(self, after: float, name: str) -> None:
        super().__init__(after, name)
        self.after, self.name = after, name

    def __str__(self) -> str:
        return f"it sleeps for {self.after:g} s"


class SuspendForSignal(Suspension):
    """Run the job again when the signal has arrived or the timeout is over. See `JobContext.wait_for`."""

    def __init__(self, name: str, timeout: float) -> None:
        super().__init__(name, timeout)
        self.name, self.timeout = name, timeout

    def __str__(self) -> str:
        return f"it waits for the signal {self.name!r}"


class SuspendForChildren(Suspension):
    """Run the job again when these calls have ended; this attempt does not count. See `JobContext.spawn`."""

    def __init__(self, calls: tuple[object, ...], policy: str = "fail") -> None:
        super().__init__(calls, policy)
        self.calls, self.policy = calls, policy

    def __str__(self) -> str:
        return f"it waits for {len(self.calls)} jobs that it has spawned"


class Fail(HandlerOutcome):
    """Fail the job for good, even if it has attempts left. `reason` may be an error: its text is taken."""

    def __init__(self, reason: object = "") -> None:
        self.reason = _text(reason)
        super().__init__(self.reason)

    def __str__(self) -> str:
        return self.reason or "the handler gave up"


class Cancel(HandlerOutcome):
    """Cancel the job."""

    def __init__(self, reason: object = "") -> None:
        self.reason = _text(reason)
        super().__init__(self.reason)

    def __str__(self) -> str:
        return self.reason or "canceled by its handler"


def returned_outcome(value: object) -> BaseException | None:
    """The outcome that a handler returned, as an instance or a class; None if it returned a result.

    A class that needs arguments, such as Snooze, gives the TypeError that raising it would have given.
    """
    if isinstance(value, HandlerOutcome):
        return value
    if not (isinstance(value, type) and issubclass(value, HandlerOutcome)):
        return None
    try:
        return value()
    except TypeError as error:
        return error


def unwrap_group(error: BaseException) -> BaseException:
    """The first outcome or suspension in an exception group that has nothing else; any other error as it is.

    A TaskGroup wraps what its tasks raise. An error beside a suspension wins: the attempt has failed.
    """
    if not isinstance(error, BaseExceptionGroup):
        return error
    members = list(_members(error))
    if all(isinstance(member, HandlerOutcome | Suspension) for member in members):
        return members[0]
    return error


def _text(value: object) -> str:
    """The text of a value, such as an error; of an error without one, the name of its class."""
    text = check.readable_text(value)
    return text or ("" if isinstance(value, str) else type(value).__name__)


def _members(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for member in group.exceptions:
        if isinstance(member, BaseExceptionGroup):
            yield from _members(member)
        else:
            yield member


def _rebuild(
    kind: type[HandlerOutcome], args: tuple[object, ...], options: dict[str, object]
) -> HandlerOutcome:
    return kind(*args, **options)
