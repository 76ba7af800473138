"""`errandry jobs`, `dlq` and `why`: inspect jobs, and change one or many."""

import json
import re
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from errandry import Job
from errandry.api import operations
from errandry.cli import bulk_action
from errandry.core.job import NewJob
from tests.cli.conftest import Cli, Shop
from tests.cli.shell import COMMAND, COMMAND_TIMEOUT, Terminal, run_process


@pytest.fixture
def failed(shop: Shop) -> Job[Any]:
    """A failed job, among others in other states."""
    shop.enqueue(arguments={"to": "ada"}, id="good")
    job = shop.enqueue(arguments={"to": "unknown"}, max_attempts=1)
    shop.work()
    shop.enqueue(id="waits", queue="bulk")
    shop.enqueue(id="sleeps", delay="1 day")
    return job


def states(shop: Shop) -> dict[str, str]:
    return {job.id: str(job.state) for job in shop.call(shop.jobs.list).jobs}


class TestInspecting:
    def test_jobs_are_listed_newest_first(self, cli: Cli, failed: Job[Any]) -> None:
        title, *lines = cli("jobs", "ls").out.splitlines()

        assert title.split() == ["ID", "STATE", "TASK", "QUEUE", "TRY", "WHEN", "NOTE"]
        assert [line.split()[:2] for line in lines] == [
            ["sleeps", "scheduled"],
            ["waits", "waiting"],
            [failed.id, "failed"],
            ["good", "completed"],
        ]
        assert "in 24 h" in lines[0]
        assert lines[2].endswith("LookupError: no such address")

    @pytest.mark.parametrize(
        ("terms", "found"),
        [
            (["state:failed"], 1),
            (["state:failed", "task:send", "since:2h"], 1),
            (["state:failed task:send"], 1),
            (["-state:failed"], 3),
            (["-state:failed", "-queue:bulk"], 2),
            (["error~no such"], 1),
            (["state:failed", "error~no such address", "-tag:a"], 1),
            (["queue:none"], 0),
        ],
    )
    def test_a_query_needs_no_quotes_except_for_the_shell(
        self, cli: Cli, failed: Job[Any], terms: list[str], found: int
    ) -> None:
        assert len(cli("jobs", "ls", "--json", *terms).data) == found

    def test_a_limited_list_says_that_there_are_more(self, cli: Cli, failed: Job[Any]) -> None:
        done = cli("jobs", "ls", "--limit", "2")
        assert (len(done.out.splitlines()), done.err) == (
            3,
            "Showing the newest 2 jobs; for more, use --limit or --all.\n",
        )
        done = cli("jobs", "ls", "--all")
        assert (len(done.out.splitlines()), done.err) == (5, "")

    def test_an_empty_list_prints_a_message(self, cli: Cli, shop: Shop) -> None:
        shop.call(shop.jobs.open)

        assert cli("jobs", "ls").err == "There are no jobs.\n"
        assert cli("jobs", "ls", "state:failed").err == "No job matches.\n"

    def test_everything_known_about_a_job_is_shown(self, cli: Cli, failed: Job[Any]) -> None:
        shown = cli("jobs", "show", failed.id).out

        for text in (
            f"job {failed.id}",
            "state        failed (error)",
            "attempts     1 of 1",
            "progress     50% half way",
            '"to": "unknown"',
            "Attempt 1: error after",
            "Traceback (most recent call last)",
            "LookupError: no such address",
            "Log (1 line)",
            "info     to unknown",
        ):
            assert text in shown

    def test_a_result_is_shown(self, cli: Cli, failed: Job[Any]) -> None:
        assert '"sent to ada"' in cli("jobs", "show", "good").out

    def test_a_job_as_json_has_decoded_arguments_and_result(self, cli: Cli, failed: Job[Any]) -> None:
        good, bad = cli("jobs", "show", "--json", "good", failed.id).data

        assert (good["arguments"], good["result"], good["errors"]) == ({"to": "ada"}, "sent to ada", [])
        assert (bad["state"], bad["errors"][0]["type"]) == ("failed", "LookupError")

    def test_an_id_may_be_shortened(self, cli: Cli, failed: Job[Any]) -> None:
        for part in (failed.id[-12:], failed.id[-6:], failed.id[:23], failed.id[-12:].upper()):
            assert f"job {failed.id}" in cli("jobs", "show", part).out

    def test_an_ambiguous_id_is_refused(self, cli: Cli, shop: Shop) -> None:
        for name in ("mail-0001", "mail-0002"):
            shop.enqueue(id=name)

        done = cli("jobs", "show", "mail-")

        assert (done.code, done.err) == (1, "Error: mail- matches several jobs: mail-0001, mail-0002\n")
        assert "mail-0001" in cli("jobs", "show", "0001").out
        assert cli("jobs", "show", "001").code == 1

    def test_the_log_of_a_job_is_printed(self, cli: Cli, failed: Job[Any]) -> None:
        assert re.fullmatch(
            r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  info     to unknown\n", cli("jobs", "logs", failed.id).out
        )
        assert cli("jobs", "logs", "--json", failed.id).data[0]["text"] == "to unknown"
        assert cli("jobs", "logs", "waits").err == "The log is empty.\n"

    def test_a_log_is_followed_to_the_end_of_the_job(self, shop: Shop) -> None:
        job = shop.enqueue(max_attempts=1)
        following = subprocess.Popen(
            [*COMMAND, "jobs", "logs", "-f", job.id],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert following.stderr is not None
        with following:
            assert following.stderr.readline() == "The log is empty so far.\n"
            shop.work()
            out, err = following.communicate(timeout=COMMAND_TIMEOUT)

        assert following.returncode == 0
        assert out.endswith("to ada\n")
        assert err == "The job is completed.\n"

    def test_why_explains_the_state_of_a_job(self, cli: Cli, failed: Job[Any]) -> None:
        assert "It failed" in cli("why", failed.id[-8:]).out
        assert "No worker is running." in cli("why", "waits").out
        [answer] = cli("why", "--json", "sleeps").data
        assert [because["code"] for because in answer["reasons"]] == ["scheduled"]

    def test_stored_control_characters_are_escaped(self, cli: Cli, shop: Shop) -> None:
        evil = "\x1b[2J\x07\u202e\x9bA\r"
        shop.enqueue(arguments={"to": evil}, id="evil", metadata={"x": evil})
        shop.call(shop.jobs.resolve, "evil", state="failed", message=evil)

        for args in (["ls"], ["show", "evil"], ["ls", "--json"], ["show", "evil", "--json"]):
            out = cli("jobs", *args).out
            assert not set("\x1b\x07\u202e\x9b\r\x7f") & set(out), args
        assert cli("jobs", "show", "--json", "evil").data[0]["arguments"] == {"to": evil}


class TestTerminal:
    def test_a_table_fits_and_shows_the_end_of_ids(
        self, failed: Job[Any], terminal: Callable[..., Terminal]
    ) -> None:
        for columns in (60, 80):
            screen = terminal("jobs", "ls", columns=columns)
            assert screen.wait() == 0
            assert max(map(len, screen.text.splitlines())) <= columns
            assert failed.id[-12:] in screen.text
            assert failed.id not in screen.text

    def test_a_wide_terminal_shows_ids_whole(
        self, failed: Job[Any], terminal: Callable[..., Terminal]
    ) -> None:
        screen = terminal("jobs", "ls", columns=160)

        assert (screen.wait(), failed.id in screen.text) == (0, True)

    @pytest.mark.parametrize(("answer", "code", "state"), [("y\n", 0, "waiting"), ("n\n", 1, "failed")])
    def test_many_jobs_are_counted_and_need_confirmation(
        self,
        shop: Shop,
        failed: Job[Any],
        terminal: Callable[..., Terminal],
        answer: str,
        code: int,
        state: str,
    ) -> None:
        screen = terminal("jobs", "rerun", "state:failed")
        screen.wait_until(lambda text: "1 job will be enqueued again. Continue? [y/N]" in text)
        screen.type(answer)

        assert screen.wait() == code
        assert states(shop)[failed.id] == state

    def test_ctrl_c_at_the_prompt_changes_nothing(
        self, shop: Shop, failed: Job[Any], terminal: Callable[..., Terminal]
    ) -> None:
        screen = terminal("jobs", "rm", "state:failed")
        screen.wait_until(lambda text: "Continue?" in text)
        screen.type("\x03")

        assert screen.wait() == 130
        assert failed.id in states(shop)
        assert "Traceback" not in screen.text


class TestChanging:
    @pytest.mark.parametrize(
        ("args", "message", "job", "state"),
        [
            (["cancel", "waits"], "1 job canceled.", "waits", "canceled"),
            (["rerun", "good"], "1 job enqueued again.", "good", "waiting"),
            (["rerun", "good", "--delay", "5m"], "1 job enqueued again.", "good", "scheduled"),
            (["postpone", "waits", "--delay", "5m"], "1 job postponed.", "waits", "scheduled"),
            (["postpone", "waits", "--run-at", "2999-01-31"], "1 job postponed.", "waits", "scheduled"),
            (["promote", "sleeps"], "1 job promoted.", "sleeps", "waiting"),
            (["edit", "waits", "--priority", "3"], "1 job changed.", "waits", "waiting"),
            (["resolve", "waits"], "1 job resolved as completed.", "waits", "completed"),
            (["resolve", "waits", "--failed", "by hand"], "1 job resolved as failed.", "waits", "failed"),
            (["cancel", "waits", "sleeps"], "2 jobs canceled.", "sleeps", "canceled"),
        ],
    )
    def test_jobs_are_changed_by_id(
        self, cli: Cli, shop: Shop, failed: Job[Any], args: list[str], message: str, job: str, state: str
    ) -> None:
        done = cli("jobs", *args)

        assert (done.code, done.out) == (0, f"{message}\n")
        assert states(shop)[job] == state

    def test_arguments_and_results_are_given_as_json(self, cli: Cli, shop: Shop, failed: Job[Any]) -> None:
        assert cli("jobs", "edit", "waits", "--args", '{"to": "bob"}', "--tag", "x").code == 0
        assert cli("jobs", "resolve", "sleeps", "--result", '{"n": 1}').code == 0

        edited, resolved = (shop.call(shop.jobs.client.record, name) for name in ("waits", "sleeps"))
        assert (edited.payload, edited.tags, resolved.result) == ('{"to":"bob"}', ("x",), '{"n":1}')

    def test_a_removed_job_is_gone(self, cli: Cli, shop: Shop, failed: Job[Any]) -> None:
        assert cli("jobs", "rm", failed.id).out == "1 job removed.\n"
        assert failed.id not in states(shop)

    def test_a_refusal_is_an_error(self, cli: Cli, failed: Job[Any]) -> None:
        done = cli("jobs", "promote", "waits")
        assert (done.code, done.err) == (
            1,
            "Error: cannot promote job waits: it is waiting, not scheduled\n",
        )
        done = cli("jobs", "cancel", "waits", "good")
        assert (done.code, done.out) == (1, "1 job canceled, 1 refused.\n")
        assert "good: cannot cancel job good: it is completed" in done.err

    def test_refusals_are_data_too(self, cli: Cli, failed: Job[Any]) -> None:
        done = cli("jobs", "cancel", "--json", "waits", "good")

        assert [(line["id"], line["answer"]) for line in done.data] == [
            ("waits", "moved"),
            ("good", "refused"),
        ]

    def test_a_query_counts_only_jobs_that_can_be_changed(
        self, cli: Cli, shop: Shop, failed: Job[Any]
    ) -> None:
        done = cli("jobs", "cancel", "task:send", "--yes")

        assert (done.code, done.out) == (0, "2 jobs canceled.\n")
        assert states(shop)[failed.id] == "failed"

    def test_a_query_without_matches_is_no_error(self, cli: Cli, failed: Job[Any]) -> None:
        done = cli("jobs", "rerun", "queue:none")

        assert (done.code, done.err) == (0, "No matching job can be enqueued again.\n")

    def test_a_dry_run_lists_the_jobs_and_changes_nothing(
        self, cli: Cli, shop: Shop, failed: Job[Any]
    ) -> None:
        done = cli("jobs", "rm", "state:failed", "--dry-run")

        assert (done.code, done.out, done.err) == (0, f"{failed.id}\n", "1 job would be removed.\n")
        assert failed.id in states(shop)

    def test_without_a_terminal_confirmation_needs_yes(self, shop: Shop, failed: Job[Any]) -> None:
        done = run_process("jobs", "rerun", "state:failed")

        assert (done.code, done.out) == (2, "")
        assert done.err == (
            "Error: 1 job will be enqueued again. "
            "stdin is not a terminal to confirm this: add --yes, or --dry-run to list the jobs.\n"
        )
        assert states(shop)[failed.id] == "failed"

    @pytest.mark.parametrize(
        ("args", "message"),
        [
            ([], "No jobs given: write ids, or a query"),
            (["waits", "state:failed"], "'waits' is an id, 'state:failed' a query term"),
        ],
    )
    def test_ids_and_a_query_exclude_each_other(
        self, cli: Cli, failed: Job[Any], args: list[str], message: str
    ) -> None:
        done = cli("jobs", "cancel", *args)

        assert done.code == 2
        assert message in done.err

    @pytest.mark.parametrize(
        ("args", "message"),
        [
            (["edit", "waits"], "Nothing to change"),
            (["postpone", "waits"], "Give either --delay or --run-at"),
            (["resolve", "waits", "--result", "1", "--failed", "x"], "Give either --result or --failed"),
        ],
    )
    def test_missing_and_conflicting_options_are_refused(
        self, cli: Cli, failed: Job[Any], args: list[str], message: str
    ) -> None:
        done = cli("jobs", *args)

        assert done.code == 2
        assert message in done.err

    def test_many_jobs_are_changed_slice_by_slice(
        self, cli: Cli, shop: Shop, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(bulk_action, "SLICE_SIZE", 3)
        monkeypatch.setattr(operations, "DRY_RUN_PAGE", 4)
        for number in range(10):
            shop.enqueue(id=f"job-{number}")

        assert cli("jobs", "cancel", "state:waiting", "--yes").out == "10 jobs canceled.\n"
        assert set(states(shop).values()) == {"canceled"}

    def test_an_interrupted_change_says_how_many_jobs_it_changed(
        self, shop: Shop, terminal: Callable[..., Terminal]
    ) -> None:
        jobs = [NewJob(id=f"job-{number}", task="send", payload="{}") for number in range(10_000)]
        shop.call(shop.jobs.client.insert, jobs)
        slowly = "from errandry.cli import bulk_action; bulk_action.SLICE_SIZE = 1"
        screen = terminal("jobs", "cancel", "state:waiting", "--yes", before=slowly)
        screen.wait_until(lambda text: "jobs ━" in text)
        screen.type("\x03")

        assert screen.wait() == 130
        [done] = re.findall(r"Stopped: ([0-9,]+) of 10,000 jobs canceled", screen.text)
        canceled = shop.call(shop.jobs.counts)["default"].get("canceled", 0)
        assert int(done.replace(",", "")) <= canceled < 10_000


class TestDeadLetters:
    def test_failed_jobs_are_listed(self, cli: Cli, failed: Job[Any]) -> None:
        [job] = cli("dlq", "ls", "--json").data
        assert job["id"] == failed.id
        assert cli("dlq", "ls", "--json", "--query", "task:none").data == []
        assert len(cli("dlq", "ls", "--json", "task:send", "--query", "error~address since:1h").data) == 1

    def test_all_failed_jobs_are_rerun_without_ids_or_a_query(
        self, cli: Cli, shop: Shop, failed: Job[Any]
    ) -> None:
        done = cli("dlq", "rerun", "--yes", "--reset-attempts", "--run-at", "2999-01-31")

        assert (done.code, done.out) == (0, "1 job enqueued again.\n")
        job = shop.call(shop.jobs.client.record, failed.id)
        assert (job.state, job.attempts) == ("scheduled", 0)

    def test_failed_jobs_are_removed(self, cli: Cli, shop: Shop, failed: Job[Any]) -> None:
        assert cli("dlq", "rm", "--query", "queue:none", "--yes").err.startswith("No matching job")
        assert cli("dlq", "rm", "--yes").out == "1 job removed.\n"
        assert sorted(states(shop)) == ["good", "sleeps", "waits"]

    def test_a_job_that_has_not_failed_is_refused(self, cli: Cli, failed: Job[Any]) -> None:
        done = cli("dlq", "rerun", "good")

        assert (done.code, done.err) == (1, "Error: job good is completed, not failed: use errandry jobs\n")


def test_json_is_one_line_for_each_job(cli: Cli, failed: Job[Any]) -> None:
    lines = cli("jobs", "ls", "--json").out.splitlines()

    assert len([json.loads(line) for line in lines]) == 4
