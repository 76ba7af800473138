"""Learns of commits of other processes with LISTEN and by polling, on a connection and thread of its own.

Notifications can be missing: a transaction pooler never delivers them. So the thread also polls the number of
the last event row. If it has changed twice without a notification, the thread polls more often.
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

POLL_INTERVAL = 2.0
"""Seconds between two polls while notifications arrive."""
POLL_INTERVAL_WITHOUT_NOTIFY = 0.1
"""Seconds between two polls while no notifications arrive."""
MISSED_NOTIFICATIONS_MAX = 2
"""Number of consecutive polls that find a change without a notification, before polling more often."""
POLL_TIMEOUT = 10.0
"""Seconds after which a poll without a reply is aborted."""
RECONNECT_DELAYS = (0.05, 2.0)
"""Seconds before the first reconnect; maximum seconds between reconnects."""


class Listener:
    """Increments a change counter when a store other than `name` commits. Starts with the first wait."""

    def __init__(self, address: Address, channel: str, name: str) -> None:
        self._address, self._channel, self._name = address, channel, name
        self._connection = PostgresConnection(address, writes=False)
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()
        self._last_event = self._unheard_polls = 0
        self._has_heard = self._has_warned = False
        self._next_poll = time.monotonic()

    def start(self, changes: ChangeCounter) -> None:
        """Start the thread. If it runs already, abort its connection if a poll takes too long."""
        if self._thread is not None:
            if time.monotonic() > self._next_poll + POLL_TIMEOUT:
                self._connection.abort()
        elif not self._stopped.is_set():
            self._thread = threading.Thread(
                target=self._run, args=(changes,), name="errandry-listen", daemon=True
            )
            self._thread.start()

    def stop(self) -> None:
        """Stop the thread. If it is connecting, it ends by itself a little later."""
        self._stopped.set()
        give_up_at = time.monotonic() + 1.0
        while self._thread is not None and self._thread.is_alive() and time.monotonic() < give_up_at:
            self._connection.abort()
            self._thread.join(0.02)

    def _run(self, changes: ChangeCounter) -> None:
        pause, longest = RECONNECT_DELAYS
        while not self._stopped.is_set():
            try:
                self._listen(changes)
                pause = RECONNECT_DELAYS[0]
            except psycopg.Error as error:
                log.debug("%s: cannot listen for notifications: %s", self._address.name, error)
                self._connection.close()
                self._stopped.wait(pause * random.uniform(0.5, 1.5))
                pause = min(2 * pause, longest)
        self._connection.close()

    def _listen(self, changes: ChangeCounter) -> None:
        """Wait for a notification, or until the next poll is due."""
        if not self._connection.is_up:
            channel = sql.Identifier(self._channel)
            self._connection.raw.execute(sql.SQL("LISTEN {}").format(channel))
            self._last_event, self._unheard_polls = self._connection.last_event(), 0
            changes.increment()  # notifications before the LISTEN were missed
        left = max(0.0, self._next_poll - time.monotonic())
        notifications = self._notifications(left)
        self._has_heard |= bool(notifications)
        if any(notification.payload != self._name for notification in notifications):
            changes.increment()
        if time.monotonic() >= self._next_poll:
            self._poll(changes)

    def _notifications(self, seconds: float) -> list[psycopg.Notify]:
        """Wait for a notification for at most `seconds`."""
        return list(self._connection.raw.notifies(timeout=seconds, stop_after=1))

    def _poll(self, changes: ChangeCounter) -> None:
        """Check whether there was a commit without a notification."""
        last = self._connection.last_event()
        is_unheard, self._last_event = last != self._last_event and not self._has_heard, last
        if is_unheard:
            changes.increment()
            self._unheard_polls += 1
        elif self._has_heard:
            self._unheard_polls = 0
        without_notify, self._has_heard = self._unheard_polls >= MISSED_NOTIFICATIONS_MAX, False
        if without_notify and not self._has_warned:
            self._has_warned = True
            log.warning(
                "%s: no notifications arrive, probably because of a transaction pooler: polling for changes "
                "every %g s; connect to the server itself for less delay",
                self._address.name,
                POLL_INTERVAL_WITHOUT_NOTIFY,
            )
        self._next_poll = time.monotonic() + (
            POLL_INTERVAL_WITHOUT_NOTIFY if without_notify else POLL_INTERVAL
        )
