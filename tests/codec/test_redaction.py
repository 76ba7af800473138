"""Redacted arguments: only the handler gets their values."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from errandry import Errandry, Fail, JobContext, State
from errandry.cli.job_view import as_data
from errandry.codec.json_codec import DocumentInfo, PlainCodec
from errandry.codec.redaction import REDACTED, Redactor, redact_arguments, redact_text
from errandry.core.event import EventKind
from errandry.errors import InvalidValue, UpgradeFailed
from errandry.testing import drain
from errandry.worker.options import WorkerOptions
from errandry.worker.worker import Worker


@dataclass
class Card:
    number: str
    cvv: int


class Login(BaseModel):
    password: str


async def test_logs_and_errors_of_a_handler_are_redacted(
    jobs: Errandry, caplog: pytest.LogCaptureFixture
) -> None:
    logger = logging.getLogger("shop")

    @jobs.task(redact="card", max_attempts=1)
    async def charge(ctx: JobContext, card: Card, cents: int) -> None:
        ctx.progress(0.5, f"charging {card.number}")
        ctx.log(f"card {card.number}, cvv {card.cvv}, 1230 cents")
        logger.warning("still at %s", card.number)
        raise ValueError(f"{card.number} has expired, {cents} cents")

    with caplog.at_level(logging.WARNING, "errandry.worker"):
        job = await charge.enqueue(Card("4000-0002", 123), cents=995)
        await Worker(jobs, WorkerOptions(burst=True)).run()
    record = await jobs.client.record(job.id)
    events = (await jobs.engine.call(jobs.store.events, None, 100)).entries

    assert [entry.event.text for entry in events if entry.event.kind is EventKind.FAILED] == [
        f"ValueError: {REDACTED} has expired, 995 cents"
    ]
    assert [line.text for line in record.logs] == [
        f"card {REDACTED}, cvv {REDACTED}, 1230 cents",
        f"still at {REDACTED}",
    ]
    assert record.progress is not None
    assert record.progress.text == f"charging {REDACTED}"
    assert record.errors[0].message == f"{REDACTED} has expired, 995 cents"
    assert "4000" not in record.errors[0].traceback
    ours = [
        record.getMessage() + str(record.exc_text)
        for record in caplog.records
        if record.name == "errandry.worker"
    ]
    assert [("has expired" in line, "4000" in line) for line in ours] == [(True, False)]


async def test_messages_of_raised_outcomes_are_redacted(jobs: Errandry) -> None:
    @jobs.task(redact=["password"])
    async def login(password: str) -> None:
        raise Fail(f"wrong password {password!r}")

    job = await login.enqueue('it\'s "mine"')
    await drain(jobs)
    assert (await jobs.client.record(job.id)).errors[0].message == f"wrong password '{REDACTED}'"


async def test_the_handlers_arguments_and_result_are_not_redacted(jobs: Errandry) -> None:
    @jobs.task(redact=("password",))
    async def login(user: str, password: str) -> int:
        return len(password)

    job = await login.using(metadata={"tenant": 7}).enqueue("ada", "correct horse")
    await drain(jobs, strict=True)
    record = await jobs.client.record(job.id)

    assert await job.result(30) == 13
    assert redact_arguments({"user": "ada", "password": "correct horse"}, record.metadata) == {
        "user": "ada",
        "password": REDACTED,
    }
    assert '"tenant":7' in (record.metadata or "")
    assert as_data(await jobs.get(record.id))["arguments"] == {"user": "ada", "password": REDACTED}


async def test_a_batch_redacts_the_secrets_of_all_its_jobs(jobs: Errandry) -> None:
    @jobs.task(batch=5, redact="logins", max_attempts=1)
    async def check(logins: list[Login]) -> None:
        raise ValueError(" and ".join(login.password for login in logins))

    ada, eve = await check.enqueue(Login(password="horse")), await check.enqueue(Login(password="battery"))
    await Worker(jobs, WorkerOptions(burst=True)).run()
    for job in (ada, eve):
        assert (await jobs.client.record(job.id)).errors[0].message == f"{REDACTED} and {REDACTED}"


def test_redacting_an_unknown_argument_is_refused(jobs: Errandry) -> None:
    with pytest.raises(
        InvalidValue, match="redact='pasword': the handler has no such argument: it has password"
    ):

        @jobs.task(redact="pasword")
        async def login(password: str) -> None: ...


@pytest.mark.parametrize(
    ("value", "text", "redacted"),
    [
        ("secret", "a secret here", f"a {REDACTED} here"),
        ("ab", "ab cab ab.", f"{REDACTED} cab {REDACTED}."),
        (12, "12 of 120", f"{REDACTED} of 120"),
        ({"deep": ["down", {"in": "side"}]}, "down side up", f"{REDACTED} {REDACTED} up"),
        (Path("/etc/shadow"), "open /etc/shadow", f"open {REDACTED}"),
        (["abcd", "abcdef"], "abcdef abcd", f"{REDACTED} {REDACTED}"),
        (None, "None", "None"),
        ("", "nothing", "nothing"),
        (True, "True", "True"),
    ],
)
def test_values_of_all_kinds_are_redacted(value: Any, text: str, redacted: str) -> None:
    assert Redactor(["it"], [{"it": value, "other": "here"}]).text(text) == redacted


async def test_a_text_about_jobs_is_redacted_for_each_of_them(jobs: Errandry) -> None:
    @jobs.task(redact="card")
    async def charge(card: str, cents: int) -> None: ...

    @jobs.task
    async def ship(to: str) -> None: ...

    calls = [charge.new("4111-1111", 1230), charge.new("5500-0000", 1230), ship.new("ada")]
    records = [await jobs.client.record(job.id) for job in await jobs.enqueue_many(calls)]
    text = "4111-1111 and 5500-0000 of ada: 1230"

    assert redact_text(text, records, jobs.codec) == f"{REDACTED} and {REDACTED} of ada: 1230"
    assert redact_text(text, records[2:], jobs.codec) == text


async def test_a_text_about_arguments_that_cannot_be_read_is_hidden_completely(jobs: Errandry) -> None:
    class LockedCodec(PlainCodec):
        def unseal(self, text: str, document: DocumentInfo) -> str:
            raise OSError("the key server is away")

    @jobs.task(redact="card")
    async def charge(card: str) -> None: ...

    record = await jobs.client.record((await charge.enqueue("4111-1111")).id)

    assert redact_text("declined: 4111-1111", [record], LockedCodec()) == REDACTED


def older_program(jobs: Errandry) -> Errandry:
    """A program with another version of the code, on the store of an app."""
    older = Errandry(store=jobs.store)
    older.client.engine = jobs.client.engine
    return older


def split_number(arguments: dict[str, Any]) -> dict[str, Any]:
    raise ValueError(f"cannot convert card {arguments['card']}")


@dataclass
class CheckedCard:
    number: str

    def __post_init__(self) -> None:
        raise ValueError(f"no such card {self.number}")


@pytest.mark.parametrize("on_invalid", ["fail", "discard"])
async def test_errors_of_arguments_that_cannot_be_read_are_redacted(
    jobs: Errandry, caplog: pytest.LogCaptureFixture, on_invalid: Literal["fail", "discard"]
) -> None:
    @jobs.task(redact="card", on_invalid=on_invalid)
    async def charge(card: CheckedCard) -> None: ...

    job = await older_program(jobs).enqueue("charge", {"card": {"number": "4111-1111"}})
    await Worker(jobs, WorkerOptions(burst=True)).run()

    record = await jobs.client.record(job.id) if on_invalid == "fail" else None
    texts = [error.message for error in (record.errors if record else ())] + caplog.messages
    assert sum(f"no such card {REDACTED}" in text for text in texts) == len(texts) > 0
    assert "4111" not in "".join(texts)


async def test_the_error_of_an_upgrade_is_redacted(jobs: Errandry, caplog: pytest.LogCaptureFixture) -> None:
    @jobs.task(redact="card", version=2)
    async def charge(card: str) -> None: ...

    charge.upgrade(1)(split_number)
    job = await older_program(jobs).enqueue("charge", {"card": "4111-1111"})
    await Worker(jobs, WorkerOptions(burst=True)).run()

    [error] = (await jobs.client.record(job.id)).errors
    assert error.message.endswith(f"raised ValueError: cannot convert card {REDACTED}")
    assert "4111" not in error.traceback + caplog.text


async def test_a_claimer_redacts_the_error_of_an_upgrade(jobs: Errandry) -> None:
    @jobs.task(redact="card", version=2)
    async def charge(card: str) -> None: ...

    charge.upgrade(1)(split_number)
    enqueued = await older_program(jobs).enqueue("charge", {"card": "4111-1111"})

    async with jobs.claimer() as claimer:
        [job] = await claimer.claim()
        with pytest.raises(UpgradeFailed, match="4111-1111"):
            async with job:
                _ = job.arguments

    record = await jobs.client.record(enqueued.id)
    assert record.state is State.SCHEDULED
    assert record.errors[0].message.endswith(f"cannot convert card {REDACTED}")


async def test_a_worker_redacts_what_the_program_that_enqueued_the_job_declares(
    jobs: Errandry, caplog: pytest.LogCaptureFixture
) -> None:
    """In a rolling deploy, the worker's version of the task may redact nothing yet."""
    older = older_program(jobs)

    @jobs.task(redact="card", max_attempts=1)
    async def charge(card: str) -> None: ...

    @older.task(name=charge.name)
    async def charge_unredacted(card: str) -> None:
        raise ValueError(f"card {card} was refused")

    job = await charge.enqueue("4111-1111")
    await Worker(older, WorkerOptions(burst=True)).run()
    [error] = (await jobs.client.record(job.id)).errors

    assert error.message == f"card {REDACTED} was refused"
    assert "4111" not in error.traceback + caplog.text
