"""Values as JSON and back, checked against their types; and the seam where a codec may encrypt or sign.

JSON only. What a type does not say is read as plain values; nothing stored can name a class to be made.
"""

from collections.abc import Callable
from math import isfinite
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from errandry.core import check, tick
from errandry.core.job import JobRecord
from errandry.errors import InvalidValue


class DocumentInfo(Struct, frozen=True, gc=False):
    """What a text belongs to, so that a codec can bind it there: `field` is payload or result."""

    job: str
    task: str
    field: str


class Codec(Protocol):
    """Turns JSON text into what is stored, which must be JSON text too, and back."""

    def seal(self, text: str, about: DocumentInfo) -> str: ...

    def unseal(self, text: str, about: DocumentInfo) -> str: ...


class PlainCodec:
    """Stores JSON as it is."""

    def seal(self, text: str, about: DocumentInfo) -> str:  # noqa: ARG002 - what every codec is told
        return text

    def unseal(self, text: str, about: DocumentInfo) -> str:  # noqa: ARG002 - what every codec is told
        return text


def about(job: JobRecord, field: str) -> DocumentInfo:
    """What a document of a job is sealed for: the arguments of a schedule once, for all its jobs."""
    if field == "payload" and job.metadata is not None and (origin := tick.origin(job)) is not None:
        return DocumentInfo(tick.sealed_for(origin.schedule), job.task, field)
    return DocumentInfo(job.id, job.task, field)


def to_json(name: str, value: Any) -> str:
    """`value` as JSON text that every store keeps unchanged, or InvalidValue saying what cannot be."""
    try:
        text = _encoder.encode(value).decode()
    except (TypeError, ValueError, RecursionError, OverflowError) as error:
        raise InvalidValue(name, type(value).__name__, f"cannot be written as JSON: {error}") from None
    if "null" in text:
        _refuse_nan(name, value)
    return check.encoded(name, text)


def from_json(text: str) -> Any:
    """Plain values."""
    return msgspec.json.decode(text)


def reader(kind: Any) -> Callable[[str], Any]:
    """A function that reads JSON text as `kind`; `msgspec.ValidationError` has the path of a fault."""
    return msgspec.json.Decoder(kind, dec_hook=_from_plain).decode


def _to_plain(value: Any) -> Any:
    """What msgspec does not know: pydantic models, without importing pydantic."""
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    raise TypeError(f"objects of type {type(value).__name__} are not supported")


def _from_plain(kind: Any, value: Any) -> Any:
    if hasattr(kind, "model_validate_json"):  # as JSON: a strict model would not take a text for a date else
        return kind.model_validate_json(msgspec.json.encode(value))
    if isinstance(kind, type) and isinstance(value, kind):
        return value
    raise TypeError(f"objects of type {getattr(kind, '__name__', kind)} cannot be read from JSON")


_encoder = msgspec.json.Encoder(enc_hook=_to_plain)


def _refuse_nan(name: str, value: Any) -> None:
    """msgspec writes NaN and infinity as null: to store something else than was given would be worse."""
    left = [msgspec.to_builtins(value, enc_hook=_to_plain)]
    while left:
        one = left.pop()
        if isinstance(one, dict):
            left += one.values()
        elif isinstance(one, list | tuple):
            left += one
        elif isinstance(one, float) and not isfinite(one):
            raise InvalidValue(name, one, "is not a number JSON has: use None or a text")
