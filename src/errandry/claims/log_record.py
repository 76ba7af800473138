"""Log records with fields for log systems, and with tracebacks that are texts."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from errandry.core.answer import Expiry
from errandry.core.printable import log_trace
from errandry.core.state import CANCELED, FAILED, SCHEDULED

log = logging.getLogger("errandry.worker")


def log_with_fields(
    logger: logging.Logger, level: int, text: str, fields: Mapping[str, Any], traceback: str = ""
) -> None:
    """Log a text as it is; `fields` become attributes of the record."""
    if not logger.isEnabledFor(level):
        return
    record = logger.makeRecord(logger.name, level, __file__, 0, "%s", (text,), None, extra=fields)
    if traceback:
        record.exc_text = log_trace(traceback)
    logger.handle(record)


def traceback_of(record: logging.LogRecord) -> str:
    """The traceback and the stack of a record; empty if it has none."""
    trace = record.exc_text or ""
    if not trace and record.exc_info:
        trace = _formatter.formatException(record.exc_info)
    stack = _formatter.formatStack(record.stack_info) if record.stack_info else ""
    return "\n".join(filter(None, (trace, stack)))


_formatter = logging.Formatter()


def log_expiries(expiries: Sequence[Expiry]) -> None:
    """Log the jobs that a store has taken from workers which died or stopped renewing their leases."""
    for expiry in expiries:
        holder = f"worker {expiry.worker} has died or stopped renewing its lease"
        attempt = f"job {expiry.job} ({expiry.task}): attempt {expiry.attempt} of {expiry.max_attempts}"
        begun = "was lost" if expiry.was_running else "did not begin"
        level, outcome, end = logging.WARNING, "rescued", f"the job is {expiry.state} again"
        if expiry.state is SCHEDULED:
            outcome, end = "lost", "the job fails unless the worker shows soon that it lives"
        elif expiry.state is FAILED:
            level, outcome, end = logging.ERROR, "failed", "the job has failed for good"
        elif expiry.state is CANCELED:
            level, outcome, end = logging.INFO, "canceled", "the job is canceled, as was requested"
        fields = {
            "job": expiry.job,
            "task": expiry.task,
            "queue": expiry.queue,
            "attempt": expiry.attempt,
            "outcome": outcome,
            "reason": "worker_lost",
        }
        log_with_fields(log, level, f"{attempt} {begun}, {holder}: {end}", fields)
