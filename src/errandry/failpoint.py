"""Points in the program where a test may have this process killed, to show that nothing depends on its luck.

`ERRANDRY_FAILPOINT=before_claim_commit:3` kills it, as `kill -9` does, when that point is reached for the
third time; without a number, the first time. Read once, at import; without it, `reach` does nothing.
"""

import os
import signal
import threading

_name, _, _times = os.environ.get("ERRANDRY_FAILPOINT", "").partition(":")
_left = int(_times or 1)
_lock = threading.Lock()

IS_ARMED = bool(_name)
"""For callers that must work to find out which point they are at."""


def reach(name: str) -> None:
    """The process is at the point `name`; if this is the time it was told of, it goes no further."""
    global _left  # noqa: PLW0603 - one process, one death
    if name != _name:
        return
    with _lock:
        _left -= 1
        if _left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
