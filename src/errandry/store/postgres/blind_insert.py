"""Blind inserts: plain new jobs in one round trip, with cached lanes.

To insert a job, a pass has to know its lane, and that there are no gates. Mostly an earlier pass has read
both. So the pass guesses that nothing has changed, and sends all its statements together with the commit.
The server checks the guess (`assert_guess`) and rolls the pass back if it is wrong. The pass then runs
again, and reads first.
"""

from collections.abc import Mapping, Sequence

from errandry.core import check
from errandry.core.command import Command, Insert
from errandry.core.gate import LaneKey

LANES_MAX = 1_000
"""Maximum number of cached lanes. At this number, the cache is emptied."""


class LaneCache:
    """The lanes by queue, task and group. Shared by the threads of a store."""

    def __init__(self) -> None:
        self._lanes: dict[LaneKey, int] = {}

    def save(self, lanes: Mapping[LaneKey, int]) -> None:
        """Save lanes that a committed pass has read. There was no gate."""
        if len(self._lanes) + len(lanes) > LANES_MAX:
            self._lanes = {}
        self._lanes.update(lanes)

    def clear(self) -> None:
        self._lanes = {}

    def lanes_for(self, commands: Sequence[Command], payload: int) -> dict[LaneKey, int] | None:
        """The lanes of the jobs that the commands insert, if these can be inserted blindly, else None.

        They can if all commands are inserts of jobs that are ready to run, with cached lanes, without edges
        and unique keys, and with payloads of at most `payload` bytes.
        """
        cached, lanes = self._lanes, dict[LaneKey, int]()
        if not cached:
            return None
        for command in commands:
            if type(command) is not Insert or command.edges:
                return None
            for new in command.jobs:
                lane = cached.get((new.queue, new.task, new.group))
                is_later = new.delay is not None or new.run_at is not None
                if lane is None or is_later or new.unique is not None or not check.fits(new.payload, payload):
                    return None
                lanes[new.queue, new.task, new.group] = lane
        return lanes
