r"""The query language of the command line and the API.

    state:failed task:send,resend -queue:bulk error~timeout payload~"to bob" since:2h

White space separates terms, and a job must meet all of them. A term is a field, an operator and one
or more values with commas between them, of which one must match. `-` before a term negates it; a job
without that field then meets it. A value with spaces, commas or quotes is written in double quotes,
with `\"` and `\\` inside. The empty query matches every job.

    field                           operators         value
    id task queue group worker      :  ~              is (case-sensitive) or contains
    state reason                    :                 one of the known words
    tag                             :                 the job has such a tag
    error payload result            ~                 any error as "type: message"; the JSON as stored
    priority attempts               :  >  >=  <  <=   a whole number
    children parents                :  >  >=  <  <=   how many jobs of its flow it waits for, or wait for it
    created finished due expires    >  >=  <  <=      a time; due is when the job may run (run_at), expires
                                                      when the record of a finished one is deleted
    since until                     :                 a time: created>= and created<=

`~` means contains. It ignores the case of A-Z, but not of other letters.

A time is a moment, and comparisons compare moments. `2h` is the moment two hours ago, so
`finished>2h` finds what finished within the last two hours and `created<1d` what is older than a
day. Durations are `90` (seconds), `90s`, `5m`, `2h`, `3d`, `1w`, `1h30m`. `+10m` is ten minutes
from now, for `due` and `expires` only. `2026-01-31` and `2026-01-31T08:00` are UTC unless a zone
follows (`Z`, `+02:00`). A job that has no such time never meets the term.

`parse` turns the text into a normal form, `Query`. A store evaluates it with `matches`, or binds `params`
to one static statement. Nothing here reads a clock.
"""

import re
from collections.abc import Collection, Iterable, Iterator
from difflib import get_close_matches
from math import inf, nextafter
from typing import Any

import msgspec
from msgspec import Struct

from errandry.core.check import INT_MAX
from errandry.core.duration import format_duration, format_time, instant, seconds
from errandry.core.job import JobRecord
from errandry.core.state import Reason, State
from errandry.errors import QueryError, short_repr

LENGTH_MAX = 2_000
TERMS_MAX = 50

NAMES = ("id", "task", "queue", "group", "worker")
CHOICES: dict[str, tuple[str, ...]] = {"state": tuple(map(str, State)), "reason": tuple(map(str, Reason))}
DOCUMENTS = ("error", "payload", "result")
NUMBERS = ("priority", "attempts", "children", "parents")
TIMES = {"created": "created_at", "finished": "finished_at", "due": "run_at", "expires": "expires_at"}
FUTURE_TIMES = ("due", "expires")
AGES = {"since": ">=", "until": "<="}
COMPARISONS = (">", ">=", "<", "<=")
OPERATORS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(NAMES, (":", "~")),
    **dict.fromkeys(CHOICES, (":",)),
    "tag": (":",),
    **dict.fromkeys(DOCUMENTS, ("~",)),
    **dict.fromkeys(NUMBERS, (":", *COMPARISONS)),
    **dict.fromkeys(TIMES, COMPARISONS),
    **dict.fromkeys(AGES, (":",)),
}
PARAMS = (
    *(f"{field}_{end}" for field in (*NAMES, *CHOICES, *NUMBERS) for end in ("in", "not_in")),
    *(f"{field}_{end}" for field in (*NAMES, *DOCUMENTS) for end in ("has", "lacks")),
    *("tags_all", "tags_none"),
    *(f"{field}_{end}" for field in (*NUMBERS, *TIMES) for end in ("min", "max")),
)


class RangeEnd(Struct, frozen=True, order=True):
    """One end of a range. A time `at` counts microseconds, since 1970 or, if `relative`, from now."""

    field: str
    op: str
    at: int
    relative: bool = False

    @property
    def is_upper(self) -> bool:
        return self.op.startswith("<")

    def limit(self, now: float) -> float:
        """The outermost value inside the range: `>` and `<` become `>=` and `<=` with the adjacent float."""
        if self.field in NUMBERS:
            return self.at
        moment = self.at / 1e6 + now if self.relative else self.at / 1e6
        return moment if self.op.endswith("=") else nextafter(moment, -inf if self.is_upper else inf)

    def holds(self, job: JobRecord, now: float) -> bool:
        value: float | None = getattr(job, TIMES.get(self.field, self.field))
        limit = self.limit(now)
        return value is not None and (value <= limit if self.is_upper else value >= limit)

    def __str__(self) -> str:
        if self.relative:
            return f"{self.field}{self.op}{'+' if self.at > 0 else ''}{format_duration(abs(self.at) / 1e6)}"
        return f"{self.field}{self.op}{self.at if self.field in NUMBERS else format_time(self.at)}"


