r"""The query language of the command line, the API and the dashboard.

    state:failed task:send,resend -queue:bulk error~timeout payload~"to bob" since:2h

White space separates terms, and a job must meet all of them. A term is a field, an operator and a
value, or several with commas between: any of them will do. `-` in front turns a term round; a job
without that field then meets it. A value with spaces, commas or quotes stands in double quotes,
with `\"` and `\\` inside. The empty query matches every job.

    field                           operators         value
    id task queue group worker      :  ~              is (case counts) or contains
    state reason                    :                 one of the known words
    tag                             :                 the job has such a tag
    error payload result            ~                 any error as "type: message"; the JSON as stored
    priority attempts               :  >  >=  <  <=   a whole number
    children parents                :  >  >=  <  <=   how many jobs of its flow it waits for, or wait for it
    created finished due expires    >  >=  <  <=      a time; due is when the job may run (run_at), expires
                                                      when the record of a finished one goes
    since until                     :                 a time: created>= and created<=

`~` means contains; A-Z and a-z are the same to it, other letters are not folded.

A time is a moment, and comparisons compare moments. `2h` is the moment two hours ago, so
`finished>2h` finds what finished within the last two hours and `created<1d` what is older than a
day. Durations are `90` (seconds), `90s`, `5m`, `2h`, `3d`, `1w`, `1h30m`. `+10m` is ten minutes
from now, for `due` and `expires` only. `2026-01-31` and `2026-01-31T08:00` are UTC unless a zone
follows (`Z`, `+02:00`). A job that has no such time never meets the term.

`parse` reads the text into a normal form, `Query`; a store evaluates it with `matches`, or binds
`params` to one static statement. Nothing here reads a clock.
"""

import re
from collections.abc import Collection, Iterable, Iterator
from difflib import get_close_matches
from math import inf, nextafter
from typing import Any

import msgspec
from msgspec import Struct

from errandry.core.check import INT_MAX
from errandry.core.duration import instant, iso, seconds, short
from errandry.core.job import JobRecord
from errandry.core.state import Reason, State
from errandry.errors import QueryError, shown

LENGTH_MAX = 2_000
TERMS_MAX = 50

NAMES = ("id", "task", "queue", "group", "worker")
CHOICES: dict[str, tuple[str, ...]] = {"state": tuple(map(str, State)), "reason": tuple(map(str, Reason))}
DOCUMENTS = ("error", "payload", "result")
NUMBERS = ("priority", "attempts", "children", "parents")
TIMES = {"created": "created_at", "finished": "finished_at", "due": "run_at", "expires": "expires_at"}
AHEAD = ("due", "expires")
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
    def upper(self) -> bool:
        return self.op.startswith("<")

    def limit(self, now: float) -> float:
        """The first value inside: `>` and `<` become `>=` and `<=` with the neighbouring float."""
        if self.field in NUMBERS:
            return self.at
        moment = self.at / 1e6 + now if self.relative else self.at / 1e6
        return moment if self.op.endswith("=") else nextafter(moment, -inf if self.upper else inf)

    def holds(self, job: JobRecord, now: float) -> bool:
        value: float | None = getattr(job, TIMES.get(self.field, self.field))
        limit = self.limit(now)
        return value is not None and (value <= limit if self.upper else value >= limit)

    def __str__(self) -> str:
        if self.relative:
            return f"{self.field}{self.op}{'+' if self.at > 0 else ''}{short(abs(self.at) / 1e6)}"
        return f"{self.field}{self.op}{self.at if self.field in NUMBERS else iso(self.at)}"


