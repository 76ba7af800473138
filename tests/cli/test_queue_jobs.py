"""`errandry queues purge`, `clean`, `rerun`, `promote`, `move` and `obliterate`."""

import pytest

from errandry.cli import bulk_action, queue_jobs  # noqa: F401 - imported later, it would keep a patched `confirm`
from errandry.core.command import Claim
from errandry.core.gate import GateKind
from tests.cli.conftest import Cli, Shop


@pytest.fixture
def stocked(shop: Shop) -> Shop:
    """A completed, a failed, a waiting and a scheduled job in the queue mail, and one in another queue."""
    shop.enqueue(queue="mail", id="done")
    shop.enqueue("send", {"to": "unknown"}, queue="mail", id="failed", max_attempts=1)
    shop.work()
    shop.enqueue(queue="mail", id="waits")
    shop.enqueue(queue="mail", id="later", delay=3_600)
    shop.enqueue(queue="other", id="other")
    return shop


def counts(shop: Shop) -> dict[str, dict[str, int]]:
    by_queue: dict[str, dict[str, int]] = shop.call(shop.jobs.counts)
    return {queue: states for queue, states in by_queue.items() if states}


def test_a_queue_is_purged_after_confirmation(cli: Cli, stocked: Shop) -> None:
    asked = cli("queues", "purge", "mail")
    assert (asked.code, "2 jobs will be removed." in asked.err) == (2, True), asked.err
    preview = cli("queues", "purge", "mail", "--dry-run")
    assert (preview.err, preview.out.split()) == ("2 jobs would be removed.\n", ["later", "waits"])

    assert cli("queues", "purge", "mail", "--state", "scheduled", "--yes").out == "1 job removed.\n"
    assert cli("queues", "purge", "mail", "--yes").out == "1 job removed.\n"

    assert counts(stocked) == {"mail": {"completed": 1, "failed": 1}, "other": {"waiting": 1}}
    assert cli("queues", "purge", "mail", "--yes").err == "No matching job can be removed.\n"


def test_a_queue_is_cleaned(cli: Cli, stocked: Shop) -> None:
    assert cli("queues", "clean", "mail", "--older", "1h", "--yes").out == ""
    assert cli("queues", "clean", "mail", "--state", "failed", "--yes", "--json").data == [
        {"id": "failed", "answer": "moved"}
    ]
    assert cli("queues", "clean", "mail", "--yes").out == "1 job removed.\n"
    assert counts(stocked)["mail"] == {"scheduled": 1, "waiting": 1}


def test_failed_jobs_are_rerun_and_scheduled_ones_promoted(cli: Cli, stocked: Shop) -> None:
    assert cli("queues", "rerun", "mail", "task:nothing", "--yes").code == 0
    assert cli("queues", "rerun", "mail", "--delay", "5m", "--yes").out == "1 job enqueued again.\n"
    assert cli("queues", "promote", "mail", "id:later", "--yes").out == "1 job promoted.\n"
    assert cli("queues", "promote", "mail", "--yes").out == "1 job promoted.\n"
    assert counts(stocked)["mail"] == {"completed": 1, "waiting": 3}


def test_jobs_are_moved_to_another_queue(cli: Cli, stocked: Shop) -> None:
    assert cli("queues", "move", "mail", "bulk", "--yes").out == "2 jobs moved to bulk.\n"
    assert cli("jobs", "edit", "waits", "--queue", "other").code == 0

    assert counts(stocked) == {
        "bulk": {"scheduled": 1},
        "mail": {"completed": 1, "failed": 1},
        "other": {"waiting": 2},
    }
    stats = {line["queue"]: line for line in cli("queues", "stats", "--json").data}
    assert (stats["mail"]["moved_out"], stats["bulk"]["moved_in"], stats["bulk"]["moved_out"]) == (2, 2, 1)


def test_a_queue_is_obliterated(cli: Cli, stocked: Shop) -> None:
    cli("queues", "limit", "mail", "3")
    assert "The queue mail and its 4 jobs will be removed." in cli("queues", "obliterate", "mail").err
    assert len(cli("queues", "obliterate", "mail", "--dry-run").out.split()) == 4

    assert cli("queues", "obliterate", "mail", "--yes").out == "4 jobs removed.\n"

    assert counts(stocked) == {"other": {"waiting": 1}}
    assert stocked.call(stocked.jobs.rules) == []


def test_a_queue_in_use_is_obliterated_by_force_only(cli: Cli, stocked: Shop) -> None:
    stocked.call(stocked.jobs.engine.submit, Claim(worker="w", nonce="n", queues=("mail",)))

    refused = cli("queues", "obliterate", "mail", "--yes")

    assert (refused.code, "workers have one of its jobs" in refused.err) == (1, True), refused.err
    assert stocked.call(stocked.jobs.paused)[GateKind.QUEUE] == {}
    assert cli("queues", "obliterate", "mail", "--force", "--yes").out == "4 jobs removed.\n"


def test_a_job_that_no_longer_matches_after_the_count_is_left_alone(
    cli: Cli, stocked: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def meanwhile(*_: object) -> None:
        await stocked.jobs.cancel("waits")

    monkeypatch.setattr(bulk_action, "confirm", meanwhile)

    assert cli("queues", "purge", "mail").out == "1 job removed, 1 no longer matched.\n"