class Query(Struct, frozen=True):
    """The normal form of a query, sorted and comparable. Created by `parse`.

    within    (field, values), one per field: the job's value is one of them; without values no job matches
    without   (field, values), one per field not in `within`: it is none of them, or the job has none
    tags      each group: the job has at least one of these tags
    not_tags  the job has none of these
    has       (field, needles), several per field: it contains at least one of them; A-Z folded
    lacks     (field, needles), one per field: it contains none of them
    between   ends of ranges; only the tightest for each field, direction and `relative`
    """

    within: tuple[tuple[str, tuple[str | int, ...]], ...] = ()
    without: tuple[tuple[str, tuple[str | int, ...]], ...] = ()
    tags: tuple[tuple[str, ...], ...] = ()
    not_tags: tuple[str, ...] = ()
    has: tuple[tuple[str, tuple[str, ...]], ...] = ()
    lacks: tuple[tuple[str, tuple[str, ...]], ...] = ()
    between: tuple[RangeEnd, ...] = ()

    def matches(self, job: JobRecord, now: float) -> bool:
        """Whether `job` meets every term. Relative times count from `now`."""
        return (
            all(getattr(job, field) in values for field, values in self.within)
            and not any(getattr(job, field) in values for field, values in self.without)
            and all(end.holds(job, now) for end in self.between)
            and not any(tag in self.not_tags for tag in job.tags)
            and all(any(tag in wanted for tag in job.tags) for wanted in self.tags)
            and all(_has_text(job, field, needles) for field, needles in self.has)
            and not any(_has_text(job, field, needles) for field, needles in self.lacks)
        )

    def params(self, now: float) -> dict[str, str | float | None]:
        """The query as flat parameters: every name of `PARAMS`, with None for those that it does not use.

        {f}_in      JSON list; the value is in it. Empty: no job matches
        {f}_not_in  JSON list; the value is NULL or not in it
                    f: id task queue group worker state reason (texts), priority attempts children
                    parents (integers)
        {f}_has     JSON list of lists of texts; of every inner list, at least one is contained
        {f}_lacks   JSON list of texts; none is contained
                    f: id task queue group worker payload result, and error, where any error's
                    "type: message" counts. Compare with the column's ASCII lower case
        tags_all    JSON list of lists; of every inner list, the job has at least one tag
        tags_none   JSON list; the job has none of these tags
        {f}_min     value >= this; NULL does not match
        {f}_max     value <= this; NULL does not match
                    f: priority attempts children parents (integers), created finished due expires
                    (seconds, as floats; a store that keeps integers rounds min up and max down)
        """
        params: dict[str, str | float | None] = dict.fromkeys(PARAMS)
        params |= {f"{field}_in": _json(values) for field, values in self.within}
        params |= {f"{field}_not_in": _json(values) for field, values in self.without}
        params |= {f"{field}_lacks": _json(needles) for field, needles in self.lacks}
        for field in {field for field, _ in self.has}:
            params[f"{field}_has"] = _json(needles for name, needles in self.has if name == field)
        params["tags_all"] = _json(self.tags) if self.tags else None
        params["tags_none"] = _json(self.not_tags) if self.not_tags else None
        for field, is_upper in {(end.field, end.is_upper) for end in self.between}:
            limits = [
                end.limit(now) for end in self.between if (end.field, end.is_upper) == (field, is_upper)
            ]
            params[f"{field}_max" if is_upper else f"{field}_min"] = min(limits) if is_upper else max(limits)
        return params

    def __str__(self) -> str:
        """The canonical text. `parse` turns it into an equal query."""
        terms = [
            *(_term("", field, ":", values) for field, values in self.within),
            *(_term("-", field, ":", values) for field, values in self.without),
            *(_term("", "tag", ":", tags) for tags in self.tags),
            *(_term("-", "tag", ":", tags) for tags in [self.not_tags] if tags),
            *(_term("", field, "~", needles) for field, needles in self.has),
            *(_term("-", field, "~", needles) for field, needles in self.lacks),
        ]
        return " ".join([*terms, *map(str, self.between)])


