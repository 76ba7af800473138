"""Converts exceptions to the `Failure` that is stored with a job."""

import traceback

from errandry.core.job import Failure
from errandry.core.state import Reason


def failure(error: BaseException, kind: Reason = Reason.ERROR) -> Failure:
    """The error as it is stored with a job."""
    trace = "".join(traceback.format_exception(error))
    try:
        message = str(error)
    except Exception:
        message = "it has no message that could be read"
    return Failure(kind, type(error).__name__, message, trace)
