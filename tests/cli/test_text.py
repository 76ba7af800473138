"""Text and tables: control characters are escaped, and tables fit the terminal."""

import json
import os
import time
from typing import Any

import pytest

from errandry.cli.job_arguments import query
from errandry.cli.session import Session
from errandry.cli.table import Cell, Column, lines
from errandry.cli.text import ago, local_time, pluralize, short_id, to_json, truncate, width, wrap
from errandry.core.printable import clean, one_line


@pytest.mark.parametrize(
    ("stored", "shown"),
    [
        ("plain ä 漢 🙂", "plain ä 漢 🙂"),
        ("two\nlines\tand a tab", "two\nlines\tand a tab"),
        ("\x1b[2J", "\\x1b[2J"),
        ("\x07\x7f\x9b\r", "\\x07\\x7f\\x9b\\r"),
        ("\u202edrow", "\\u202edrow"),
        ("\u2028", "\\u2028"),
        ("\ud800", "\\ud800"),
    ],
)
def test_invisible_characters_are_escaped(stored: str, shown: str) -> None:
    assert clean(stored) == shown
    assert one_line(stored) == shown.replace("\n", "\\n").replace("\t", "\\t")


@pytest.mark.parametrize("value", ["\x1b\x9b\x7f\u202e", {"a\x1b": ["ä", None, 1.5]}, "\n\t"])
def test_json_is_printable_and_decodes_to_the_same_value(value: Any) -> None:
    text = to_json(value)

    assert text.isprintable()
    assert json.loads(text) == value
    assert json.loads(to_json(value, indent=2)) == value


@pytest.mark.parametrize(
    ("job_id", "shown"),
    [
        ("01a1df0a-a706-7828-99b3-bb7fb9b39ad2", "bb7fb9b39ad2"),
        ("order-17", "order-17"),
        ("01A1DF0A-A706-7828-99B3-BB7FB9B39AD2", "01A1DF0A-A706-7828-99B3-BB7FB9B39AD2"),
    ],
)
def test_generated_ids_are_shortened_to_their_end(job_id: str, shown: str) -> None:
    assert short_id(job_id) == shown


@pytest.mark.parametrize(
    ("at", "text"),
    [(None, ""), (100.0, "just now"), (99.5, "just now"), (90.0, "10 s ago"), (400.0, "in 5 min")],
)
def test_times_are_shown_relative_to_now(at: float | None, text: str) -> None:
    assert ago(at, 100.0) == text


def test_times_are_shown_in_the_local_time_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    before = os.environ.get("TZ")
    try:
        monkeypatch.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        assert local_time(0.0) == "1970-01-01 09:00:00"
    finally:
        monkeypatch.undo()
        time.tzset()
    assert os.environ.get("TZ") == before


def test_nouns_agree_with_their_number() -> None:
    assert (pluralize(1, "job"), pluralize(2_000, "job"), pluralize(2, "child", "children")) == (
        *("1 job", "2,000 jobs"),
        "2 children",
    )


@pytest.mark.parametrize(
    ("text", "room", "shown"),
    [
        ("short", 5, "short"),
        ("longer", 5, "long…"),
        ("漢字漢字", 5, "漢字…"),
        ("abc", 1, "…"),
        ("abc", 0, ""),
    ],
)
def test_a_text_is_cut_to_the_available_columns(text: str, room: int, shown: str) -> None:
    assert truncate(text, room) == shown
    assert width(shown) <= room


COLUMNS = [
    Column("ID"),
    Column("TASK", can_shrink=True),
    Column("N", is_right=True),
    Column("NOTE", can_shrink=True),
]
ROWS = [("a", "resize_picture", "7", "something went very wrong here"), ("b", "send", "1,000", "")]


def test_a_table_is_aligned_and_not_cut_without_a_terminal() -> None:
    assert list(lines(Session(), COLUMNS, ROWS)) == [
        "ID  TASK                N  NOTE",
        "a   resize_picture      7  something went very wrong here",
        "b   send            1,000",
    ]


@pytest.mark.parametrize("room", range(12, 70))
def test_a_table_fits_any_width(room: int) -> None:
    table = list(lines(Session(), COLUMNS, ROWS, room))

    assert max(map(len, table)) <= room
    assert [line.split()[0] for line in table] == ["ID", "a", "b"]


def test_the_last_column_is_left_out_first_on_a_narrow_terminal() -> None:
    assert list(lines(Session(), COLUMNS, ROWS, 22)) == [
        "ID  TASK             N",
        "a   resize_pic…      7",
        "b   send         1,000",
    ]


def test_a_line_break_in_a_cell_is_escaped() -> None:
    [_, line] = lines(Session(), [Column("A"), Column("B")], [("x\ny", Cell("\x1b[1m", "red"))])

    assert line == "x\\ny  \\x1b[1m"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["state:failed", "task:send"], "state:failed task:send"),
        (["state:failed task:send"], "state:failed task:send"),
        (["error~no such"], 'error~"no such"'),
        (['error~"no such"'], 'error~"no such"'),
        (["-payload~to bob"], '-payload~"to bob"'),
        (["due<=2026-01-31 08:00"], 'due<="2026-01-31 08:00"'),
        ([], ""),
    ],
)
def test_a_value_with_spaces_gets_its_quotes_back(words: list[str], text: str) -> None:
    assert query(words) == text


@pytest.mark.parametrize(
    ("text", "room", "wrapped"),
    [
        ("", 5, [""]),
        ("a bc d", 4, ["a bc", "d"]),
        ("abcdef g", 4, ["abcd", "ef g"]),
        ("a bcdefg", 3, ["a", "bcd", "efg"]),
        ("漢字 漢", 3, ["漢", "字", "漢"]),
        ("漢", 1, ["漢"]),
    ],
)
def test_text_is_wrapped_at_spaces_or_within_long_words(text: str, room: int, wrapped: list[str]) -> None:
    assert wrap(text, room) == wrapped


@pytest.mark.parametrize("room", [40, 60, 80])
def test_a_column_that_wraps_loses_nothing_on_a_narrow_terminal(room: int) -> None:
    columns = [Column("KIND"), Column("NAME", can_wrap=True), Column("SET", can_wrap=True)]
    row = "queue", "a-long-name-of-a-queue-of-mails-for-acme", "rate 1000/minute (burst 100) by ada"

    printed = list(lines(Session(), columns, [row, ("task", "send", "limit 5")], room))

    assert max(map(len, printed)) <= room
    text = "".join(printed[1:]).replace(" ", "")
    assert sorted(text) == sorted("".join([*row, "task", "send", "limit5"]).replace(" ", ""))
