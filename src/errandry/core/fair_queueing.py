"""Choose the waiting jobs that a claim takes: start-time fair queueing among the groups of a queue.

A claim serves queues in the order that it names, the groups of a queue by fair queueing, and the jobs of a
group by urgency (priority, then place). Each group has a virtual start time. The group with the lowest one is
served next, and each job served moves it ahead by 1 / weight. The virtual time of a queue is the virtual
start time of the job served last. No group starts before it, so that an idle group does not catch up.

All jobs without a group form one group. In a queue in which no waiting job has a group, the most urgent job
of any task goes first.
"""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from hashlib import sha256
from heapq import heapify, heappop, heapreplace
from math import log
from typing import Any, NamedTuple

from errandry.core.command import STRICT, Claim
from errandry.core.gate import GateKey, GateKind

AGED_PRIORITY = -(2**40)
"""The priority of a job that has waited longer than the ageing time of its queue: before all others."""


class OpenLane(NamedTuple):
    """A lane (the jobs of one queue, task and group) with waiting jobs, as a claim reads it.

    `virtual_start` is the virtual time from which its group may be served next, `virtual_time` that of its
    queue. `open_count` counts how often the lane was opened after it was parked. `first` is the priority and
    place of its first job.
    """

    id: Any
    queue: str
    task: str
    group: str
    virtual_start: float = 0.0
    virtual_time: float = 0.0
    open_count: int = 0
    first: tuple[int, int] | None = None

    @property
    def keys(self) -> tuple[GateKey, ...]:
        return gate_keys(self.queue, self.task, self.group)


def urgency(lane: OpenLane) -> tuple[int, int]:
    """The priority and place of the first job; the lowest is the most urgent."""
    return lane.first or (0, 0)


def gate_keys(queue: str, task: str, group: str) -> tuple[GateKey, ...]:
    """The gates that jobs of a lane have to pass."""
    both = (GateKind.QUEUE, queue, ""), (GateKind.TASK, task, "")
    return (*both, (GateKind.GROUP, queue, group)) if group else both


class Position(NamedTuple):
    """The position of a waiting job. Positions sort by urgency."""

    priority: int
    place: int
    seq: int
    lane_id: Any


class OldestJob(NamedTuple):
    """The job that has waited longest of a lane and priority, and since when; lifo jobs are apart."""

    position: Position
    since: float


def aged_positions(oldest_jobs: Iterable[OldestJob], before: float) -> list[Position]:
    """The jobs that have waited since `before` or longer, oldest first, with a priority before all others.

    A job does not overtake an older job of its kind (lane, priority, lifo) that has waited less long.
    """
    aged: list[Position] = []
    young: set[tuple[Any, int, bool]] = set()
    for oldest in sorted(oldest_jobs, key=lambda oldest: abs(oldest.position.place)):
        priority, place, seq, lane_id = oldest.position
        kind = lane_id, priority, place > 0
        if oldest.since > before:
            young.add(kind)
        elif kind not in young:
            aged.append(Position(AGED_PRIORITY, abs(place), seq, lane_id))  # guard: ageing
    return aged


class PickRules(NamedTuple):
    """How many jobs may pass each gate, and the weight of each group of a queue."""

    free_permits: Callable[[GateKey], float]
    weight: Callable[[str, str], float]


def queues_with_groups(lanes: Iterable[OpenLane]) -> frozenset[str]:
    """The queues with waiting jobs of a group. Only these use fair queueing."""
    return frozenset(lane.queue for lane in lanes if lane.group)


def virtual_times_after(virtual_start: float, virtual_time: float, weight: float) -> tuple[float, float]:
    """The virtual start time of a group and the virtual time of its queue after the group was served once."""
    start = max(virtual_start, virtual_time)
    return start + 1 / weight, start


def pick_positions(
    lanes: Sequence[OpenLane],
    positions: Mapping[Any, Sequence[Position]],
    longer: Container[Any],
    limit: int,
    rules: PickRules,
    ranks: Mapping[str, int],
) -> list[Position]:
    """Pick the next `limit` positions.

    `positions` has the first positions of each lane. The lanes in `longer` may have more: picking stops at
    the last known position of such a lane, because its next one may precede those of other lanes.
    """
    permits = _RemainingPermits(rules.free_permits)
    fair = queues_with_groups(lanes)
    queues = [
        _QueueGroups(name, [lane for lane in lanes if lane.queue == name], positions, name in fair, permits)
        for name in {lane.queue: None for lane in lanes}
    ]
    picked: list[Position] = []
    while len(picked) < limit:
        heads = [(ranks.get(queue.name, 0), *head[:2], queue) for queue in queues if (head := queue.head())]
        if not heads:
            break
        queue = min(heads, key=lambda head: head[:3])[3]
        position, is_last = queue.take(rules.weight)
        picked.append(position)
        if is_last and position.lane_id in longer:
            break
    return picked