def parse(text: str) -> Query:
    """Parse a query, or raise `QueryError` with the position and the correct form."""
    start = text[:LENGTH_MAX]
    if bad := _FORBIDDEN.search(start):
        raise QueryError(_FORBIDDEN.sub("?", start), bad.start(), "NUL and lone surrogates are not allowed")
    terms = list(_terms(text)) if text == start else []
    if len(terms) > TERMS_MAX:
        raise QueryError(text, terms[TERMS_MAX].start, f"a query has at most {TERMS_MAX} terms")
    query = _normal_form(terms)
    # Programs send each other the canonical text, which may be longer than `text`.
    if max(len(text), len(str(query))) > LENGTH_MAX:
        raise QueryError(start, len(start), f"a query has at most {LENGTH_MAX:,} characters")
    return query


def quote(value: str) -> str:
    """`value` as written in a query: in quotes if it needs them."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"' if re.search(r'[\s,"]', value) else value


class _Term(Struct, frozen=True):
    text: str
    start: int
    negative: bool
    field: str
    op: str
    values: list[tuple[int, str]]

    def error(self, at: int, why: str) -> QueryError:
        return QueryError(self.text, at, why)


def _normal_form(terms: Iterable[_Term]) -> Query:
    within: dict[str, set[Any]] = {}
    some: set[tuple[str, tuple[str, ...]]] = set()
    none: dict[tuple[str, str], set[Any]] = {}
    ends: dict[tuple[str, bool, bool], RangeEnd] = {}
    for term in terms:
        if term.field in (*TIMES, *AGES) or term.op in COMPARISONS:
            end = _range_end(term)
            key = end.field, end.is_upper, end.relative
            ends[key] = _tighter(end, ends.get(key, end))
            continue
        values: set[Any] = {_value(term, at, value) for at, value in term.values}
        if term.negative:
            none.setdefault((term.field, term.op), set()).update(values)
        elif term.op == "~" or term.field == "tag":
            some.add((term.field, tuple(sorted(values))))
        else:
            within[term.field] = within.get(term.field, values) & values
    within = {field: values - none.get((field, ":"), set()) for field, values in within.items()}
    refused = sorted((field, op, tuple(sorted(values))) for (field, op), values in none.items())
    return Query(
        within=tuple((field, tuple(sorted(values))) for field, values in sorted(within.items())),
        without=tuple((f, values) for f, op, values in refused if op == ":" and f not in (*within, "tag")),
        tags=tuple(sorted(values for field, values in some if field == "tag")),
        not_tags=tuple(sorted(none.get(("tag", ":"), ()))),
        has=tuple(sorted(pair for pair in some if pair[0] != "tag")),
        lacks=tuple((field, values) for field, op, values in refused if op == "~"),
        between=tuple(sorted(ends.values())),
    )


def _tighter(first: RangeEnd, second: RangeEnd) -> RangeEnd:
    """The end that excludes more. With the same value, `>` and `<` exclude more than `>=` and `<=`."""
    tightest = min if first.is_upper else max
    return tightest(first, second, key=lambda end: (end.at, end.is_upper == end.op.endswith("=")))


_FORBIDDEN = re.compile(r"[\x00\ud800-\udfff]")
_HEAD = re.compile(r'(?=\S)(-?)([^\s:~<>"]*)(>=|<=|[:~<>]|)')
_VALUE = re.compile(r'"((?:[^"\\]|\\["\\])*)"|([^\s,"]+)')
_OPPOSITE = {">": "<=", ">=": "<", "<": ">=", "<=": ">"}


def _terms(text: str) -> Iterator[_Term]:
    end = 0
    while head := _HEAD.search(text, end):
        minus, field, op = head.groups()
        if not op:
            raise _missing_operator(text, head.start(2), field)
        if field not in OPERATORS:
            raise QueryError(text, head.start(2), _unknown("field", field, OPERATORS))
        if op not in OPERATORS[field]:
            raise QueryError(text, head.start(3), f"{field} takes {' or '.join(OPERATORS[field])}, not {op}")
        values, end = _values(text, head.end())
        yield _Term(text, head.start(), bool(minus), field, op, values)


def _missing_operator(text: str, at: int, word: str) -> QueryError:
    """The error for a term without an operator, with the right form of `state!=x` and `state=x`."""
    field, equals, value = word.partition("=")
    is_negated, field = field.endswith("!"), field.removesuffix("!")
    if not equals or field not in OPERATORS:
        return QueryError(text, at, "an operator is missing, as in state:failed or error~x")
    operators = OPERATORS[field]
    sign = "!=" if is_negated else "="
    if operators[0] in COMPARISONS or (is_negated and field in AGES):
        return QueryError(text, at, f"{sign} is not an operator; {field} takes {' or '.join(operators)}")
    right = f"{'-' if is_negated else ''}{field}{operators[0]}{value}"
    return QueryError(text, at, f"{sign} is not an operator; write {right}")


def _values(text: str, at: int) -> tuple[list[tuple[int, str]], int]:
    values = []
    while True:
        match = _VALUE.match(text, at)
        if match is None or match[0] == '""':
            missing = "a value is missing; it follows its operator or comma at once and is not empty"
            unclosed = 'a quoted value ends with " and holds \\" for a quote, \\\\ for a backslash'
            raise QueryError(text, at, missing if match or text[at : at + 1] != '"' else unclosed)
        values.append((at, match[2] or re.sub(r"\\(.)", r"\1", match[1])))
        at = match.end()
        if text[at : at + 1] != ",":
            break
        at += 1
    if text[at : at + 1].strip():
        raise QueryError(text, at, 'put the whole value in quotes, and write \\" for a quote inside')
    return values, at


def _value(term: _Term, at: int, value: str) -> str | int:
    if term.op == "~":
        return fold(value).decode()
    if term.field in NUMBERS:
        step = {">": 1, "<": -1}.get(term.op, 0)
        if re.fullmatch("-?[0-9]{1,19}", value) and -INT_MAX - 1 <= int(value) + step <= INT_MAX:
            return int(value) + step
        raise term.error(
            at, f"{term.field}{term.op} takes a whole number of 64 bits, not {short_repr(value)}"
        )
    if value not in CHOICES.get(term.field, (value,)):
        raise term.error(at, _unknown(term.field, value, CHOICES[term.field]))
    return value


def _range_end(term: _Term) -> RangeEnd:
    (at, value), *more = term.values
    field, op = ("created", AGES[term.field]) if term.field in AGES else (term.field, term.op)
    if more:
        raise term.error(more[0][0], f"{term.field}{term.op} takes one value")
    if term.negative:
        opposite = f"{field}{_OPPOSITE[op]}{quote(value)}"
        raise term.error(term.start, f"a comparison takes no minus; write {opposite}")
    if field in TIMES:
        return RangeEnd(field, op, *_time(term, at, value))
    return RangeEnd(field, op[0] + "=", int(_value(term, at, value)))


def _time(term: _Term, at: int, value: str) -> tuple[int, bool]:
    """The time in microseconds, and whether it counts from now."""
    try:
        if "-" in value:
            return instant(value), False
        ahead = term.field in FUTURE_TIMES and value.startswith("+")
        micros = round(seconds(value[ahead:]) * 1e6)
        return micros if ahead else -micros, True
    except ValueError:
        right = "2h (that long ago), 2026-01-31 or 2026-01-31T08:00Z; for due, expires also +10m (from now)"
        raise term.error(at, f"{short_repr(value)} is not a time; write {right}") from None


def _term(sign: str, field: str, op: str, values: Collection[str | int]) -> str:
    if not values:  # the language cannot write an empty set, only a contradiction
        some = CHOICES.get(field, "0")[0]
        return f"{field}:{some} -{field}:{some}"
    return f"{sign}{field}{op}{','.join(quote(str(value)) for value in values)}"


def _has_text(job: JobRecord, field: str, needles: Iterable[str]) -> bool:
    errors = (f"{error.type}: {error.message}" for error in job.errors)
    texts = errors if field == "error" else (getattr(job, field) or "",)
    return any(needle.encode() in text for text in map(fold, texts) for needle in needles)


def fold(text: str) -> bytes:
    """`text` as `~` compares it: `bytes.lower` folds only A-Z, which every store can do."""
    return text.encode(errors="replace").lower()


def _json(values: Iterable[object]) -> str:
    return msgspec.json.encode(list(values)).decode()


def _unknown(kind: str, word: str, known: Iterable[str]) -> str:
    close = get_close_matches(word.lower(), list(known), 1)
    hint = f" (did you mean {close[0]}?)" if close else ""
    return f"{short_repr(word)} is not a {kind}{hint}; valid {kind}s: {', '.join(known)}"
