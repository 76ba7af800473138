"""Which arguments of other jobs take the result of a job, so that the result is checked when the job ends.

They are in the metadata of the job. A job that existed before its flow was enqueued has none; its result is
checked when the other job begins.
"""

from collections.abc import Collection

import msgspec
from msgspec import Struct

from errandry.core import check
from errandry.core.job import METADATA_MAX

METADATA_KEY = "errandry.results"
USES_MAX = 100
"""Maximum number of arguments noted for a job."""


class ResultUse(Struct, frozen=True, array_like=True):
    """An argument that takes a result, such as `total`, or `parts[2]` for an item of a list.

    `version` is the version of the arguments of the task.
    """

    task: str
    version: int
    path: str


_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
_uses_decoder = msgspec.json.Decoder(tuple[ResultUse, ...])


def uses_of(metadata: str | None) -> tuple[ResultUse, ...]:
    """The arguments that take the result of a job with this metadata."""
    if metadata is None or METADATA_KEY not in metadata:
        return ()
    text = _decoder.decode(metadata).get(METADATA_KEY)
    try:
        return () if text is None else _uses_decoder.decode(text)
    except msgspec.ValidationError:  # written by hand
        return ()


def with_uses(metadata: str | None, uses: Collection[ResultUse]) -> str | None:
    """The metadata with the first of these arguments in it, unless it gets too long."""
    fields = {} if metadata is None else msgspec.json.decode(metadata)
    text = msgspec.json.encode({**fields, METADATA_KEY: tuple(uses)[:USES_MAX]}).decode()
    return text if check.fits(text, METADATA_MAX) else metadata
