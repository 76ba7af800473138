"""`errandry jobs steps` and `jobs signal`."""

from tests.cli.conftest import Cli, Place


def test_steps_and_signals_of_a_job(cli: Cli, place: Place) -> None:
    job = place.enqueue(id="order", delay="1 hour")
    assert cli("jobs", "steps", "order").err == "It has no steps.\n"

    told = cli("jobs", "signal", "order", "approval", "--json", '{"by": "ann"}')
    again = cli("jobs", "signal", "order", "approval")

    assert (told.code, told.out) == (0, "The job was told.\n")
    assert (again.code, again.out) == (0, "The job had been told before: that stays.\n")
    title, line = cli("jobs", "steps", job.id).out.splitlines()
    assert title.split() == ["NAME", "KIND", "WHEN", "RESULT"]
    assert line.split(maxsplit=4) == ["approval", "signal", "just", "now", '{"by": "ann"}']
    [data] = cli("--json", "jobs", "steps", "order").data
    assert (data["name"], data["kind"], data["result"]) == ("approval", "signal", {"by": "ann"})
    [answer] = cli("--json", "jobs", "signal", "order", "approval").data
    assert answer == {"id": "order", "signal": "approval", "answer": "already"}


def test_a_job_that_has_finished_is_told_nothing(cli: Cli, place: Place) -> None:
    place.enqueue(id="done", arguments={"to": "ada"})
    place.work()

    refused = cli("jobs", "signal", "done", "approval")

    assert refused.code == 1
    assert "cannot signal job done: it is completed" in refused.err


def test_a_rerun_from_the_start(cli: Cli, place: Place) -> None:
    place.enqueue(id="order", arguments={"to": "nobody"}, max_attempts=1)
    cli("jobs", "signal", "order", "approval")
    place.work()

    cli("jobs", "rerun", "order", "--from-start")

    assert cli("jobs", "steps", "order").err == "It has no steps.\n"
