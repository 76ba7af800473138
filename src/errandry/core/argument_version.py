"""The version of a task's arguments with which a job was enqueued.

It is in the metadata of the job; a job without one has the first version.
"""

from typing import Any

import msgspec

from errandry.core import check

FIRST_VERSION = 1
METADATA_KEY = "errandry.version"
VERSION_MAX = 10_000


def check_version(name: str, value: Any) -> int:
    return check.whole(name, value, FIRST_VERSION, VERSION_MAX)


def version_of(metadata: str | None) -> int:
    """The version a job with this metadata was enqueued with."""
    if metadata is None or METADATA_KEY not in metadata:
        return FIRST_VERSION
    number = msgspec.json.decode(metadata).get(METADATA_KEY, FIRST_VERSION)
    return number if type(number) is int else FIRST_VERSION


def with_version(metadata: str | None, number: int) -> str | None:
    """The metadata with this version of the arguments in it."""
    if version_of(metadata) == number:
        return metadata
    fields = {} if metadata is None else msgspec.json.decode(metadata)
    return msgspec.json.encode({**fields, METADATA_KEY: number}).decode()
