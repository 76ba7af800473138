"""Every option of `@jobs.task` and `using`: as written, as stored, and the values that are refused."""

from datetime import UTC, datetime, timedelta, timezone
from types import MappingProxyType
from typing import Any, cast

import pytest

from errandry import Backoff, DefaultOptions, Errandry, Keep, flow
from errandry.api.task import Runner, Task
from errandry.core.job import JobRecord, NewJob
from errandry.core.retry import Curve
from errandry.core.state import State
from errandry.errors import InvalidValue, TooLarge
from errandry.testing import FakeClock

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
NOON_SECONDS = NOON.timestamp()
DAY = 86_400.0

JOB_OPTIONS: list[tuple[str, Any, Any]] = [
    ("queue", "mail", "mail"),
    ("priority", -10, -10),
    ("lifo", True, True),
    ("max_attempts", 1, 1),
    ("max_crashes", 7, 7),
    ("backoff", "linear", Backoff(Curve.LINEAR)),
    ("backoff", "fixed", Backoff(Curve.FIXED)),
    ("backoff", "exponential", Backoff()),
    ("backoff", "10s", Backoff(Curve.FIXED, 10.0, jitter=0.0)),
    ("backoff", timedelta(minutes=1), Backoff(Curve.FIXED, 60.0, jitter=0.0)),
    ("backoff", 0, Backoff(Curve.FIXED, 0.0, jitter=0.0)),
    ("backoff", Backoff(Curve.LINEAR, 2.0, cap=9.0), Backoff(Curve.LINEAR, 2.0, cap=9.0)),
    ("backoff", "squares", Backoff(function="squares")),
    ("backoff", None, None),
    ("timeout", "30s", 30.0),
    ("timeout", 1.5, 1.5),
    ("timeout", timedelta(hours=1), 3_600.0),
    ("timeout", None, None),
    ("keep", "1 day", Keep(DAY, DAY, DAY)),
    ("keep", 0, Keep(0.0, 0.0, 0.0)),
    ("keep", {"failed": "1w"}, Keep(failed=7 * DAY)),
    ("keep", Keep(completed=1.0), Keep(completed=1.0)),
    ("tags", ["nightly", "eu"], ("nightly", "eu")),
    ("tags", ("one",), ("one",)),
    ("tags", (), ()),
    ("group", "tenant-7", "tenant-7"),
    ("group", "", ""),
]
USE_OPTIONS: list[tuple[str, Any, Any]] = [
    ("id", "mail-1", "mail-1"),
    ("deadline", NOON, NOON_SECONDS),
    ("deadline", "2026-01-31T12:00Z", NOON_SECONDS),
    ("deadline", None, None),
    ("metadata", {"tenant": 7}, '{"tenant":7}'),
    ("metadata", MappingProxyType({"tenant": 7}), '{"tenant":7}'),
    ("metadata", None, None),
]
# fmt: off
INVALID: list[tuple[str, Any, str]] = [
    ("queue", "", "must be a name"),
    ("queue", None, "must be a name"),
    ("queue", "a" * 201, "at most 200 characters"),
    ("queue", "a\nb", "no control characters"),
    ("priority", "high", "whole number"),
    ("priority", None, "whole number"),
    ("priority", 2**31, "whole number"),
    ("priority", True, "whole number"),
    ("lifo", "yes", "must be True or False"),
    ("lifo", None, "must be True or False"),
    ("max_attempts", 0, "from 1 to 10,000"),
    ("max_crashes", 0, "from 1 to 10,000"),
    ("backoff", "exponentail", "is neither a curve nor a function declared with @jobs.backoff"),
    ("backoff", "soon enough", "not a duration"),
    ("backoff", -1, "from 0 to a century"),
    ("timeout", 0, "more than 0 seconds, or None"),
    ("timeout", "fast", "not a duration"),
    ("timeout", float("nan"), "more than 0 seconds, or None"),
    ("timeout", -1, "more than 0 seconds, or None"),
    ("timeout", 4e9, "from 0 to a century"),
    ("queue", 5, "must be a name, as text"),
    ("backoff", "5 x", "must be exponential, fixed, linear, a duration, or a function declared"),
    ("keep", "forever", "not a duration"),
    ("keep", {"done": 1}, "must be one of completed, failed, canceled"),
    ("keep", {"failed": -1}, "from 0 to a century"),
    ("tags", "nightly", "must be a list of names"),
    ("tags", None, "must be a list of names"),
    ("tags", [""], "must be a name"),
    ("tags", ["t"] * 21, "at most 20 tags"),
    ("group", None, "must be a name"),
    ("group", 7, "must be a name"),
    ("prioritee", 1, "unknown option; did you mean priority?"),
    ("xyzzy", 1, "unknown option; valid options: queue, max_attempts"),
]
# fmt: on
INVALID_IN_USING: list[tuple[str, Any, str]] = [
    ("id", "", "must be a name"),
    ("id", None, "must be a name"),
    ("id", 7, "must be a name"),
    ("delay", "soon", "not a duration"),
    ("delay", -1, "from 0 to a century"),
    ("delay", NOON, "is a point in time, not a length: use run_at"),
    ("run_at", datetime(2026, 1, 31, 12), "needs a time zone"),  # noqa: DTZ001 - that is the point
    ("run_at", datetime(1969, 1, 1, tzinfo=UTC), "seconds since 1970"),
    ("run_at", "tomorrow", "must be a time from 1970"),
    ("run_at", float("inf"), "seconds since 1970"),
    ("deadline", datetime(2026, 1, 31, 12), "needs a time zone"),  # noqa: DTZ001 - that is the point
    ("metadata", [1], "must be a mapping"),
    ("metadata", {"at": 1j}, "cannot be written as JSON"),
    ("metadata", {"text": "x" * 70_000}, "at most 65,536 bytes"),
    ("name", "other", "unknown option"),
    ("retry_on", ValueError, "unknown option"),
]
INVALID_IN_TASK: list[tuple[str, Any, str]] = [
    ("name", "", "must be a name"),
    ("retry_on", "ValueError", "must be exception classes"),
    ("retry_on", (ValueError, 1), "must be exception classes"),
    ("fail_on", BaseException, "must be exception classes"),
    ("on_invalid", "ignore", "must be one of fail, discard"),
    ("runner", "fork", "must be one of async, thread, process"),
    ("runner", None, "must be one of async, thread, process"),
    ("run", "process", "unknown option"),
    ("delay", 5, "unknown option"),
    ("id", "x", "unknown option"),
]


