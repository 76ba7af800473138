"""Repeats: a command that is sent again, because its reply was lost, gets the answer that it got first.

The answer is saved under the nonce of the command, in the transaction that applies the command, and only if
the command changed anything. A repeat of a command that changed nothing is applied like a new one.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from errandry import errors
from errandry.core.answer import WRITTEN, Ack, Answer, Inserted, Moved
from errandry.core.command import Command, Insert, touched_ids
from errandry.core.once import OnceCommand
from errandry.core.schedule import Backfill, Backfilled, RunSchedule
from errandry.core.selection import JobSelection
from errandry.errors import ErrandryError
from errandry.store.tables.protocol import Tables

ALL_INSERTED = '{"ids":[]}'
"""The saved answer to an insert whose jobs were all new: most of them."""


class Repeats:
    """The saved answers to the commands of one pass."""

    def __init__(self, tables: Tables, nonces: Sequence[str]) -> None:
        self._tables = tables
        self._saved = tables.load_answers(nonces)
        self._new: dict[str, str] = {}

    def answer(self, command: Command) -> Answer | None:
        """Return the answer that the command got before; None if it is to be applied."""
        if not isinstance(command, OnceCommand) or command.nonce is None:
            return None
        saved = self._saved.get(command.nonce)  # guard: command_repeat
        return None if saved is None else _decode(command, saved)

    def record(self, command: Command, answer: Answer) -> None:
        """Save the answer for repeats of the command, if the command has changed anything."""
        if isinstance(command, OnceCommand) and command.nonce is not None and _has_changed(answer):
            self._new[command.nonce] = self._saved[command.nonce] = _encode(command, answer)

    def save(self, now: float) -> None:
        if self._new:
            self._tables.save_answers(self._new, now)


def nonces_of(commands: Sequence[Command]) -> list[str]:
    """The nonces of the commands that have one, without claims, which are repeated in another way."""
    return [
        command.nonce
        for command in commands
        if isinstance(command, OnceCommand) and command.nonce is not None
    ]


def _has_changed(answer: Answer) -> bool:
    match answer:
        case Inserted():
            return bool(answer.replaced) or not answer.existed.issuperset(answer.ids)
        case Moved():
            return bool(answer.moved)
        case Backfilled():
            return not answer.existed.issuperset(answer.ids)
        case _:
            return answer is WRITTEN


def _encode(command: OnceCommand, answer: Answer) -> str:
    """The answer as JSON. The ids of inserted jobs are left out if they are those of the command."""
    if isinstance(command, Insert) and isinstance(answer, Inserted):
        if not answer.existed:
            return ALL_INSERTED
        if answer.ids == touched_ids(command):
            answer = replace(answer, ids=())
    return _encoder.encode(answer).decode()


def _decode(command: OnceCommand, text: str) -> Answer:
    if isinstance(command, Insert):
        inserted = _inserted.decode(text)
        return inserted if inserted.ids else replace(inserted, ids=touched_ids(command))
    if isinstance(command, JobSelection):
        return _moved.decode(text)
    if isinstance(command, RunSchedule):
        return _inserted.decode(text)
    if isinstance(command, Backfill):
        return _backfilled.decode(text)
    return _ack.decode(text)


def _encode_error(error: Any) -> tuple[str, tuple[Any, ...]]:
    """An error as the name of its class and its arguments, from which it can be made again."""
    if not isinstance(error, ErrandryError):
        raise NotImplementedError(f"{type(error).__name__} in an answer")
    return type(error).__name__, error.args


def _decode_error(kind: type, value: Any) -> ErrandryError:
    name, args = value
    error_class = getattr(errors, name, None)
    if kind is not ErrandryError or not isinstance(error_class, type):
        raise NotImplementedError(f"{name} in an answer")
    if not issubclass(error_class, ErrandryError):
        raise NotImplementedError(f"{name} in an answer")
    return error_class(*[tuple(arg) if isinstance(arg, list) else arg for arg in args])


_encoder = msgspec.json.Encoder(enc_hook=_encode_error)
_inserted = msgspec.json.Decoder(Inserted)
_moved = msgspec.json.Decoder(Moved, dec_hook=_decode_error)
_backfilled = msgspec.json.Decoder(Backfilled)
_ack = msgspec.json.Decoder(Ack)
