"""Converts exceptions to the `Failure` that is stored with a job."""

import traceback

from errandry.core import check
from errandry.core.job import Failure
from errandry.core.state import Reason


def failure(error: BaseException, kind: Reason = Reason.ERROR) -> Failure:
    """The error as it is stored with a job."""
    return Failure(kind, type_name(error), check.readable_text(error), _traceback(error))


def type_name(error: BaseException) -> str:
    """The name its class was defined with. A metaclass may return another value for it, or raise."""
    name: str = type.__dict__["__name__"].__get__(type(error))
    return name


def _traceback(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(error))
    except BaseException as unreadable:  # raised by its class, or by that of a cause
        frames = "".join(traceback.format_tb(error.__traceback__))
        return f"{frames}{type_name(error)}: its traceback raises {type_name(unreadable)}\n"
