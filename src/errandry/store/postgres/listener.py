"""Learning what others have written: LISTEN, on a connection and in a thread of its own, and looking.

A notification is a hint. Now and then the thread looks at the number of the last event row: if that has moved
and nothing was heard, notifications do not come through (behind a transaction pooler they never do), and it
looks more often.
"""

import logging
import random
import threading
import time

import psycopg
from psycopg import sql

from errandry.store.engine.change_counter import ChangeCounter
from errandry.store.postgres.address import Address
from errandry.store.postgres.connection import PostgresConnection

log = logging.getLogger("errandry.store")

LOOK = 2.0
"""So often it looks while notifications come through, in seconds."""
LOOK_DEAF = 0.1
"""And while they do not."""
DEAF_AFTER = 2
"""So many looks in a row that found what had not been heard."""
SILENT = 10.0
"""So many seconds may a look take."""
AGAIN = (0.05, 2.0)
"""Pauses before a lost connection is made again: the first and the longest."""


class Listener:
    """Rings a bell when anyone but `name` has written. It starts with the first who waits."""

    def __init__(self, address: Address, channel: str, name: str) -> None:
        self._address, self._channel, self._name = address, channel, name
        self._link = PostgresConnection(address, writes=False)
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()
        self._last = self._unheard = 0
        self._has_heard = self._has_said = False
        self._next_look = time.monotonic()

    def start(self, bell: ChangeCounter) -> None:
        """A second call changes nothing, but that a server that has been silent for long is given up."""
        if self._thread is not None:
            if time.monotonic() > self._next_look + SILENT:
                self._link.break_off()
        elif not self._stopped.is_set():
            self._thread = threading.Thread(
                target=self._run, args=(bell,), name="errandry-listen", daemon=True
            )
            self._thread.start()

    def stop(self) -> None:
        """Whoever is just connecting ends by itself a little later."""
        self._stopped.set()
        give_up = time.monotonic() + 1.0
        while self._thread is not None and self._thread.is_alive() and time.monotonic() < give_up:
            self._link.break_off()
            self._thread.join(0.02)

    def _run(self, bell: ChangeCounter) -> None:
        pause, longest = AGAIN
        while not self._stopped.is_set():
            try:
                self._listen(bell)
                pause = AGAIN[0]
            except psycopg.Error as error:
                log.debug("%s: nobody can be heard: %s", self._address.name, error)
                self._link.close()
                self._stopped.wait(pause * random.uniform(0.5, 1.5))
                pause = min(2 * pause, longest)
        self._link.close()

    def _listen(self, bell: ChangeCounter) -> None:
        """Wait for a notification or for the time to look."""
        if not self._link.is_up:
            channel = sql.Identifier(self._channel)
            self._link.connection.execute(sql.SQL("LISTEN {}").format(channel))
            self._last, self._unheard = self._link.last_event(), 0
            bell.increment()  # what was said before was not heard
        left = max(0.0, self._next_look - time.monotonic())
        heard = self._heard(left)
        self._has_heard |= bool(heard)
        if any(notification.payload != self._name for notification in heard):
            bell.increment()
        if time.monotonic() >= self._next_look:
            self._look(bell)

    def _heard(self, seconds: float) -> list[psycopg.Notify]:
        """What comes within so many seconds, as soon as something does."""
        return list(self._link.connection.notifies(timeout=seconds, stop_after=1))

    def _look(self, bell: ChangeCounter) -> None:
        """Whether something was written that nobody told of."""
        last = self._link.last_event()
        is_unheard, self._last = last != self._last and not self._has_heard, last
        if is_unheard:
            bell.increment()
            self._unheard += 1
        elif self._has_heard:
            self._unheard = 0
        is_deaf, self._has_heard = self._unheard >= DEAF_AFTER, False
        if is_deaf and not self._has_said:
            self._has_said = True
            log.warning(
                "%s: notifications do not come through, as behind a transaction pooler: what others write is "
                "found by looking every %g s; connect to the server itself for less delay",
                self._address.name,
                LOOK_DEAF,
            )
        self._next_look = time.monotonic() + (LOOK_DEAF if is_deaf else LOOK)
