"""The query language: the meaning of each term, the canonical text, the parameters, the errors."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from math import inf, nextafter
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from errandry.core.job import AttemptError, JobRecord
from errandry.core.query import (
    AGES,
    CHOICES,
    DOCUMENTS,
    NAMES,
    NUMBERS,
    OPERATORS,
    PARAMS,
    TIMES,
    Query,
    RangeEnd,
    parse,
    quote,
)
from errandry.core.state import Reason, State
from errandry.errors import ErrandryError, QueryError

NOW = 1_769_846_400.0  # 2026-01-31T08:00Z
HOUR = 3_600.0


def failure(kind: str, message: str) -> AttemptError:
    return AttemptError(1, "w1", NOW - 60, NOW - 50, Reason.ERROR, kind, message)


PLAIN = dict.fromkeys(JobRecord.__struct_fields__) | dict[str, Any](
    id="j-1",
    task="Send",
    queue="mail",
    group="acme",
    worker="w1",
    state=State.FAILED,
    reason=Reason.TIMEOUT,
    lifo=False,
    priority=5,
    attempts=2,
    payload='{"to":"Bob B","n":"Ä"}',
    tags=("red", "Big one"),
    created_at=NOW - 2 * HOUR,
    finished_at=NOW - HOUR,
    run_at=NOW + 600,
    errors=(failure("OSError", "disk full"), failure("TimeoutError", "No answer")),
)
BARE = {"worker": None, "reason": None, "result": None, "finished_at": None, "run_at": None}


def make_job(**changes: Any) -> JobRecord:
    return JobRecord(**{**PLAIN, **changes})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "  \n\t ",
        "id:j-1",
        "id~J-",
        "task:Send",
        "task:other,Send",
        "task~SEN",
        "queue:mail",
        "queue~ai",
        "group:acme",
        "group~ACM",
        "worker:w1",
        "worker~w",
        "state:failed",
        "state:waiting,failed",
        "-state:waiting,running",
        "reason:timeout",
        "-reason:error",
        "tag:red",
        "tag:blue,red",
        'tag:red tag:"Big one"',
        "-tag:blue",
        "error~timeouterror",
        'error~"oserror: DISK"',
        'error~disk error~"no answer"',
        "-error~segfault",
        'payload~"bob b"',
        r'payload~"\"to\":\"bob"',
        "payload~Ä",
        "-payload~alice",
        "-result~x",
        "priority:5",
        "priority:1,5,7",
        "-priority:4,6",
        "priority>4",
        "priority>=5 priority<=5",
        "priority<6",
        "priority>-9223372036854775808",
        "attempts:2",
        "attempts>1 attempts<3",
        "since:2h",
        "since:7200",
        "since:1h59m60s",
        'since:"2 hours"',
        "since:2026-01-31T06:00",
        "until:2h",
        "until:2026-01-31T07:00+01:00",
        "created>3h created<1h",
        "created>=2h created<=2h",
        "finished>61m",
        "finished<=2026-01-31T07:00Z",
        "due<+11m",
        "due>=+600",
        "due>0",
        "due>2h",
        "task:Send state:failed tag:red since:1d priority>0 error~disk",
    ],
)
def test_a_job_that_meets_every_term_matches(text: str) -> None:
    assert parse(text).matches(make_job(), NOW)


@pytest.mark.parametrize(
    "text",
    [
        "id:j",
        "id:J-1",
        "id~x",
        "-id:j-1",
        "task:send",
        "-task:Send,other",
        "-task~sen",
        "queue:mai",
        "group:other",
        "worker~w2",
        "state:waiting",
        "-state:failed",
        "reason:error",
        "tag:Red",
        "tag:re",
        "tag:red tag:blue",
        "-tag:blue,red",
        "error~segfault",
        'error~"full timeout"',
        "-error~disk",
        "payload~ä",
        "payload~alice",
        '-payload~"bob b"',
        "result~n",
        "priority:4",
        "-priority:5",
        "priority>5",
        "priority<5",
        "attempts>=3",
        "attempts<=1",
        "since:7199",
        "until:7201",
        "created>2h",
        "created<2h",
        "finished>1h",
        "finished<1h",
        "due<+10m",
        "due>+10m",
        "due<0",
        "state:failed task:other",
        "state:failed state:waiting",
        "priority:5 -priority:5",
        "priority>=6 priority<=4",
    ],
)
def test_a_job_that_fails_one_term_does_not_match(text: str) -> None:
    assert not parse(text).matches(make_job(), NOW)


@pytest.mark.parametrize(
    "term", ["worker:w1", "worker~w", "reason:timeout", "result~x", "error~x", "tag:red"]
)
def test_a_job_without_the_field_meets_only_the_negative(term: str) -> None:
    bare = make_job(**BARE, errors=(), tags=())

    assert not parse(term).matches(bare, NOW)
    assert parse("-" + term).matches(bare, NOW)


@pytest.mark.parametrize("term", ["finished<0", "finished>1w", "due<+1w", "due>=1w"])
def test_a_job_without_the_time_meets_no_comparison(term: str) -> None:
    assert not parse(term).matches(make_job(**BARE), NOW)


def test_a_relative_time_moves_with_now_and_a_date_does_not() -> None:
    job = make_job(created_at=NOW)

    assert parse("since:2h").matches(job, NOW + 2 * HOUR)
    assert not parse("since:2h").matches(job, NOW + 2 * HOUR + 1)
    assert parse("since:2026-01-31").matches(job, NOW + 1e9)


def test_the_normal_form_merges_terms_of_the_same_field() -> None:
    query = parse(
        "tag:b,a -queue:y state:failed,waiting,running -queue:x error~B,a error~C state:waiting,failed "
        "-state:waiting -tag:d -tag:c -payload~Q priority>3 priority>=7 since:2h created>1h created>=1h "
        "until:2026-01-31 due<+10m"
    )

    assert query == Query(
        within=(("state", ("failed",)),),
        without=(("queue", ("x", "y")),),
        tags=(("a", "b"),),
        not_tags=("c", "d"),
        has=(("error", ("a", "b")), ("error", ("c",))),
        lacks=(("payload", ("q",)),),
        between=(
            RangeEnd("created", "<=", 1_769_817_600_000_000),
            RangeEnd("created", ">", -3_600_000_000, relative=True),
            RangeEnd("due", "<", 600_000_000, relative=True),
            RangeEnd("priority", ">=", 7),
        ),
    )


def test_the_empty_text_is_the_empty_query() -> None:
    assert parse(" ") == Query()
    assert str(Query()) == ""
    assert set(Query().params(NOW).values()) == {None}


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("task:b,a,b  state:failed", "state:failed task:a,b"),
        ("state:failed,waiting state:waiting", "state:waiting"),
        ("state:failed state:waiting", "state:blocked -state:blocked"),
        ("task:a -task:a", "task:0 -task:0"),
        ("priority:10,9,-1", "priority:-1,9,10"),
        ("priority>5 priority<9", "priority<=8 priority>=6"),
        ('task:"a"', "task:a"),
        ('task:"a b","c,d"', 'task:"a b","c,d"'),
        (r'task~"a\"\\B"', r'task~"a\"\\b"'),
        (r"task:a\b", r"task:a\b"),
        ("since:90m until:0", "created<=0s created>=1h30m"),
        ("created<2026-01-31", "created<2026-01-31T00:00:00Z"),
        ("due<+0.5s", "due<+0.5s"),
    ],
)
def test_the_canonical_text(text: str, canonical: str) -> None:
    assert str(parse(text)) == canonical
    assert parse(canonical) == parse(text)


def test_a_query_survives_json() -> None:
    query = parse("state:failed priority:5,6 tag:a error~x since:2h -task:b")

    assert msgspec.json.decode(msgspec.json.encode(query), type=Query) == query
    assert hash(query) == hash(parse(str(query)))


def test_params_are_flat_and_complete() -> None:
    query = parse(
        "state:failed priority:5,-1 -task:b id~B,a id~c -error~x tag:a tag:b,c -tag:d attempts>1 attempts<9 "
        "created>2h created>2026-01-31T05:00 finished<=1h due<+10m"
    )

    params = query.params(NOW)

    assert tuple(params) == PARAMS
    assert {name: value for name, value in params.items() if value is not None} == {
        "state_in": '["failed"]',
        "priority_in": "[-1,5]",
        "task_not_in": '["b"]',
        "id_has": '[["a","b"],["c"]]',
        "error_lacks": '["x"]',
        "tags_all": '[["a"],["b","c"]]',
        "tags_none": '["d"]',
        "attempts_min": 2,
        "attempts_max": 8,
        "created_min": nextafter(NOW - 2 * HOUR, inf),
        "finished_max": NOW - HOUR,
        "due_max": nextafter(NOW + 600, -inf),
    }


def test_a_contradiction_binds_an_empty_list() -> None:
    assert parse("state:failed state:waiting").params(NOW)["state_in"] == "[]"


@pytest.mark.parametrize(
    ("text", "position", "why"),
    [
        ("timeout", 0, "an operator is missing, as in state:failed"),
        ("state:failed  state=failed", 14, "= is not an operator; write state:failed"),
        ("state!=completed", 0, "!= is not an operator; write -state:completed"),
        ("error!=timeout", 0, "!= is not an operator; write -error~timeout"),
        ("created=2h", 0, "= is not an operator; created takes > or >= or < or <="),
        ("since!=2h", 0, "!= is not an operator; since takes :"),
        ("colour=red", 0, "an operator is missing"),
        ("-", 1, "an operator is missing"),
        ('"state:failed"', 0, "an operator is missing"),
        ("- state:failed", 1, "an operator is missing"),
        ("stat:failed", 0, "'stat' is not a field (did you mean state?); valid fields: id, task, queue"),
        ("-State:failed", 1, "did you mean state?"),
        ("zzz:1", 0, "'zzz' is not a field; valid fields: id"),
        (":failed", 0, "'' is not a field"),
        ("task:a state~fail", 12, "state takes :, not ~"),
        ("tag~a", 3, "tag takes :, not ~"),
        ("error:a", 5, "error takes ~, not :"),
        ("task>=a", 4, "task takes : or ~, not >="),
        ("created:2h", 7, "created takes > or >= or < or <=, not :"),
        ("since>2h", 5, "since takes :, not >"),
        ("state:faled", 6, "'faled' is not a state (did you mean failed?); valid states: blocked, scheduled"),
        ("state:failed,Done", 13, "'Done' is not a state"),
        ("reason:time_out", 7, "did you mean timeout?"),
        ("state:", 6, "a value is missing"),
        ("state: failed", 6, "a value is missing"),
        ("task:a,,b", 7, "a value is missing"),
        ("task:a,", 7, "a value is missing"),
        ('task:a,""', 7, "a value is missing"),
        ('task:"a b', 5, 'a quoted value ends with "'),
        (r'task:"a\"', 5, 'a quoted value ends with "'),
        (r'task:"a\n"', 5, r"\\ for a backslash"),
        ('task:a"b"', 6, "put the whole value in quotes"),
        ('task:"a"b', 8, "put the whole value in quotes"),
        ("priority:high", 9, "priority: takes a whole number of 64 bits, not 'high'"),
        ("priority:1.5", 9, "a whole number"),
        ("priority:\N{ARABIC-INDIC DIGIT THREE}", 9, "a whole number"),
        ("priority:1,x", 11, "a whole number"),
        ("priority:9223372036854775808", 9, "a whole number of 64 bits"),
        ("priority>9223372036854775807", 9, "a whole number of 64 bits"),
        ("priority<-9223372036854775808", 9, "a whole number of 64 bits"),
        ("priority>1,2", 11, "priority> takes one value"),
        ("since:1h,2h", 9, "since: takes one value"),
        ("-priority>5", 0, "a comparison takes no minus; write priority<=5"),
        ("-since:2h", 0, "a comparison takes no minus; write created<2h"),
        ("-until:2h", 0, "write created>2h"),
        ("since:-2h", 6, "'-2h' is not a time; write 2h (that long ago)"),
        ("since:+2h", 6, "is not a time"),
        ("finished<+2h", 9, "for due, expires also +10m"),
        ("since:yesterday", 6, "is not a time"),
        ("since:2mo", 6, "is not a time"),
        ("since:101w36500d", 6, "is not a time"),
        ("since:2026-02-30", 6, "is not a time"),
        ("since:1960-01-01", 6, "is not a time"),
        ("due>++1h", 4, "is not a time"),
        ("task:a\0", 6, "NUL"),
        ("task:\ud800", 5, "lone surrogates"),
        ("tag:a " * 51, 300, "at most 50 terms"),
        ("task:" + "a" * 1_996, 2_000, "at most 2,000 characters"),
    ],
)
def test_an_error_shows_the_position_and_the_correct_form(text: str, position: int, why: str) -> None:
    with pytest.raises(QueryError) as refused:
        parse(text)

    assert refused.value.position == position
    assert why in refused.value.why
    assert str(refused.value).splitlines()[-1].endswith("^")
    assert isinstance(refused.value, ErrandryError)
    str(refused.value).encode()


def test_the_largest_query_is_parsed() -> None:
    assert len(parse(" ".join(f"tag:{n}" for n in range(50))).tags) == 50
    assert parse("task:" + "a" * 1_995).matches(make_job(task="a" * 1_995), NOW)


def test_a_query_whose_canonical_text_is_too_long_is_refused() -> None:
    text = "until:2026-01-31 task:" + "a" * 1_978  # until:… becomes created<=…T00:00:00Z

    assert len(text) == 2_000
    with pytest.raises(QueryError, match="2,000 characters"):
        parse(text)


# A second implementation of the language, term by term and without a normal form, to compare with.


class Term(NamedTuple):
    negative: bool
    field: str
    op: str
    values: tuple[str, ...]

    def __str__(self) -> str:
        return f"{'-' * self.negative}{self.field}{self.op}{','.join(map(quote, self.values))}"

    def matches(self, job: JobRecord) -> bool:
        return any(self._matches(job, value) for value in self.values) != self.negative

    def _matches(self, job: JobRecord, wanted: str) -> bool:
        if self.field in AGES:
            return compare(job.created_at, AGES[self.field], MOMENTS[wanted])
        if self.field in TIMES:
            return compare(getattr(job, TIMES[self.field]), self.op, MOMENTS[wanted])
        if self.field == "error":
            return any(fold(wanted) in fold(f"{e.type}: {e.message}") for e in job.errors)
        if self.field == "tag":
            return wanted in job.tags
        value = getattr(job, self.field)
        if self.op == "~":
            return value is not None and fold(wanted) in fold(value)
        return value == wanted if self.field not in NUMBERS else compare(value, self.op, int(wanted))


def compare(value: float | None, op: str, limit: float) -> bool:
    if value is None:
        return False
    return {
        ":": value == limit,
        ">": value > limit,
        ">=": value >= limit,
        "<": value < limit,
        "<=": value <= limit,
    }[op]


def fold(text: str) -> str:
    return "".join(chr(ord(letter) + 32) if "A" <= letter <= "Z" else letter for letter in text)


MOMENTS = {
    "0": NOW,
    "1h": NOW - HOUR,
    "2h": NOW - 2 * HOUR,
    "1h0.1s": NOW - 3_600.1,
    "2026-01-31T08:00": NOW,
    "2026-01-31T08:00+01:00": NOW - HOUR,
    "2026-01-31 06:00:00Z": NOW - 2 * HOUR,
    "+10m": NOW + 600,
}
PAST = [text for text in MOMENTS if not text.startswith("+")]
WORDS = ["a", "A", "ab", "Ab c", "ä", "Ä", "ß", "K", 'q"q', "x,y", "\\", "-", "%", "_", "İ"]

words = st.sampled_from(WORDS)
numbers = st.integers(-2, 2)
times = st.sampled_from(
    [t for at in {*MOMENTS.values()} for t in (at, nextafter(at, -inf), nextafter(at, inf))]
)


def terms() -> st.SearchStrategy[Term]:
    return st.sampled_from([(field, op) for field, ops in OPERATORS.items() for op in ops]).flatmap(
        lambda head: st.builds(Term, *_parts(*head))
    )


def _parts(field: str, op: str) -> Iterator[st.SearchStrategy[Any]]:
    ranged = field in (*TIMES, *AGES) or op not in (":", "~")
    yield st.just(False) if ranged else st.booleans()
    yield st.just(field)
    yield st.just(op)
    if field in CHOICES:
        value = st.sampled_from(CHOICES[field])
    elif field in NUMBERS:
        value = numbers.map(str)
    elif field in (*TIMES, *AGES):
        value = st.sampled_from([*MOMENTS] if field == "due" else PAST)
    else:
        value = words
    yield st.lists(value, min_size=1, max_size=1 if ranged else 3).map(tuple)


queries = st.lists(terms(), max_size=6)
jobs = st.builds(
    make_job,
    **dict.fromkeys(("id", "task", "queue", "group", "payload"), words),
    **{field: st.none() | words for field in ("worker", "result")},
    **dict.fromkeys(NUMBERS, numbers),
    **{field: st.none() | times for field in ("finished_at", "run_at")},
    created_at=times,
    state=st.sampled_from(State),
    reason=st.none() | st.sampled_from(Reason),
    tags=st.lists(words, max_size=3).map(tuple),
    errors=st.lists(st.builds(failure, words, words), max_size=2).map(tuple),
)


@given(queries, jobs)
@example(
    [Term(False, "created", ">", ("1h",)), Term(False, "created", ">=", ("1h",))],
    make_job(created_at=NOW - HOUR),
)
def test_a_query_matches_exactly_if_all_terms_match(wanted: list[Term], job: JobRecord) -> None:
    query = parse(" ".join(map(str, wanted)))

    assert query.matches(job, NOW) == all(term.matches(job) for term in wanted)


@given(queries, st.randoms())
def test_order_and_repetition_do_not_change_a_query(wanted: list[Term], random: Any) -> None:
    mixed = random.sample([*wanted, *wanted], 2 * len(wanted))

    assert parse(" ".join(map(str, mixed))) == parse("\n".join(map(str, wanted)))


@given(queries)
def test_the_canonical_text_is_parsed_to_an_equal_query(wanted: list[Term]) -> None:
    query = parse(" ".join(map(str, wanted)))

    assert parse(str(query)) == query
    assert str(parse(str(query))) == str(query)


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=50))
def test_any_value_can_be_quoted(value: str) -> None:
    assert parse(f"task:{quote(value)}") == Query(within=(("task", (value,)),))


SCRAPS = [
    *OPERATORS,
    *':~<>-+,"\\ =\n\0\ud800',
    "\N{ARABIC-INDIC DIGIT THREE}",
    ">=",
    "failed",
    "2h",
    "2026-01-31",
    "1",
    "a",
]


@given(st.lists(st.sampled_from(SCRAPS), max_size=12).map("".join) | st.text())
def test_any_text_is_a_query_or_a_query_error(text: str) -> None:
    try:
        query = parse(text)
    except QueryError as refused:
        position, canonical = refused.position, str(refused)
    else:
        position, canonical = 0, str(query)
        assert parse(canonical) == query
    assert 0 <= position <= len(text)
    assert canonical.encode().decode() == canonical


# As in an SQL driver: one static statement for every query, to which only `params` are bound.

IS_IN = """(:{f}_in IS NULL OR "{f}" IN (SELECT value FROM json_each(:{f}_in)))
    AND (:{f}_not_in IS NULL OR "{f}" IS NULL OR "{f}" NOT IN (SELECT value FROM json_each(:{f}_not_in)))"""
CONTAINS = """NOT EXISTS (SELECT 1 FROM json_each(:{f}_has) AS need WHERE NOT EXISTS (
        SELECT 1 FROM json_each(need.value) AS needle, {texts} WHERE instr(lower({text}), needle.value)))
    AND NOT EXISTS (
        SELECT 1 FROM json_each(:{f}_lacks) AS needle, {texts} WHERE instr(lower({text}), needle.value))"""
TAGGED = """NOT EXISTS (SELECT 1 FROM json_each(:tags_all) AS need WHERE NOT EXISTS (
        SELECT 1 FROM json_each(tags) AS tag WHERE tag.value IN (SELECT value FROM json_each(need.value))))
    AND NOT EXISTS (
        SELECT 1 FROM json_each(tags) AS tag WHERE tag.value IN (SELECT value FROM json_each(:tags_none)))"""
RANGE = "(:{f}_min IS NULL OR {column} >= :{f}_min) AND (:{f}_max IS NULL OR {column} <= :{f}_max)"
ERRORS = {
    "texts": "json_each(errors) AS e",
    "text": "(e.value ->> 'type') || ': ' || (e.value ->> 'message')",
}
COLUMNS = [*NAMES, *CHOICES, *NUMBERS, "payload", "result", "tags", "errors", *TIMES.values()]
STATEMENT = "SELECT count(*) FROM jobs WHERE " + "\n    AND ".join(
    [
        *(IS_IN.format(f=field) for field in (*NAMES, *CHOICES, *NUMBERS)),
        *(
            CONTAINS.format(f=f, texts="(SELECT 1)", text=f'jobs."{f}"')
            for f in (*NAMES, "payload", "result")
        ),
        CONTAINS.format(f="error", **ERRORS),
        TAGGED,
        *(RANGE.format(f=field, column=TIMES.get(field, field)) for field in (*NUMBERS, *TIMES)),
    ]
)


@given(queries, jobs)
def test_one_static_statement_with_params_finds_the_same_jobs(wanted: list[Term], job: JobRecord) -> None:
    query = parse(" ".join(map(str, wanted)))
    row = msgspec.to_builtins(job) | {
        "tags": msgspec.json.encode(job.tags).decode(),
        "errors": msgspec.json.encode([{"type": e.type, "message": e.message} for e in job.errors]).decode(),
    }
    columns = ", ".join(f'"{column}"' for column in COLUMNS)
    places = ", ".join(f":{column}" for column in COLUMNS)
    with closing(sqlite3.connect(":memory:")) as database:
        database.execute(f"CREATE TABLE jobs ({columns})")
        database.execute(f"INSERT INTO jobs VALUES ({places})", {column: row[column] for column in COLUMNS})
        [[found]] = database.execute(STATEMENT, query.params(NOW)).fetchall()

    assert bool(found) == query.matches(job, NOW)


def test_every_field_has_its_operators_and_parameters() -> None:
    assert set(OPERATORS) == {*NAMES, *CHOICES, "tag", *DOCUMENTS, *NUMBERS, *TIMES, *AGES}
    assert len(PARAMS) == len(set(PARAMS)) == 56
    assert set(CHOICES["state"]) == set(State)
    assert set(CHOICES["reason"]) == set(Reason)
