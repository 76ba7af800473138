"""Ports: how commands get from a caller's loop or thread to the committer, and answers back.

A hop between threads costs more than a command. So a loop hands in all commands that were submitted in one
of its iterations with one hop, and gets all its answers of a pass with another.
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
    """The port of one loop. `put` is called on this loop, `reply` from any thread."""

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
        entries, self._put = self._put, []
        self._hand_in(entries)

    def reply(self, replies: Replies) -> None:
        if asyncio._get_running_loop() is self.loop:
            _set_results(replies)
            return
        with suppress(RuntimeError):  # the loop is closed: no caller waits any more
            self.loop.call_soon_threadsafe(_set_results, replies)


class ThreadPort:
    """The port of all threads without a loop. Each thread blocks on its own future."""

    def reply(self, replies: Replies) -> None:
        for future, answer in replies:
            with suppress(futures.InvalidStateError):  # the caller has timed out
                future.set_result(answer)


THREADS = ThreadPort()


def reply(answers: Iterable[tuple[PendingCommand, Answer]]) -> None:
    """Send the answers to their callers. Errors are sent as values: asyncio would log an unread exception."""
    ports: defaultdict[ReplyPort, Replies] = defaultdict(list)
    for entry, answer in answers:
        ports[entry.port].append((entry.future, answer))
    for port, replies in ports.items():
        port.reply(replies)


def answer_or_raise(answer: Answer) -> Answer:
    """Return an answer; if it is an error, raise a copy, because two raises would mix up tracebacks."""
    if isinstance(answer, ErrandryError):
        raise copy.copy(answer) from answer.__cause__
    return answer


def _set_results(replies: Replies) -> None:
    for future, answer in replies:
        if not future.done():
            try:
                future.set_result(answer)
            except Exception:  # a callback failed: go on with the other answers
                log.exception("a callback failed while it handled an answer")
