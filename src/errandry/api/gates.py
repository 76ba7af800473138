"""Queues, tasks, groups and workers as a program meets them: to pause them, and to give them rules."""

from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack

from msgspec.structs import replace

from errandry.api.options import Duration, known, one_of
from errandry.core.answer import WRITTEN
from errandry.core.duration import seconds
from errandry.core.gate import GateKind, Pause, PutRule, Resume
from errandry.core.rule import NO_RULE, Comeback, Overflow, Rate, Rule, rate
from errandry.errors import InvalidValue

if TYPE_CHECKING:
    from errandry.api.client import Client


class RuleOptions(TypedDict, total=False):
    """What can be said with `put`. None takes a rule away; what is left out stays as it was.

    limit           how many may be claimed or running at once, across all workers
    rate            how many may begin in a time, across all workers: "100/minute"
    burst           how many of them may begin at once; a tenth of the rate
    weight          how often a group has its turn, compared with others of its queue
    group_limit     the limit of each group of the queue
    group_rate      the rate of each group of the queue
    group_burst     how many of those may begin at once
    max_size        how many jobs may wait in the queue
    group_max_size  how many jobs may wait in each of its groups
    overflow        what becomes of jobs beyond that: refuse, drop_oldest, or wait
    ageing          after so long a job goes before all others of its queue
    order           a job of a group that comes back takes its old place; with hold, the group waits for it
    """

    limit: int | None
    rate: str | Rate | None
    burst: int
    weight: float | None
    group_limit: int | None
    group_rate: str | Rate | None
    group_burst: int
    max_size: int | None
    group_max_size: int | None
    overflow: Literal["refuse", "drop_oldest", "wait"] | None
    ageing: Duration | None
    order: Literal["place", "hold"] | None


class GateHandle:
    """A queue, a task, a group or a worker."""

    def __init__(self, client: "Client", kind: GateKind, name: str, group: str = "") -> None:
        self._client, self.kind, self.name, self.group_key = client, kind, name, group

    def __str__(self) -> str:
        of = f" of queue {self.name}" if self.kind is GateKind.GROUP else ""
        return f"{self.kind} {self.group_key or self.name}{of}"

    async def pause(self, by: str = "") -> bool:
        """No job is claimed until it is resumed; False if it was paused already."""
        command = Pause(self.kind, self.name, by, self.group_key)
        return await self._client.engine.submit(command) == WRITTEN

    async def resume(self) -> bool:
        """False if it was not paused."""
        return await self._client.engine.submit(Resume(self.kind, self.name, self.group_key)) == WRITTEN

    async def rule(self) -> Rule:
        """What holds now."""
        key = self.kind, self.name, self.group_key
        return next((one.rule for one in await self._client.rules() if one.key == key), NO_RULE)

    async def put(self, *, by: str = "", **changes: Unpack[RuleOptions]) -> Rule:
        """Change what is given of its rule, for all workers from now on: `put(limit=20, rate="100/minute")`.

        Returns what holds then.
        """
        known(changes, RuleOptions)
        rule = replace(await self.rule(), **_fields({**changes}))
        await self._client.engine.submit(PutRule(self.kind, self.name, rule, self.group_key, by))
        return rule


def _fields(changes: dict[str, Any]) -> dict[str, Any]:
    """Changes as people write them, as fields of a rule."""
    for name, burst in (("rate", "burst"), ("group_rate", "group_burst")):
        many = changes.pop(burst, None)
        if changes.get(name) is not None:
            changes[name] = rate(changes[name], many)
        elif many is not None:
            raise InvalidValue(burst, many, f"says how many of the {name} may begin at once: give {name} too")
    if changes.get("ageing") is not None:
        changes["ageing"] = seconds(changes["ageing"], "ageing")
    for name, kind in (("overflow", Overflow), ("order", Comeback)):
        if changes.get(name) is not None:
            changes[name] = kind(one_of(name, changes[name], tuple(kind)))
    return changes
