"""How many jobs a pass may still claim, by the pauses, limits and rates of gates.

A permit is not stored: the jobs that workers hold are counted before the first claim of a pass, and each
claimed job is added. So a worker that dies leaks no permit.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from math import inf

from errandry.core.fair_queueing import OpenLane, gate_keys
from errandry.core.gate import (
    GateKey,
    GateKind,
    GateRecord,
    LaneKey,
    allowed_now,
    group_limits,
    next_allowed_at,
    tat_after,
)
from errandry.core.job import JobRecord
from errandry.core.rule import NO_RULE, Rate, Rule

NEVER = 1e18
"""Opening time of a gate that only a command opens."""
BURST_WAIT_MAX = 0.01
"""Maximum number of seconds that a claim waits so that a rate allows several jobs at once."""


class Permits:
    """The gates of a store, and how many jobs may pass each in this pass."""

    def __init__(self, gates: Iterable[GateRecord], now: float) -> None:
        self._now = now
        self._gates = {gate.key: gate for gate in gates}
        self._busy: set[GateKey] = set()
        self._held: Counter[GateKey] = Counter()
        self._tats: dict[GateKey, float] = {}
        self._changed: set[GateKey] = set()

    # These read only the gates: they may be called before `set_held`.

    def is_paused(self, kind: GateKind, name: str) -> bool:
        gate = self._gates.get((kind, name, ""))
        return gate is not None and gate.paused is not None

    def rule(self, queue: str) -> Rule:
        return self._rule((GateKind.QUEUE, queue, ""))

    @property
    def limiting_gates(self) -> list[GateRecord]:
        """The gates with a limit or a rate. The pass locks them, so that no other pass counts them."""
        return [gate for gate in self._gates.values() if _LIMITING.intersection(gate.rule.given_fields)]

    @property
    def may_open_by_time(self) -> bool:
        """Whether a queue or task that is closed may open without another command."""
        return any(
            gate.rule.rate is not None or gate.closed_until > self._now for gate in self._gates.values()
        )

    @property
    def has_limits(self) -> bool:
        return any(gate.rule.limit is not None for gate in self._gates.values())

    def has_group_limit(self, queue: str, group: str) -> bool:
        return self._limits((GateKind.GROUP, queue, group))[0] is not None

    # `available`, and what is computed from it, needs the counts: call `set_held` first.

    def update(self, gates: Iterable[GateRecord]) -> None:
        self._gates |= {gate.key: gate for gate in gates}

    def exclude(self, keys: Iterable[GateKey]) -> None:
        """Let no job pass these gates, which another pass has locked."""
        self._busy.update(keys)

    def set_held(self, held_counts: Mapping[LaneKey, int]) -> None:
        """Set how many jobs workers hold, by lane."""
        self._held = Counter()
        for (queue, task, group), count in held_counts.items():
            for key in gate_keys(queue, task, group):
                self._held[key] += count

    def take(self, job: JobRecord) -> None:
        """Count a claimed job."""
        for key in gate_keys(job.queue, job.task, job.group):
            self._held[key] += 1  # guard: limit_of_the_pass
            if (rate := self._limits(key)[1]) is not None:
                self._tats[key] = tat_after(rate, self._tat(key), self._now, 1)  # guard: rate_spent
                self._changed.add(key)

    def changed_tats(self) -> dict[GateKey, float]:
        """The theoretical arrival times (GCRA) that have changed since the last call."""
        changed, self._changed = sorted(self._changed), set()
        return {key: self._tats[key] for key in changed}

    def available(self, key: GateKey) -> float:
        """How many jobs may pass the gate now."""
        gate = self._gates.get(key)
        # guard: closed_gate
        if key in self._busy or (gate is not None and (gate.paused or gate.closed_until > self._now)):
            return 0
        limit, rate = self._limits(key)
        room = inf if limit is None else limit - self._held[key]  # guard: limit_of_the_held
        return room if rate is None else min(room, allowed_now(rate, self._tat(key), self._now))

    def has_room_for(self, lane: OpenLane, count: int) -> bool:
        """Whether `count` jobs of a lane without a group may be claimed in the order of their places."""
        queue, task = lane.keys[:2]
        return self._rule(queue).ageing is None and min(self.available(queue), self.available(task)) >= count

    def opens_at(self, key: GateKey) -> float:
        """When a closed gate may be open again; NEVER if the passing of time does not open it."""
        gate = self._gates.get(key)
        if gate is not None and gate.paused:
            return NEVER
        limit, rate = self._limits(key)
        if limit is not None and self._held[key] >= limit:
            return NEVER
        at = self._now if rate is None else self._next_burst_at(rate, self._tat(key))
        return at if gate is None else max(at, gate.closed_until)

    def weight(self, queue: str, group: str) -> float:
        return self._rule((GateKind.GROUP, queue, group)).weight or 1.0

    def closed_names(self, kind: GateKind) -> list[str]:
        """The queues or tasks of which nothing may be claimed."""
        names = [name for (kind_of_gate, name, _) in self._gates if kind_of_gate is kind]
        return [name for name in names if self.available((kind, name, "")) <= 0]

    def next_opening(self, pairs: Iterable[tuple[str, str]]) -> float | None:
        """When the first pair of queue and task opens, of those that are closed; None if time opens none."""
        times = []
        for queue, task in pairs:
            keys = (GateKind.QUEUE, queue, ""), (GateKind.TASK, task, "")
            closed = [self.opens_at(key) for key in keys if self.available(key) <= 0]
            if closed and max(closed) < NEVER:
                times.append(max(closed))
        return min(times, default=None)

    def _next_burst_at(self, rate: Rate, tat: float) -> float:
        """When the rate allows the next job, plus up to `BURST_WAIT_MAX` if it then allows several."""
        at = next_allowed_at(rate, tat, self._now)
        return at + min(BURST_WAIT_MAX, rate.burst // 2 * rate.every) if at > self._now else at

    def _rule(self, key: GateKey) -> Rule:
        gate = self._gates.get(key)
        return NO_RULE if gate is None else gate.rule

    def _limits(self, key: GateKey) -> tuple[int | None, Rate | None]:
        rule = self._rule(key)
        if key[0] is GateKind.GROUP:
            return group_limits(rule, self.rule(key[1]))
        return rule.limit, rule.rate

    def _tat(self, key: GateKey) -> float:
        gate = self._gates.get(key)
        return self._tats.get(key, 0.0 if gate is None else gate.tat)


_LIMITING = frozenset(("limit", "rate", "group_limit", "group_rate"))
