"""Ports: how commands leave a caller's loop or thread, and how their answers come back.

A hop between threads costs more than a command. A loop hands in all that was submitted in one of
its iterations with one hop, and gets all its answers of a pass with another.
"""

import asyncio
import copy
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable
from concurrent import futures
from contextlib import suppress

from errandry.core.answer import Answer
from errandry.errors import ErrandryError
from errandry.store.engine.backlog import PendingCommand, Replies, ReplyPort

log = logging.getLogger("errandry.store")


class LoopPort:
    """The port of one loop; `put` is called on it, `reply` from anywhere."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, hand_in: Callable[[list[PendingCommand]], None]
    ) -> None:
        self.loop = loop
        self._hand_in = hand_in
        self._put: list[PendingCommand] = []

    def put(self, entry: PendingCommand) -> None:
        if not self._put:
            self.loop.call_soon(self._flush)
        self._put.append(entry)

    def _flush(self) -> None:
        put, self._put = self._put, []
        self._hand_in(put)

    def reply(self, replies: Replies) -> None:
        if asyncio._get_running_loop() is self.loop:
            _answer(replies)
            return
        with suppress(RuntimeError):  # a loop that was closed has nobody waiting
            self.loop.call_soon_threadsafe(_answer, replies)


class ThreadPort:
    """The port of all threads without a loop, each blocked on a future of its own."""

    def reply(self, replies: Replies) -> None:
        for future, answer in replies:
            with suppress(futures.InvalidStateError):  # whoever waited has left
                future.set_result(answer)


THREADS = ThreadPort()


def reply(answers: Iterable[tuple[PendingCommand, Answer]]) -> None:
    """Give each its answer. An error goes as a value: one that nobody fetches makes no noise."""
    ports: defaultdict[ReplyPort, Replies] = defaultdict(list)
    for entry, answer in answers:
        ports[entry.port].append((entry.future, answer))
    for port, replies in ports.items():
        port.reply(replies)


def returned(answer: Answer) -> Answer:
    """The answer; an error is raised, as a copy: one object raised twice would mix up two tracebacks."""
    if isinstance(answer, ErrandryError):
        raise copy.copy(answer) from answer.__cause__
    return answer


def _answer(replies: Replies) -> None:
    for future, answer in replies:
        if not future.done():
            try:
                future.set_result(answer)
            except Exception:  # of one who is told: the others want their answers
                log.exception("an answer could not be taken in")
