"""A rule as stored: the values in force, and for each whether code or an operator set it.

Code declares a rule; an operator changes single fields of it. The value of an operator is in force until it
is reset, also if code declares another one later.
"""

from collections.abc import Collection
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from errandry.core.rule import NO_RULE, Rule, format_value


class Source(StrEnum):
    """Where a value in force comes from: a declaration in code, or a change by an operator."""

    CODE = "code"
    OPERATOR = "operator"


class DeclaredRule(Struct, frozen=True, gc=False):
    """The rule that code declares, when it was stored, and the programs whose code declares it."""

    rule: Rule
    at: float
    owners: tuple[str, ...]


OWNERS_MAX = 100
"""Maximum number of programs that are stored as owners of one declaration."""


def with_owner(owners: tuple[str, ...], owner: str) -> tuple[str, ...]:
    """The owners of a declaration that the program `owner` declares too."""
    return owners if owner in owners or len(owners) >= OWNERS_MAX else (*owners, owner)


def without_owner(owners: tuple[str, ...], owner: str) -> tuple[str, ...]:
    """The owners of a declaration that the program `owner` no longer declares."""
    return tuple(name for name in owners if name != owner)


class OperatorChange(Struct, frozen=True, gc=False):
    """When an operator set a field of a rule, and which operator."""

    at: float
    by: str


class RuleInfo(Struct, frozen=True, gc=False):
    """The rule in force, when it was changed last, and by which operator.

    `operator_fields` has the fields that an operator has set, also to None; the others have the values that
    code declares. As long as there are such fields, `at` and `by` are about the last change by an operator.
    """

    rule: Rule
    at: float
    by: str
    operator_fields: dict[str, OperatorChange] = {}
    declared: DeclaredRule | None = None

    @property
    def declared_rule(self) -> Rule:
        return NO_RULE if self.declared is None else self.declared.rule

    @property
    def sources(self) -> dict[str, Source]:
        """The source of each field that is in force, or that an operator has removed."""
        fields = {*self.rule.given_fields, *self.operator_fields}
        return {
            field: Source.OPERATOR if field in self.operator_fields else Source.CODE
            for field in Rule.__struct_fields__
            if field in fields
        }

    @property
    def overridden_fields(self) -> tuple[str, ...]:
        """The fields for which code declares another value than the operator's, which is in force."""
        return tuple(
            field
            for field in self.operator_fields
            if getattr(self.rule, field) != getattr(self.declared_rule, field)
            and getattr(self.declared_rule, field) is not None
        )


def describe_change(before: RuleInfo | None, after: RuleInfo | None) -> str:
    """What is different after a change: "limit 5 -> 10, rate none -> 5/second (burst 1)".

    A value that stays in force is named if another source has set it: "limit 5 (operator)". A declared value
    that is not in force, because an operator has set another, is named as such: "declared limit 5 -> 10".
    """
    old, new = before or _NO_INFO, after or _NO_INFO
    parts = []
    for field in Rule.__struct_fields__:
        name, is_operators = field.replace("_", " "), field in new.operator_fields
        if getattr(old.rule, field) != getattr(new.rule, field):
            parts.append(f"{name} {_values_text(field, old.rule, new.rule)}")
        elif (field in old.operator_fields) is not is_operators:
            source = Source.OPERATOR if is_operators else Source.CODE
            parts.append(f"{new.rule.describe(field)} ({source})")
        if is_operators and getattr(old.declared_rule, field) != getattr(new.declared_rule, field):
            parts.append(f"declared {name} {_values_text(field, old.declared_rule, new.declared_rule)}")
    return ", ".join(parts)


def _values_text(field: str, old: Rule, new: Rule) -> str:
    return f"{format_value(field, getattr(old, field))} -> {format_value(field, getattr(new, field))}"


_NO_INFO = RuleInfo(NO_RULE, 0.0, "")


# Each function returns the info after a change, None if nothing is left of it, and `info` itself if nothing
# changes.


def change_rule(
    info: RuleInfo | None, rule: Rule, fields: Collection[str], at: float, by: str
) -> RuleInfo | None:
    """Set these fields to their values in `rule`, as an operator.

    None removes a value. If code declares a value, None stays in force until it is reset.
    """
    before = info or RuleInfo(NO_RULE, at, by)
    values = {field: getattr(rule, field) for field in fields}
    changed = {**before.operator_fields}
    for field, value in values.items():
        if value is None and getattr(before.declared_rule, field) is None:
            changed.pop(field, None)
        elif field not in changed or value != getattr(before.rule, field):
            changed[field] = OperatorChange(at, by)
    return _with_change(
        info,
        replace(before, rule=replace(before.rule, **values), operator_fields=_sort_by_field(changed)),
        at,
        by,
    )


def reset_rule(
    info: RuleInfo | None, fields: Collection[str], at: float, by: str, declared: bool = False
) -> RuleInfo | None:
    """Return these fields to the values that code declares; to None if it declares none.

    With `declared` the declared values are removed too, until code declares a rule again.
    """
    if info is None:
        return None
    after = _without_declared(info, fields) if declared else info
    values = {field: getattr(after.declared_rule, field) for field in fields}
    left = {field: change for field, change in info.operator_fields.items() if field not in fields}
    return _with_change(info, replace(after, rule=replace(info.rule, **values), operator_fields=left), at, by)


def declare_rule(info: RuleInfo | None, rule: Rule, owner: str, at: float) -> RuleInfo | None:
    """Declare this rule as the program `owner`. An empty one removes the declaration of that program.

    Programs that declare the same rule own it together: it is removed when none of them declares it.
    """
    before = info or RuleInfo(NO_RULE, at, "")
    known = before.declared
    if known is not None and rule == known.rule:
        return replace(before, declared=replace(known, owners=with_owner(known.owners, owner)))
    if rule != NO_RULE:
        declared = DeclaredRule(rule, at, (owner,))
    elif known is None or owner not in known.owners:
        return info
    elif owners := without_owner(known.owners, owner):
        return replace(before, declared=replace(known, owners=owners))
    else:
        declared = None
    # guard: operators_rule
    values = {field: getattr(before.rule, field) for field in before.operator_fields}
    after = replace(before, rule=replace(rule, **values), declared=declared)
    return _none_if_empty(after if after.operator_fields else replace(after, at=at, by=""))


def _without_declared(info: RuleInfo, fields: Collection[str]) -> RuleInfo:
    if info.declared is None:
        return info
    rule = replace(info.declared.rule, **dict.fromkeys(fields))
    return replace(info, declared=None if rule == NO_RULE else replace(info.declared, rule=rule))


def _with_change(before: RuleInfo | None, after: RuleInfo, at: float, by: str) -> RuleInfo | None:
    return before if after == before else _none_if_empty(replace(after, at=at, by=by))


def _none_if_empty(info: RuleInfo) -> RuleInfo | None:
    is_empty = info.rule == NO_RULE and not info.operator_fields and info.declared is None
    return None if is_empty else info


def _sort_by_field(changes: dict[str, OperatorChange]) -> dict[str, OperatorChange]:
    """The changes in the order of the fields of `Rule`."""
    return {field: changes[field] for field in Rule.__struct_fields__ if field in changes}
