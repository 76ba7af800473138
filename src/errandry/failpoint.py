"""Failpoints: named points in the program at which a test can kill the process, to test crash safety.

`ERRANDRY_FAILPOINT=before_claim_commit:3` kills the process, like `kill -9`, when it reaches that point for
the third time; without a number, the first time. The variable is read once, at import. Without it, `reach`
does nothing.
"""

import os
import signal
import threading

_name, _, _times = os.environ.get("ERRANDRY_FAILPOINT", "").partition(":")
_left = int(_times or 1)
_lock = threading.Lock()

IS_ARMED = bool(_name)
"""For callers to which it costs time to find out which point they have reached."""


def reach(name: str) -> None:
    """Kill the process if it has reached the armed failpoint the given number of times."""
    global _left  # noqa: PLW0603 - a process has one armed failpoint
    if name != _name:
        return
    with _lock:
        _left -= 1
        if _left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
