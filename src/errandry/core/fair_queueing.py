"""Which waiting jobs a claim takes: queues by their order, groups in turn, jobs by urgency.

Groups of a queue are served by virtual time: who is served moves back by one over its weight, and nobody is
further ahead than the round is: who was idle does not catch up. Jobs without a group are one group more. In a
queue none of whose waiting jobs has a group, the most urgent job goes first, whatever its task.
"""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from hashlib import sha256
from heapq import heapify, heappop, heapreplace
from math import log
from typing import Any, NamedTuple

from errandry.core.command import STRICT, Claim
from errandry.core.gate import GateKey, GateKind

AGED_PRIORITY = -(2**40)
"""The priority of a job that has waited for too long: before all others."""


class OpenLane(NamedTuple):
    """A lane with waiting jobs, as a claim finds it; `first` is where its first job stands.

    `turn` is when its group is served next, `round` how far its queue is. `opened` counts how often it was.
    """

    lane: Any
    queue: str
    task: str
    group: str
    turn: float = 0.0
    round: float = 0.0
    opened: int = 0
    first: tuple[int, int] | None = None

    @property
    def keys(self) -> tuple[GateKey, ...]:
        return keys_of(self.queue, self.task, self.group)


def by_urgency(line: OpenLane) -> tuple[int, int]:
    return line.first or (0, 0)


def keys_of(queue: str, task: str, group: str) -> tuple[GateKey, ...]:
    """The gates that jobs have to pass."""
    both = (GateKind.QUEUE, queue, ""), (GateKind.TASK, task, "")
    return (*both, (GateKind.GROUP, queue, group)) if group else both


class Position(NamedTuple):
    """Where a waiting job stands."""

    priority: int
    place: int
    seq: int
    lane: Any


class OldestJob(NamedTuple):
    """Where a job stands that came in line before all others of its lane, priority and order; since when."""

    spot: Position
    since: float


def aged(elders: Iterable[OldestJob], before: float) -> list[Position]:
    """Those who have waited since `before`, or longer, first come first; they go before all others."""
    old: list[Position] = []
    young: set[tuple[Any, int, bool]] = set()
    for (priority, place, seq, lane), since in sorted(elders, key=lambda elder: abs(elder.spot.place)):
        kind = lane, priority, place > 0
        if since > before:
            young.add(kind)
        elif kind not in young:
            old.append(Position(AGED_PRIORITY, abs(place), seq, lane))  # guard: ageing
    return old


class PickRules(NamedTuple):
    """What picking needs to know of gates: how many may pass each, and the weight of a group."""

    room: Callable[[GateKey], float]
    weight: Callable[[str, str], float]


def in_turn(lines: Iterable[OpenLane]) -> frozenset[str]:
    """The queues whose groups are served in turn."""
    return frozenset(line.queue for line in lines if line.group)


def served(turn: float, round_: float, weight: float) -> tuple[float, float]:
    """The turn of a group and the round of its queue after it was served once."""
    start = max(turn, round_)
    return start + 1 / weight, start


def picked(
    lines: Sequence[OpenLane],
    spots: Mapping[Any, Sequence[Position]],
    longer: Container[Any],
    limit: int,
    rules: PickRules,
    ranks: Mapping[str, int],
) -> list[Position]:
    """The first `limit` spots, as far as `spots` tells: the lanes in `longer` may have more than it has."""
    rooms = _RemainingPermits(rules.room)
    turning = in_turn(lines)
    queues = [
        _QueueGroups(name, [line for line in lines if line.queue == name], spots, name in turning, rooms)
        for name in {line.queue: None for line in lines}
    ]
    found: list[Position] = []
    while len(found) < limit:
        heads = [(ranks.get(queue.name, 0), *head[:2], queue) for queue in queues if (head := queue.head())]
        if not heads:
            break
        queue = min(heads, key=lambda head: head[:3])[3]
        spot, is_last = queue.take(rules.weight)
        found.append(spot)
        if is_last and spot.lane in longer:
            break
    return found


