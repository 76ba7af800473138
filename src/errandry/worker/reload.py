"""Noticing that the source of a program has changed, for development: a look at its files twice a second."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator

EVERY = 0.5
FILES_MAX = 20_000
"""More than this would be no program but a disk."""


async def changed(folder: str) -> AsyncIterator[str]:
    """The path of a Python file below `folder` that was changed, made or removed; once for many at a time."""
    before = _times(folder)
    while True:
        await asyncio.sleep(EVERY)
        now = _times(folder)
        if different := before.items() ^ now.items():
            before = now
            yield min(different)[0]


def _times(folder: str) -> dict[str, int]:
    """When each file was last changed."""
    found: dict[str, int] = {}
    for path in _sources(folder):
        try:
            found[path] = os.stat(path).st_mtime_ns
        except OSError:  # gone since
            continue
        if len(found) >= FILES_MAX:
            break
    return found


def _sources(folder: str) -> Iterator[str]:
    """Python files, but for those of hidden folders and of environments."""
    for place, folders, files in os.walk(folder):
        folders[:] = [
            name
            for name in folders
            if not name.startswith((".", "__pycache__", "node_modules"))
            and not os.path.exists(os.path.join(place, name, "pyvenv.cfg"))
        ]
        yield from (os.path.join(place, name) for name in files if name.endswith(".py"))
