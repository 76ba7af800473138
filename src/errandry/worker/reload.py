"""Watches the Python files of a program for changes, for development."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator

POLL_INTERVAL = 0.5
"""Seconds between two checks of all files."""
FILES_MAX = 20_000
"""Maximum number of files to watch: a folder with more is not just a program."""


async def watch_files(folder: str) -> AsyncIterator[str]:
    """Yield the path of a Python file below `folder` that was changed, created or removed.

    Changes that are found together yield one path.
    """
    before = _modification_times(folder)
    while True:
        await asyncio.sleep(POLL_INTERVAL)
        now = _modification_times(folder)
        if changes := before.items() ^ now.items():
            before = now
            yield min(changes)[0]


def _modification_times(folder: str) -> dict[str, int]:
    """The last modification of each Python file below `folder`."""
    times: dict[str, int] = {}
    for path in _python_files(folder):
        try:
            times[path] = os.stat(path).st_mtime_ns
        except OSError:  # removed in the meantime
            continue
        if len(times) >= FILES_MAX:
            break
    return times


def _python_files(folder: str) -> Iterator[str]:
    """All Python files except those in hidden folders and virtual environments."""
    for parent, folders, files in os.walk(folder):
        folders[:] = [
            name
            for name in folders
            if not name.startswith((".", "__pycache__", "node_modules"))
            and not os.path.exists(os.path.join(parent, name, "pyvenv.cfg"))
        ]
        yield from (os.path.join(parent, name) for name in files if name.endswith(".py"))