@pytest.fixture
def send(jobs: Errandry) -> Task[..., Any]:
    @jobs.task
    async def send() -> None: ...

    return send


@pytest.fixture(autouse=True)
def squares(jobs: Errandry) -> None:
    @jobs.backoff
    def squares(attempt: int) -> float:
        return float(attempt**2)


async def nothing() -> None: ...


def app_with_defaults(**defaults: Any) -> Errandry:
    return Errandry("memory:", defaults=cast("DefaultOptions", defaults))


def case_id(case: object) -> str:
    return repr(case)[:40]


async def enqueue_and_read(jobs: Errandry, task: Task[..., Any]) -> Any:
    """Enqueue a job of the task and read its stored record."""
    return await jobs.client.record((await task.enqueue()).id)


@pytest.mark.parametrize(("option", "value", "stored"), JOB_OPTIONS, ids=case_id)
async def test_an_option_of_a_task_is_stored_with_its_jobs(
    jobs: Errandry, option: str, value: Any, stored: Any
) -> None:
    async def send() -> None: ...

    task: Task[[], None] = jobs.task(**{option: value})(send)

    assert getattr(await enqueue_and_read(jobs, task), option) == stored


@pytest.mark.parametrize(("option", "value", "stored"), JOB_OPTIONS + USE_OPTIONS, ids=case_id)
async def test_an_option_of_one_call_is_stored_with_its_job(
    jobs: Errandry, send: Task[..., Any], option: str, value: Any, stored: Any
) -> None:
    assert getattr(await enqueue_and_read(jobs, send.using(**{option: value})), option) == stored


@pytest.mark.parametrize(("option", "value", "why"), INVALID + INVALID_IN_TASK, ids=case_id)
def test_a_wrong_option_of_a_task_is_refused_where_it_is_declared(
    jobs: Errandry, option: str, value: Any, why: str
) -> None:
    with pytest.raises(InvalidValue, match=why) as refusal:
        jobs.task(**{option: value})(nothing)

    assert option.removesuffix("s") in str(refusal.value)
    assert jobs.tasks == {}


@pytest.mark.parametrize(("option", "value", "why"), INVALID + INVALID_IN_USING, ids=case_id)
async def test_a_wrong_option_of_a_call_is_refused_by_using(
    jobs: Errandry, send: Task[..., Any], option: str, value: Any, why: str
) -> None:
    with pytest.raises(InvalidValue, match=why) as refusal:
        send.using(**{option: value})

    assert option.removesuffix("s") in str(refusal.value)


async def test_without_options_the_documented_defaults_apply(jobs: Errandry, send: Task[..., Any]) -> None:
    job = await enqueue_and_read(jobs, send)

    assert (job.queue, job.priority, job.lifo) == ("default", 0, False)
    assert (job.max_attempts, job.max_crashes, job.backoff) == (5, 3, None)
    assert (job.timeout, job.deadline, job.keep, job.tags, job.group) == (None, None, None, (), "")


