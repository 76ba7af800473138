"""The log of `errandry worker` as text and as JSON."""

import json
import logging
import re
import sys
from datetime import datetime
from typing import Any

import pytest

from errandry import Errandry
from errandry.cli.log_format import JsonFormatter, TextFormatter, configure_logging
from errandry.testing import drain
from tests.app_fixtures import clock, jobs

__all__ = ["clock", "jobs"]


def make_record(text: str, *args: Any, **fields: Any) -> logging.LogRecord:
    record = logging.getLogger("shop").makeRecord("shop", logging.WARNING, __file__, 1, text, args, None)
    record.__dict__.update(fields)
    return record


def raised_record(error: Exception) -> logging.LogRecord:
    try:
        raise error
    except ValueError:
        return make_record("failed", exc_info=sys.exc_info())


def test_a_text_line_has_time_level_and_message() -> None:
    line = TextFormatter().format(make_record("to %s", "ada"))

    assert re.fullmatch(r"\d\d:\d\d:\d\d WARNING to ada", line)


def test_a_text_line_shows_no_control_characters_of_its_arguments() -> None:
    line = TextFormatter().format(make_record("to %s", "\x1b[31m\r\n12:00:00 INFO ada\ud800\x9b"))

    assert line.endswith("to \\x1b[31m\\r\\n12:00:00 INFO ada\\ud800\\x9b")


def test_a_text_line_keeps_the_beginning_and_the_end_of_a_long_message() -> None:
    line = TextFormatter().format(make_record("begin %s end", "x" * 10_000_000))

    assert "begin xxx" in line
    assert line.endswith("xxx end")
    assert len(line) < 5_000


def test_a_traceback_in_a_text_log_is_indented_so_that_it_cannot_forge_a_line() -> None:
    first, *rest = TextFormatter().format(raised_record(ValueError("\x1b[0m\n12:00:00 forged"))).split("\n")

    assert first.endswith(" failed")
    assert rest[0] == "    Traceback (most recent call last):"
    assert rest[-2:] == ["    ValueError: \\x1b[0m", "    12:00:00 forged"]


@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()])
def test_a_long_traceback_is_cut(formatter: logging.Formatter) -> None:
    assert len(formatter.format(raised_record(ValueError("x" * 10_000_000)))) < 20_000


def test_a_json_line_is_one_object() -> None:
    line = JsonFormatter().format(make_record("to %s", 'ada\n"\x1b\ud800'))

    assert "\n" not in line
    assert "\x1b" not in line
    entry = json.loads(line)
    assert datetime.fromisoformat(entry.pop("time")).tzinfo is not None
    assert entry == {"level": "warning", "logger": "shop", "message": 'to ada\n"\x1b\ud800'}


def test_a_json_line_has_what_the_program_adds() -> None:
    added = {
        "amount": 5,
        "rate": float("nan"),
        "huge": 2**70,
        "who": {"ada"},
        "message": "x",
        "time": "never",
    }
    entry = json.loads(JsonFormatter().format(make_record("paid", **added)))

    assert (entry["amount"], entry["rate"], entry["huge"], entry["who"]) == (5, "nan", str(2**70), "{'ada'}")
    assert entry["time"] != "never"


async def test_json_lines_of_a_handler_name_its_job(jobs: Errandry) -> None:
    lines = list[str]()

    @jobs.task(queue="mail")
    async def send() -> None:
        lines.append(JsonFormatter().format(make_record("sending")))

    job = await send.enqueue()
    await drain(jobs)

    [entry] = map(json.loads, lines)
    assert (entry["job"], entry["task"], entry["queue"], entry["attempt"]) == (job.id, "send", "mail", 1)


def test_the_logging_of_an_app_stays_and_an_option_without_effect_is_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    before = [*logging.getLogger().handlers]
    configure_logging("info", "text")
    configure_logging("info", "json")

    assert logging.getLogger().handlers == before
    assert caplog.messages == ["the app has configured logging, so --log-format json has no effect"]
