"""Print jobs: as data for JSON, as rows of a table, and in full."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

from errandry.api.job import Job
from errandry.cli import table
from errandry.cli.session import Session
from errandry.cli.table import Cell, Column
from errandry.cli.text import ago, local_time, pluralize, short_id, to_json
from errandry.codec.json_codec import Codec, PlainCodec, document_info
from errandry.codec.redaction import redact_arguments
from errandry.core import check
from errandry.core.duration import format_duration, rough_duration
from errandry.core.job import AttemptError, JobRecord
from errandry.core.printable import clean, one_line
from errandry.core.state import State

if TYPE_CHECKING:
    from errandry.api.steps import Step

COLORS = {
    State.BLOCKED: "magenta",
    State.SCHEDULED: "blue",
    State.WAITING: "yellow",
    State.CLAIMED: "cyan",
    State.RUNNING: "cyan",
    State.COMPLETED: "green",
    State.FAILED: "red",
    State.CANCELED: "bright_black",
}
LOG_COLORS = {"warning": "yellow", "error": "red", "critical": "red", "debug": "bright_black"}
ENDLESS_AFTER = check.SPAN_MAX / 2
"""Times further ahead than this, in seconds, are shown as no end."""
WIDE_TERMINAL = 120
"""Minimum number of columns of a terminal to show whole ids."""


def as_data(job: Job[Any]) -> dict[str, Any]:
    """The job as plain values, without redacted arguments.

    Arguments and result are in their stored form if the codec cannot decode them.
    """
    try:
        data = job.as_dict()
    except Exception:
        data = Job(job._app, job.record, codec=PlainCodec()).as_dict()
    return data | {"arguments": redact_arguments(data["arguments"], job.record.metadata)}


def read_field(job: JobRecord, field: str, codec: Codec) -> Any:
    """The payload or the result as plain values; the stored form if the codec cannot decode it.

    Redacted arguments are left out.
    """
    text: str | None = getattr(job, field)
    if text is None:
        return None
    try:
        text = codec.unseal(text, document_info(job, field))
    except Exception:
        return msgspec.json.decode(text)
    value = msgspec.json.decode(text)
    return redact_arguments(value, job.metadata) if field == "payload" else value


def print_jobs(
    session: Session, jobs: Sequence[JobRecord], now: float, columns: int, titles: bool = True
) -> None:
    """Print a table of jobs, or more rows of one; a narrow terminal gets short ids."""
    is_short = session.is_terminal and columns < WIDE_TERMINAL
    rows = [
        (
            short_id(job.id) if is_short else job.id,
            Cell(job.state, COLORS[job.state]),
            job.task,
            job.queue,
            f"{job.attempts}/{job.max_attempts}",
            state_time(job, now),
            short_note(job),
        )
        for job in jobs
    ]
    heads = [Column("ID"), Column("STATE"), Column("TASK", can_shrink=True), Column("QUEUE", can_shrink=True)]
    heads += [Column("TRY", is_right=True), Column("WHEN"), Column("NOTE", can_shrink=True)]
    table.print_table(session, heads, rows, titles)


def state_time(job: JobRecord, now: float) -> str:
    """The time that matters most in the job's state: due, claimed, started, finished or created."""
    at = {
        State.SCHEDULED: job.run_at,
        State.CLAIMED: job.claimed_at,
        State.RUNNING: job.started_at,
    }.get(job.state, job.finished_at if job.finished else job.created_at)
    return ago(at, now)


def short_note(job: JobRecord) -> str:
    """The most important fact about the job in a few words: progress, signal, error or reason."""
    if job.cancel_requested and not job.finished:
        return "cancel requested"
    if job.state is State.RUNNING and job.progress is not None:
        return f"{job.progress.share:.0%} {job.progress.text}".strip()
    if job.awaited_signal is not None:
        return f"waits for signal {job.awaited_signal}"
    if job.errors and job.state in (State.FAILED, State.SCHEDULED, State.WAITING):
        return error_line(job.errors[-1])
    return "" if job.reason is None or job.state is State.COMPLETED else str(job.reason)


def error_line(error: AttemptError) -> str:
    kind = str(error.kind).replace("_", " ")
    return f"{error.type}: {error.message}".strip(": ") if error.type or error.message else kind