@pytest.mark.parametrize(
    ("option", "value", "stored"),
    [case for case in JOB_OPTIONS if case[0] in DefaultOptions.__annotations__],
    ids=case_id,
)
async def test_an_option_of_the_app_is_stored_with_the_jobs_of_all_its_tasks(
    option: str, value: Any, stored: Any
) -> None:
    async with app_with_defaults(**{option: value}) as app:
        app.backoffs["squares"] = float
        task = app.task(nothing)

        jobs = [await task.enqueue(), await task.using(id="a").enqueue(), await app.enqueue("elsewhere")]

        assert [getattr(await app.client.record(job.id), option) for job in jobs] == [stored] * 3


@pytest.mark.parametrize(
    ("option", "default", "value", "stored"),
    [
        ("queue", "shop", "mail", "mail"),
        ("max_attempts", 9, 1, 1),
        ("timeout", "5 minutes", "30s", 30.0),
        ("timeout", "5 minutes", None, None),
        ("backoff", "10s", "linear", Backoff(Curve.LINEAR)),
        ("backoff", "10s", None, None),
        ("keep", "1 day", {"failed": 1}, Keep(failed=1.0)),
        ("keep", "1 day", None, None),
    ],
    ids=case_id,
)
async def test_options_of_a_task_and_of_a_call_replace_those_of_the_app(
    option: str, default: Any, value: Any, stored: Any
) -> None:
    async with app_with_defaults(**{option: default}) as app:
        plain, own = app.task(name="plain")(nothing), app.task(name="own", **{option: value})(nothing)

        jobs = [
            await own.enqueue(),
            await own.using(priority=1).enqueue(),
            await plain.using(**{option: value}).enqueue(),
            await app.enqueue("plain", **{option: value}),
            await app.enqueue("elsewhere", **{option: value}),
        ]

        assert [getattr(await app.client.record(job.id), option) for job in jobs] == [stored] * 5
        assert getattr(await enqueue_and_read(app, own.using(**{option: default})), option) != stored


async def test_options_of_the_app_apply_to_flows_batches_and_schedules() -> None:
    async with app_with_defaults(queue="shop", max_attempts=2) as app:
        task = app.task(nothing)

        @app.task(batch=10)
        async def many(items: list[int]) -> None: ...

        parent = await app.enqueue_flow(flow(task.new(), many.new(1)))
        [child] = await app.children(parent.id)
        await app.schedules.put("nightly", task, "0 3 * * *")

        made: list[NewJob | JobRecord] = [
            await app.client.record(parent.id),
            await app.client.record(child.id),
            (await app.client.schedule("nightly")).plan.job,
        ]
        assert [(job.task, job.queue, job.max_attempts) for job in made] == [
            ("nothing", "shop", 2),
            ("many", "shop", 2),
            ("nothing", "shop", 2),
        ]


@pytest.mark.parametrize(
    ("defaults", "message"),
    [
        ({"queue": ""}, r"^defaults\.queue=''.*must be a name"),
        ({"queue": None}, r"^defaults\.queue=None.*must be a name"),
        ({"max_attempts": 0}, r"^defaults\.max_attempts=0.*from 1 to 10,000"),
        ({"timeout": 0}, r"^defaults\.timeout=0.*more than 0 seconds, or None"),
        ({"timeout": "fast"}, r"^defaults\.timeout='fast'.*not a duration"),
        ({"backoff": "soon enough"}, r"^defaults\.backoff=.*not a duration"),
        ({"keep": {"done": 1}}, r"^defaults\.keep=.*must be one of completed, failed, canceled"),
        ({"priority": 1}, r"^defaults\.priority=1: unknown option; valid options: queue, max_attempts"),
        ({"time_out": 1}, r"^defaults\.time_out=1: unknown option; did you mean timeout"),
        ("mail", r"^defaults='mail': must be a mapping"),
    ],
)
def test_a_wrong_option_of_the_app_is_refused_where_it_is_given(defaults: Any, message: str) -> None:
    with pytest.raises(InvalidValue, match=message):
        Errandry("memory:", defaults=defaults)


@pytest.mark.parametrize(
    "delay",
    [300, 300.0, "300", "5 minutes", "5m", "300s", timedelta(minutes=5)],
    ids=case_id,
)
async def test_a_delay_is_a_number_a_timedelta_or_words(
    jobs: Errandry, send: Task[..., Any], clock: FakeClock, delay: Any
) -> None:
    job = await enqueue_and_read(jobs, send.using(delay=delay))

    assert (job.state, job.run_at) == (State.SCHEDULED, clock.time() + 300)