class Query(Struct, frozen=True):
    """The normal form, sorted and comparable. Make it with `parse`.

    within    (field, values), one per field: the job's value is one of them; no values: nothing matches
    without   (field, values), one per field not in `within`: it is none of them, or the job has none
    tags      each group: the job has at least one of these tags
    not_tags  the job has none of these
    has       (field, needles), several per field: it contains at least one of them; A-Z folded
    lacks     (field, needles), one per field: it contains none of them
    between   ends of ranges; per field, direction and `relative` only the tightest
    """

    within: tuple[tuple[str, tuple[str | int, ...]], ...] = ()
    without: tuple[tuple[str, tuple[str | int, ...]], ...] = ()
    tags: tuple[tuple[str, ...], ...] = ()
    not_tags: tuple[str, ...] = ()
    has: tuple[tuple[str, tuple[str, ...]], ...] = ()
    lacks: tuple[tuple[str, tuple[str, ...]], ...] = ()
    between: tuple[RangeEnd, ...] = ()

    def matches(self, job: JobRecord, now: float) -> bool:
        """Whether `job` meets every term; `now` is what relative times count from."""
        return (
            all(getattr(job, field) in values for field, values in self.within)
            and not any(getattr(job, field) in values for field, values in self.without)
            and all(bound.holds(job, now) for bound in self.between)
            and not any(tag in self.not_tags for tag in job.tags)
            and all(any(tag in wanted for tag in job.tags) for wanted in self.tags)
            and all(_contains(job, field, needles) for field, needles in self.has)
            and not any(_contains(job, field, needles) for field, needles in self.lacks)
        )

    def params(self, now: float) -> dict[str, str | float | None]:
        """The query as flat parameters: every name of `PARAMS`, None where the query says nothing.

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
        found: dict[str, str | float | None] = dict.fromkeys(PARAMS)
        found |= {f"{field}_in": _json(values) for field, values in self.within}
        found |= {f"{field}_not_in": _json(values) for field, values in self.without}
        found |= {f"{field}_lacks": _json(needles) for field, needles in self.lacks}
        for field in {field for field, _ in self.has}:
            found[f"{field}_has"] = _json(needles for name, needles in self.has if name == field)
        found["tags_all"] = _json(self.tags) if self.tags else None
        found["tags_none"] = _json(self.not_tags) if self.not_tags else None
        for field, upper in {(bound.field, bound.upper) for bound in self.between}:
            ends = [b.limit(now) for b in self.between if (b.field, b.upper) == (field, upper)]
            found[f"{field}_max" if upper else f"{field}_min"] = min(ends) if upper else max(ends)
        return found

    def __str__(self) -> str:
        """The canonical text: `parse` reads it back to an equal query."""
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
    """Read a query, or raise `QueryError` with the place and what would be right."""
    start = text[:LENGTH_MAX]
    if bad := _FORBIDDEN.search(start):
        raise QueryError(_FORBIDDEN.sub("?", start), bad.start(), "NUL and lone surrogates are not allowed")
    terms = list(_terms(text)) if text == start else []
    if len(terms) > TERMS_MAX:
        raise QueryError(text, terms[TERMS_MAX].start, f"a query has at most {TERMS_MAX} terms")
    query = _normal(terms)
    # The canonical text is what one program sends to another, and can be the longer one.
    if max(len(text), len(str(query))) > LENGTH_MAX:
        raise QueryError(start, len(start), f"a query has at most {LENGTH_MAX:,} characters")
    return query


def quoted(value: str) -> str:
    """`value` as it stands in a query: in quotes if it needs them."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"' if re.search(r'[\s,"]', value) else value


class _Term(Struct, frozen=True):
    text: str
    start: int
    negative: bool
    field: str
    op: str
    values: list[tuple[int, str]]

    def wrong(self, at: int, why: str) -> QueryError:
        return QueryError(self.text, at, why)


def _normal(terms: Iterable[_Term]) -> Query:
    within: dict[str, set[Any]] = {}
    some: set[tuple[str, tuple[str, ...]]] = set()
    none: dict[tuple[str, str], set[Any]] = {}
    bounds: dict[tuple[str, bool, bool], RangeEnd] = {}
    for term in terms:
        if term.field in (*TIMES, *AGES) or term.op in COMPARISONS:
            bound = _bound(term)
            key = bound.field, bound.upper, bound.relative
            bounds[key] = _tighter(bound, bounds.get(key, bound))
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
        between=tuple(sorted(bounds.values())),
    )


def _tighter(one: RangeEnd, other: RangeEnd) -> RangeEnd:
    """At the same place, the open end is the tighter one."""
    best = min if one.upper else max
    return best(one, other, key=lambda end: (end.at, end.upper == end.op.endswith("=")))


