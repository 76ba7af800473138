"""Limits and checks of single values."""

import json
import re
from collections.abc import Callable
from math import inf, nan
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from errandry.core import check
from errandry.errors import InvalidValue, TooLarge

names = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=check.NAME_MAX)
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
values = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | texts
    | st.integers(-(2**63), 2**63 - 1),
    lambda inner: st.lists(inner) | st.dictionaries(texts, inner),
)  # fmt: skip


def refused(check_value: Callable[..., Any], *arguments: Any) -> InvalidValue:
    with pytest.raises(InvalidValue) as caught:
        check_value("field", *arguments)
    assert caught.value.name == "field"
    assert len(str(caught.value)) < 300
    return caught.value


# Documents.


@given(values, st.booleans(), st.sampled_from([None, 1, "\t"]))
def test_json_is_accepted_and_returned_unchanged(value: Any, ascii_only: bool, indent: Any) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)

    assert check.document("field", text) is text


@given(st.text() | st.text('[]{}",:0123456789.eE+-\\/unltrfasd \n\x00\ud800', max_size=12))
@example("01")
@example("1.")
@example("-")
@example("[1,]")
@example('"\\ud800"')
@example('"\\udc00\\ud83d"')
@example('"\\ud83d\\ude00"')
@example('"\\u0000"')
@example('"\\\\u0000"')
@example('{"a":NaN}')
@example("-Infinity")
@example("1e308")
@example("1e309")
@example("-1E+00309")
@example("1e-9999")
@example("9223372036854775807")
@example("9223372036854775808")
@example("-9223372036854775808")
@example("-9223372036854775809")
@example("0.12345678901234567890123")
@example("1" * 400)
@example("\ufeff1")
@example(" 1 ")
@example("\x0b1")
def test_text_is_accepted_exactly_if_it_survives_a_round_trip(text: str) -> None:
    try:
        accepted = check.document("field", text) == text
    except InvalidValue:
        accepted = False

    assert accepted == survives(text)


def survives(text: str) -> bool:
    """The same rule, implemented slowly with the standard library: strict JSON, finite, 64 bit, storable."""
    try:
        text.encode()
        value = json.loads(text, parse_constant=_refuse_constant, parse_int=_in_64_bit, parse_float=_finite)
        return "\0" not in json.dumps(value, ensure_ascii=False).encode().decode() and not _holds_nul(value)
    except ValueError:
        return False


def _holds_nul(value: Any) -> bool:
    if isinstance(value, dict):
        return any(_holds_nul(item) for pair in value.items() for item in pair)
    if isinstance(value, list):
        return any(map(_holds_nul, value))
    return isinstance(value, str) and "\0" in value


def _refuse_constant(word: str) -> None:
    raise ValueError(word)


def _in_64_bit(digits: str) -> int:
    if not -(2**63) <= int(digits) < 2**63:
        raise ValueError(digits)
    return int(digits)


def _finite(digits: str) -> float:
    if abs(float(digits)) == inf:
        raise ValueError(digits)
    return float(digits)


@pytest.mark.parametrize("brackets", ["[]", "{}"])
@pytest.mark.parametrize("depth", [100, 101, 100_000])
def test_documents_nest_at_most_100_levels_deep(brackets: str, depth: int) -> None:
    opening = brackets[0] if brackets == "[]" else '{"a":'
    text = opening * depth + "1" + brackets[1] * depth

    if depth == 100:
        assert check.document("field", text) == text
    else:
        assert "100 levels" in str(refused(check.document, text))


@pytest.mark.parametrize(
    "text", [json.dumps(["[{" * 500]), json.dumps(['\\"[{' * 500]), json.dumps([[]] * 500)]
)
def test_brackets_in_strings_and_in_sequence_do_not_count_as_depth(text: str) -> None:
    assert check.document("field", text) == text


@pytest.mark.parametrize("value", [None, 1, b"{}", {"a": 1}, ["a"]])
def test_a_document_must_be_text(value: Any) -> None:
    assert "JSON text" in str(refused(check.document, value))


