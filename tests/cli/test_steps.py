"""`errandry jobs steps` and `jobs signal`."""

from tests.cli.conftest import Cli, Shop


def test_steps_and_signals_of_a_job(cli: Cli, shop: Shop) -> None:
    job = shop.enqueue(id="order", delay="1 hour")
    assert cli("jobs", "steps", "order").err == "The job has no steps.\n"

    sent = cli("jobs", "signal", "order", "approval", "--payload", '{"by": "ann"}')
    again = cli("jobs", "signal", "order", "approval")

    assert (sent.code, sent.out) == (0, "Signal sent.\n")
    assert (again.code, again.out) == (0, "The job has this signal already; the first one counts.\n")
    title, line = cli("jobs", "steps", job.id).out.splitlines()
    assert title.split() == ["NAME", "KIND", "WHEN", "RESULT"]
    assert line.split(maxsplit=4) == ["approval", "signal", "just", "now", '{"by": "ann"}']
    [data] = cli("--json", "jobs", "steps", "order").data
    assert (data["name"], data["kind"], data["result"]) == ("approval", "signal", {"by": "ann"})
    [answer] = cli("jobs", "signal", "order", "approval", "--json").data
    assert answer == {"id": "order", "signal": "approval", "answer": "already"}


def test_a_signal_to_a_finished_job_is_refused(cli: Cli, shop: Shop) -> None:
    shop.enqueue(id="done", arguments={"to": "ada"})
    shop.work()

    refused = cli("jobs", "signal", "done", "approval")

    assert refused.code == 1
    assert "cannot signal job done: it is completed" in refused.err


def test_a_rerun_from_the_start_forgets_the_steps(cli: Cli, shop: Shop) -> None:
    shop.enqueue(id="order", arguments={"to": "unknown"}, max_attempts=1)
    cli("jobs", "signal", "order", "approval")
    shop.work()

    cli("jobs", "rerun", "order", "--from-start")

    assert cli("jobs", "steps", "order").err == "The job has no steps.\n"
