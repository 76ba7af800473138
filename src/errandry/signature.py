"""The arguments of a handler: what it takes, as a type that JSON can be checked against."""

import inspect
from collections.abc import Callable
from functools import cached_property
from typing import Any, get_type_hints

import msgspec

from errandry import codec
from errandry.context import JobContext
from errandry.errors import InvalidArguments, InvalidValue

_NOT_BY_NAME = {
    inspect.Parameter.POSITIONAL_ONLY: "is positional only",
    inspect.Parameter.VAR_POSITIONAL: "takes any number of arguments",
    inspect.Parameter.VAR_KEYWORD: "takes any keyword",
}


class Signature:
    """Reads a function's parameters once, when they are first needed: types may be declared after it."""

    def __init__(self, task: str, function: Callable[..., Any]) -> None:
        self.task, self._function = task, function
        for parameter in inspect.signature(function).parameters.values():
            if parameter.kind in _NOT_BY_NAME:
                why = f"{_NOT_BY_NAME[parameter.kind]}; a task's arguments are stored by name"
                raise InvalidValue(f"task {task}", parameter.name, why)

    def write(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """The arguments as JSON text, checked: what is stored can be read again by this task."""
        if len(args) > len(self._names):
            raise InvalidArguments(self.task, f"{len(args)} given by position, it takes {len(self._names)}")
        given = dict(zip(self._names, args, strict=False))
        if twice := given.keys() & kwargs.keys():
            raise InvalidArguments(self.task, f"{min(twice)} is given twice")
        try:
            text = codec.to_json("arguments", given | kwargs)
        except InvalidValue as error:
            raise InvalidArguments(self.task, error.why) from None
        self.read(text)
        return text

    def read(self, text: str) -> dict[str, Any]:
        """The arguments to call the handler with; InvalidArguments if it no longer takes them."""
        try:
            values = self._reader(text)
        except msgspec.MsgspecError as error:
            raise InvalidArguments(self.task, str(error)) from None
        return {name: getattr(values, name) for name in self._names}

    def read_result(self, text: str) -> Any:
        """A result as the type the handler declares, or plain values where that does not fit."""
        try:
            return self._result_reader(text)
        except msgspec.MsgspecError:
            return codec.from_json(text)

    @cached_property
    def context(self) -> str | None:
        """The parameter that wants the job's context."""
        return next((name for name, kind in self._hints.items() if kind is JobContext), None)

    @cached_property
    def _hints(self) -> dict[str, Any]:
        return get_type_hints(self._function, include_extras=True)

    @cached_property
    def _names(self) -> tuple[str, ...]:
        names = inspect.signature(self._function).parameters
        return tuple(name for name in names if name != self.context)

    @cached_property
    def _reader(self) -> Callable[[str], Any]:
        parameters = inspect.signature(self._function).parameters
        fields: list[Any] = []
        for name in self._names:
            field = (name, self._hints.get(name, Any))
            default = parameters[name].default
            fields.append(field if default is inspect.Parameter.empty else (*field, default))
        return codec.reader(msgspec.defstruct("Arguments", fields, kw_only=True, forbid_unknown_fields=True))

    @cached_property
    def _result_reader(self) -> Callable[[str], Any]:
        return codec.reader(self._hints.get("return", Any))
