"""Schedules: declared in code, put at run time, and the context of their handlers."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from typing import Any, get_type_hints
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import pytest

from errandry import Errandry, JobContext, ScheduleOptions, State, Task
from errandry.api import schedules
from errandry.api.gate_info import PauseInfo
from errandry.api.schedule_options import TimingChanges, TimingOptions
from errandry.codec.json_codec import DocumentInfo
from errandry.core import cron
from errandry.core.duration import as_datetime
from errandry.core.job import Keep
from errandry.core.schedule import job_id
from errandry.errors import InvalidArguments, InvalidValue, ScheduleChanged, UnknownSchedule
from errandry.testing import FakeClock, drain
from tests.machine_load import WAIT_TIMEOUT, MachineLoad
from tests.run_worker import run_burst, running_worker

WHOLE = ScheduleOptions(
    "30 3 * * 1-5",
    timezone="Europe/Vienna",
    start=datetime(2025, 7, 1, tzinfo=UTC),
    end="2030-01-01",
    limit=7,
    jitter="10 seconds",
    overlap="skip",
    catch_up="all",
)


@pytest.fixture
async def sealed(clock: FakeClock) -> AsyncIterator[Errandry]:
    async with Errandry("memory:", clock=clock, codec=Bound()) as jobs:
        yield jobs


class Bound:
    """A codec that binds what it seals to its job."""

    def seal(self, text: str, document: DocumentInfo) -> str:
        return f'["{document.job.encode().hex()}", {text}]'

    def unseal(self, text: str, document: DocumentInfo) -> str:
        mark = f'["{document.job.encode().hex()}", '
        assert text.startswith(mark), (text, document)
        return text.removeprefix(mark).removesuffix("]")


class TestPutting:
    async def test_a_call_runs_at_every_tick(self, jobs: Errandry, clock: FakeClock) -> None:
        seen: list[tuple[str, str | None, datetime | None]] = []

        @jobs.task(queue="reports")
        async def report(ctx: JobContext, of: str) -> None:
            seen.append((of, ctx.schedule, ctx.tick))

        put = await jobs.schedules.put("nightly", report.using(priority=5).new("all"), "every 10s")
        assert put.next_tick == put.next_run == as_datetime(clock.time() + 10)
        clock.advance(10)
        first = datetime.fromtimestamp(clock.time(), UTC)
        [job] = await drain(jobs)
        clock.advance(13)
        await drain(jobs)

        assert seen == [("all", "nightly", first), ("all", "nightly", first + timedelta(seconds=10))]
        assert (job.id, job.queue, job.priority) == (job_id("nightly", first.timestamp()), "reports", 5)
        schedule = await jobs.schedules.get("nightly")
        assert (schedule.runs, schedule.last_tick) == (2, first + timedelta(seconds=10))

    async def test_all_options_are_stored_and_can_be_read(self, jobs: Errandry, clock: FakeClock) -> None:
        @jobs.task(queue="reports", keep="1 day")
        async def report(of: str) -> None: ...

        call = report.using(priority=5, tags=["a"], metadata={"tenant": 7}, timeout="1 minute").new("x")
        put = await jobs.schedules.put("all", call, WHOLE, by="ada")

        assert (put.when, put.timezone, put.limit, put.jitter) == ("30 3 * * 1-5", "Europe/Vienna", 7, 10.0)
        assert (put.start, put.end) == (datetime(2025, 7, 1, tzinfo=UTC), datetime(2030, 1, 1, tzinfo=UTC))
        assert (put.overlap, put.catch_up) == ("skip", "all")
        assert (put.task, put.arguments, put.metadata) == ("report", {"of": "x"}, {"tenant": 7})
        assert (put.queue, put.priority, put.tags, put.timeout) == ("reports", 5, ("a",), 60.0)
        assert put.keep == Keep(86_400.0, 86_400.0, 86_400.0)
        assert (put.by, put.owners, put.created_at, put.updated_at) == (
            "ada",
            (),
            as_datetime(clock.time()),
            as_datetime(clock.time()),
        )
        assert put == await jobs.schedules.get("all")
        assert repr(put) == "<schedule all report 30 3 * * 1-5>"

    async def test_a_schedule_in_a_time_zone_that_this_host_does_not_know_is_read_and_edited(
        self, jobs: Errandry, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        @jobs.task
        async def report() -> None: ...

        await jobs.schedules.put("all", report, "@daily", timezone="Asia/Tokyo")

        def zone_info(name: str) -> ZoneInfo:
            if name == "Asia/Tokyo":
                raise ZoneInfoNotFoundError(name)
            return ZoneInfo(name)

        monkeypatch.setattr(cron, "ZoneInfo", zone_info)
        assert (await jobs.schedules.get("all")).timezone == "Asia/Tokyo"
        with pytest.raises(InvalidValue, match="unknown time zone"):
            await jobs.schedules.edit("all", limit=5)
        assert (await jobs.schedules.edit("all", timezone="UTC")).timezone == "UTC"

    async def test_timing_can_be_given_by_name(self, jobs: Errandry) -> None:
        @jobs.task
        async def report() -> None: ...

        put = await jobs.schedules.put(
            "all", report, "@daily", timezone="Asia/Tokyo", overlap="queue", jitter=timedelta(minutes=1)
        )

        assert (put.timezone, put.overlap, put.jitter) == ("Asia/Tokyo", "queue", 60.0)

    async def test_an_edit_takes_effect_at_once_and_leaves_the_rest(
        self, jobs: Errandry, clock: FakeClock
    ) -> None:
        ran: list[str] = []

        @jobs.task
        async def report(of: str) -> None:
            ran.append(of)

        await jobs.schedules.put("all", report.new("x"), "every 10s", overlap="skip")
        after = await jobs.schedules.edit("all", arguments={"of": "y"}, options={"queue": "slow"})
        assert (after.when, after.overlap, after.queue) == ("every 10s", "skip", "slow")
        after = await jobs.schedules.edit("all", when="every 20s")
        assert (after.when, after.overlap) == ("every 20s", "skip")
        clock.advance(20)
        await drain(jobs)

        assert ran == ["y"]
        with pytest.raises(InvalidArguments):
            await jobs.schedules.edit("all", arguments={"off": "y"})

    async def test_edits_at_the_same_time_all_take_effect(self, live: Errandry) -> None:
        @live.task
        async def report() -> None: ...

        await live.schedules.put("all", report, "@daily")

        await asyncio.gather(
            live.schedules.edit("all", limit=5),
            live.schedules.edit("all", jitter="5 minutes"),
            live.schedules.edit("all", options={"priority": 3}),
            live.schedules.edit("all", options={"queue": "slow"}),
        )

        edited = await live.schedules.get("all")
        assert (edited.limit, edited.jitter, edited.priority, edited.queue) == (5, 300.0, 3, "slow")

    async def test_an_edit_gives_up_if_the_plan_changes_all_the_time(
        self, jobs: Errandry, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        @jobs.task
        async def report() -> None: ...

        await jobs.schedules.put("all", report, "@daily")
        monkeypatch.setattr(schedules, "EDIT_TRIES", 1)

        edits = [jobs.schedules.edit("all", limit=limit) for limit in (5, 6)]
        first, second = await asyncio.gather(*edits, return_exceptions=True)

        assert isinstance(second, ScheduleChanged), second
        assert "'all' was changed during the edit" in str(second)
        assert (await jobs.schedules.get("all")).limit == 5, first

    async def test_pause_resume_run_remove(self, jobs: Errandry, clock: FakeClock) -> None:
        @jobs.task
        async def report() -> int:
            return 7

        await jobs.schedules.put("all", report, "every 10s")
        assert await jobs.schedules.pause("all", by="ada")
        assert not await jobs.schedules.pause("all")
        paused = await jobs.schedules.get("all")
        assert paused.paused == PauseInfo(as_datetime(clock.time()), "ada")
        assert (paused.next_tick, paused.next_run, paused.next_job) == (None, None, None)
        clock.advance(60)
        assert await drain(jobs) == []

        job = await jobs.schedules.run("all")
        await drain(jobs)
        assert await job.result() == 7

        assert await jobs.schedules.resume("all")
        assert not await jobs.schedules.resume("all")
        assert await jobs.schedules.remove("all")
        assert not await jobs.schedules.remove("all")
        assert await jobs.schedules.list() == []
        with pytest.raises(UnknownSchedule, match="there is no schedule 'all'"):
            await jobs.schedules.get("all")
        with pytest.raises(UnknownSchedule):
            await jobs.schedules.run("all")

    async def test_a_backfill_runs_the_missing_ticks_of_a_span(
        self, jobs: Errandry, clock: FakeClock
    ) -> None:
        ticks: list[datetime | None] = []

        @jobs.task
        async def report(ctx: JobContext) -> None:
            ticks.append(ctx.tick)

        now = datetime.fromtimestamp(clock.time(), UTC)
        await jobs.schedules.put("all", report, "every 1 hour")

        job_ids = await jobs.schedules.backfill("all", now - timedelta(hours=3))
        assert len(job_ids) == 3
        assert await jobs.schedules.backfill("all", now - timedelta(hours=3), now) == []
        await drain(jobs)

        hours = [now.replace(minute=0, second=0) - timedelta(hours=n) for n in (2, 1, 0)]
        assert ticks == hours

    async def test_arguments_are_sealed_once_for_the_schedule(
        self, sealed: Errandry, clock: FakeClock
    ) -> None:
        ran: list[str] = []

        @sealed.task
        async def report(of: str) -> None:
            ran.append(of)

        put = await sealed.schedules.put("all", report.new("x"), "every 10s")
        assert put.arguments == {"of": "x"}
        await sealed.schedules.run("all")
        clock.advance(10)
        await drain(sealed)
        await sealed.schedules.edit("all", arguments={"of": "y"})
        [pending] = (await sealed.list("state:scheduled")).jobs
        await sealed.edit(pending.id, arguments={"of": "z"})
        clock.advance(10)
        await drain(sealed)

        assert ran == ["x", "x", "z"]

    @pytest.mark.parametrize(
        ("when", "timing", "why"),
        [
            ("* * *", {}, "has 3 fields"),
            ("every 2 fortnights", {}, "not a unit"),
            ("every 10ms", {}, "at least 1 second"),
            ("@daily", {"timezone": "Mars/Base"}, "unknown time zone"),
            ("@daily", {"overlap": "skipp"}, "did you mean skip"),
            ("@daily", {"catch_up": "some"}, "must be one of skip, one, all"),
            ("@daily", {"limit": 0}, "whole number"),
            (5, {}, "must be cron"),
            (None, {}, "say when"),
        ],
    )
    async def test_wrong_timing_is_refused(
        self, jobs: Errandry, when: Any, timing: dict[str, Any], why: str
    ) -> None:
        @jobs.task
        async def report() -> None: ...

        with pytest.raises(InvalidValue, match=why):
            await jobs.schedules.put("all", report, when, **timing)

    async def test_the_job_of_a_schedule_cannot_have_a_delay_or_unique_key(self, jobs: Errandry) -> None:
        @jobs.task
        async def report() -> None: ...

        for using in (report.using(delay=5), report.using(unique=True)):
            with pytest.raises(InvalidValue, match="cannot be set for the jobs of a schedule"):
                await jobs.schedules.put("all", using, "@daily")


class TestDeclaring:
    async def test_a_worker_puts_the_declared_schedules(self, jobs: Errandry) -> None:
        @jobs.task(schedule="0 3 * * *")
        async def clean() -> None: ...

        @jobs.task
        async def report(of: str) -> None: ...

        jobs.schedule("acme", report.new("acme"), "@hourly", timezone="Asia/Tokyo")
        assert jobs.schedules.declared == ("clean", "acme")

        await run_burst(jobs)

        schedules = {schedule.name: schedule for schedule in await jobs.schedules.list()}
        assert (schedules["clean"].when, schedules["clean"].owners) == ("0 3 * * *", ("app",))
        assert (schedules["acme"].timezone, schedules["acme"].task) == ("Asia/Tokyo", "report")
        assert await jobs.put_declared() == []

    async def test_prune_removes_schedules_that_are_no_longer_declared(self, jobs: Errandry) -> None:
        @jobs.task
        async def report() -> None: ...

        other = Errandry(store=jobs.store, clock=jobs.clock, owner="other")
        other.schedule("others", other.task(report.function), "@daily")
        await other.put_declared(prune=True)
        await jobs.schedules.put("by hand", report, "@daily")
        jobs.schedule("old", report, "@daily")
        await jobs.put_declared()
        assert len(await jobs.schedules.list()) == 3

        later = Errandry(store=jobs.store, clock=jobs.clock)
        assert await later.put_declared() == []
        await run_burst(later, prune_declared=True)

        assert [schedule.name for schedule in await jobs.schedules.list()] == ["by hand", "others"]
        await later.close()
        await other.close()

    async def test_a_paused_schedule_stays_paused_after_a_deployment(self, jobs: Errandry) -> None:
        @jobs.task(schedule="0 3 * * *")
        async def clean() -> None: ...

        await jobs.put_declared()
        await jobs.schedules.pause("clean")
        assert await jobs.put_declared() == []
        jobs.task(schedule="0 4 * * *")(clean.function)
        assert await jobs.put_declared() == ["schedule clean"]

        assert (await jobs.schedules.get("clean")).paused is not None

    @pytest.mark.parametrize(
        ("declare", "why"),
        [
            (lambda jobs: jobs.schedule("s", _send(jobs), "@daily"), "'of' has no default.*send.new.of=…"),
            (lambda jobs: jobs.schedule("s", "send", "@daily"), "call='send': must be a call such as"),
            (lambda jobs: jobs.schedule("s", _noop(jobs).function, "@daily"), "must be a call such as"),
            (lambda jobs: jobs.schedule("s", _noop(jobs), "* *"), "cron='"),
            (lambda jobs: jobs.schedule("s", _noop(jobs), 5), "must be cron"),
            (lambda jobs: jobs.schedule("s", _noop(jobs), "@daily", overlap="skipp"), "mean skip"),
            (lambda jobs: jobs.schedule("s", _noop(jobs), "every 5s", timezone="Mars"), "unknown time zone"),
            (
                lambda jobs: jobs.schedule("s", _noop(jobs), "@daily", start="2031-01-01", end="2030-01-01"),
                "end='2030-01-01T00:00:00Z': is before start, 2031-01-01T00:00:00Z",
            ),
            (
                lambda jobs: jobs.schedule("s", _noop(jobs), "@yearly", start="2030-02-01", end="2030-03-01"),
                "there is no tick between start, 2030-02-01T00:00:00Z, and end",
            ),
            (lambda jobs: jobs.schedule("s", _noop(jobs).using(unique=True), "@daily"), "unique="),
            (lambda jobs: jobs.schedule("s", _noop(jobs).using(delay=5), "@daily"), "delay="),
            (lambda jobs: jobs.task(name="s", schedule="@daily")(send), "'of' has no default"),
            (lambda jobs: jobs.task(name="s", schedule="@daily", batch=5)(send_all), "'of' has no default"),
            (lambda jobs: jobs.task(name="s", schedule="@daily", unique=True)(noop), "unique="),
        ],
    )
    def test_a_wrong_schedule_is_refused_where_it_is_declared(
        self, declare: Callable[[Errandry], object], why: str
    ) -> None:
        jobs = Errandry("memory:")

        with pytest.raises(InvalidValue, match=why) as refused:
            declare(jobs)

        assert str(refused.value).startswith("schedule='s': ")
        assert jobs.schedules.declared == ()
        assert "s" not in jobs.tasks

    @pytest.mark.parametrize("name", ["", "s" * 151, "a\nb", 5])
    async def test_a_wrong_name_is_refused_where_it_is_declared(self, jobs: Errandry, name: Any) -> None:
        with pytest.raises(InvalidValue, match="schedule="):
            jobs.schedule(name, _noop(jobs), "@daily")
        with pytest.raises(InvalidValue, match="schedule="):
            await jobs.schedules.put(name, _noop(jobs), "@daily")

    def test_a_wrong_option_of_a_task_is_refused_where_it_is_declared(self) -> None:
        jobs = Errandry("memory:")
        for wrong, why in (("* *", "cron='"), (5, "must be cron")):
            options: dict[str, Any] = {"schedule": wrong}
            with pytest.raises(InvalidValue, match=why):
                jobs.task(**options)(noop)

    def test_a_handler_may_have_a_context_and_types_that_are_declared_later(self) -> None:
        jobs = Errandry("memory:")

        async def one(ctx: JobContext, count: int = 1) -> None: ...
        async def other(ctx: JobContext, when: "DeclaredLater" = None) -> None: ...  # type: ignore[name-defined] # noqa: F821

        jobs.task(schedule="@daily")(one)
        jobs.task(schedule="@daily")(other)

        assert jobs.schedules.declared == ("one", "other")

    async def test_a_worker_refuses_a_schedule_without_arguments_whose_types_were_not_declared_before(
        self, jobs: Errandry
    ) -> None:
        async def report(of: "DeclaredLater") -> None: ...  # type: ignore[name-defined] # noqa: F821

        jobs.task(schedule="@daily")(report)
        report.__globals__["DeclaredLater"] = str
        try:
            with pytest.raises(InvalidValue, match=r"'of' has no default.*report\.new.of=…") as refused:
                await run_burst(jobs)
        finally:
            del report.__globals__["DeclaredLater"]

        assert str(refused.value).startswith("schedule='report': ")
        assert await jobs.schedules.list() == []

    @pytest.mark.parametrize("first", [str, "JobContext", "DeclaredLater"])
    def test_an_argument_without_default_is_refused_even_if_another_type_is_declared_later(
        self, first: Any
    ) -> None:
        jobs = Errandry("memory:")

        async def report(first: Any, second: Any) -> None: ...

        report.__annotations__ = {"first": first, "second": "DeclaredLaterToo"}
        is_known = first == "DeclaredLater" or first is str
        with pytest.raises(InvalidValue, match="has no default") if is_known else nullcontext():
            jobs.task(schedule="@daily")(report)

    def test_two_declarations_of_a_name_must_be_equal(self) -> None:
        jobs = Errandry("memory:", codec=Bound())

        @jobs.task
        def report(of: str = "all") -> None: ...

        jobs.schedule("s", report, "@daily")
        jobs.schedule("s", report, "@daily")
        jobs.schedule("s", report.new(), "@daily", timezone="UTC")
        with pytest.raises(InvalidValue, match="schedule='s': is declared already, with when @daily, not"):
            jobs.schedule("s", report, "@hourly")
        with pytest.raises(InvalidValue, match="with other arguments: choose another name"):
            jobs.schedule("s", report.new("shop"), "@daily")
        with pytest.raises(InvalidValue, match="with task report, not noop"):
            jobs.schedule("s", _noop(jobs), "@daily")
        with pytest.raises(InvalidValue, match="schedule='s': is declared already"):
            jobs.task(name="s", schedule="@daily")(send_by_default)

    async def test_a_task_that_is_declared_again_replaces_its_schedule(self, jobs: Errandry) -> None:
        def declare(**options: Any) -> None:
            jobs.task(name="noop", **options)(noop)

        declare(schedule="@daily")
        declare(schedule="@hourly", queue="slow")
        await jobs.put_declared()
        schedule = await jobs.schedules.get("noop")
        assert (schedule.when, schedule.queue) == ("@hourly", "slow")

        declare()
        assert jobs.schedules.declared == ()
        assert await jobs.put_declared(prune=True) == ["schedule noop"]

    def test_a_task_without_a_schedule_keeps_that_of_another_declaration(self, jobs: Errandry) -> None:
        task = _noop(jobs)
        jobs.schedule("noop", task, "@daily")
        _noop(jobs)

        assert jobs.schedules.declared == ("noop",)


async def noop() -> None: ...


async def send(of: str) -> None: ...


async def send_all(of: list[str]) -> None: ...


async def send_by_default(of: str = "all") -> None: ...


def _noop(jobs: Errandry) -> Task[..., Any]:
    return jobs.task(noop)


def _send(jobs: Errandry) -> Task[..., Any]:
    return jobs.task(send)


async def test_a_worker_sleeps_until_the_tick(live: Errandry) -> None:
    ran = asyncio.Event()
    late: list[float] = []

    @live.task
    async def report(ctx: JobContext) -> None:
        assert ctx.tick is not None
        late.append(datetime.now(UTC).timestamp() - ctx.tick.timestamp())
        ran.set()

    async with running_worker(live, upkeep=False):
        with MachineLoad() as load:
            await live.schedules.put("all", report, "* * * * * *")
            async with asyncio.timeout(WAIT_TIMEOUT):
                await ran.wait()

    assert 0 <= late[0] < load.scaled(0.5)


async def test_a_handler_does_not_see_the_previous_run_as_a_child(jobs: Errandry, clock: FakeClock) -> None:
    children: list[int] = []

    @jobs.task
    async def report(ctx: JobContext) -> None:
        children.append(len(ctx.children()))

    await jobs.schedules.put("all", report, "every 10s", overlap="queue", catch_up="all")
    clock.advance(30)
    finished = await drain(jobs)

    assert [job.state for job in finished] == [State.COMPLETED] * 3
    assert children == [0, 0, 0]


async def test_why_names_the_schedule(jobs: Errandry) -> None:
    @jobs.task
    async def report() -> None: ...

    put = await jobs.schedules.put("nightly", report, "every 10s")

    answer = await jobs.why(str(put.next_job))

    assert "it is the next tick of schedule nightly" in str(answer)


class TestTimingOptions:
    async def test_an_unknown_name_is_refused_with_a_hint(self, jobs: Errandry) -> None:
        @jobs.task
        async def report() -> None: ...

        await jobs.schedules.put("nightly", report, "@daily")
        wrong: dict[str, Any] = {"overlp": "skip"}

        with pytest.raises(InvalidValue, match="overlp='skip': unknown option; did you mean overlap"):
            jobs.schedule("hourly", report, "@hourly", **wrong)
        with pytest.raises(InvalidValue, match="overlp='skip': unknown option; did you mean overlap"):
            await jobs.schedules.put("nightly", report, "@daily", **wrong)
        with pytest.raises(InvalidValue, match="overlp='skip': unknown option; did you mean overlap"):
            await jobs.schedules.edit("nightly", **wrong)

    def test_type_checkers_know_all_fields_of_schedule_options(self) -> None:
        assert get_type_hints(TimingChanges) == get_type_hints(ScheduleOptions)
        assert TimingChanges.__annotations__.keys() - TimingOptions.__annotations__.keys() == {"when"}
