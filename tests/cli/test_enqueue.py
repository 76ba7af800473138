"""`errandry enqueue`: with an app, which checks the arguments, and without one."""

from pathlib import Path

import pytest

from tests.cli.conftest import Cli, Shop
from tests.cli.shell import run_process


def test_without_an_app_a_job_is_enqueued_by_name(cli: Cli, shop: Shop) -> None:
    done = cli("enqueue", "anything", "--args", '{"a": [1, null]}')

    job = shop.call(shop.jobs.client.record, done.out.strip())
    assert (job.task, job.queue, job.payload) == ("anything", "default", '{"a":[1,null]}')


def test_with_an_app_the_task_sets_the_queue(cli: Cli, shop: Shop) -> None:
    done = cli("--app", "shop:jobs", "enqueue", "send", "--args", '{"to": "ada"}')

    job = shop.call(shop.jobs.client.record, done.out.strip())
    assert (job.queue, job.max_attempts) == ("mail", 1)


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["sned"], 1, "there is no task 'sned'; declared tasks: send, sleep"),
        (["send", "--args", '{"to": 3}'], 2, "argument to=3: must be str, not int"),
        (["send"], 2, "argument 'to' is missing; it takes to: str"),
    ],
)
def test_with_an_app_invalid_arguments_are_refused(
    cli: Cli, args: list[str], code: int, message: str
) -> None:
    done = cli("enqueue", "--app", "shop", *args)

    assert (done.code, done.out) == (code, "")
    assert message in done.err


def test_every_option_of_a_job_can_be_given(cli: Cli, shop: Shop) -> None:
    args = [
        *("--queue", "q", "--priority", "-3", "--delay", "5m", "--deadline", "2999-01-31T08:00Z"),
        *("--max-attempts", "7", "--max-crashes", "2", "--backoff", "linear", "--timeout", "30s"),
        *("--keep", "1h", "--lifo", "--group", "g", "--tag", "a", "--tag", "b"),
        *("--metadata", '{"tenant": 7}', "--id", "mine"),
    ]

    assert cli("enqueue", "task", *args).out == "mine\n"

    job = shop.call(shop.jobs.client.record, "mine")
    assert (job.queue, job.priority, job.state, job.deadline) == ("q", -3, "scheduled", 32474764800.0)
    assert (job.max_attempts, job.max_crashes, job.timeout, job.lifo) == (7, 2, 30.0, True)
    assert (job.group, job.tags, job.metadata) == ("g", ("a", "b"), '{"tenant":7}')
    assert (job.backoff.curve, job.keep.failed) == ("linear", 3_600.0)


def test_without_lifo_the_option_of_the_task_counts(cli: Cli, shop: Shop, folder: Path) -> None:
    stack = "\n\n@jobs.task(lifo=True)\nasync def stack() -> None: ...\n"
    (folder / "shop.py").write_text((folder / "shop.py").read_text() + stack)

    job_id = cli("enqueue", "--app", "shop", "stack").out.strip()

    assert shop.call(shop.jobs.client.record, job_id).lifo
    assert "  priority     0, lifo\n" in cli("jobs", "show", job_id).out


def test_a_second_job_with_the_same_unique_key(cli: Cli, shop: Shop) -> None:
    unique = ("--unique", "call 7", "--unique-for", "1 hour")
    first = cli("enqueue", "call", *unique)
    second = cli("enqueue", "call", *unique)
    replacing = cli("enqueue", "call", "--args", '{"n": 2}', *unique, "--on-conflict", "replace")
    refused = cli("enqueue", "call", *unique, "--on-conflict", "raise")

    assert first.out == second.out == replacing.out
    assert "The job existed already.\n" in second.err
    assert "The job existed already; its arguments were replaced.\n" in replacing.err
    assert shop.call(shop.jobs.client.record, first.out.strip()).payload == '{"n":2}'
    assert (refused.code, refused.out) == (1, "")
    assert f"the unique key 'call 7' is held by job {first.out.strip()}" in refused.err
    assert "unique       call 7, for 1h from the insert" in cli("jobs", "show", first.out.strip()).out
    assert "Its unique key 'call 7' is held" in cli("why", first.out.strip()).out


def test_a_unique_key_can_be_made_of_the_arguments(cli: Cli) -> None:
    ids = [
        cli("enqueue", "call", "--args", text, "--unique-for", "day").out for text in ('{"n":1}', '{"n": 1}')
    ]

    assert ids[0] == ids[1] != cli("enqueue", "call", "--args", '{"n":2}', "--unique-for", "day").out


def test_an_unknown_scope_is_refused(cli: Cli) -> None:
    done = cli("enqueue", "call", "--unique", "k", "--unique-for", "mnth")

    assert (done.code, done.out) == (2, "")
    assert "did you mean month?" in done.err


def test_the_record_is_printed_as_json(cli: Cli) -> None:
    [job] = cli("enqueue", "send", "--args", '{"to": "ada"}', "--json").data

    assert (job["task"], job["state"], job["arguments"]) == ("send", "waiting", {"to": "ada"})


def test_arguments_can_come_from_stdin(shop: Shop) -> None:
    done = run_process("enqueue", "send", "--args", "-", text='{"to": "ada"}')

    assert shop.call(shop.jobs.client.record, done.out.strip()).payload == '{"to":"ada"}'


def test_an_option_the_library_refuses_is_an_error(cli: Cli) -> None:
    done = cli("enqueue", "send", "--max-attempts", "0")

    assert (done.code, done.out) == (2, "")
    assert "--max-attempts 0: must be a whole number from 1" in done.err


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--timeout", "0"], "--timeout 0: must be more than 0 seconds, or None for no timeout"),
        (["--unique-for", "fortnight"], "--unique-for fortnight: must be one of alive, "),
        (["--unique", " "], "--unique ' ': must be a name, not empty"),
        (["--keep-last", "0"], "--keep-last 0: must be a whole number from 1"),
        (["--tag", "a", "--tag", ""], "--tag '': must be a name, not empty"),
        (["--queue", "q" * 300], f"--queue '{'q' * 59}…': a name has at most 200"),
        (["--url", "sqlite://"], "--url sqlite://: names no file: write sqlite:///jobs.db"),
    ],
)
def test_an_error_names_the_option_and_the_value_as_typed(cli: Cli, args: list[str], message: str) -> None:
    done = cli("enqueue", "send", *args)

    assert (done.code, done.out) == (2, "")
    assert message in done.err


@pytest.mark.parametrize("word", ["none", "None"])
def test_a_job_can_have_no_timeout(cli: Cli, shop: Shop, folder: Path, word: str) -> None:
    short = "\n\n@jobs.task(timeout=5)\nasync def short() -> None: ...\n"
    (folder / "shop.py").write_text((folder / "shop.py").read_text() + short)

    job_id = cli("enqueue", "--app", "shop", "short", "--timeout", word).out.strip()

    assert shop.call(shop.jobs.client.record, job_id).timeout is None
