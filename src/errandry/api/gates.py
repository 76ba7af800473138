"""Pause queues, tasks, groups and workers, and give queues, tasks and groups rules."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack

from errandry.api.options import Duration, check_choice, check_names
from errandry.core.duration import positive_seconds
from errandry.core.gate import GateKind, Pause, PutRule, ResetRule, Resume
from errandry.core.rule import NO_RULE, OnReturn, Overflow, Rate, Rule, rate
from errandry.errors import InvalidValue

if TYPE_CHECKING:
    from errandry.api.client import Client


class RuleOptions(TypedDict, total=False):
    """Rules of a queue, a task or a group, for `set_rules` and `jobs.declare_queue`. None means no limit.

    limit           maximum number of jobs claimed or running at once, across all workers
    rate            maximum number of jobs started in a span of time, across all workers: "100/minute"
    burst           maximum number of those started at once; default: a tenth of the rate
    weight          share of claims a group gets, relative to the other groups of its queue
    group_limit     the limit of each group of the queue
    group_rate      the rate of each group of the queue
    group_burst     the burst of each group of the queue
    max_size        maximum number of jobs waiting in the queue
    group_max_size  maximum number of jobs waiting in each group of the queue
    overflow        on inserts into a full queue: refuse them, fail the oldest waiting jobs, or wait for space
    ageing          waiting time after which a job goes before all others of its queue
    on_return       when a job returns, as for a retry: keep its place, or hold its group until it is claimed
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
    on_return: Literal["keep_place", "hold_group"] | None


class GateHandle:
    """A queue, a task, a group or a worker, to pause it or set its rules.

    await jobs.queue("mail").set_rules(limit=20, rate="100/minute")
    await jobs.queue("mail").group("acme").pause(by="ada")
    """

    def __init__(self, client: "Client", kind: GateKind, name: str, group: str = "") -> None:
        self._client, self.kind, self.name, self.group_key = client, kind, name, group

    def __str__(self) -> str:
        of = f" of queue {self.name}" if self.kind is GateKind.GROUP else ""
        return f"{self.kind} {self.group_key or self.name}{of}"

    async def pause(self, *, by: str = "") -> bool:
        """Stop claims until it is resumed; running jobs go on.

        `by` names the operator. Returns False if it was paused already.
        """
        command = Pause(self.kind, self.name, by, self.group_key)
        return await self._client.client.submit_change(command)

    async def resume(self) -> bool:
        """Allow claims again, also if a handler closed the group or task: `Retry(after=…, pause_group=True)`.

        Returns False if it was neither paused nor closed. A group whose queue has `on_return="hold_group"`
        stays closed until its job returns, so that it keeps its order.
        """
        return await self._client.client.submit_change(Resume(self.kind, self.name, self.group_key))

    async def rules(self) -> Rule:
        """The rules in force; `NO_RULE` if it has none."""
        key = self.kind, self.name, self.group_key
        gates = await self._client.engine.call(self._client.store.rules)
        return next((gate.rule for gate in gates if gate.key == key), NO_RULE)

    async def set_rules(self, *, by: str = "", **changes: Unpack[RuleOptions]) -> Rule:
        """Change the given rules for all workers at once: `set_rules(limit=20, rate="100/minute")`.

        None removes a rule; a rule that is left out stays unchanged. The given values are in force until they
        are set again or reset, whatever code declares. Returns all rules that are now in force. `by` names
        the operator, for the event.
        """
        fields = read_rule_fields(changes)
        command = PutRule(self.kind, self.name, Rule(**fields), self.group_key, by, tuple(fields))
        await self._client.client.submit_change(command)
        return await self.rules()

    async def reset_rules(self, *fields: str, declared: bool = False, by: str = "") -> Rule:
        """Drop what `set_rules` has changed, all of it or only these fields: `reset_rules("limit", "rate")`.

        The values that code declares are in force again at once; a rule that it does not declare is removed.
        With `declared` what code declares is dropped too, until a program that declares it starts again.
        Returns all rules that are now in force. `by` names the operator, for the event.
        """
        command = ResetRule(self.kind, self.name, self.group_key, by, fields or None, declared)
        await self._client.client.submit_change(command)
        return await self.rules()


def read_rule_fields(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options as the fields of a `Rule`; InvalidValue for unknown or wrong ones."""
    check_names(options, RuleOptions)
    changes = {**options}
    for name, burst_name in (("rate", "burst"), ("group_rate", "group_burst")):
        burst = changes.pop(burst_name, None)
        if changes.get(name) is not None:
            changes[name] = rate(changes[name], burst, name)
        elif burst is not None:
            why = f"says how many of the {name} may begin at once: give {name} too"
            raise InvalidValue(burst_name, burst, why)
    if changes.get("ageing") is not None:
        changes["ageing"] = positive_seconds(changes["ageing"], "ageing", ", or None for no ageing")
    for name, kind in (("overflow", Overflow), ("on_return", OnReturn)):
        if changes.get(name) is not None:
            changes[name] = kind(check_choice(name, changes[name], tuple(kind)))
    return changes
