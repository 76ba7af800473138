"""`errandry queues stats`."""

import json

from tests.cli.conftest import Cli, Shop


def test_recent_counts_and_times(cli: Cli, shop: Shop) -> None:
    shop.enqueue(queue="mail")
    shop.enqueue("send", {"to": "unknown"}, queue="mail", max_attempts=1)
    shop.enqueue(queue="other")
    shop.work()

    shown = cli("queues", "stats", "--last", "1h")
    lines = [line.split() for line in shown.out.splitlines()]
    assert lines[0][:4] == ["QUEUE", "COMPLETED", "FAILED", "RETRIED"]
    assert lines[1][:4] == ["mail", "1", "1", "0"]
    assert lines[2][:4] == ["other", "1", "0", "0"]

    tasks = [
        json.loads(line)
        for line in cli("--json", "queues", "stats", "--last", "1h", "--by", "task").out.splitlines()
    ]
    assert [(task["task"], task["completed"], task["failed"]) for task in tasks] == [("send", 2, 1)]
    assert tasks[0]["wait"]["p99"] > 0


def test_lifetime_totals(cli: Cli, shop: Shop) -> None:
    shop.enqueue(queue="mail")
    shop.work()

    assert cli("queues", "stats").out.splitlines()[1].split()[:3] == ["mail", "1", "1"]


def test_a_queue_without_recent_jobs(cli: Cli, shop: Shop) -> None:
    shop.enqueue(queue="mail")

    assert "Nothing happened" in cli("queues", "stats", "--last", "1h", "--queue", "none").err


def test_an_invalid_time_is_refused(cli: Cli, shop: Shop) -> None:
    shop.enqueue()
    assert "--last" in cli("queues", "stats", "--last", "soon").err
    refused = cli("queues", "stats", "--task", "send")
    assert (refused.code, "need --last" in refused.err) == (2, True)
