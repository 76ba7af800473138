"""`JobContext`: what a handler knows about its job and can do for it."""

import logging
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from datetime import UTC, datetime
from threading import Event, Lock
from typing import Any, Literal, NoReturn, ParamSpec, SupportsFloat, TypeVar, overload

from msgspec import Struct

from errandry.api.job import Job
from errandry.api.options import Duration
from errandry.api.outcome import SuspendForChildren
from errandry.api.steps import SaveStep, Span, StepJournal
from errandry.core import check
from errandry.core.duration import seconds
from errandry.core.flow import ChildEnd
from errandry.core.job import JobRecord, LogLine, Progress
from errandry.core.step import StepRecord
from errandry.core.tick import origin
from errandry.errors import InvalidValue, short_repr

P = ParamSpec("P")
T = TypeVar("T")

log = logging.getLogger("errandry.context")

LEVEL_NUMBER_MAX = 1_000
"""Maximum number of a log level; `logging.CRITICAL` is 50."""

_lock = Lock()


class Child(Struct, frozen=True):
    """A child job: how it ended, and its result if it completed."""

    id: str
    task: str
    outcome: ChildEnd | None
    result: Any = None

    @property
    def failed(self) -> bool:
        """True if the child failed, was canceled, or was removed."""
        return self.outcome is not ChildEnd.COMPLETED


_current: ContextVar["JobContext"] = ContextVar("errandry_job")


