"""How many jobs may still be claimed in a pass, as gates say: paused or not, limits, rates.

Permits are the jobs that workers hold: who dies leaks none. They are counted before anything is claimed, and
with every job that is.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from math import inf

from errandry.core.fair_queueing import OpenLane, keys_of
from errandry.core.gate import GateKey, GateKind, GateRecord, LaneKey, allowed, limits, next_at, spent
from errandry.core.job import JobRecord
from errandry.core.rule import NO_RULE, Rate, Rule

NEVER = 1e18
"""A time that does not come: of what is opened by something else."""
GATHERING = 0.01
"""So long a claim may wait for a rate to let through more than one."""


class Permits:
    def __init__(self, gates: Iterable[GateRecord], now: float) -> None:
        self._now = now
        self._gates = {gate.key: gate for gate in gates}
        self._busy: set[GateKey] = set()
        self._held: Counter[GateKey] = Counter()
        self._spent: dict[GateKey, float] = {}
        self._fresh: set[GateKey] = set()

    # What is asked before anything is counted.

    def is_paused(self, kind: GateKind, name: str) -> bool:
        gate = self._gates.get((kind, name, ""))
        return gate is not None and gate.paused is not None

    def rule(self, queue: str) -> Rule:
        return self._rule((GateKind.QUEUE, queue, ""))

    @property
    def limiting(self) -> list[GateRecord]:
        """The gates that only one pass may count at a time."""
        return [gate for gate in self._gates.values() if _LIMITING.intersection(gate.rule.given)]

    @property
    def is_timed(self) -> bool:
        """Whether time may open a queue or a task."""
        return any(
            gate.rule.rate is not None or gate.closed_until > self._now for gate in self._gates.values()
        )

    @property
    def has_limits(self) -> bool:
        return any(gate.rule.limit is not None for gate in self._gates.values())

    def is_plain(self, line: OpenLane, number: int) -> bool:
        """Whether so many jobs of a lane without a group may go as they stand: there is room for all."""
        queue, task = line.keys[:2]
        return self._rule(queue).ageing is None and min(self.room(queue), self.room(task)) >= number

    def has_group_limit(self, queue: str, group: str) -> bool:
        return self._limits((GateKind.GROUP, queue, group))[0] is not None

    # What is counted.

    def update(self, gates: Iterable[GateRecord]) -> None:
        self._gates |= {gate.key: gate for gate in gates}

    def leave(self, keys: Iterable[GateKey]) -> None:
        """Another pass counts these: nothing passes them in this one."""
        self._busy.update(keys)

    def hold(self, holding: Mapping[LaneKey, int]) -> None:
        """So many jobs are held."""
        self._held = Counter()
        for (queue, task, group), number in holding.items():
            for key in keys_of(queue, task, group):
                self._held[key] += number

    def take(self, job: JobRecord) -> None:
        """It has passed."""
        for key in keys_of(job.queue, job.task, job.group):
            self._held[key] += 1  # guard: limit_of_the_pass
            if (rate := self._limits(key)[1]) is not None:
                self._spent[key] = spent(rate, self._tat(key), self._now, 1)  # guard: rate_spent
                self._fresh.add(key)

    def newly_spent(self) -> dict[GateKey, float]:
        """Where the rates are that were used since this was asked last."""
        fresh, self._fresh = sorted(self._fresh), set()
        return {key: self._spent[key] for key in fresh}

    def room(self, key: GateKey) -> float:
        """How many may pass a gate now."""
        gate = self._gates.get(key)
        # guard: closed_gate
        if key in self._busy or (gate is not None and (gate.paused or gate.closed_until > self._now)):
            return 0
        limit, rate = self._limits(key)
        room = inf if limit is None else limit - self._held[key]  # guard: limit_of_the_held
        return room if rate is None else min(room, allowed(rate, self._tat(key), self._now))

    def opens_at(self, key: GateKey) -> float:
        """When a gate that nothing may pass is to be looked at again; NEVER if no time opens it."""
        gate = self._gates.get(key)
        if gate is not None and gate.paused:
            return NEVER
        limit, rate = self._limits(key)
        if limit is not None and self._held[key] >= limit:
            return NEVER
        at = self._now if rate is None else self._gathered(rate, self._tat(key))
        return at if gate is None else max(at, gate.closed_until)

    def weight(self, queue: str, group: str) -> float:
        return self._rule((GateKind.GROUP, queue, group)).weight or 1.0

    def closed(self, kind: GateKind) -> list[str]:
        """The queues or tasks that nothing may be claimed of."""
        return [name for (of, name, _) in self._gates if of is kind and self.room((of, name, "")) <= 0]

    def due(self, pairs: Iterable[tuple[str, str]]) -> float | None:
        """When the first of these queues and tasks opens of those that time opens."""
        times = []
        for queue, task in pairs:
            keys = (GateKind.QUEUE, queue, ""), (GateKind.TASK, task, "")
            shut = [self.opens_at(key) for key in keys if self.room(key) <= 0]
            if shut and max(shut) < NEVER:
                times.append(max(shut))
        return min(times, default=None)

    def _gathered(self, rate: Rate, tat: float) -> float:
        """When a rate lets the next one through, or a little later if that is several."""
        at = next_at(rate, tat, self._now)
        return at + min(GATHERING, rate.burst // 2 * rate.every) if at > self._now else at

    def _rule(self, key: GateKey) -> Rule:
        gate = self._gates.get(key)
        return NO_RULE if gate is None else gate.rule

    def _limits(self, key: GateKey) -> tuple[int | None, Rate | None]:
        rule = self._rule(key)
        if key[0] is GateKind.GROUP:
            return limits(rule, self.rule(key[1]))
        return rule.limit, rule.rate

    def _tat(self, key: GateKey) -> float:
        gate = self._gates.get(key)
        return self._spent.get(key, 0.0 if gate is None else gate.tat)


_LIMITING = frozenset(("limit", "rate", "group_limit", "group_rate"))
