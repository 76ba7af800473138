"""Convert records to database rows and back.

Columns have the order of the record's fields. Nested fields are JSON text, or NULL if empty.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Any

import msgspec
from msgspec.structs import astuple

from errandry.core.event import EventRecord, EventRun, expand
from errandry.core.flow import ChildEnd, EdgeRecord, Policy
from errandry.core.gate import GateKind, GateRecord, PauseRecord
from errandry.core.job import AttemptError, JobRecord, Keep, LogLine, Progress
from errandry.core.retry import Backoff
from errandry.core.rule import Rule
from errandry.core.rule_info import DeclaredRule, OperatorChange, RuleInfo
from errandry.core.schedule import ScheduleRecord
from errandry.core.state import Move, Reason, State
from errandry.core.step import StepKind, StepRecord, StepState
from errandry.core.unique import UniqueKey
from errandry.store.tables.protocol import ClaimedRefs

Row = tuple[Any, ...]

FIELDS = JobRecord.__struct_fields__
PLAIN_COLUMNS = 37
"""Number of job columns stored as plain values. The columns after them are JSON."""
COLUMN_COUNT = PLAIN_COLUMNS + 8

_KINDS = {str(kind): kind for kind in GateKind}
_STATES = {str(state): state for state in State}
_REASONS = {str(reason): reason for reason in Reason} | {None: None}
_MOVES = {str(move): move for move in Move} | {None: None}
_POLICIES = {str(policy): policy for policy in Policy}
_OUTCOMES = {str(ended): ended for ended in ChildEnd} | {None: None}
_NULL_PARTS = (None,) * 8
_NULL_RULE_INFO = (None,) * 5
_EMPTY_PARTS = (None, None, None, (), (), (), None, None)
_EMPTY_OPTIONS = (None, None, (), None)
_STEPS = {str(kind): kind for kind in StepKind}
_BOOLS = (False, True)

# Cached: many jobs have the same options, and each claim reads the same rules.
_backoff = lru_cache(maxsize=256)(msgspec.json.Decoder(Backoff).decode)
_keep = lru_cache(maxsize=256)(msgspec.json.Decoder(Keep).decode)
_rule = lru_cache(maxsize=256)(msgspec.json.Decoder(Rule).decode)
_declared_rule = lru_cache(maxsize=256)(msgspec.json.Decoder(DeclaredRule).decode)
_operator_fields = lru_cache(maxsize=256)(msgspec.json.Decoder(dict[str, OperatorChange]).decode)
_progress = msgspec.json.Decoder(Progress)
_texts = msgspec.json.Decoder(tuple[str, ...])
_errors = msgspec.json.Decoder(tuple[AttemptError, ...])
_logs = msgspec.json.Decoder(tuple[LogLine, ...])
_schedule = msgspec.json.Decoder(ScheduleRecord)
_unique = msgspec.json.Decoder(UniqueKey)
_steps = msgspec.json.Decoder(StepState)
_event_runs = msgspec.json.Decoder(tuple[EventRun, ...])
_claims = msgspec.json.Decoder(dict[str, ClaimedRefs])
_encode = msgspec.json.Encoder().encode


def _values(*fields: str) -> Callable[[Row], Row]:
    return itemgetter(*map(FIELDS.index, fields))


_PLAIN_OF_NEW_JOB = (
    *("seq", "id", "task", "queue", "group", "state", "lifo", "payload", "priority", "place", "run_at"),
    *("max_attempts", "max_crashes", "children", "parents", "timeout", "deadline", "metadata", "created_at"),
)
_OPTIONS = ("backoff", "keep", "tags", "unique")
NEW_JOB_FIELDS = _PLAIN_OF_NEW_JOB + _OPTIONS
"""The columns of `from_new_job`, before the lane."""

_plain_of_new_job, _options_of_new_job = _values(*_PLAIN_OF_NEW_JOB), _values(*_OPTIONS)


def from_job(job: JobRecord, *more: Any) -> Row:
    """The row of a job, followed by the values in `more`."""
    values = astuple(job)
    parts = values[PLAIN_COLUMNS:]
    if parts == _EMPTY_PARTS:
        return values[:PLAIN_COLUMNS] + _NULL_PARTS + more
    if parts[:-2] == _EMPTY_PARTS[:-2] and parts[-1] is None:
        return (*values[:PLAIN_COLUMNS], *_NULL_PARTS[:-2], text(parts[-2]), None, *more)
    return values[:PLAIN_COLUMNS] + tuple(text(part) if part else None for part in parts) + more


def from_new_job(job: JobRecord, lane: int | None) -> Row:
    """The row of a new job and its lane, without the columns that only later moves fill."""
    values = astuple(job)
    options = _options_of_new_job(values)
    texts = (
        _NULL_PARTS[:4]
        if options == _EMPTY_OPTIONS
        else [text(option) if option else None for option in options]
    )
    return (*_plain_of_new_job(values), *texts, lane)


def to_job(row: Sequence[Any]) -> JobRecord:
    values = list(row)
    values[5] = _STATES[values[5]]
    values[6] = _BOOLS[values[6]]
    values[7] = _REASONS[values[7]]
    values[8] = _MOVES[values[8]]
    values[26] = _BOOLS[values[26]]
    parts = row[PLAIN_COLUMNS:COLUMN_COUNT]
    values[PLAIN_COLUMNS:] = _EMPTY_PARTS if parts == _NULL_PARTS else _parts(parts)
    return JobRecord(*values)


def to_keep(keep: str) -> Keep:
    return _keep(keep)


def from_gate(gate: GateRecord) -> Row:
    """The row of a gate: key, pause, rule (JSON), theoretical arrival time of its rate, end of a closing."""
    paused = gate.paused
    return (
        *(gate.kind.value, gate.name, gate.group),
        *((None, None) if paused is None else (paused.at, paused.by)),
        *(_NULL_RULE_INFO if gate.rule_info is None else _from_rule_info(gate.rule_info)),
        *(gate.tat, gate.closed_until),
    )


def _from_rule_info(info: RuleInfo) -> Row:
    fields = text(info.operator_fields) if info.operator_fields else None
    return text(info.rule), info.at, info.by, fields, None if info.declared is None else text(info.declared)


def to_gate(row: Sequence[Any]) -> GateRecord:
    kind, name, group, paused_at, paused_by, rule, ruled_at, ruled_by, fields, declared, tat, closed_until = (
        row
    )
    return GateRecord(
        _KINDS[kind],
        name,
        group,
        None if paused_at is None else PauseRecord(paused_at, paused_by),
        None if rule is None else _to_rule_info(rule, ruled_at, ruled_by, fields, declared),
        tat,
        closed_until,
    )


def _to_rule_info(rule: str, at: float, by: str, fields: str | None, declared: str | None) -> RuleInfo:
    return RuleInfo(
        _rule(rule),
        at,
        by,
        {} if fields is None else _operator_fields(fields),
        None if declared is None else _declared_rule(declared),
    )


def to_claimed_refs(claims: str, nonce: str) -> ClaimedRefs | None:
    """Return the jobs of the claim with this nonce from the saved claims of a pass (JSON); None if not there.

    The text is searched before it is decoded: mostly the nonce is new.
    """
    return _claims.decode(claims).get(nonce) if text(nonce) in claims else None


def from_event_runs(event_runs: Sequence[EventRun]) -> tuple[int, str]:
    """The number of events, and their JSON text."""
    return sum(map(len, event_runs)), text(event_runs)


def to_events(event_runs: str) -> tuple[EventRecord, ...]:
    return expand(_event_runs.decode(event_runs))


def from_schedule(schedule: ScheduleRecord) -> Row:
    return schedule.name, schedule.due_at, text(schedule)


def to_schedule(record: str) -> ScheduleRecord:
    return _schedule.decode(record)


def from_edge(edge: EdgeRecord) -> Row:
    *values, feeds = astuple(edge)
    return (*values, text(feeds) if feeds else None)


def to_edge(row: Sequence[Any]) -> EdgeRecord:
    parent, n, child, task, seq, policy, outcome, result, feeds = row
    fed = _texts.decode(feeds) if feeds else ()
    return EdgeRecord(parent, n, child, task, seq, _POLICIES[policy], _OUTCOMES[outcome], result, fed)


def from_step(step: StepRecord) -> Row:
    return (step.job, step.n, step.kind.value, *astuple(step)[3:])


def to_step(row: Sequence[Any]) -> StepRecord:
    job, n, kind, *rest = row
    return StepRecord(job, n, _STEPS[kind], *rest)


def text(value: Any) -> str:
    """Encode a value as JSON text."""
    return _encode(value).decode()


def _parts(parts: Sequence[str | None]) -> Row:
    backoff, keep, progress, tags, errors, logs, unique, steps = parts
    return (
        _backoff(backoff) if backoff else None,
        _keep(keep) if keep else None,
        _progress.decode(progress) if progress else None,
        _texts.decode(tags) if tags else (),
        _errors.decode(errors) if errors else (),
        _logs.decode(logs) if logs else (),
        _unique.decode(unique) if unique else None,
        _steps.decode(steps) if steps else None,
    )
