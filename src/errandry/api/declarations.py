"""What an app declares in code, schedules and rules, and how it gets into the store.

What operators have changed stays in force until it is reset. The log says which declared values are not in
force, and what another version of the code had declared.
"""

import logging
from collections.abc import Iterable
from shlex import quote
from typing import TYPE_CHECKING

from errandry.core import check
from errandry.core.answer import WRITTEN
from errandry.core.command import Command
from errandry.core.gate import DeclareRule, GateKind, check_rule
from errandry.core.rule import NO_RULE, Rule
from errandry.core.rule_info import RuleInfo, Source, declare_rule
from errandry.core.schedule import DeclareSchedule, SchedulePlan, ScheduleRecord, differences
from errandry.errors import InvalidValue

if TYPE_CHECKING:
    from errandry.api.app import Errandry

log = logging.getLogger("errandry.declarations")

DEFAULT_OWNER = "app"


class Declarations:
    """The rules that an app declares, and the writing of these and its schedules to the store."""

    def __init__(self, app: "Errandry", owner: str) -> None:
        self._app = app
        self.owner = check.name("owner", owner)
        self._rules: dict[tuple[GateKind, str], Rule] = {}

    def add_rule(self, kind: GateKind, name: str, rule: Rule) -> None:
        """Declare a rule. A task may be declared again with another one, a queue only with the same."""
        check.name(kind, name)
        check_rule(kind, rule)
        before = self._rules.get((kind, name), rule)
        if kind is GateKind.QUEUE and before != rule:
            texts = [_rule_text(known, known.given_fields) or "no rules" for known in (before, rule)]
            why = f"is declared already with {texts[0]}, now with {texts[1]}: give all rules in one call"
            raise InvalidValue("queue", name, why)
        self._rules[kind, name] = rule

    def forget_rule(self, kind: GateKind, name: str) -> None:
        """Remove a declaration, if there is one."""
        self._rules.pop((kind, name), None)

    async def put(self, prune: bool) -> list[str]:
        """Write what is declared; returns what changed: `schedule nightly`, `queue mail`, `task send`."""
        return [*await self._put_schedules(prune), *await self._put_rules(prune)]

    async def _put_schedules(self, prune: bool) -> list[str]:
        schedules = self._app.schedules
        if not schedules.declared and not prune:
            return []
        stored = {record.name: record for record in await schedules._read_records()}
        changed = []
        for name in schedules.declared:
            before = stored.get(name)
            plan = schedules._declared_plan(name, None if before is None else before.declared_plan)
            if await self._submit(DeclareSchedule(name, plan, self.owner)):
                changed.append(f"schedule {name}")
            if before is not None:
                _log_plan(before, plan)
        if prune:
            for name, record in stored.items():
                if self.owner in record.owners and name not in schedules.declared:
                    changed += await self._remove(f"schedule {name}", DeclareSchedule(name, None, self.owner))
        return changed

    async def _put_rules(self, prune: bool) -> list[str]:
        if not self._rules and not prune:
            return []
        stored: dict[tuple[GateKind, str], RuleInfo] = {
            (gate.kind, gate.name): gate.rule_info
            for gate in await self._app.engine.call(self._app.store.rules)
            if gate.rule_info is not None and not gate.group
        }
        changed = []
        for (kind, name), rule in self._rules.items():
            if await self._submit(DeclareRule(kind, name, rule, self.owner)):
                changed.append(f"{kind} {name}")
            if (before := stored.get((kind, name))) is not None:
                _log_rule(kind, name, before, declare_rule(before, rule, self.owner, before.at))
        if prune:
            for (kind, name), info in stored.items():
                is_own = info.declared is not None and self.owner in info.declared.owners
                if is_own and (kind, name) not in self._rules:
                    command = DeclareRule(kind, name, NO_RULE, self.owner)
                    changed += await self._remove(f"{kind} {name}", command)
        return changed

    async def _remove(self, subject: str, command: Command) -> list[str]:
        if not await self._submit(command):
            return []
        log.info("%s: the code no longer declares it, so its declaration is removed", subject)
        return [subject]

    async def _submit(self, command: Command) -> bool:
        return await self._app.engine.submit(command) == WRITTEN


def _log_rule(kind: GateKind, name: str, before: RuleInfo, after: RuleInfo | None) -> None:
    """Log declared values that are not in force, and those that another version of the code had declared."""
    new, old = NO_RULE if after is None else after.declared_rule, before.declared
    if old is not None and old.rule != new:
        fields = [
            field for field in Rule.__struct_fields__ if getattr(old.rule, field) != getattr(new, field)
        ]
        log.info(
            "%s %s: this program declares %s; %s declared %s before",
            *(kind, name, _rule_text(new, fields), _programs(old.owners), _rule_text(old.rule, fields)),
        )
    if after is not None and (fields := [*after.overridden_fields]):
        target = quote(name) if kind is GateKind.QUEUE else f"--task {quote(name)}"
        log.warning(
            "%s %s: this program declares %s, but %s; "
            "for the declared values run: errandry queues reset %s %s",
            *(kind, name, _rule_text(new, fields), _in_force_text(after, fields)),
            *(target, " ".join(field.replace("_", "-") for field in fields)),
        )


def _programs(owners: tuple[str, ...]) -> str:
    """The programs that declare something: "the program 'shop'"."""
    noun = "program" if len(owners) == 1 else "programs"
    return f"the {noun} {', '.join(map(repr, owners))}"


def _in_force_text(info: RuleInfo, fields: Iterable[str]) -> str:
    """The values in force and the operators who set them: "limit 50 is in force, set by ada"."""
    fields_of: dict[str, list[str]] = {}
    for field in fields:
        fields_of.setdefault(info.operator_fields[field].by, []).append(field)
    return " and ".join(
        f"{_rule_text(info.rule, own)} is in force, set by {_operator(by)}" for by, own in fields_of.items()
    )


def _log_plan(before: ScheduleRecord, plan: SchedulePlan) -> None:
    """Log how the declared plan differs from that in force, or from that of another version of the code."""
    known = before.declared_plan
    if known is not None and (changes := differences(known, plan)):
        log.info(
            "schedule %s: this program declares %s; %s declared %s before",
            *(before.name, _side(changes, 1), _programs(before.owners), _side(changes, 0)),
        )
    if before.source is Source.OPERATOR and (changes := differences(before.plan, plan)):
        log.warning(
            "schedule %s: this program declares %s, but %s is in force, set by %s; "
            "for the declared plan run: errandry schedules reset %s",
            *(before.name, _side(changes, 1), _side(changes, 0), _operator(before.by), quote(before.name)),
        )


def _rule_text(rule: Rule, fields: Iterable[str]) -> str:
    return ", ".join(rule.describe(field) for field in fields)


def _side(changes: dict[str, tuple[str, str]], side: int) -> str:
    return ", ".join(f"{name} {values[side]}" for name, values in changes.items())


def _operator(by: str) -> str:
    return by or "an operator"
