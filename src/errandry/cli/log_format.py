"""The log of `errandry worker`: lines for people, or JSON objects for log systems.

Texts of users, such as messages of exceptions, cannot act on a terminal, forge a line, or flood the log.
"""

import logging
import math
import sys
from datetime import UTC, datetime
from typing import Any

from errandry.api.context import current_job_fields
from errandry.claims.log_record import traceback_of
from errandry.cli.text import to_json
from errandry.core.check import readable_text
from errandry.core.printable import LINE_MAX, TRACE_MAX, log_line, log_trace, shorten

LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("text", "json")

FIELD_MAX = 1_000
"""Maximum number of characters of a field that a program adds to a JSON line."""

_STANDARD = {*vars(logging.makeLogRecord({})), "message", "asctime"}
"""What every record has."""


class TextFormatter(logging.Formatter):
    """One line for each record: time, level, message. Tracebacks follow, indented."""

    def format(self, record: logging.LogRecord) -> str:
        at = self.formatTime(record, "%H:%M:%S")
        line = f"{at} {record.levelname:<7} {log_line(record.getMessage())}"
        trace = log_trace(traceback_of(record))
        return "\n    ".join([line, *trace.splitlines()]) if trace else line


class JsonFormatter(logging.Formatter):
    """One JSON object for each record: `time`, `level`, `logger`, `message`, `traceback` if there is one.

    Lines of a handler have the fields of its job: `job`, `task`, `queue`, `attempt`, `fence`. What a program
    passes as `extra` becomes fields too.
    """

    def format(self, record: logging.LogRecord) -> str:
        extra = {name: _plain(value) for name, value in vars(record).items() if name not in _STANDARD}
        job = {} if "job" in extra else current_job_fields()
        fields: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": shorten(record.getMessage(), LINE_MAX),
        }
        trace = traceback_of(record)
        end = {"traceback": shorten(trace, TRACE_MAX)} if trace else {}
        return to_json({**fields, **job, **extra, **fields, **end})


def configure_logging(level: str, format_name: str) -> None:
    """Log to stderr, unless the app has configured logging."""
    root = logging.getLogger()
    if root.handlers:
        if format_name != FORMATS[0]:
            logging.getLogger("errandry.worker").warning(
                "the app has configured logging, so --log-format %s has no effect", format_name
            )
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if format_name == "json" else TextFormatter())
    root.addHandler(handler)
    root.setLevel(level.upper())


def _plain(value: Any) -> str | int | float | bool | None:
    """A value that JSON has, of limited size."""
    if value is None or isinstance(value, bool) or (isinstance(value, float) and math.isfinite(value)):
        return value
    if isinstance(value, int) and value.bit_length() < 64:
        return value
    return shorten(readable_text(value), FIELD_MAX)
