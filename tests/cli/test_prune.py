"""`errandry prune`, and the number of finished jobs to keep."""

from pathlib import Path

from errandry.core.job import Keep
from tests.cli.conftest import Cli, Shop


def test_expired_jobs_are_counted_confirmed_and_removed(cli: Cli, shop: Shop) -> None:
    shop.enqueue(id="old", keep=0.001)
    shop.enqueue(id="new")
    shop.call(shop.jobs.resolve, "old", "new")

    assert "1 job will be removed." in cli("prune").err
    preview = cli("prune", "--dry-run")
    assert (preview.err, preview.out) == ("1 job would be removed.\n", "old\n")
    assert cli("prune", "--yes").out == "1 job removed.\n"
    assert cli("prune", "--yes").err == "No matching job can be removed.\n"


def test_a_query_prunes_finished_jobs_only(cli: Cli, shop: Shop) -> None:
    shop.enqueue(id="done")
    shop.enqueue(id="waits")
    shop.call(shop.jobs.resolve, "done")

    assert cli("prune", "task:send", "--yes", "--json").data == [{"id": "done", "answer": "moved"}]
    assert cli("prune", "stat:failed").code == 2


def test_with_an_app_its_archive_gets_the_jobs(cli: Cli, shop: Shop, folder: Path) -> None:
    module = folder / "shop.py"
    module.write_text(
        module.read_text()
        + """
from pathlib import Path


@jobs.archive
def archive(records):
    Path("archive.txt").write_text("".join(record.id for record in records))
"""
    )
    shop.enqueue(id="done")
    shop.call(shop.jobs.resolve, "done")

    assert cli("prune", "task:send", "--yes", "--app", "shop:jobs").out == "1 job removed.\n"
    assert (folder / "archive.txt").read_text() == "done"


def test_the_number_of_jobs_to_keep_is_set_when_enqueueing(cli: Cli, shop: Shop) -> None:
    for number, words in enumerate(([], ["--keep", "1h"])):
        assert (
            cli("enqueue", "send", "--args", "{}", "--id", f"j{number}", "--keep-last", "5", *words).code == 0
        )

    kept = [shop.call(shop.jobs.client.record, f"j{number}").keep for number in range(2)]
    last = Keep(last_completed=5, last_failed=5, last_canceled=5)
    assert kept == [last, Keep(3_600.0, 3_600.0, 3_600.0, 5, 5, 5)]
    assert "must be a whole number from 1" in cli("enqueue", "send", "--keep-last", "0").err
