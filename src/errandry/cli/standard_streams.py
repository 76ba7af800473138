"""Standard streams that the caller has closed, as `>&-` does in a shell.

Python leaves them out, and a file that is opened later takes their number: what a library prints would go
into a database, and uvloop aborts the process.
"""

import io
import os
import sys


class ClosedOutput(io.TextIOWrapper):
    """Stands for a closed standard output: it discards what is written."""


def replace_closed_streams() -> None:
    """Open the null device in place of each standard stream that is closed."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, which is this one
            os.set_inheritable(number, True)
    if sys.stdin is None:
        sys.stdin = io.TextIOWrapper(open(os.devnull, "rb"))  # noqa: SIM115 - as long as the program
    if sys.stdout is None:
        sys.stdout = ClosedOutput(open(os.devnull, "wb"))  # noqa: SIM115 - as above
    if sys.stderr is None:
        sys.stderr = io.TextIOWrapper(open(os.devnull, "wb"))  # noqa: SIM115 - as above
