"""`errandry queues stats`."""

import json

from tests.cli.conftest import Cli, Place


def test_what_happened_lately(cli: Cli, place: Place) -> None:
    place.enqueue(queue="mail")
    place.enqueue("send", {"to": "nobody"}, queue="mail", max_attempts=1)
    place.enqueue(queue="other")
    place.work()

    shown = cli("queues", "stats", "--last", "1h")
    lines = [line.split() for line in shown.out.splitlines()]
    assert lines[0][:4] == ["QUEUE", "COMPLETED", "FAILED", "RETRIED"]
    assert lines[1][:4] == ["mail", "1", "1", "0"]
    assert lines[2][:4] == ["other", "1", "0", "0"]

    told = [
        json.loads(line)
        for line in cli("--json", "queues", "stats", "--last", "1h", "--by", "task").out.splitlines()
    ]
    assert [(one["task"], one["completed"], one["failed"]) for one in told] == [("send", 2, 1)]
    assert told[0]["wait"]["p99"] > 0


def test_what_ever_happened(cli: Cli, place: Place) -> None:
    place.enqueue(queue="mail")
    place.work()

    assert cli("queues", "stats").out.splitlines()[1].split()[:3] == ["mail", "1", "1"]


def test_nothing_happened(cli: Cli, place: Place) -> None:
    place.enqueue(queue="mail")

    assert "Nothing happened" in cli("queues", "stats", "--last", "1h", "--queue", "none").err


def test_a_time_that_is_none(cli: Cli, place: Place) -> None:
    place.enqueue()
    assert "--last" in cli("queues", "stats", "--last", "soon").err
    refused = cli("queues", "stats", "--task", "send")
    assert (refused.code, "go with --last" in refused.err) == (2, True)
