"""New jobs in one round trip: what a pass has to know to make them is mostly what an earlier one has seen.

Their lanes are there, and no gate counts them. So such a pass is sent whole, with its commit; the server
refuses it if something is not so, and then it begins anew and asks first.
"""

from collections.abc import Mapping, Sequence

from errandry.core import check
from errandry.core.command import Command, Insert
from errandry.core.gate import LaneKey

LANES_MAX = 1_000
"""So many lanes are known; then they are learned anew."""


"""Queue, task and group."""


class LaneCache:
    """Shared by the threads of a store."""

    def __init__(self) -> None:
        self._lanes: dict[LaneKey, int] = {}

    def learn(self, lanes: Mapping[LaneKey, int]) -> None:
        """These lanes were there, and there was no gate."""
        if len(self._lanes) + len(lanes) > LANES_MAX:
            self._lanes = {}
        self._lanes.update(lanes)

    def forget(self) -> None:
        self._lanes = {}

    def lanes(self, commands: Sequence[Command], payload: int) -> dict[LaneKey, int] | None:
        """The lanes of the jobs these bring, if they bring only such as are made whatever there is."""
        known, found = self._lanes, dict[LaneKey, int]()
        if not known:
            return None
        for command in commands:
            if type(command) is not Insert or command.edges:
                return None
            for new in command.jobs:
                lane = known.get((new.queue, new.task, new.group))
                is_later = new.delay is not None or new.run_at is not None
                if lane is None or is_later or new.unique is not None or not check.fits(new.payload, payload):
                    return None
                found[new.queue, new.task, new.group] = lane
        return found
