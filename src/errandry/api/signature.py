"""The signature of a handler: check arguments against it, write them as JSON and read them back."""

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from types import NoneType, SimpleNamespace, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec.structs import asdict

from errandry.api.argument_errors import ArgumentFaults, Parameter
from errandry.api.context import JobContext
from errandry.codec import json_codec
from errandry.codec.redaction import REDACTED
from errandry.core.flow import parse_feed
from errandry.errors import InvalidArguments, InvalidValue, short_repr

_NOT_BY_NAME = {
    inspect.Parameter.POSITIONAL_ONLY: "is positional only",
    inspect.Parameter.VAR_POSITIONAL: "takes any number of arguments",
    inspect.Parameter.VAR_KEYWORD: "takes any keyword",
}
DEFAULT_TEXT_MAX = 20
"""Maximum number of characters of a default value in a message."""
_WRAPPER_TYPES = (Union, UnionType, Annotated)
_LIST_TYPES = (list, Sequence, Collection, Iterable)


class Signature:
    """The parameters of a handler. Annotations are read on first use: their types may be declared later.

    The values of the arguments in `redact` are not in its errors.
    """

    def __init__(
        self, task: str, function: Callable[..., Any], is_batch: bool = False, redact: tuple[str, ...] = ()
    ) -> None:
        self.task, self._function, self._is_batch, self._redact = task, function, is_batch, redact
        self._parameters = inspect.signature(function).parameters
        for parameter in self._parameters.values():
            if parameter.kind in _NOT_BY_NAME:
                why = f"{_NOT_BY_NAME[parameter.kind]}; a task's arguments are stored by name"
                raise InvalidValue(f"task {task}", parameter.name, why)
        if is_batch:
            with suppress(InvalidArguments):  # the types in its annotations may be declared later
                _ = self._batch_parameter

    @property
    def parameters(self) -> tuple[str, ...]:
        return tuple(self._parameters)

    def bind_arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The arguments of a call by their names."""
        if len(args) > len(self._by_position):
            takes = (
                f"{len(self._by_position)}: {', '.join(self._by_position)}" if self._by_position else "none"
            )
            why = f"{len(args)} arguments are given by position, it takes {takes}"
            raise InvalidArguments(self.task, why)
        if not args:
            return kwargs
        given = dict(zip(self._by_position, args, strict=False))
        if kwargs and (twice := given.keys() & kwargs.keys()):
            raise InvalidArguments(self.task, f"argument '{min(twice)}' is given twice")
        return given | kwargs

    def check_defaults(self) -> None:
        """Raise InvalidArguments if a call without arguments is known to lack one.

        It checks only the names, because the types in the annotations may be declared later. Of the
        parameters whose types cannot be read yet, one may be the context.
        """
        required = [
            name for name, value in self._parameters.items() if value.default is inspect.Parameter.empty
        ]
        unreadable = [name for name in required if self._may_be_context(name) is None]
        missing = [name for name in required if self._may_be_context(name) is False] + unreadable[1:]
        if missing:
            call = f"{self.task}.new({', '.join(f'{name}=…' for name in missing)})"
            why = f"argument '{missing[0]}' has no default: give it one, or schedule {call}"
            raise InvalidArguments(self.task, why)

    def _may_be_context(self, name: str) -> bool | None:
        """True if this parameter takes the `JobContext`; None if its annotation cannot be read yet."""
        parameter = SimpleNamespace(__annotations__={name: self._parameters[name].annotation})
        module = getattr(inspect.unwrap(self._function), "__globals__", {})
        try:
            return _is_context(get_type_hints(parameter, module, include_extras=True)[name])
        except Exception:
            return None

    def write(self, given: dict[str, Any], later: frozenset[str] = frozenset()) -> str:
        """The arguments as JSON text, after a check that this task can read it again.

        The names in `later` are arguments that other jobs will fill; they are not in `given`.
        """
        try:
            text = json_codec.to_json("arguments", given)
        except InvalidValue as error:
            name, why = _unwritable_argument(given) or (None, error.why)
            raise InvalidArguments(self.task, self._faults.unwritable(name, why, given)) from None
        self._decode(self._reader_without(later) if later else self._reader, text)
        return text

    def read(self, text: str) -> dict[str, Any]:
        """The arguments to call the handler with; InvalidArguments if it does not accept them any more."""
        return asdict(self._decode(self._reader, text))

    def unknown_argument(self, text: str) -> str | None:
        """The first argument in this JSON text that the handler does not have; None if it has all of them."""
        try:
            arguments = json_codec.from_json(text)
        except Exception:  # such as RecursionError: `read` says what is wrong with it
            return None
        if not isinstance(arguments, dict):
            return None
        return next((name for name in arguments if name not in self._parameters), None)

    def _decode(self, reader: Callable[[str], Any], text: str) -> Any:
        try:
            return reader(text)
        except Exception as error:
            why = self._faults.unreadable(error, text)
            cause = None if isinstance(error, msgspec.MsgspecError) else error
            raise InvalidArguments(self.task, why) from cause

    def check_result(self, path: str, text: str, task: str) -> None:
        """Raise InvalidArguments if the result of a job of `task` does not fit the argument at `path`.

        `path` is `total`, or `parts[2]` for an item of a list.
        """
        name, place = parse_feed(path)
        kind = self._result_kind(name, is_item=place is not None)
        with suppress(Exception):
            json_codec.reader(kind)(text)
            return
        at_path = msgspec.defstruct("Arguments", [("result", kind)], rename={"result": path})
        try:
            json_codec.reader(at_path)(f'{{"{path}":{text}}}')
        except Exception as error:
            value = text if place is None else f"[{'null,' * place}{text}]"
            why = self._faults.unreadable(error, f'{{"{name}":{value}}}')
            raise InvalidArguments(self.task, f"{why}; it is the result of task {task}") from error

    def _result_kind(self, name: str, is_item: bool) -> Any:
        """The type of a result that fills an argument or, if `is_item`, an item of it."""
        kind = self._batch_parameter[1] if self._is_batch else self._hints.get(name, Any)
        return (_item_type(kind) or Any) if is_item else kind

    def batch_arguments(self, arguments: list[dict[str, Any]]) -> dict[str, Any]:
        """The arguments of one call for many jobs: a list of the item of each."""
        name, _ = self._batch_parameter
        return {name: [of_job[name] for of_job in arguments]}

    def read_result(self, text: str) -> Any:
        """The result as the type the handler declares, or as plain values if that does not fit."""
        try:
            return self._result_reader(text)
        except Exception:
            return json_codec.from_json(text)

    @cached_property
    def context_parameter(self) -> str | None:
        """The name of the parameter that takes the `JobContext`; None if there is none."""
        return next((name for name in self._parameters if _is_context(self._hints.get(name))), None)

    @cached_property
    def _faults(self) -> ArgumentFaults:
        return ArgumentFaults(tuple([self._describe_parameter(name) for name in self._names]), self._redact)

    def _describe_parameter(self, name: str) -> Parameter:
        kind, default = self._hints.get(name, Any), self._parameters[name].default
        if self._is_batch:
            _, kind = self._batch_parameter
        if default is inspect.Parameter.empty:
            return Parameter(name, kind, None)
        text = REDACTED if name in self._redact else short_repr(default)
        return Parameter(name, kind, text if len(text) <= DEFAULT_TEXT_MAX else "…")

    @cached_property
    def _hints(self) -> dict[str, Any]:
        try:
            return get_type_hints(self._function, include_extras=True)
        except Exception as error:
            why = f"its annotations cannot be read: {error}; the names in them must exist at run time"
            raise InvalidArguments(self.task, why) from error

    @cached_property
    def _names(self) -> tuple[str, ...]:
        return tuple(name for name in self._parameters if name != self.context_parameter)

    @cached_property
    def _by_position(self) -> tuple[str, ...]:
        by_name = inspect.Parameter.KEYWORD_ONLY
        return tuple(name for name in self._names if self._parameters[name].kind is not by_name)

    @cached_property
    def _reader(self) -> Callable[[str], Any]:
        return self._reader_without(frozenset())

    def _reader_without(self, later: frozenset[str]) -> Callable[[str], Any]:
        if unknown := later.difference(self._names):
            raise InvalidArguments(self.task, self._faults.unknown(min(unknown)))
        all_fields = (
            [self._batch_parameter] if self._is_batch else [self._field(name) for name in self._names]
        )
        fields = [field for field in all_fields if field[0] not in later]
        try:
            return json_codec.reader(
                msgspec.defstruct("Arguments", fields, kw_only=True, forbid_unknown_fields=True)
            )
        except TypeError as error:
            raise InvalidArguments(self.task, f"its annotations cannot be checked: {error}") from None

    @cached_property
    def _batch_parameter(self) -> tuple[str, Any]:
        """The parameter that takes the list of a batch, and the type of its items."""
        where, names = f"task {self.task}", self._names
        needs = "a batch handler takes one list, with an item for each job, and optionally a JobContext"
        if len(names) != 1:
            raise InvalidValue(where, ", ".join(names), needs)
        if self._parameters[names[0]].default is not inspect.Parameter.empty:
            raise InvalidValue(where, names[0], "has a default, but there is no batch without jobs")
        if (item := _item_type(self._hints.get(names[0], Any))) is None:
            raise InvalidValue(where, names[0], f"is not a list: {needs}")
        return names[0], item

    def _field(self, name: str) -> tuple[str, Any] | tuple[str, Any, Any]:
        kind, default = self._hints.get(name, Any), self._parameters[name].default
        if default is inspect.Parameter.empty:
            return name, kind
        return name, kind, msgspec.field(default_factory=lambda: default)

    @cached_property
    def _result_reader(self) -> Callable[[str], Any]:
        kind = self._hints.get("return", Any)
        return json_codec.reader(_batch_result_type(kind) if self._is_batch else _result_type(kind))


def read_arguments(task: str, given: Mapping[str, Any] | None) -> dict[str, Any]:
    """Arguments by name, as a dict; InvalidArguments if they have no names."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        kind = type(given).__name__
        raise InvalidArguments(task, f'the arguments must be a mapping by name, {{"name": …}}, not {kind}')
    for name in given:
        if not isinstance(name, str):
            raise InvalidArguments(task, f"the names of arguments must be text, not {short_repr(name)}")
    return dict(given)