_FORBIDDEN = re.compile(r"[\x00\ud800-\udfff]")
_HEAD = re.compile(r'(?=\S)(-?)([^\s:~<>"]*)(>=|<=|[:~<>]|)')
_VALUE = re.compile(r'"((?:[^"\\]|\\["\\])*)"|([^\s,"]+)')
_OPPOSITE = {">": "<=", ">=": "<", "<": ">=", "<=": ">"}


def _terms(text: str) -> Iterator[_Term]:
    end = 0
    while head := _HEAD.search(text, end):
        minus, field, op = head.groups()
        if not op:
            raise QueryError(text, head.start(2), "an operator is missing, as in state:failed or error~x")
        if field not in OPERATORS:
            raise QueryError(text, head.start(2), _unknown("field", field, OPERATORS))
        if op not in OPERATORS[field]:
            raise QueryError(text, head.start(3), f"{field} takes {' or '.join(OPERATORS[field])}, not {op}")
        values, end = _values(text, head.end())
        yield _Term(text, head.start(), bool(minus), field, op, values)


def _values(text: str, at: int) -> tuple[list[tuple[int, str]], int]:
    values = []
    while True:
        found = _VALUE.match(text, at)
        if found is None or found[0] == '""':
            missing = "a value is missing; it follows its operator or comma at once and is not empty"
            unclosed = 'a quoted value ends with " and holds \\" for a quote, \\\\ for a backslash'
            raise QueryError(text, at, missing if found or text[at : at + 1] != '"' else unclosed)
        values.append((at, found[2] or re.sub(r"\\(.)", r"\1", found[1])))
        at = found.end()
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
        raise term.wrong(at, f"{term.field}{term.op} takes a whole number of 64 bits, not {shown(value)}")
    if value not in CHOICES.get(term.field, (value,)):
        raise term.wrong(at, _unknown(term.field, value, CHOICES[term.field]))
    return value


def _bound(term: _Term) -> RangeEnd:
    (at, value), *more = term.values
    field, op = ("created", AGES[term.field]) if term.field in AGES else (term.field, term.op)
    if more:
        raise term.wrong(more[0][0], f"{term.field}{term.op} takes one value")
    if term.negative:
        opposite = f"{field}{_OPPOSITE[op]}{quoted(value)}"
        raise term.wrong(term.start, f"a comparison takes no minus; write {opposite}")
    if field in TIMES:
        return RangeEnd(field, op, *_time(term, at, value))
    return RangeEnd(field, op[0] + "=", int(_value(term, at, value)))


def _time(term: _Term, at: int, value: str) -> tuple[int, bool]:
    """Microseconds, and whether they count from now."""
    try:
        if "-" in value:
            return instant(value), False
        ahead = term.field in AHEAD and value.startswith("+")
        micros = round(seconds(value[ahead:]) * 1e6)
        return micros if ahead else -micros, True
    except ValueError:
        right = "2h (that long ago), 2026-01-31 or 2026-01-31T08:00Z; for due, expires also +10m (from now)"
        raise term.wrong(at, f"{shown(value)} is not a time; write {right}") from None


def _term(sign: str, field: str, op: str, values: Collection[str | int]) -> str:
    if not values:  # the language has no word for the empty set
        some = CHOICES.get(field, "0")[0]
        return f"{field}:{some} -{field}:{some}"
    return f"{sign}{field}{op}{','.join(quoted(str(value)) for value in values)}"


def _contains(job: JobRecord, field: str, needles: Iterable[str]) -> bool:
    errors = (f"{error.type}: {error.message}" for error in job.errors)
    texts = errors if field == "error" else (getattr(job, field) or "",)
    return any(needle.encode() in text for text in map(fold, texts) for needle in needles)


def fold(text: str) -> bytes:
    """`text` as `~` compares it: `lower` of bytes folds A-Z and nothing else, as every store can."""
    return text.encode(errors="replace").lower()


def _json(values: Iterable[object]) -> str:
    return msgspec.json.encode(list(values)).decode()


def _unknown(kind: str, word: str, known: Iterable[str]) -> str:
    close = get_close_matches(word.lower(), list(known), 1)
    hint = f" (did you mean {close[0]}?)" if close else ""
    return f"{shown(word)} is not a {kind}{hint}; there are {', '.join(known)}"