def ranks(claim: Claim) -> Mapping[str, int]:
    """Which queue goes first in this claim, second, and so on; empty if that is not said."""
    if claim.order is None or claim.queues is None:
        return {}
    queues = list(claim.queues)
    if claim.order != STRICT:
        weights = dict(zip(queues, map(float, claim.order), strict=True))
        queues.sort(key=lambda queue: _lot(claim.nonce, queue) / weights[queue])
    return {queue: rank for rank, queue in enumerate(queues)}


def _lot(nonce: str, queue: str) -> float:
    """A number over zero that differs from claim to claim: the smallest of several is drawn by its weight."""
    digest = sha256(f"{nonce}\0{queue}".encode()).digest()
    return -log((int.from_bytes(digest[:7]) + 1) / (2**56 + 1))


class _RemainingPermits:
    """How many may still pass each gate, as the picking goes on."""

    def __init__(self, room: Callable[[GateKey], float]) -> None:
        self._room = room
        self._left: dict[GateKey, float] = {}
        self.closed = 0

    def is_open(self, line: OpenLane) -> bool:
        return all(self._of(key) > 0 for key in line.keys)

    def take(self, line: OpenLane) -> None:
        for key in line.keys:
            self._left[key] = self._of(key) - 1
            self.closed += self._left[key] <= 0

    def _of(self, key: GateKey) -> float:
        if key not in self._left:
            self._left[key] = self._room(key)
        return self._left[key]


class _GroupLanes:
    """A group of a queue, or all of a queue: lanes whose jobs go by urgency."""

    def __init__(
        self, group: str, lines: Sequence[OpenLane], spots: Mapping[Any, Sequence[Position]]
    ) -> None:
        self.group = group
        self.turn = max(line.turn for line in lines)
        self._lanes = [(line, iter(spots.get(line.lane, ()))) for line in lines]
        self._heads: list[tuple[Position, int]] = []
        for number in range(len(lines)):
            self._advance(number)

    def head(self, rooms: _RemainingPermits) -> tuple[Position, OpenLane] | None:
        while self._heads:
            spot, number = self._heads[0]
            line = self._lanes[number][0]
            if rooms.is_open(line):
                return spot, line
            heappop(self._heads)
        return None

    def pop(self) -> bool:
        """Go on behind the head; whether its lane had no other spot."""
        _, number = heappop(self._heads)
        return not self._advance(number)

    def _advance(self, number: int) -> bool:
        spot = next(self._lanes[number][1], None)
        if spot is None:
            return False
        self._heads.append((spot, number))
        heapify(self._heads)
        return True


class _QueueGroups:
    def __init__(
        self,
        name: str,
        lines: Sequence[OpenLane],
        spots: Mapping[Any, Sequence[Position]],
        turning: bool,
        rooms: _RemainingPermits,
    ) -> None:
        self.name, self._turning, self._rooms = name, turning, rooms
        self._round = max(line.round for line in lines)
        groups: dict[str, list[OpenLane]] = {}
        for line in lines:
            groups.setdefault(line.group if turning else "", []).append(line)
        parties = [_GroupLanes(group, own, spots) for group, own in groups.items()]
        self._parties = [(max(party.turn, self._round), party.group, party) for party in parties]
        heapify(self._parties)
        self._seen: tuple[int, Position | None] | None = None

    def head(self) -> Position | None:
        """The job that is next here."""
        if self._seen is None or self._seen[0] != self._rooms.closed:
            while self._parties and self._parties[0][2].head(self._rooms) is None:
                heappop(self._parties)
            head = self._parties[0][2].head(self._rooms) if self._parties else None
            self._seen = self._rooms.closed, head and head[0]
        return self._seen[1]

    def take(self, weight: Callable[[str, str], float]) -> tuple[Position, bool]:
        """Take what is next; whether its lane had no other spot."""
        turn, group, party = self._parties[0]
        head = party.head(self._rooms)
        if head is None:
            raise LookupError("nothing is next here")
        self._rooms.take(head[1])
        is_last = party.pop()
        if self._turning:
            turn, self._round = served(turn, self._round, weight(self.name, group))
            heapreplace(self._parties, (turn, group, party))
        self._seen = None
        return head[0], is_last
