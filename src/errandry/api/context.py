"""What a handler sees of its job."""

from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from datetime import UTC, datetime
from threading import Event, Lock
from typing import Any, Literal, NoReturn, ParamSpec, TypeVar, overload

from msgspec import Struct

from errandry.api.outcome import SuspendForChildren
from errandry.api.steps import SaveStep, Span, StepJournal
from errandry.core.flow import ChildEnd
from errandry.core.job import JobRecord, LogLine, Progress
from errandry.core.step import Step
from errandry.core.tick import origin

P = ParamSpec("P")
T = TypeVar("T")

_lock = Lock()


class Child(Struct, frozen=True):
    """A job that this one has waited for: how it ended, and its result if it completed."""

    id: str
    task: str
    outcome: ChildEnd | None
    result: Any = None

    @property
    def failed(self) -> bool:
        """Failed, canceled or removed."""
        return self.outcome is not ChildEnd.COMPLETED


_current: ContextVar["JobContext"] = ContextVar("errandry_job")


class JobContext:
    """Handed to a handler that has a parameter of this type; the first one, so that type checkers know too.

    `fence` only ever rises for a job: write it beside an effect outside and refuse smaller ones, and a
    handler that lost its lease can no longer do harm.
    """

    _hide: Callable[[str], str] = str
    _children: tuple[Child, ...] | None = None
    _journal: StepJournal | None = None
    _stopped = False
    _stop: Event | None = None  # made when a thread waits for it: few do, and it is not cheap

    def __init__(
        self,
        job: JobRecord,
        note: Callable[[Progress | None, tuple[LogLine, ...]], None],
        keep: SaveStep | None = None,
    ) -> None:
        self.job = job
        self._note, self._keep = note, keep

    @property
    def id(self) -> str:
        return self.job.id

    @property
    def attempt(self) -> int:
        """1 for the first run."""
        return self.job.attempts

    @property
    def fence(self) -> int:
        return self.job.fence

    @property
    def schedule(self) -> str | None:
        """The name of the schedule this job comes from, if it does."""
        found = origin(self.job)
        return None if found is None else found.schedule

    @property
    def tick(self) -> datetime | None:
        """The tick it is for, however late it runs; None if it was enqueued, or its schedule run by hand."""
        found = origin(self.job)
        return None if found is None or found.tick is None else datetime.fromtimestamp(found.tick, UTC)

    @property
    def jobs(self) -> "tuple[JobContext, ...]":
        """The context of each job of this call: in a batch, of each item, in their order."""
        return (self,)

    @property
    def canceled(self) -> bool:
        """Whether the handler should stop: canceled, out of time, or its lease is lost.

        An async handler is cancelled besides; one in a thread has to look here now and then.
        """
        return self._stopped

    def wait(self, timeout: float | None = None) -> bool:
        """For handlers in threads: sleep, but return True at once when the handler should stop."""
        with _lock:
            self._stop = self._stop or Event()
            if self.canceled:
                self._stop.set()
        return self._stop.wait(timeout)

    def progress(self, share: float, text: str = "") -> None:
        """How far the handler is, from 0 to 1. Returns at once; written with the next pass."""
        self._note(Progress(share, self._hide(text)), ())

    def log(self, text: Any, level: str = "info") -> None:
        """Add a line to the job's log. Returns at once; written with the next pass."""
        self._note(None, (LogLine(0.0, self._hide(str(text)), level),))

    def children(self) -> tuple[Child, ...]:
        """The jobs that this one has waited for, in their order."""
        if self._children is None and self.job.children:
            raise TypeError("a handler in a process does not see its children: leave out run='process'")
        return self._children or ()

    def spawn(self, *calls: object, policy: Literal["fail", "ignore", "remove"] = "fail") -> NoReturn:
        """End this run and have these calls, `task.new(…)` or flows, run first.

        When they have ended the handler is called again, from its beginning, and has them in `children()`.
        """
        raise SuspendForChildren(calls, policy)

    @overload
    async def step(
        self, name: str, function: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> T: ...
    @overload
    async def step(self, name: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    async def step(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call `function` and keep what it returns, as JSON; in a later run of this job, only give that back.

        When this returns the result is durable. If the process dies before, the function is called again.
        """
        return await self.journal.step(name, function, *args, **kwargs)

    def sleep(self, after: Span, name: str | None = None) -> None:
        """End this run, without an attempt spent, and go on after so long: the handler is called again, from
        its beginning, and then this returns at once.

        Sleeps are told apart by their order in the handler, or by a name of theirs.
        """
        self.journal.sleep(after, name)

    async def wait_for(self, signal: str, timeout: Span | None = None) -> Any:
        """What was sent with a signal: `jobs.signal(job_id, "approval", payload)`, before now or in time.

        As long as it is not there the job waits without a run, as in a sleep. When the time is up first this
        raises TimeoutError, in that run and all later ones.
        """
        return self.journal.signal(signal, timeout)

    @property
    def sync(self) -> "SyncContext":
        """`step` and `wait_for` for handlers that are plain functions."""
        return SyncContext(self)

    @property
    def journal(self) -> StepJournal:
        """The steps of this run."""
        if self._journal is None:
            self._journal = StepJournal(self.job, (), self._keep)
        return self._journal

    def load_steps(self, steps: Sequence[Step]) -> None:
        """These are its steps; for the worker."""
        self._journal = StepJournal(self.job, steps, self._keep)

    def adopt(self, children: tuple[Child, ...]) -> None:
        """These are its children; for the worker."""
        self._children = children

    def hide(self, hide: Callable[[str], str]) -> None:
        """Have all texts go through `hide` before they are kept; for the worker."""
        self._hide = hide

    def leave(self) -> None:
        """The handler has returned: nothing is noted or kept any more; for the worker."""
        self._note, self._keep = _unheard, None

    def stop(self) -> None:
        """Ask the handler to stop; for the worker."""
        with _lock:
            self._stopped = True
            if self._stop is not None:
                self._stop.set()


class SyncContext:
    """`ctx.sync`: the same, blocking, for handlers that run in a thread or a process."""

    def __init__(self, ctx: JobContext) -> None:
        self._ctx = ctx

    def step(self, name: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        result: T = self._ctx.journal.step_sync(name, function, *args, **kwargs)
        return result

    def wait_for(self, signal: str, timeout: Span | None = None) -> Any:
        return self._ctx.journal.signal(signal, timeout)


class BatchContext(JobContext):
    """What the handler of a batch sees: its progress and log lines go to all jobs, and it should stop when
    all of them should. Its `job`, `id` and `attempt` are those of the first."""

    def __init__(self, jobs: tuple[JobContext, ...]) -> None:
        super().__init__(jobs[0].job, self._note_all)
        self._jobs = jobs

    @property
    def jobs(self) -> tuple[JobContext, ...]:
        return self._jobs

    @property
    def fence(self) -> int:
        raise TypeError("a batch has a fence for each of its jobs: ctx.jobs[n].fence")

    @property
    def journal(self) -> StepJournal:
        raise TypeError("a batch has steps for each of its jobs: ctx.jobs[n].step")

    @property
    def canceled(self) -> bool:
        return self._stopped or all(ctx.canceled for ctx in self._jobs)

    def _note_all(self, progress: Progress | None, logs: tuple[LogLine, ...]) -> None:
        for ctx in self._jobs:
            ctx._note(progress, logs)


def _unheard(progress: Progress | None, logs: tuple[LogLine, ...]) -> None: ...


def current() -> JobContext | None:
    """The context of the handler this code runs in, if it runs in one."""
    return _current.get(None)


def enter(ctx: JobContext) -> None:
    """Make `ctx` the current context, and that of whatever is started from here. An attempt has a context of
    variables to itself, so there is nothing to leave again."""
    _current.set(ctx)