def queue_ranks(claim: Claim) -> Mapping[str, int]:
    """The rank of each queue in this claim, 0 for the first; empty if the claim names no order."""
    if claim.queue_order is None or claim.queues is None:
        return {}
    queues = list(claim.queues)
    if claim.queue_order != STRICT:
        weights = dict(zip(queues, map(float, claim.queue_order), strict=True))
        queues.sort(key=lambda queue: _exponential(claim.nonce, queue) / weights[queue])
    return {queue: rank for rank, queue in enumerate(queues)}


def _exponential(nonce: str, queue: str) -> float:
    """A pseudo-random number with exponential distribution, another one for each claim.

    If each queue divides its number by its weight, it has the smallest quotient in proportion to its weight.
    """
    digest = sha256(f"{nonce}\0{queue}".encode()).digest()
    return -log((int.from_bytes(digest[:7]) + 1) / (2**56 + 1))


class _RemainingPermits:
    """How many more jobs may pass each gate, during the picking."""

    def __init__(self, free_permits: Callable[[GateKey], float]) -> None:
        self._free_permits = free_permits
        self._remaining: dict[GateKey, float] = {}
        self.closed_count = 0
        """How many gates have closed since the picking began."""

    def is_open(self, lane: OpenLane) -> bool:
        return all(self._of(key) > 0 for key in lane.keys)

    def take(self, lane: OpenLane) -> None:
        for key in lane.keys:
            self._remaining[key] = self._of(key) - 1
            self.closed_count += self._remaining[key] <= 0

    def _of(self, key: GateKey) -> float:
        if key not in self._remaining:
            self._remaining[key] = self._free_permits(key)
        return self._remaining[key]


class _GroupLanes:
    """The lanes of a group, or of a queue without groups. Their jobs go by urgency."""

    def __init__(
        self, group: str, lanes: Sequence[OpenLane], positions: Mapping[Any, Sequence[Position]]
    ) -> None:
        self.group = group
        self.virtual_start = max(lane.virtual_start for lane in lanes)
        self._lanes = [(lane, iter(positions.get(lane.id, ()))) for lane in lanes]
        self._heads: list[tuple[Position, int]] = []
        for number in range(len(lanes)):
            self._advance(number)

    def head(self, permits: _RemainingPermits) -> tuple[Position, OpenLane] | None:
        """The first position of an open lane. Drops the lanes whose gates have closed."""
        while self._heads:
            position, number = self._heads[0]
            lane = self._lanes[number][0]
            if permits.is_open(lane):
                return position, lane
            heappop(self._heads)
        return None

    def pop(self) -> bool:
        """Remove the head; return whether it was the last known position of its lane."""
        _, number = heappop(self._heads)
        return not self._advance(number)

    def _advance(self, number: int) -> bool:
        position = next(self._lanes[number][1], None)
        if position is None:
            return False
        self._heads.append((position, number))
        heapify(self._heads)
        return True


class _QueueGroups:
    """The groups of a queue, in a heap by virtual start time."""

    def __init__(
        self,
        name: str,
        lanes: Sequence[OpenLane],
        positions: Mapping[Any, Sequence[Position]],
        is_fair: bool,
        permits: _RemainingPermits,
    ) -> None:
        self.name, self._is_fair, self._permits = name, is_fair, permits
        self._virtual_time = max(lane.virtual_time for lane in lanes)
        by_group: dict[str, list[OpenLane]] = {}
        for lane in lanes:
            by_group.setdefault(lane.group if is_fair else "", []).append(lane)
        groups = [_GroupLanes(group, group_lanes, positions) for group, group_lanes in by_group.items()]
        self._groups = [
            (max(group.virtual_start, self._virtual_time), group.group, group) for group in groups
        ]
        heapify(self._groups)
        self._cached_head: tuple[int, Position | None] | None = None
        """The head, and how many gates had closed when it was computed."""

    def head(self) -> Position | None:
        """The position that is served next; None if no lane is open."""
        if self._cached_head is None or self._cached_head[0] != self._permits.closed_count:
            while self._groups and self._groups[0][2].head(self._permits) is None:
                heappop(self._groups)
            head = self._groups[0][2].head(self._permits) if self._groups else None
            self._cached_head = self._permits.closed_count, head and head[0]
        return self._cached_head[1]

    def take(self, weight: Callable[[str, str], float]) -> tuple[Position, bool]:
        """Take the head; return it, and whether it was the last known position of its lane."""
        virtual_start, name, group = self._groups[0]
        head = group.head(self._permits)
        if head is None:
            raise LookupError(f"the queue {self.name} has no open lane")
        self._permits.take(head[1])
        is_last = group.pop()
        if self._is_fair:
            virtual_start, self._virtual_time = virtual_times_after(
                virtual_start, self._virtual_time, weight(self.name, name)
            )
            heapreplace(self._groups, (virtual_start, name, group))
        self._cached_head = None
        return head[0], is_last
