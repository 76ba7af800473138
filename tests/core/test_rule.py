"""Parsing of rates, and the checks of rules."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from errandry.core.gate import GateKind, Pause, PutRule
from errandry.core.rule import Rate, Rule, rate
from errandry.errors import InvalidValue


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("100/minute", Rate(100, 60.0, 10)),
        ("100/min", Rate(100, 60.0, 10)),
        ("5/s", Rate(5, 1.0, 1)),
        ("1/second", Rate(1, 1.0, 1)),
        ("1_000/h", Rate(1_000, 3_600.0, 100)),
        ("1,000/hour", Rate(1_000, 3_600.0, 100)),
        ("10 / day", Rate(10, 86_400.0, 1)),
        ("100/90s", Rate(100, 90.0, 10)),
        ("100/1h30m", Rate(100, 5_400.0, 10)),
    ],
)
def test_a_rate_is_parsed(text: str, expected: Rate) -> None:
    assert rate(text) == expected


def test_a_rate_can_have_another_burst() -> None:
    assert rate("100/minute", 1) == Rate(100, 60.0, 1)
    assert str(rate("100/minute")) == "100/minute"
    assert str(rate("100/90s")) == "100/90s"


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("1/s", "1/second"),
        ("5/30d", "5/30d"),
        ("100/week", "100/7d"),
        ("10/1234567s", "10/1234567s"),
        ("3/90m", "3/90m"),
        ("3/2h", "3/2h"),
        ("1000/0.25s", "1000/0.25s"),
        ("7/1ms", "7/0.001s"),
        ("1/1234567.891s", "1/1234567.891s"),
    ],
)
def test_a_printed_rate_can_be_read_back(text: str, printed: str) -> None:
    assert str(rate(text)) == printed
    assert rate(printed) == rate(text)


@given(st.integers(1, 10_000_000), st.floats(0.001, 3e9))
def test_every_printed_rate_can_be_read_back(count: int, period: float) -> None:
    one = Rate(count, period, 1)

    assert rate(str(one), 1) == one


def test_a_rate_takes_no_burst_beside_its_own() -> None:
    with pytest.raises(InvalidValue, match=r"^burst=50: a Rate has its own burst \(1\): give it there"):
        rate(Rate(100, 60.0, 1), 50)


def test_an_error_names_the_option_that_was_given() -> None:
    for text, burst, name in (
        ("foo", None, "group_rate"),
        ("0/s", None, "group_rate"),
        ("5/s", 0, "group_burst"),
    ):
        with pytest.raises(InvalidValue) as caught:
            rate(text, burst, "group_rate")
        assert caught.value.name == name


@pytest.mark.parametrize(
    "text",
    ["", "100", "100/", "/minute", "100/fortnight", "x/minute", "1.5/s", 100, None, "-1/s", "0/s", "5/0.1ms"],
)
def test_an_invalid_rate_is_refused_with_an_example(text: object) -> None:
    with pytest.raises(InvalidValue, match=r"100/minute|whole number"):
        rate(text)


@pytest.mark.parametrize(
    "fields",
    [
        {"limit": 0},
        {"limit": 1.5},
        {"group_limit": -1},
        {"max_size": 0},
        {"weight": 0},
        {"weight": 1e9},
        {"ageing": 0},
        {"rate": "100/minute"},
        {"overflow": "refuse"},
        {"on_return": "keep_place"},
    ],
)
def test_an_invalid_rule_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(InvalidValue, match=next(iter(fields))):
        Rule(**fields)  # type: ignore[arg-type]


def test_each_kind_of_gate_allows_only_its_fields() -> None:
    with pytest.raises(InvalidValue, match="a rule of a task has limit, rate"):
        PutRule(GateKind.TASK, "send", Rule(max_size=3))
    with pytest.raises(InvalidValue, match="weight"):
        PutRule(GateKind.QUEUE, "mail", Rule(weight=3))
    with pytest.raises(InvalidValue, match="a rule of a worker has nothing"):
        PutRule(GateKind.WORKER, "w", Rule(limit=3))


def test_only_a_group_gate_has_a_group_key() -> None:
    with pytest.raises(InvalidValue, match="group"):
        Pause(GateKind.QUEUE, "mail", group="acme")
    with pytest.raises(InvalidValue, match="group"):
        Pause(GateKind.GROUP, "mail")
