"""Making an app, declaring tasks, opening and closing."""

import asyncio
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

from errandry import Errandry
from errandry.core.duration import as_datetime
from errandry.core.job import NewJob
from errandry.core.state import State
from errandry.errors import InvalidValue, StoreClosed
from errandry.store.contract import StoreLimits
from errandry.store.memory.driver import MemoryStore
from errandry.store.sqlite.driver import SqliteStore
from errandry.testing import FakeClock, drain
from tests.run_worker import run_burst


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ERRANDRY_URL", raising=False)
    return tmp_path


def path_of(jobs: Errandry) -> str:
    assert isinstance(jobs.store, SqliteStore)
    return jobs.store.path


def test_without_a_url_the_store_is_a_file_in_the_current_folder(here: Path) -> None:
    assert path_of(Errandry()) == str(here / "errandry.db")


def test_the_environment_names_the_store(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ERRANDRY_URL", "sqlite:///elsewhere.db")

    assert path_of(Errandry()) == str(here / "elsewhere.db")


def test_an_empty_environment_variable_is_ignored(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ERRANDRY_URL", "")

    assert path_of(Errandry()) == str(here / "errandry.db")


def test_a_url_takes_precedence_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ERRANDRY_URL", "sqlite:///elsewhere.db")

    assert isinstance(Errandry("memory:").store, MemoryStore)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"store_limits": 5}, "store_limits=5: must be of type StoreLimits"),
        ({"write_limits": {"pass_rows": 5}}, "write_limits=.*: must be of type WriteLimits"),
        ({"clock": 5.0}, "clock=5.0: must be an object with the methods time, monotonic"),
        ({"clock": FakeClock}, "clock=.*: must be an object with"),
        ({"codec": "aes"}, "codec='aes': must be an object with the methods seal, unseal"),
        ({"store": "memory:"}, "store='memory:': must be an object with the methods open"),
    ],
)
def test_options_of_a_wrong_type_are_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidValue, match=why):
        Errandry(**options)