def print_job(session: Session, job: JobRecord, codec: Codec, now: float) -> None:
    """Print everything known about a job."""
    session.print(f"{session.style('job', bold=True)} {clean(job.id)}")
    for name, value in _facts(session, job, now):
        session.print(f"  {name:<13}{value}")
    for field, title in (("payload", "Arguments"), ("result", "Result")):
        if getattr(job, field) is not None:
            _print_section(session, title, to_json(read_field(job, field, codec), indent=2))
    if job.metadata is not None:
        _print_section(session, "Metadata", to_json(msgspec.json.decode(job.metadata), indent=2))
    for error in job.errors:
        _print_section(session, _attempt_title(error, now), clean(error.traceback or error_line(error)))
    if job.logs:
        _print_section(
            session, f"Log ({pluralize(len(job.logs), 'line')})", "\n".join(log_lines(session, job))
        )


def print_steps(session: Session, steps: "Sequence[Step]", now: datetime) -> None:
    """Print a table of steps in their order."""
    rows = [
        (
            step.name,
            step.kind,
            ago(step.at, now) if step.at is not None else "waiting",
            _step_note(step, now),
        )
        for step in steps
    ]
    heads = [
        Column("NAME", can_shrink=True),
        Column("KIND"),
        Column("WHEN"),
        Column("RESULT", can_shrink=True),
    ]
    table.print_table(session, heads, rows)


def _step_note(step: "Step", now: datetime) -> str:
    if step.result is not None:
        return to_json(step.result)
    if step.until is None or (step.until - now).total_seconds() > ENDLESS_AFTER:
        return ""
    return f"until {local_time(step.until)}"


def log_lines(session: Session, job: JobRecord, after: int = 0) -> Iterator[str]:
    for line in job.logs[after:]:
        level = session.style(f"{one_line(line.level):<8}", LOG_COLORS.get(line.level))
        yield f"{local_time(line.at)}  {level} {clean(line.text)}"


def _facts(session: Session, job: JobRecord, now: float) -> Iterator[tuple[str, str]]:
    reason = f" ({str(job.reason).replace('_', ' ')})" if job.reason else ""
    yield "state", session.style(job.state, COLORS[job.state]) + reason
    yield "task", clean(job.task)
    yield "queue", clean(job.queue) + (f", group {clean(job.group)}" if job.group else "")
    yield "priority", f"{job.priority}, lifo" if job.lifo else str(job.priority)
    yield "attempts", _attempts_text(job)
    if job.unique is not None:
        per_queue = " in its queue" if job.unique.per_queue else ""
        yield "unique", f"{clean(job.unique.key)}{per_queue}, {job.unique.span}"
    if job.steps is not None:
        awaits = "" if job.awaited_signal is None else f", waits for signal {clean(job.awaited_signal)}"
        yield "steps", f"{job.steps.count:,}{awaits}"
    if job.tags:
        yield "tags", clean(", ".join(job.tags))
    for name, at in (
        ("created", job.created_at),
        ("due", job.run_at),
        ("claimed", job.claimed_at),
        ("started", job.started_at),
        ("finished", job.finished_at),
        ("deadline", job.deadline),
        ("given back", job.unhandled_since),
        ("kept until", job.expires_at),
    ):
        if at is not None:
            yield name, f"{local_time(at)} ({ago(at, now)})"
    if job.finished_at is not None and job.started_at is not None:
        yield "took", format_duration(round(max(0.0, job.finished_at - job.started_at), 3))
    if job.timeout is not None:
        yield "timeout", format_duration(job.timeout)
    if job.worker is not None:
        left = (
            f", lease until {local_time(job.lease_until)} ({ago(job.lease_until, now)})"
            if job.lease_until
            else ""
        )
        yield "worker", clean(job.worker) + left
    if job.progress is not None:
        yield "progress", f"{job.progress.share:.0%} {one_line(job.progress.text)}".rstrip()
    if job.cancel_requested:
        yield "cancel", "requested"
    if job.backoff is not None:
        yield "backoff", clean(to_json(msgspec.to_builtins(job.backoff)))


def _attempts_text(job: JobRecord) -> str:
    parts = [f"{job.attempts} of {job.max_attempts}"]
    if job.releases:
        parts.append(f"released {pluralize(job.releases, 'time')}")
    if job.crashes:
        parts.append(f"its worker crashed {pluralize(job.crashes, 'time')} (maximum {job.max_crashes})")
    return ", ".join(parts)


def _attempt_title(error: AttemptError, now: float) -> str:
    took = f" after {rough_duration(error.ended - error.started)}" if error.started is not None else ""
    by = f" on {one_line(error.worker)}" if error.worker else ""
    kind = str(error.kind).replace("_", " ")
    return f"Attempt {error.attempt}: {kind}{took}{by}, {ago(error.ended, now)}"


def _print_section(session: Session, title: str, text: str) -> None:
    session.print()
    session.print(session.style(title, bold=True))
    for line in text.splitlines():
        session.print(f"  {line}".rstrip())