@pytest.mark.parametrize(
    "run_at",
    [
        NOON,
        NOON.astimezone(timezone(timedelta(hours=-5))),
        NOON_SECONDS,
        "2026-01-31T12:00Z",
        "2026-01-31T13:00+01:00",
        "2026-01-31 12:00",
    ],
    ids=case_id,
)
async def test_a_moment_is_an_aware_datetime_a_number_or_iso_text(
    jobs: Errandry, send: Task[..., Any], run_at: Any
) -> None:
    job = await enqueue_and_read(jobs, send.using(run_at=run_at))

    assert (job.state, job.run_at) == (State.SCHEDULED, NOON_SECONDS)


async def test_a_run_at_in_the_past_means_now(jobs: Errandry, send: Task[..., Any]) -> None:
    assert (await enqueue_and_read(jobs, send.using(run_at="2001-01-01"))).state is State.WAITING


async def test_a_delay_of_none_or_zero_means_now(jobs: Errandry, send: Task[..., Any]) -> None:
    assert (await enqueue_and_read(jobs, send.using(delay=None, run_at=None))).state is State.WAITING
    assert (await enqueue_and_read(jobs, send.using(delay=0))).state is State.WAITING


def test_delay_together_with_run_at_is_refused(send: Task[..., Any]) -> None:
    with pytest.raises(InvalidValue, match=r"give either run_at or delay \(5\)"):
        send.using(delay=5, run_at=NOON)


async def test_in_a_chain_of_using_the_last_option_wins(jobs: Errandry, send: Task[..., Any]) -> None:
    chain = send.using(delay=5, priority=1, queue="mail").using(run_at=NOON, priority=2)

    job = await enqueue_and_read(jobs, chain)

    assert (job.run_at, job.priority, job.queue) == (NOON_SECONDS, 2, "mail")
    assert (await enqueue_and_read(jobs, chain.using(delay=5))).run_at != NOON_SECONDS


async def test_options_of_one_call_do_not_affect_the_next(jobs: Errandry, send: Task[..., Any]) -> None:
    await send.using(queue="mail", priority=9).enqueue()

    job = await enqueue_and_read(jobs, send)

    assert (job.queue, job.priority) == ("default", 0)


def test_too_large_metadata_is_refused_with_its_size(send: Task[..., Any]) -> None:
    with pytest.raises(TooLarge) as refusal:
        send.using(metadata={"text": "x" * 70_000})

    assert (refusal.value.size, refusal.value.bound) == (70_011, 65_536)


# Where a handler runs.


async def async_handler() -> None: ...


def plain_handler() -> None: ...


async def async_batch_handler(numbers: list[int]) -> list[int]:
    return numbers


def plain_batch_handler(numbers: list[int]) -> list[int]:
    return numbers


IS_BATCH = pytest.mark.parametrize("is_batch", [False, True], ids=["one job", "batch"])


def declare(jobs: Errandry, *, is_async: bool, is_batch: bool, **options: Any) -> Task[..., Any]:
    """A task of this kind with these options."""
    if is_batch:
        handler: Any = async_batch_handler if is_async else plain_batch_handler
        options["batch"] = 10
    else:
        handler = async_handler if is_async else plain_handler
    task: Task[..., Any] = jobs.task(**options)(handler)
    return task


@IS_BATCH
@pytest.mark.parametrize(
    ("is_async", "options", "runner"),
    [
        (True, {}, Runner.ASYNC),
        (True, {"runner": "async"}, Runner.ASYNC),
        (True, {"runner": "process"}, Runner.PROCESS),
        (False, {}, Runner.THREAD),
        (False, {"runner": "thread"}, Runner.THREAD),
        (False, {"runner": "process"}, Runner.PROCESS),
    ],
)
def test_the_runner_is_the_given_one_or_that_of_the_kind_of_function(
    jobs: Errandry, is_batch: bool, is_async: bool, options: dict[str, Any], runner: Runner
) -> None:
    assert declare(jobs, is_async=is_async, is_batch=is_batch, **options).runner is runner


@IS_BATCH
def test_a_plain_function_is_refused_on_the_event_loop(jobs: Errandry, is_batch: bool) -> None:
    why = r'runner=.async.: plain_.*handler is a plain function and would block .* event loop: give "thread"'
    with pytest.raises(InvalidValue, match=why):
        declare(jobs, is_async=False, is_batch=is_batch, runner="async")

    assert jobs.tasks == {}


@IS_BATCH
def test_a_coroutine_function_is_refused_in_a_thread(jobs: Errandry, is_batch: bool) -> None:
    why = r'runner=.thread.: async_.*handler is a coroutine function, .*: leave runner out, or give "process"'
    with pytest.raises(InvalidValue, match=why):
        declare(jobs, is_async=True, is_batch=is_batch, runner="thread")

    assert jobs.tasks == {}
