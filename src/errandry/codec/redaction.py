"""Redaction: replace secret arguments in displayed arguments and in what handlers log and raise."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from errandry.codec.json_codec import Codec, document_info, from_json
from errandry.core.command import FailOutcome, GiveUpOutcome, Outcome, RetryOutcome
from errandry.core.job import JobRecord
from errandry.errors import SHORT_REPR_MAX

REDACTED = "•••"
METADATA_KEY = "errandry.redact"
"""The key in a job's metadata for the names of its redacted arguments."""
_NO_NAMES: frozenset[str] = frozenset()
SUBSTRING_LENGTH_MIN = 4
"""Minimum length of a secret that is replaced within words too; shorter ones occur in too many words."""


def with_redacted_names(metadata: str | None, names: Iterable[str]) -> str:
    """The metadata with the names of the job's redacted arguments in it."""
    fields = {} if metadata is None else msgspec.json.decode(metadata)
    return msgspec.json.encode({**fields, METADATA_KEY: sorted(names)}).decode()


def redact_arguments(arguments: Any, metadata: str | None) -> Any:
    """The arguments with those replaced that the job's metadata names."""
    names = redacted_names(metadata)
    if not names or not isinstance(arguments, dict):
        return arguments
    return {name: REDACTED if name in names else value for name, value in arguments.items()}


def redacted_names(metadata: str | None) -> tuple[str, ...]:
    """The names of a job's redacted arguments, from its metadata."""
    if metadata is None or METADATA_KEY not in metadata:
        return ()
    return tuple(msgspec.json.decode(metadata).get(METADATA_KEY, ()))


def all_redacted_names(jobs: Iterable[JobRecord], declared: Iterable[str] = ()) -> frozenset[str]:
    """The names that the metadata of these jobs redacts, and those `declared` by their task.

    The program that enqueued a job and the one that runs it may have different versions of the task.
    """
    named = [names for job in jobs if (names := redacted_names(job.metadata))]
    return frozenset(declared).union(*named) if named or declared else _NO_NAMES


def redact_text(text: str, jobs: Sequence[JobRecord], codec: Codec, declared: Iterable[str] = ()) -> str:
    """The text without the redacted arguments of these jobs; without any text if they cannot be read."""
    return stored_redactor(jobs, codec, declared).text(text)


def stored_redactor(jobs: Sequence[JobRecord], codec: Codec, declared: Iterable[str] = ()) -> "Redactor":
    """Replaces the arguments of these jobs as they are stored; whole texts if they cannot be read."""
    names = all_redacted_names(jobs, declared)
    calls = []
    for job in jobs if names else ():
        try:
            arguments = from_json(codec.unseal(job.payload, document_info(job, "payload")))
        except Exception:
            return Redactor.of_whole_texts()
        if isinstance(arguments, dict):
            calls.append(arguments)
    return Redactor(names, calls)


class Redactor:
    """Replaces the values of secret arguments in texts."""

    def __init__(self, names: Iterable[str], calls: Iterable[Mapping[str, Any]]) -> None:
        names = tuple(names)
        secrets = {text for call in calls for name in names for text in _text_forms(call.get(name))}
        longest_first = sorted(secrets - {""}, key=len, reverse=True)
        patterns = [
            re.escape(secret) if len(secret) >= SUBSTRING_LENGTH_MIN else rf"\b{re.escape(secret)}\b"
            for secret in longest_first
        ]
        self._pattern = re.compile("|".join(patterns)) if patterns else None

    @classmethod
    def of_whole_texts(cls) -> "Redactor":
        """Replaces all of each text, where the secrets in it are not known."""
        redactor = cls((), ())
        redactor._pattern = re.compile(r"(?s).+")
        return redactor

    def text(self, text: str) -> str:
        return text if self._pattern is None else self._pattern.sub(REDACTED, text)

    def outcome(self, outcome: Outcome | None) -> Outcome | None:
        """The outcome without secrets in its error."""
        if (
            self._pattern is None
            or not isinstance(outcome, RetryOutcome | FailOutcome | GiveUpOutcome)
            or outcome.failure is None
        ):
            return outcome
        failure = outcome.failure
        message, trace = self.text(failure.message), self.text(failure.traceback)
        return replace(outcome, failure=replace(failure, message=message, traceback=trace))


def _text_forms(value: Any) -> Iterator[str]:
    """A value and its parts, in the forms in which they occur in texts."""
    if isinstance(value, str):
        yield value
        yield repr(value)[1:-1]
        if len(value) > SHORT_REPR_MAX:
            yield repr(value[:SHORT_REPR_MAX])[1:SHORT_REPR_MAX]  # as `short_repr` writes it
    elif isinstance(value, bool) or value is None:
        return
    elif isinstance(value, int | float):
        yield str(value)
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from _text_forms(part)
    elif isinstance(value, list | tuple | set | frozenset):
        for part in value:
            yield from _text_forms(part)
    else:
        yield str(value)
        plain = value.model_dump(mode="json") if hasattr(value, "model_dump") else _to_plain(value)
        if type(plain) is not type(value):
            yield from _text_forms(plain)


def _to_plain(value: Any) -> Any:
    """Structs, dataclasses, dates as plain values; None for other types."""
    try:
        return msgspec.to_builtins(value)
    except TypeError:
        return None
