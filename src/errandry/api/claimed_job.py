"""`ClaimedJob`: a job that a program has claimed and settles by hand."""

import asyncio
import logging
import os
from collections.abc import Callable
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, SupportsFloat

from errandry.api.attempt_outcome import (
    complete_outcome,
    error_outcome,
    retry_outcome,
    stop_outcome,
)
from errandry.api.context import read_level, read_progress
from errandry.api.flow import ChildResults, read_child_results
from errandry.api.job import Job
from errandry.api.options import Duration
from errandry.api.outcome import Cancel, Fail, HandlerOutcome, Retry, returned_outcome, unwrap_group
from errandry.api.task import RunRules
from errandry.claims.failure import failure
from errandry.claims.leases import StopReason
from errandry.claims.open_claim import OpenClaim
from errandry.claims.pending_outcome import RETRY_AFTER, PendingOutcome
from errandry.claims.trouble import OnTrouble, ignore_trouble
from errandry.codec.json_codec import document_info, from_json
from errandry.codec.redaction import Redactor, all_redacted_names, stored_redactor
from errandry.core import check
from errandry.core.answer import ALREADY, CANCEL, WRITTEN, Answer, Lost, Renewed
from errandry.core.argument_version import version_of
from errandry.core.command import (
    FailOutcome,
    GiveUpOutcome,
    Note,
    Outcome,
    ReleaseOutcome,
    Renew,
    RetryOutcome,
    Settle,
    SnoozeOutcome,
)
from errandry.core.duration import seconds
from errandry.core.job import Failure, LogLine
from errandry.core.state import Move, Reason
from errandry.errors import (
    AlreadySettled,
    ErrandryError,
    InvalidArguments,
    InvalidValue,
    LeaseLost,
    ReplyLost,
    SealBroken,
    describe_loss,
)

if TYPE_CHECKING:
    from errandry.api.app import Errandry

log = logging.getLogger("errandry.claimer")


ANSWER_TIMEOUT_MIN = 2.0
"""Minimum seconds to wait for an answer of the store, also if the lease has ended or is about to."""