def test_the_error_says_why_a_document_is_refused() -> None:
    assert "beyond 64 bit: pass it as text" in str(refused(check.document, str(2**63)))
    assert "NUL" in str(refused(check.document, '{"a":["\\u0000"]}'))
    assert "must be JSON" in str(refused(check.document, "{to: bob}"))


# Sizes.


@given(st.text(st.characters(exclude_categories=["Cs"])), st.integers(0, 40))
def test_sizes_count_bytes_in_utf_8(text: str, bound: int) -> None:
    size = len(text.encode())

    if size <= bound:
        assert check.size("field", text, bound) is text
    else:
        error = refused(check.size, text, bound)
        assert isinstance(error, TooLarge)
        assert (error.size, error.bound) == (size, bound)


# Names.


@given(names)
def test_a_printable_name_is_accepted(name: str) -> None:
    assert check.name("field", name) == name


@given(
    st.text(max_size=5),
    st.sampled_from("\0\n\r\t\x1b\x7f\u200b\u2028\u202e\ud800\ue000"),
    st.text(max_size=5),
)
def test_a_name_with_an_invisible_character_is_refused(before: str, bad: str, after: str) -> None:
    refused(check.name, f"x{before}{bad}{after}")


@pytest.mark.parametrize("name", ["", " ", "\t", "x" * 201, "x" * 10_000, None, 7, b"name", ["name"]])
def test_an_empty_or_long_name_or_another_type_is_refused(name: Any) -> None:
    refused(check.name, name)


def test_a_name_may_have_200_characters_and_spaces_inside() -> None:
    for name in ("x" * 200, "ü" * 200, "send mail", "a/b:c-d_e.f", "郵便", "😀"):
        assert check.name("field", name) == name


# Free text.


@given(st.text(), st.integers(30, 200))
def test_free_text_is_made_storable_and_truncated(text: str, bound: int) -> None:
    stored = check.storable_text(text, bound)

    assert len(stored) <= bound
    assert not re.search("[\x00\ud800-\udfff]", stored)
    if len(text) <= bound:
        assert stored == re.sub("[\x00\ud800-\udfff]", "\ufffd", text)
    else:
        assert stored[:5] == re.sub("[\x00\ud800-\udfff]", "\ufffd", text[:5])
        assert stored.endswith(" more")


def test_truncated_text_says_how_much_is_missing() -> None:
    assert check.storable_text("x" * 1_100, 100) == "x" * 80 + "… 1,020 more"


# Numbers and times.


@pytest.mark.parametrize("value", [0, 1, 0.5, 86_400 * 365 * 100])
def test_a_span_is_from_zero_to_a_century(value: float) -> None:
    assert check.span("field", value) == value
    assert type(check.span("field", value)) is float


@pytest.mark.parametrize(
    "value",
    [-1, -0.001, nan, inf, -inf, "1", None, True, 86_400 * 365 * 101, pytest.param(10**400, id="huge")],
)
def test_other_spans_are_refused(value: Any) -> None:
    refused(check.span, value)


@pytest.mark.parametrize("value", [0, 1_750_000_000.25, 1e11])
def test_an_instant_is_seconds_since_1970(value: float) -> None:
    assert check.instant("field", value) == value
    assert type(check.instant("field", value)) is float


@pytest.mark.parametrize(
    "value", [-1, nan, inf, "2026-01-31", None, True, 1.1e11, pytest.param(10**400, id="huge")]
)
def test_other_instants_are_refused(value: Any) -> None:
    refused(check.instant, value)


def test_a_whole_number_is_within_its_limits() -> None:
    assert [check.whole("field", value, -1, 2) for value in (-1, 0, 2)] == [-1, 0, 2]


@pytest.mark.parametrize("value", [-2, 3, 0.0, "0", None, True, 2**70])
def test_other_whole_numbers_are_refused(value: Any) -> None:
    refused(check.whole, value, -1, 2)
