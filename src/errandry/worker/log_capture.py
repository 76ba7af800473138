"""Copies what handlers write with `logging` to the log of their job."""

import logging

from errandry.api.context import current


class JobLogHandler(logging.Handler):
    """A handler for the root logger; it ignores lines that are logged outside of jobs or by the worker."""

    def emit(self, record: logging.LogRecord) -> None:
        ctx = current()
        if ctx is None or record.name == "errandry.worker":
            return
        try:
            ctx.log(self.format(record), record.levelname.lower())
        except Exception:
            self.handleError(record)
