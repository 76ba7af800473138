"""Decides when a worker may claim suspects: jobs that were running when their worker was lost.

A turn of a worker is a round of shared suspects, which take at most a quarter of its slots, or a single
isolated suspect. The next loss would fail an isolated one, so it runs with no other suspect on its host. So a
job that kills its workers fails alone: every other job shares at most as many of its deaths as it survives.
"""

from threading import RLock
from typing import Protocol

from errandry.clock import Clock
from errandry.core.suspect import SuspectKind

FIRST_PAUSE = 0.05
LAST_PAUSE = 1.0
"""Seconds after a turn without suspects until the next try. Each pause is twice as long, up to the last."""
LOCKED_PAUSE = 0.1
"""Seconds until the next try after other workers of the host had the lock."""
SLOTS_PER_SUSPECT = 4
"""Number of slots of a runner for each shared suspect that it may run at a time; at least one may run."""


class TurnLock(Protocol):
    """A lock that the workers of a host share. See `SuspectLock`."""

    def try_take(self, alone: bool) -> bool: ...

    def release(self) -> None: ...


class HeldSuspects(Protocol):
    """The suspects that a worker holds now, and how many it has ever settled or lost."""

    @property
    def suspects_held(self) -> int: ...

    @property
    def suspects_ended(self) -> int: ...


class SuspectTurns:
    """The turns of one worker. Its methods may be called from any thread.

    A turn begins before a claim that may take suspects of one kind. It ends when they are settled, or at once
    if the claim brought none. A round takes more suspects until the first of them is settled. If suspects of
    both kinds wait, the kinds take turns.
    """

    def __init__(self, lock: TurnLock, held: HeldSuspects, clock: Clock) -> None:
        self._turn_lock, self._held, self._clock, self._lock = lock, held, clock, RLock()
        self._waiting: tuple[SuspectKind, ...] = ()
        self._untried: set[SuspectKind] = set()
        self._turn: SuspectKind | None = None
        self._next_kind = SuspectKind.SHARED
        self._is_claiming = False
        self._ended_before = 0
        self._pause, self._next_try = FIRST_PAUSE, 0.0

    @property
    def kind(self) -> SuspectKind:
        """The kind of suspects that a claim may take now."""
        return SuspectKind.SHARED if self._turn is None else self._turn

    @property
    def has_untried(self) -> bool:
        """Whether suspects wait that this worker has not yet had a turn to claim."""
        return bool(self._untried)

    @property
    def retry_in(self) -> float | None:
        """Seconds until this worker can try to begin a turn; None if it has one, or no suspects wait."""
        if self._turn is not None or not self._waiting:
            return None
        return max(0.0, self._next_try - self._clock.monotonic())

    def begin(self) -> bool:
        """Begin a turn if suspects wait and the lock is free; False if not, or if this worker has a turn.

        After True, a claim with a quota has to follow, and `end_claim`.
        """
        with self._lock:
            self.end_if_over()
            if self._turn is not None or self._held.suspects_held or not self._waiting:
                return False
            now = self._clock.monotonic()
            if now < self._next_try:
                return False
            kind = self._next_kind if self._next_kind in self._waiting else self._waiting[0]
            if not self._turn_lock.try_take(kind is SuspectKind.ISOLATED):
                self._next_try = now + LOCKED_PAUSE
                return False
            self._turn, self._ended_before = kind, self._held.suspects_ended
            self._is_claiming = True
            return True

    def quota(self, slots: int, held: int) -> int:
        """How many suspects the next claim may take for a runner with `slots` slots, which holds `held`.

        Begins a turn if one is due. After the claim, `end_claim` has to be called.
        """
        with self._lock:
            self.begin()
            quota = 0
            if self._turn is SuspectKind.ISOLATED:
                quota = 0 if self._held.suspects_held else 1
            elif self._turn is not None and self._held.suspects_ended == self._ended_before:
                quota = max(0, max(1, slots // SLOTS_PER_SUSPECT) - held)
            self._is_claiming |= quota > 0
            return quota

    def note_waiting(self, waiting: tuple[SuspectKind, ...]) -> None:
        """Note which suspects wait after a claim."""
        with self._lock:
            self._untried = (self._untried | {*waiting} - {*self._waiting}) & {*waiting}
            self._waiting = waiting
            if not waiting and self._turn is None:
                self._turn_lock.release()  # or this worker would stay the next to get it

    def yield_place(self) -> None:
        """Give up the place in the queue for the lock: this worker will not claim for some time."""
        with self._lock:
            self.end_if_over()
            if self._turn is None:
                self._turn_lock.release()

    def end_claim(self) -> None:
        """All claims in flight are answered, and the worker holds their jobs."""
        with self._lock:
            self._is_claiming = False
            self.end_if_over()

    def close(self) -> None:
        """End the turn: the worker has stopped."""
        with self._lock:
            self._turn_lock.release()

    def end_if_over(self) -> None:
        """End the turn if its suspects are settled, so that other workers of the host can have theirs."""
        with self._lock:
            if self._turn is None or self._is_claiming or self._held.suspects_held:
                return
            if self._held.suspects_ended == self._ended_before:  # it had none
                self._untried.discard(self._turn)
                self._next_try = self._clock.monotonic() + self._pause
                self._pause = min(LAST_PAUSE, 2 * self._pause)
            else:
                self._untried = {*self._waiting}
                self._pause, self._next_try = FIRST_PAUSE, 0.0
            is_shared = self._turn is SuspectKind.SHARED
            self._next_kind = SuspectKind.ISOLATED if is_shared else SuspectKind.SHARED
            self._turn = None
            self._turn_lock.release()
