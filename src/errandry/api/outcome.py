"""How a handler ends its attempt other than by returning: raise one of these."""

from datetime import timedelta

from errandry.core.duration import seconds


class HandlerOutcome(Exception):
    """Not an error: the handler's word on what becomes of its job."""


class Retry(HandlerOutcome):
    """Try again `after` so long, or when that is left out after the task's backoff. Spends the attempt.

    With `pause_group` no worker begins another job of its group before that, or where it has no group, of its
    task: for an API that says "slow down".
    """

    def __init__(
        self, message: str = "", *, after: float | timedelta | str | None = None, pause_group: bool = False
    ) -> None:
        super().__init__(message, after, pause_group)
        self.message, self.after = message, None if after is None else seconds(after, "after")
        self.pause_group = pause_group

    def __reduce__(self) -> tuple[object, ...]:
        return _remake, (Retry, (self.message,), {"after": self.after, "pause_group": self.pause_group})

    def __str__(self) -> str:
        return self.message or "the handler asked for another try"


class Snooze(HandlerOutcome):
    """Run again after so long; this attempt does not count."""

    def __init__(self, after: float | timedelta | str) -> None:
        super().__init__(after)
        self.after = seconds(after, "after")

    def __str__(self) -> str:
        return f"snoozed for {self.after:g} s"


class SuspendForSleep(HandlerOutcome):
    """Run again when this sleep is over; this attempt does not count. See `JobContext.sleep`."""

    def __init__(self, after: float, name: str) -> None:
        super().__init__(after, name)
        self.after, self.name = after, name

    def __str__(self) -> str:
        return f"it sleeps for {self.after:g} s"


class SuspendForSignal(HandlerOutcome):
    """Run again when this signal is there, or the time is up. See `JobContext.wait_for`."""

    def __init__(self, name: str, timeout: float) -> None:
        super().__init__(name, timeout)
        self.name, self.timeout = name, timeout

    def __str__(self) -> str:
        return f"it waits for the signal {self.name!r}"


class SuspendForChildren(HandlerOutcome):
    """Run again when these calls have ended; this attempt does not count. See `JobContext.spawn`."""

    def __init__(self, calls: tuple[object, ...], policy: str = "fail") -> None:
        super().__init__(calls, policy)
        self.calls, self.policy = calls, policy

    def __str__(self) -> str:
        return f"it waits for {len(self.calls)} jobs that it has spawned"


class Fail(HandlerOutcome):
    """Failed for good: no further try, whatever attempts are left."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return self.reason or "the handler gave up"


class Cancel(HandlerOutcome):
    """Canceled by its own handler."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return self.reason or "canceled by its handler"


def _remake(
    kind: type[HandlerOutcome], args: tuple[object, ...], options: dict[str, object]
) -> HandlerOutcome:
    return kind(*args, **options)
