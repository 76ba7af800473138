"""What handlers write with `logging` also goes to the log of their job."""

import logging

from errandry.api.context import current


class JobLogHandler(logging.Handler):
    """A handler for the root logger; what is logged outside of jobs, or by the worker, passes it by."""

    def emit(self, record: logging.LogRecord) -> None:
        ctx = current()
        if ctx is None or record.name == "errandry.worker":
            return
        try:
            ctx.log(self.format(record), record.levelname.lower())
        except Exception:
            self.handleError(record)
