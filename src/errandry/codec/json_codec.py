"""Write values as JSON and read them back as their types. `Codec` is the interface to encrypt or sign them.

Values without a declared type are read as plain JSON values. A stored text can never name a class to
instantiate.
"""

from collections.abc import Callable
from math import isfinite
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from errandry.core import check, tick
from errandry.core.job import JobRecord
from errandry.errors import InvalidValue, ObjectOf


class DocumentInfo(Struct, frozen=True, gc=False):
    """The document that a codec seals: its job, its task and its field.

    `field` is `payload`, `result`, `step <name>` or `signal <name>`. A codec that binds its seal to all three
    detects a text that was copied from another job.
    """

    job: str
    task: str
    field: str


class Codec(Protocol):
    """Transforms JSON text before it is stored and after it is read: `Errandry(codec=…)`."""

    def seal(self, text: str, document: DocumentInfo) -> str:
        """The text to store for this JSON text; it must be JSON too."""
        ...

    def unseal(self, text: str, document: DocumentInfo) -> str:
        """The JSON text that `seal` was given."""
        ...


class PlainCodec:
    """Stores JSON as it is."""

    def seal(self, text: str, document: DocumentInfo) -> str:  # noqa: ARG002 - every codec gets it
        return text

    def unseal(self, text: str, document: DocumentInfo) -> str:  # noqa: ARG002 - every codec gets it
        return text


def document_info(job: JobRecord, field: str) -> DocumentInfo:
    """The document of a job's field. The arguments of a schedule are sealed once, for all its jobs."""
    if field == "payload" and job.metadata is not None and (origin := tick.origin(job)) is not None:
        return DocumentInfo(tick.seal_context(origin.schedule), job.task, field)
    return DocumentInfo(job.id, job.task, field)


def to_json(name: str, value: Any) -> str:
    """The value as JSON text that every store keeps unchanged; InvalidValue if there is none."""
    try:
        text = _encoder.encode(value).decode()
    except (TypeError, ValueError, RecursionError, OverflowError) as error:
        raise InvalidValue(
            name, ObjectOf(type(value).__name__), f"cannot be written as JSON: {error}"
        ) from None
    if "null" in text:
        _refuse_nan(name, value)
    return check.encoded_document(name, text)


def from_json(text: str) -> Any:
    """JSON text as plain values."""
    return msgspec.json.decode(text)


def reader(kind: Any) -> Callable[[str], Any]:
    """A function that reads JSON text as `kind`; its `msgspec.ValidationError` has the path of the fault."""
    return msgspec.json.Decoder(kind, dec_hook=_from_plain).decode


def _to_plain(value: Any) -> Any:
    """Types that msgspec does not support: pydantic models, detected without importing pydantic."""
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    raise TypeError(f"objects of type {type(value).__name__} are not supported")


def _from_plain(kind: Any, value: Any) -> Any:
    if hasattr(kind, "model_validate_json"):  # from JSON: a strict model accepts a date as text only there
        return kind.model_validate_json(msgspec.json.encode(value))
    if isinstance(kind, type) and isinstance(value, kind):
        return value
    raise TypeError(f"objects of type {getattr(kind, '__name__', kind)} cannot be read from JSON")


_encoder = msgspec.json.Encoder(enc_hook=_to_plain)


def _refuse_nan(name: str, value: Any) -> None:
    """Refuse NaN and infinity: msgspec would write null in their place."""
    stack = [msgspec.to_builtins(value, enc_hook=_to_plain)]
    while stack:
        part = stack.pop()
        if isinstance(part, dict):
            stack += part.values()
        elif isinstance(part, list | tuple):
            stack += part
        elif isinstance(part, float) and not isfinite(part):
            raise InvalidValue(name, part, "is not a number JSON has: use None or a text")