@pytest.mark.parametrize("field", [*StoreLimits.__struct_fields__])
@pytest.mark.parametrize("value", [-1, "x", None, True])
def test_invalid_store_limits_are_refused(field: str, value: object) -> None:
    with pytest.raises(InvalidValue, match=f"^{field}="):
        StoreLimits(**{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("url", ["", "mysql://localhost", "sqlite:"])
def test_an_unknown_url_is_refused(url: str) -> None:
    with pytest.raises(InvalidValue, match=r"^url="):
        Errandry(url)


def test_a_store_together_with_a_url_or_limits_is_refused() -> None:
    with pytest.raises(InvalidValue, match="would have no effect"):
        Errandry("memory:", store=MemoryStore())
    with pytest.raises(InvalidValue, match="would have no effect"):
        Errandry(store=MemoryStore(), store_limits=StoreLimits(payload=10))


async def test_the_store_is_opened_on_first_use_not_by_declaring_tasks(here: Path) -> None:
    jobs = Errandry()

    @jobs.task(queue="mail", timeout="30s")
    async def send(to: str) -> None: ...

    send.using(delay="5 minutes").new(to="ada")
    assert list(here.iterdir()) == []

    await send.enqueue(to="ada")
    assert (here / "errandry.db").exists()
    await jobs.close()


def test_declaring_needs_no_reachable_store() -> None:
    jobs = Errandry("sqlite:////nowhere/at/all/jobs.db")

    @jobs.task
    async def send(to: str) -> None: ...

    assert jobs.tasks == {"send": send}


async def test_two_apps_in_one_process_are_independent() -> None:
    async with Errandry("sqlite:///one.db") as one, Errandry("sqlite:///two.db") as two:

        @one.task(name="greet")
        async def hello(name: str) -> str:
            return f"hello {name}"

        @two.task(name="greet")
        async def ciao(name: str) -> str:
            return f"ciao {name}"

        first, second = await hello.enqueue("ada"), await ciao.enqueue("ada")
        await asyncio.gather(drain(one), drain(two))

        assert (await first.result(30), await second.result(30)) == ("hello ada", "ciao ada")
        assert await one.counts() == await two.counts() == {"default": {"completed": 1}}


async def test_calling_a_task_calls_the_plain_function() -> None:
    jobs = Errandry("memory:")

    @jobs.task
    async def double(n: int) -> int:
        """Twice as much."""
        return 2 * n

    assert await double(21) == 42
    assert (double.name, double.__doc__, repr(double)) == ("double", "Twice as much.", "<task double>")


def test_declaring_the_same_function_again_replaces_it() -> None:
    """A cell that is run twice makes a new function with the same module and qualified name."""
    jobs = Errandry("memory:")
    cell = "def send(to: str) -> int:\n    return {}"
    versions: list[FunctionType] = []
    for number in (1, 2):
        space: dict[str, FunctionType] = {}
        exec(cell.format(number), {"__name__": "__main__"}, space)
        versions.append(space["send"])

    jobs.task(versions[0])
    jobs.task(versions[1])

    assert jobs.tasks["send"].function is versions[1]


def test_another_function_of_the_same_name_is_refused() -> None:
    jobs = Errandry("memory:")

    def module(name: str) -> FunctionType:
        space: dict[str, FunctionType] = {}
        exec("def send(to: str) -> None: ...", {"__name__": name}, space)
        return space["send"]

    jobs.task(module("shop.mail"))
    with pytest.raises(
        InvalidValue, match=r"is declared already, by send in module shop\.mail, line 1: pass name="
    ):
        jobs.task(module("shop.sms"))
    jobs.task(name="send_sms")(module("shop.sms"))

    assert list(jobs.tasks) == ["send", "send_sms"]


def test_a_task_that_is_not_a_function_is_refused() -> None:
    jobs = Errandry("memory:")

    with pytest.raises(InvalidValue, match=r"task='send': must be a function; options go by name"):
        jobs.task("send")  # type: ignore[call-overload]


def test_variadic_and_positional_only_parameters_are_refused() -> None:
    jobs = Errandry("memory:")

    def of_any_number(*to: str) -> None: ...
    def of_any_name(**to: str) -> None: ...
    def by_position(to: str, /) -> None: ...

    for function in (of_any_number, of_any_name, by_position):
        with pytest.raises(InvalidValue, match=r"='to': .*; a task's arguments are stored by name"):
            jobs.task(function)


async def test_a_task_can_be_enqueued_by_its_name(jobs: Errandry) -> None:
    @jobs.task(queue="mail")
    async def send(to: str) -> str:
        return to

    job = await jobs.enqueue("send", {"to": "ada"}, priority=3)

    assert (job.queue, job.record.priority, job.record.payload) == ("mail", 3, '{"to":"ada"}')


async def test_a_task_declared_elsewhere_can_be_enqueued_by_its_name(jobs: Errandry) -> None:
    seen: list[str] = []

    @jobs.on_enqueue
    def look(job: NewJob) -> NewJob:
        seen.append(job.task)
        return job

    job = await jobs.enqueue("bill", {"order": 7}, queue="money", delay="1 hour")

    assert (job.task, job.queue, job.record.payload) == ("bill", "money", '{"order":7}')
    assert (job.state, seen) == ("scheduled", ["bill"])


async def test_options_of_a_task_declared_elsewhere_are_checked(jobs: Errandry) -> None:
    with pytest.raises(InvalidValue, match="did you mean queue"):
        await jobs.enqueue("bill", {"order": 7}, queu="money")  # type: ignore[call-arg]


async def test_a_closed_app_refuses_jobs_and_can_be_opened_again() -> None:
    """An ASGI lifespan starts and stops as often as its tests do; a notebook cell is run twice."""
    jobs = Errandry("sqlite:///jobs.db")

    @jobs.task
    async def send(to: str) -> str:
        return to

    async with jobs:
        first = await send.enqueue("ada")
    reopening = (
        r"app: it was closed, .* end of its `async with` block: `await jobs\.open\(\)` or .* opens it again"
    )
    with pytest.raises(StoreClosed, match=reopening):
        await send.enqueue("grace")
    async with jobs:
        await drain(jobs)

        assert await first.result(30) == "ada"
        assert (await jobs.get(first.id)).state is State.COMPLETED


async def test_a_failed_open_is_retried_at_the_next_use(here: Path) -> None:
    jobs = Errandry("sqlite:///missing/jobs.db")

    @jobs.task
    async def send(to: str) -> None: ...

    with pytest.raises(Exception, match="missing"):
        await send.enqueue("ada")
    (here / "missing").mkdir()

    assert (await send.enqueue("ada")).state is State.WAITING
    await jobs.close()


@pytest.mark.parametrize("hours", [-2, 2], ids=["behind", "ahead"])
async def test_the_clock_of_the_store_counts_not_that_of_the_host(hours: int) -> None:
    """As on PostgreSQL, where the server's counts."""
    store, host = FakeClock(), FakeClock()
    host.jump(hours * 3_600)
    async with Errandry(store=MemoryStore(store)) as jobs:
        jobs.client.clock = host

        @jobs.task
        async def work() -> None: ...

        await work.enqueue()
        await run_burst(jobs)
        later = await work.using(delay=600).enqueue()

        assert await jobs.now() == as_datetime(store.time())
        assert (await jobs.stats("1 hour")).total.counts.completed == 1
        assert "10 min" in str(await jobs.why(later.id))
        assert (await jobs.queue("default").clean(older="1 hour")).moved == ()
        assert (await jobs.queue("default").clean(older=0)).moved != ()


@pytest.mark.parametrize(
    ("url", "why"),
    [
        (5, r"url=5: must be a URL as text: write sqlite:///jobs\.db"),
        (Path("/var/x.db"), r"must be a URL as text: write sqlite:////var/x\.db"),
    ],
    ids=str,
)
def test_a_url_that_is_no_text_is_refused(url: Any, why: str) -> None:
    with pytest.raises(InvalidValue, match=why):
        Errandry(url)


class Mailer:
    """Methods of every kind, and an instance that exists."""

    def send(self, to: str) -> str:
        return f"mail to {to}"

    @classmethod
    def send_as_class(cls, to: str) -> str:
        return f"{cls.__name__} to {to}"

    @staticmethod
    def send_without(to: str) -> str:
        return f"plain mail to {to}"


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (
            Mailer.send,
            r"Mailer\.send'?: is a method, and a worker has no self to call it with: declare a fun",
        ),
        (vars(Mailer)["send_as_class"], "is a method, and a worker has no cls to call it with"),
        (vars(Mailer)["send_without"], "put @staticmethod above @task, not below it"),
    ],
    ids=["method", "class method", "static method"],
)
def test_a_method_without_its_object_is_refused(jobs: Errandry, function: Any, why: str) -> None:
    with pytest.raises(InvalidValue, match=why):
        jobs.task(function)

    assert jobs.tasks == {}


@pytest.mark.parametrize("function", [Mailer().send, Mailer.send_as_class, Mailer.send_without])
async def test_a_method_that_can_be_called_with_its_arguments_is_a_task(
    jobs: Errandry, function: Any
) -> None:
    job = await jobs.task(function).enqueue(to="ada")
    await run_burst(jobs)

    assert (await job.result()).endswith(" to ada")


def test_a_method_of_an_object_cannot_run_in_a_process(jobs: Errandry) -> None:
    with pytest.raises(InvalidValue, match=r"another process has not the object of Mailer\.send"):
        jobs.task(runner="process")(Mailer().send)


def test_a_lambda_needs_a_name(jobs: Errandry) -> None:
    with pytest.raises(InvalidValue, match="a lambda has no name: write a def, or give name="):
        jobs.task(lambda: 1)

    assert jobs.task(name="one")(lambda: 1).name == "one"
