"""Arguments that must not be shown: left out of what is displayed, and out of what handlers log and raise."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from errandry.core.command import FailOutcome, GiveUpOutcome, Outcome, RetryOutcome

REDACTED = "•••"
KEY = "errandry.redact"
"""Under this name a job's metadata has the names of the arguments that are not shown."""
SHORT = 4
"""What is shorter is only hidden where it stands as a word: it would be part of too many others."""


def with_redacted_names(metadata: str | None, names: Iterable[str]) -> str:
    """The metadata of a job, with the names of its arguments that are not shown."""
    known = {} if metadata is None else msgspec.json.decode(metadata)
    return msgspec.json.encode({**known, KEY: sorted(names)}).decode()


def shown(arguments: Any, metadata: str | None) -> Any:
    """Arguments as they may be shown, by the job's metadata."""
    if metadata is None or KEY not in metadata or not isinstance(arguments, dict):
        return arguments
    hidden = msgspec.json.decode(metadata).get(KEY, ())
    return {name: REDACTED if name in hidden else value for name, value in arguments.items()}


class Redactor:
    """Puts a mark wherever a secret stands in a text."""

    def __init__(self, names: Iterable[str], calls: Iterable[Mapping[str, Any]]) -> None:
        names = tuple(names)
        secrets = {text for call in calls for name in names for text in _texts(call.get(name))}
        longest_first = sorted(secrets - {""}, key=len, reverse=True)
        patterns = [
            re.escape(one) if len(one) >= SHORT else rf"\b{re.escape(one)}\b" for one in longest_first
        ]
        self._pattern = re.compile("|".join(patterns)) if patterns else None

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


def _texts(value: Any) -> Iterator[str]:
    """A value and its parts as they would stand in a text."""
    if isinstance(value, str):
        yield value
        yield repr(value)[1:-1]
    elif isinstance(value, bool) or value is None:
        return
    elif isinstance(value, int | float):
        yield str(value)
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from _texts(one)
    elif isinstance(value, list | tuple | set | frozenset):
        for one in value:
            yield from _texts(one)
    else:
        yield str(value)
        plain = value.model_dump(mode="json") if hasattr(value, "model_dump") else _plain(value)
        if type(plain) is not type(value):
            yield from _texts(plain)


def _plain(value: Any) -> Any:
    """Structs, dataclasses, dates as plain values; nothing where that cannot be."""
    try:
        return msgspec.to_builtins(value)
    except TypeError:
        return None