class ClaimedJob:
    """A job that a `Claimer` has claimed. It is running, under a lease; settle it with one of the verbs.

        async with job:
            await job.progress(0.5)
            await job.complete(result)

    As a block, it settles the job if the program has not: an exception that leaves the block retries the job,
    or fails it if the rules of its declared task say so, and is raised again. `Retry`, `Snooze`, `Fail` and
    `Cancel` settle it with that outcome and end the block without an exception. A block that ends in any
    other way, also by a cancellation of the program's task, releases the job.

    All verbs raise `LeaseLost` if the lease is lost, `AlreadySettled` after the first outcome. While the
    store is full or unavailable, an outcome is retried until the lease ends; then the store's error is
    raised.
    """

    def __init__(
        self,
        app: "Errandry",
        claim: OpenClaim,
        on_trouble: OnTrouble = ignore_trouble,
        on_block_error: Callable[[BaseException], None] | None = None,
    ) -> None:
        self._app, self._claim, self._record = app, claim, claim.record
        self._on_trouble, self._on_block_error = on_trouble, on_block_error
        self._process = os.getpid()
        self._settled_by: Move | None = None
        self._is_settled = False
        self._settling: asyncio.Task[None] | None = None
        self._child_results: ChildResults | None = None
        self._arguments: dict[str, Any] | None = None
        self._unreadable: Exception | None = None
        self._fatal: tuple[Exception, Reason] | None = None

    @property
    def id(self) -> str:
        return self._record.id

    @property
    def task(self) -> str:
        """The name of the task."""
        return self._record.task

    @property
    def queue(self) -> str:
        return self._record.queue

    @property
    def attempt(self) -> int:
        """The number of this attempt; 1 for the first."""
        return self._record.attempts

    @property
    def fence(self) -> int:
        """The number of the claim, greater than those of all earlier claims of this job.

        It needs 64 bits: store it with an effect in a column of type BIGINT, and refuse smaller ones.
        """
        return self._record.fence

    @property
    def job(self) -> Job[Any]:
        """The job as it was claimed; its methods ask the store."""
        return Job(self._app, self._record)

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments by name, as plain JSON values, with the results of its children filled in.

        If the app declares the task, they are those of its present version. Raises the error if they cannot
        be read.
        """
        if self._arguments is None:
            try:
                self._arguments = self._read_arguments()
            except (InvalidArguments, SealBroken) as error:  # another attempt would read the same
                self._fatal = error, Reason.INVALID_PAYLOAD
                raise
            _ = self._redactor  # made before the program gets the arguments, which it may change
        return self._arguments

    @property
    def should_stop(self) -> bool:
        """True if the program should stop: job canceled, timeout over, or lease lost."""
        return self._claim.should_stop

    @property
    def settled(self) -> bool:
        """True if its outcome is written."""
        return self._is_settled

    def __repr__(self) -> str:
        return f"<claimed job {self.id} {self.task} fence {self.fence}>"

    async def renew(self) -> None:
        """Extend the lease: it then lasts as long as the lease of the claimer, from now."""
        self._check_unsettled("renew")
        claim, sent_at = self._claim, self._app.clock.monotonic()
        answer = await self._submit(Renew((claim.ref,), claim.lease))
        ack = answer.acks[0] if isinstance(answer, Renewed) else answer
        self._check_held(ack)
        claim.lease_until = sent_at + claim.lease
        if ack is CANCEL:
            claim.stop(StopReason.CANCEL)

    async def progress(
        self, done: SupportsFloat, text: str = "", *, total: SupportsFloat | None = None
    ) -> None:
        """Report progress: a share from 0 to 1, `progress(0.5)`, or a count, `progress(50, total=100)`.

        A value that is no progress is not written: a warning in the program's log says what is right.
        """
        self._check_unsettled("report progress of")
        progress = read_progress(done, text, total, self._redacted_text)
        if progress is not None:
            await self._note(Note(self._claim.ref, progress))

    async def log(self, text: Any, level: str | int = "info") -> None:
        """Add a line to the job's log. `level` is a name, such as "warning", or a number of `logging`.

        A line with any other level is written as "info": a warning in the program's log says what is right.
        """
        self._check_unsettled("log a line of")
        level = read_level(level, self._redacted_text)
        line = LogLine(self._app.clock.time(), self._redacted_text(text), level)
        await self._note(Note(self._claim.ref, None, (line,)))

    async def complete(self, result: Any = None) -> None:
        """Complete the job. The result must be a value that JSON has, no larger than the store's limit.

        If the job was canceled meanwhile, it ends as canceled with the result in its record; `should_stop`
        says so.
        """
        self._check_unsettled(Move.COMPLETE)
        if (outcome := returned_outcome(result)) is not None:
            verb = type(outcome).__name__.lower()
            raise InvalidValue("result", result, f"is an outcome, not a result: use job.{verb}(…)")
        try:
            await self._settle(complete_outcome(self._app.codec, self._app.tasks, self._record, result))
        except InvalidValue as error:  # another attempt would have the same result
            self._fatal = error, Reason.UNRECOVERABLE
            raise

    async def retry(self, error: BaseException | str, delay: Duration | None = None) -> None:
        """Record an error and run the job again after `delay`, by default after its backoff.

        It fails if its attempts are spent.
        """
        raised = _as_error(error, Retry)
        if delay is not None:
            pauses = isinstance(raised, Retry) and raised.pause_group
            await self._settle(RetryOutcome(failure(raised), seconds(delay, "delay"), pauses))
        elif isinstance(raised, Retry):
            await self._settle(error_outcome(self._app.backoffs, self._record, RunRules(), raised))
        else:
            await self._settle(retry_outcome(self._app.backoffs, self._record, failure(raised)))

    async def fail(self, error: BaseException | str) -> None:
        """Record an error and fail the job for good, even if it has attempts left."""
        await self._settle(FailOutcome(failure(_as_error(error, Fail), Reason.UNRECOVERABLE)))

    async def snooze(self, delay: Duration) -> None:
        """Run the job again after `delay`; this attempt does not count."""
        await self._settle(SnoozeOutcome(seconds(delay, "delay")))

    async def release(self) -> None:
        """Give the job back unfinished, for any worker to claim; this attempt does not count."""
        await self._settle(ReleaseOutcome())

    async def cancel(self, reason: str = "") -> None:
        """Cancel the job."""
        await self._settle(GiveUpOutcome(failure(Cancel(reason), Reason.CANCELED)))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if os.getpid() != self._process:  # forked in the block: the job belongs to the parent
            return False
        if error is not None and self._on_block_error is not None:
            self._on_block_error(error)
        await self._finish_settling()
        if self.settled:
            return False
        raised = None if error is None else unwrap_group(error)
        outcome, is_outcome = self._leave_outcome(raised), isinstance(raised, HandlerOutcome)
        try:
            if outcome is not None:
                await self._settle(outcome)
            elif is_outcome:
                raise LeaseLost(self.id, self.fence, "expired")
        except ErrandryError as refusal:
            if is_outcome:
                raise
            log.warning("cannot settle %s as its block ends: %s", self._claim, refusal)
        finally:
            if not self.settled:
                self._claim.stop_renewing()
        return is_outcome

    async def _prepare(self) -> None:
        """Read what its arguments need; for the claimer. `arguments` raises the error if that fails."""
        if self._record.children:
            try:
                self._child_results = await read_child_results(self._app, self.id)
            except Exception as error:
                self._unreadable = error

    async def _finish_settling(self) -> None:
        """Wait for an outcome that a canceled call was writing; for the claimer."""
        if self._settling is not None and not self._settling.done():
            await asyncio.wait({self._settling})

    def _stop_settling(self) -> None:
        """Stop writing an outcome that the store has not taken yet; for the claimer."""
        if self._settling is not None and not self._settling.done():
            log.warning(
                "the outcome of %s may be unwritten: its claimer closed before the answer", self._claim
            )
            self._settling.cancel()

    def _leave_outcome(self, error: BaseException | None) -> Outcome | None:
        """The outcome of a job that was left unsettled; None if its lease is lost."""
        backoffs, record, task = self._app.backoffs, self._record, self._app.tasks.get(self.task)
        rules = RunRules() if task is None else task.run_rules
        if (reason := self._claim.stop_reason) is not None:
            outcome = stop_outcome(backoffs, record, rules, reason, record.timeout)
            if outcome is None:
                log.warning(
                    "%s was not settled before its lease was lost; another worker may run it", self._claim
                )
            return outcome
        if not isinstance(error, Exception):
            return ReleaseOutcome()
        if self._fatal is not None and error is self._fatal[0]:
            return FailOutcome(Failure(self._fatal[1], type(error).__name__, str(error)))
        return error_outcome(backoffs, record, rules, error)

    def _begin_release(self, error: BaseException | None) -> Settle | None:
        """What to write for a job whose claimer's block has ended, with this error; None if nothing."""
        outcome = None if self._settled_by is not None else self._leave_outcome(error)
        if outcome is None:
            return None
        self._settled_by, self._claim.is_settling = outcome.move, True
        return Settle(self._claim.ref, outcome)

    def _end_release(self, answer: Answer | TimeoutError) -> None:
        """Note whether this was written; for the claimer."""
        self._is_settled = answer in (WRITTEN, ALREADY)
        if not self._is_settled:
            self._settled_by = None
        self._claim.end()
        self._claim.is_settling = False

    async def _settle(self, outcome: Outcome) -> None:
        """Write an outcome. If the caller is canceled meanwhile, it is written all the same."""
        self._check_unsettled(outcome.move)
        self._settled_by = outcome.move
        self._settling = asyncio.create_task(self._write(outcome))
        self._settling.add_done_callback(_retrieve_exception)
        try:
            await asyncio.shield(self._settling)
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if caller is not None and caller.cancelling():
                raise
            raise ReplyLost("claimer", "its block ended before the store answered") from None

    async def _write(self, outcome: Outcome) -> None:
        redactor = self._redactor
        redacted = outcome if redactor is None else redactor.outcome(outcome) or outcome
        self._claim.is_settling = True
        try:
            self._check_held(await self._send_outcome(PendingOutcome(self._claim, redacted)))
        except BaseException:
            self._settled_by = None
            self._claim.is_settling = False
            raise
        self._is_settled = True
        self._claim.end()  # it stays `is_settling`: a renewal must not find it and report its lease as lost

    async def _send_outcome(self, pending: PendingOutcome) -> Answer:
        """Send an outcome until the store answers, or until the lease, which is not renewed, ends."""
        claim, clock = self._claim, self._app.clock
        while True:
            try:
                return await self._submit(Settle(claim.ref, pending.outcome))
            except ErrandryError as error:
                if not pending.should_retry(error, self._on_trouble, self._redacted_text):
                    if not isinstance(error, InvalidValue):
                        self._on_trouble("gave up on an outcome", error, self._redacted_text)
                    raise
                await asyncio.sleep(min(RETRY_AFTER, claim.lease / 3))
                if pending.is_too_late(clock.monotonic(), self._on_trouble):
                    claim.mark_lost("its outcome could not be written")
                    raise

    async def _note(self, note: Note) -> None:
        self._check_held(await self._submit(note))

    async def _submit(self, command: Renew | Note | Settle) -> Answer:
        """Submit a command; ReplyLost if the store has not answered when the lease ends."""
        left = self._claim.lease_until - self._app.clock.monotonic()
        try:
            async with asyncio.timeout(max(left, ANSWER_TIMEOUT_MIN)):
                return await self._app.engine.submit(command)
        except TimeoutError:
            raise ReplyLost("store", "it did not answer before the lease ended") from None

    def _check_held(self, answer: Answer) -> None:
        """Raise LeaseLost if the store has refused a command because the lease is lost."""
        if not isinstance(answer, Lost):
            return
        if not self._claim.is_lost:
            log.warning(
                "the lease of %s is lost, it should stop: %s", self._claim, describe_loss(answer.cause)
            )
            self._claim.mark_lost(answer.cause)
        raise LeaseLost(self.id, self.fence, answer.cause)

    def _check_unsettled(self, action: str) -> None:
        check_same_process("job", self.id, self._process)
        if self._settled_by is not None:
            raise AlreadySettled(self.id, action, self._settled_by)

    def _read_arguments(self) -> dict[str, Any]:
        if self._unreadable is not None:
            raise self._unreadable
        payload = self._app.codec.unseal(self._record.payload, document_info(self._record, "payload"))
        if self._child_results is not None:
            payload = self._child_results.fill_payload(payload)
        task, version = self._app.tasks.get(self.task), version_of(self._record.metadata)
        if task is not None and version < task.run_rules.version:
            payload = task.upgrades.apply(payload, version)
        arguments = from_json(payload)
        if not isinstance(arguments, dict):
            raise SealBroken(self.id, "payload", "it is sealed, and this app has no codec that unseals it")
        return arguments

    @cached_property
    def _redactor(self) -> Redactor | None:
        """Replaces the redacted arguments of the job in texts; None if it has none."""
        task = self._app.tasks.get(self.task)
        declared = () if task is None else task.run_rules.redact
        names = all_redacted_names((self._record,), declared)
        if not names:
            return None
        try:
            return Redactor(names, [self.arguments])
        except Exception:  # the program gets it from `arguments`
            return stored_redactor((self._record,), self._app.codec, declared)

    def _redacted_text(self, text: Any) -> str:
        redactor, readable = self._redactor, check.readable_text(text)
        return readable if redactor is None else redactor.text(readable)


def check_same_process(kind: str, name: str, process: int) -> None:
    """Refuse to use a claim in a process that was forked from its own: both would settle the job."""
    if os.getpid() != process:
        why = f"belongs to process {process}, from which this one was forked: open a claimer here"
        raise InvalidValue(kind, name, why)


def _as_error(error: BaseException | str, kind: type[Retry] | type[Fail]) -> BaseException:
    """The error; a text as what a handler would raise for the same outcome."""
    if isinstance(error, BaseException):
        return error
    if isinstance(error, str):
        return kind(error)
    raise InvalidValue("error", error, "must be an exception or a text")


def _retrieve_exception(task: asyncio.Task[None]) -> None:
    """Let asyncio not report the error of a task whose caller was canceled."""
    if not task.cancelled():
        task.exception()