class JobContext:
    """A handler's access to its job: progress, log lines, steps, children.

    Declare it as the first parameter of the handler, so that type checkers understand `enqueue` too:

        @jobs.task
        async def resize(ctx: JobContext, image: str) -> None:
            ctx.progress(0.5, "half done")

    `fence` only ever rises for a job. Store it with each write to an outside system and refuse writes with a
    smaller one: then a handler that has lost its lease cannot overwrite the work of the next one.
    """

    _redact: Callable[[str], str] = str
    _children: tuple[Child, ...] | None = None
    _steps: StepJournal | None = None
    _job: Job[Any] | None = None
    _stopped = False
    _can_have_children = True  # False in child processes
    _stop: Event | None = None  # created by `wait`: few handlers need it, and creating it is costly

    def __init__(
        self,
        record: JobRecord,
        make_job: Callable[[JobRecord], Job[Any]],
        note: Callable[[Progress | None, tuple[LogLine, ...]], None],
        save_step: SaveStep | None = None,
    ) -> None:
        self._record, self._make_job = record, make_job
        self._note, self._save_step = note, save_step

    @property
    def job(self) -> Job[Any]:
        """The job as it was when this attempt was claimed."""
        self._job = self._job or self._make_job(self._record)
        return self._job

    @property
    def id(self) -> str:
        return self._record.id

    @property
    def attempt(self) -> int:
        """The number of this attempt; 1 for the first run."""
        return self._record.attempts

    @property
    def fence(self) -> int:
        """The number of the claim, greater than those of all earlier claims of this job.

        It needs 64 bits: store it with an effect in a column of type BIGINT, and refuse smaller ones.
        """
        return self._record.fence

    @property
    def schedule(self) -> str | None:
        """The name of the schedule that created this job; None for other jobs."""
        source = origin(self._record)
        return None if source is None else source.schedule

    @property
    def tick(self) -> datetime | None:
        """The tick of the schedule that this run is for, however late it runs.

        None if the job was enqueued by a program, or the schedule was run by hand.
        """
        source = origin(self._record)
        return None if source is None or source.tick is None else datetime.fromtimestamp(source.tick, UTC)

    @property
    def jobs(self) -> "tuple[JobContext, ...]":
        """The context of each job of this call: in a batch, one for each item, in the order of the items."""
        return (self,)

    @property
    def should_stop(self) -> bool:
        """True if the handler should stop: the job was canceled, its timeout is over, or its lease is lost.

        An async handler is canceled as well; a handler in a thread has to check this regularly.
        """
        return self._stopped

    def sleep_or_stop(self, timeout: Duration | None = None) -> bool:
        """Sleep in a thread: True at once when the handler should stop, False after `timeout`."""
        limit = None if timeout is None else seconds(timeout, "timeout")
        with _lock:
            self._stop = self._stop or Event()
            if self.should_stop:
                self._stop.set()
        return self._stop.wait(limit)

    def progress(self, done: SupportsFloat, text: str = "", *, total: SupportsFloat | None = None) -> None:
        """Report progress: a share from 0 to 1, `progress(0.5)`, or a count, `progress(50, total=100)`.

        Returns at once; the progress is written with the next pass. A value that is no progress is not
        written: a warning in the job's log says what is right, and the attempt goes on.
        """
        if (progress := read_progress(done, text, total, self._redact)) is not None:
            self._note(progress, ())

    def log(self, text: Any, level: str | int = "info") -> None:
        """Add a line to the job's log. Returns at once; it is written with the next pass.

        `level` is a name, such as "warning", or a number of `logging`. A line with any other level is written
        as "info": a warning in the job's log says what is right, and the attempt goes on.
        """
        line = LogLine(0.0, self._redact(check.readable_text(text)), read_level(level, self._redact))
        self._note(None, (line,))

    def children(self) -> tuple[Child, ...]:
        """The child jobs that this job has waited for, in the order they were given."""
        if not self._can_have_children:
            raise TypeError("a handler in a process does not see its children: leave out runner='process'")
        return self._children or ()

    def spawn(self, *calls: object, policy: Literal["fail", "ignore", "remove"] = "fail") -> NoReturn:
        """End this run and enqueue child jobs; when they have ended, the handler is called again.

            if not ctx.children():
                ctx.spawn(*[resize.new(image) for image in images])
            return sum(child.result for child in ctx.children())

        `calls` are `task.new(…)` or flows. The handler starts from its beginning and costs no attempt.
        `policy` decides what a failed child means for this job: it fails too, ignores the failure, or is
        removed.
        """
        if not self._can_have_children:
            raise TypeError("a handler in a process cannot spawn children: leave out runner='process'")
        raise SuspendForChildren(calls, policy)

    @overload
    async def step(
        self, name: str, function: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> T: ...
    @overload
    async def step(self, name: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    async def step(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call `function` once and store its result as JSON; later runs of this job return the stored result.

            receipt = await ctx.step("charge", charge_card, order.id, cents=250)

        The result is durable when this returns. If the process dies before that, the next run calls the
        function again.
        """
        return await self._journal.step(name, function, *args, **kwargs)

    def sleep(self, after: Span, name: str | None = None) -> None:
        """End this run and call the handler again `after` that time, from its beginning; costs no attempt.

        In that later run this call returns at once. A sleep is identified by its position among the handler's
        sleeps, or by `name`.
        """
        self._journal.sleep(after, name)

    async def wait_for(self, signal: str, timeout: Span | None = None) -> Any:
        """Return the payload of a signal: `jobs.signal(job_id, "approval", payload)`.

        If it has not been sent yet, this ends the run without costing an attempt; the handler is called
        again, from its beginning, when the signal arrives. If `timeout` passes first, this raises
        TimeoutError in that run and in all later ones.
        """
        return self._journal.signal(signal, timeout)

    @property
    def sync(self) -> "SyncContext":
        """`step` and `wait_for` as blocking calls, for handlers that are plain functions."""
        return SyncContext(self)

    @property
    def _journal(self) -> StepJournal:
        """The steps of this job; for the worker."""
        if self._steps is None:
            self._steps = StepJournal(self._record, (), self._save_step)
        return self._steps

    def _load_steps(self, steps: Sequence[StepRecord]) -> None:
        """Set the steps that earlier runs stored; for the worker."""
        self._steps = StepJournal(self._record, steps, self._save_step)

    def _set_children(self, children: tuple[Child, ...]) -> None:
        """Set the children that the handler sees; for the worker."""
        self._children = children

    def _redact_with(self, redact: Callable[[str], str]) -> None:
        """Pass all texts through `redact` before they are stored; for the worker."""
        self._redact = redact

    def _detach(self) -> None:
        """Stop writing progress, log lines and steps, because the handler has returned; for the worker."""
        self._note, self._save_step = _ignore_note, None

    def _request_stop(self) -> None:
        """Ask the handler to stop; for the worker."""
        with _lock:
            self._stopped = True
            if self._stop is not None:
                self._stop.set()


class SyncContext:
    """`ctx.sync`: blocking calls for handlers that run in a thread or a process."""

    def __init__(self, ctx: JobContext) -> None:
        self._ctx = ctx

    def step(self, name: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        result: T = self._ctx._journal.step_sync(name, function, *args, **kwargs)
        return result

    def wait_for(self, signal: str, timeout: Span | None = None) -> Any:
        return self._ctx._journal.signal(signal, timeout)


class BatchContext(JobContext):
    """The context of a batch handler, for all jobs of its call.

    Progress and log lines go to all jobs; `should_stop` is True when all of them should stop. `job`, `id`
    and `attempt` are those of the first job.
    """

    def __init__(self, jobs: tuple[JobContext, ...]) -> None:
        super().__init__(jobs[0]._record, jobs[0]._make_job, self._note_all)
        self._jobs = jobs

    @property
    def jobs(self) -> tuple[JobContext, ...]:
        return self._jobs

    @property
    def fence(self) -> int:
        raise TypeError("a batch has a fence for each of its jobs: ctx.jobs[n].fence")

    @property
    def _journal(self) -> StepJournal:
        raise TypeError("a batch has steps for each of its jobs: ctx.jobs[n].step")

    @property
    def should_stop(self) -> bool:
        return self._stopped or all(ctx.should_stop for ctx in self._jobs)

    def _note_all(self, progress: Progress | None, logs: tuple[LogLine, ...]) -> None:
        for ctx in self._jobs:
            ctx._note(progress, logs)


def read_progress(done: Any, text: Any, total: Any, redact: Callable[[str], str]) -> Progress | None:
    """A share of progress, or a count of `total`, as any kind of number.

    If it is neither, a warning says what is right, and the result is None: a report never fails an attempt.
    """
    try:
        share = done if total is None else done / total
        if isinstance(share, str | bytes | bool):  # `float` accepts them
            raise TypeError
        return Progress(float(share), redact(check.readable_text(text)))
    except Exception:  # such as an overflow, or what a class of numbers raises itself
        total_given = "" if total is None else f", total={short_repr(total)}"
        log.warning(
            "progress(%s%s) is not written: give a share from 0 to 1, "
            "or a count with its total: progress(50, total=100)",
            *(redact(short_repr(done)), redact(total_given)),
        )
        return None


def read_level(level: Any, redact: Callable[[str], str]) -> str:
    """A level of a log line by its name; "info", with a warning, if it is neither a name nor a number."""
    if isinstance(level, int) and not isinstance(level, bool) and 0 <= level <= LEVEL_NUMBER_MAX:
        return logging.getLevelName(level).lower()
    try:
        return check.name("level", level)
    except InvalidValue:
        log.warning(
            'a log line is written as info: level=%s: must be a name, such as "warning", '
            "or a number of logging",
            redact(short_repr(level)),
        )
        return "info"


def _ignore_note(progress: Progress | None, logs: tuple[LogLine, ...]) -> None: ...


def current() -> JobContext | None:
    """The context of the handler that is running this code; None outside of handlers."""
    return _current.get(None)


def current_job_fields() -> dict[str, str | int]:
    """Fields for log records: `job`, `task`, `queue`, `attempt` and `fence` of the job that is running."""
    ctx = current()
    if ctx is None:
        return {}
    job = ctx._record
    return {
        "job": job.id,
        "task": job.task,
        "queue": job.queue,
        "attempt": job.attempts,
        "fence": job.fence,
    }


def set_current(ctx: JobContext) -> None:
    """Make `ctx` the result of `current()` for this attempt and the asyncio tasks it starts.

    It needs no reset: every attempt runs in its own copy of the context variables.
    """
    _current.set(ctx)
