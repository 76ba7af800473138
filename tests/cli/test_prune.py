"""`errandry prune`, and how many finished jobs are kept."""

from pathlib import Path

from errandry.core.job import Keep
from tests.cli.conftest import Cli, Place


def test_what_has_expired_is_counted_asked_about_and_removed(cli: Cli, place: Place) -> None:
    place.enqueue(id="old", keep=0.001)
    place.enqueue(id="new")
    place.ask(place.jobs.resolve, "old", "new")

    assert "1 job will be removed." in cli("prune").err
    seen = cli("prune", "--dry-run")
    assert (seen.err, seen.out) == ("1 job would be removed.\n", "old\n")
    assert cli("prune", "--yes").out == "1 job removed.\n"
    assert cli("prune", "--yes").err == "No job that matches can be removed.\n"


def test_a_query_prunes_finished_jobs_only(cli: Cli, place: Place) -> None:
    place.enqueue(id="done")
    place.enqueue(id="waits")
    place.ask(place.jobs.resolve, "done")

    assert cli("prune", "task:send", "--yes", "--json").data == [{"id": "done", "answer": "moved"}]
    assert cli("prune", "stat:failed").code == 2


def test_with_an_app_its_archive_sees_them(cli: Cli, place: Place, folder: Path) -> None:
    shop = folder / "shop.py"
    shop.write_text(
        shop.read_text()
        + """
from pathlib import Path


@jobs.archive
def archive(records):
    Path("archive.txt").write_text("".join(record.id for record in records))
"""
    )
    place.enqueue(id="done")
    place.ask(place.jobs.resolve, "done")

    assert cli("prune", "task:send", "--yes", "--app", "shop:jobs").out == "1 job removed.\n"
    assert (folder / "archive.txt").read_text() == "done"


def test_how_many_are_kept_can_be_said_when_enqueueing(cli: Cli, place: Place) -> None:
    for number, words in enumerate(([], ["--keep", "1h"])):
        assert (
            cli("enqueue", "send", "--json", "{}", "--id", f"j{number}", "--keep-last", "5", *words).code == 0
        )

    kept = [place.ask(place.jobs.record, f"j{number}").keep for number in range(2)]
    last = Keep(last_completed=5, last_failed=5, last_canceled=5)
    assert kept == [last, Keep(3_600.0, 3_600.0, 3_600.0, 5, 5, 5)]
    assert "must be a whole number from 1" in cli("enqueue", "send", "--keep-last", "0").err