def _is_context(kind: Any) -> bool:
    return kind is JobContext or (get_origin(kind) in _WRAPPER_TYPES and JobContext in get_args(kind))


def _item_type(kind: Any) -> Any:
    """The type of the items of a list type; None if the type is no list."""
    if kind is Any or kind in _LIST_TYPES:
        return Any
    if get_origin(kind) is Annotated:
        return _item_type(get_args(kind)[0])
    return get_args(kind)[0] if get_origin(kind) in _LIST_TYPES else None


def _batch_result_type(kind: Any) -> Any:
    """The type of one job's result, from the list or tuple type that a batch handler returns."""
    lists = [member for member in _union_members(_result_type(kind)) if member is not NoneType]
    if len(lists) != 1:
        return Any
    if get_origin(lists[0]) is tuple:
        items = [item for item in get_args(lists[0]) if item is not Ellipsis]
        return _result_type(items[0]) if len(items) == 1 else Any
    return _result_type(_item_type(lists[0]))


def _result_type(kind: Any) -> Any:
    """A return type without the outcomes and exceptions in it: `str` of `str | Snooze | type[Cancel]`."""
    results = _result_members(kind)
    return Union[tuple(results)] if results else Any  # noqa: UP007 - the members are known only at run time


def _result_members(kind: Any) -> list[Any]:
    """The members of a return type that are results. `Annotated` keeps what it says about them."""
    if get_origin(kind) in (Union, UnionType):
        return [result for member in get_args(kind) for result in _result_members(member)]
    if get_origin(kind) is Annotated:
        results, about = _result_members(get_args(kind)[0]), get_args(kind)[1:]
        return [Annotated[(Union[tuple(results)], *about)]] if results else []  # noqa: UP007
    return [] if _is_exception(kind) else [kind]


def _union_members(kind: Any) -> tuple[Any, ...]:
    if get_origin(kind) is Annotated:
        return _union_members(get_args(kind)[0])
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def _is_exception(kind: Any) -> bool:
    """Whether this is an exception class, or the type of one or several such classes."""
    if get_origin(kind) is type:
        return all(_is_exception(member) for member in _union_members(get_args(kind)[0]))
    return isinstance(kind, type) and issubclass(kind, BaseException)


def _unwritable_argument(given: dict[str, Any]) -> tuple[str, str] | None:
    """The first argument that cannot be written as JSON, and why; None if each of them can be."""
    for name, value in given.items():
        try:
            json_codec.to_json(name, value)
        except InvalidValue as error:
            return name, error.why
    return None
