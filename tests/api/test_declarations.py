"""Rules and schedules that code declares: workers store them at start, and an operator's changes win."""

import json
import logging
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from errandry import Errandry
from errandry.codec.json_codec import DocumentInfo
from errandry.core.duration import as_datetime
from errandry.core.event import EventKind
from errandry.core.gate import GateRecord
from errandry.core.job import NewJob
from errandry.core.rule import OnReturn, Overflow, Rate, Rule
from errandry.core.rule_info import Source
from errandry.errors import InvalidValue, StoreUnavailable
from errandry.testing import FakeClock
from tests.run_worker import run_burst, running_worker

LOGGER = "errandry.declarations"


@pytest.fixture(params=["memory", "sqlite"])
async def live(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Errandry]:
    url = "memory:" if request.param == "memory" else f"sqlite:///{tmp_path}/jobs.db"
    async with Errandry(url) as jobs:
        yield jobs


@pytest.fixture
async def another() -> AsyncIterator[Callable[..., Errandry]]:
    """Opens another program, or another version of the code, on the store of an app."""
    opened: list[Errandry] = []

    def open_app(jobs: Errandry, owner: str = "app") -> Errandry:
        is_file = jobs.url is not None and jobs.url.startswith("sqlite")
        store = None if is_file else jobs.store
        opened.append(Errandry(jobs.url if is_file else None, store=store, clock=jobs.clock, owner=owner))
        return opened[-1]

    yield open_app
    for jobs in opened:
        await jobs.close()


class Counting:
    """A codec that seals the same text differently each time, as an encryption does."""

    def __init__(self) -> None:
        self._count = 0

    def seal(self, text: str, document: DocumentInfo) -> str:
        self._count += 1
        return f"[{self._count}, {text}]"

    def unseal(self, text: str, document: DocumentInfo) -> str:
        return text.split(", ", 1)[1].removesuffix("]")


async def _report() -> None: ...


async def gate(jobs: Errandry) -> GateRecord:
    """The only gate with a rule."""
    [record] = await jobs.engine.call(jobs.store.rules)
    return record


class TestRules:
    async def test_a_worker_stores_the_declared_rules(self, live: Errandry) -> None:
        @live.task(limit=5, rate="100/minute", burst=7)
        async def send() -> None: ...

        queue = live.declare_queue(
            "mail",
            limit=20,
            rate="10/s",
            group_limit=2,
            group_rate="1/s",
            group_burst=3,
            max_size=1_000,
            group_max_size=10,
            overflow="drop_oldest",
            ageing="10 minutes",
            on_return="hold_group",
        )
        assert await live.rules() == []

        await run_burst(live)

        assert await send.rules() == Rule(limit=5, rate=Rate(100, 60.0, 7))
        assert await queue.rules() == Rule(
            limit=20,
            rate=Rate(10, 1.0, 1),
            group_limit=2,
            group_rate=Rate(1, 1.0, 3),
            max_size=1_000,
            group_max_size=10,
            overflow=Overflow.DROP_OLDEST,
            ageing=600.0,
            on_return=OnReturn.HOLD_GROUP,
        )
        assert await live.put_declared() == []

    async def test_a_worker_that_starts_leaves_an_operators_value_in_force_and_logs_both(
        self, live: Errandry, caplog: pytest.LogCaptureFixture
    ) -> None:
        queue = live.declare_queue("mail", limit=20, max_size=9)
        await run_burst(live)
        await queue.set_rules(limit=50, by="ada")

        with caplog.at_level(logging.INFO, LOGGER):
            await run_burst(live)

        assert await queue.rules() == Rule(limit=50, max_size=9)
        assert [record.message for record in caplog.records if record.name == LOGGER] == [
            "queue mail: this program declares limit 20, but limit 50 is in force, set by ada; "
            "for the declared values run: errandry queues reset mail limit"
        ]

    async def test_the_log_names_the_operator_of_each_value(
        self, live: Errandry, caplog: pytest.LogCaptureFixture
    ) -> None:
        queue = live.declare_queue("mail", limit=20, max_size=9)
        await queue.set_rules(limit=50, ageing="1m", by="ada")
        await queue.set_rules(rate="5/s", max_size=8, by="bob")
        await queue.reset_rules("ageing", by="carl")

        with caplog.at_level(logging.INFO, LOGGER):
            await live.put_declared()

        in_force = "but limit 50 is in force, set by ada and max size 8 is in force, set by bob"
        assert in_force in caplog.text

    async def test_an_operators_value_from_before_the_first_declaration_wins(
        self, live: Errandry, caplog: pytest.LogCaptureFixture
    ) -> None:
        @live.task(limit=5)
        async def send() -> None: ...

        await send.set_rules(limit=1)

        with caplog.at_level(logging.INFO, LOGGER):
            assert await live.put_declared() == ["task send"]

        assert await send.rules() == Rule(limit=1)
        assert "limit 1 is in force, set by an operator; " in caplog.text
        assert "errandry queues reset --task send limit" in caplog.text

    @pytest.mark.parametrize("kind", ["queue", "task"])
    async def test_the_suggested_command_is_quoted_for_the_shell(
        self, live: Errandry, caplog: pytest.LogCaptureFixture, kind: str
    ) -> None:
        if kind == "queue":
            await live.declare_queue("new q", limit=20).set_rules(limit=1)
        else:
            live.task(name="new q", limit=20)(Counting().seal)
            await live.remote_task("new q").set_rules(limit=1)

        await live.put_declared()

        target = "'new q'" if kind == "queue" else "--task 'new q'"
        assert f"run: errandry queues reset {target} limit\n" in caplog.text

    async def test_a_removed_limit_stays_removed_until_it_is_reset(
        self, live: Errandry, caplog: pytest.LogCaptureFixture
    ) -> None:
        queue = live.declare_queue("mail", limit=20, max_size=9)
        await live.put_declared()
        assert await queue.set_rules(limit=None) == Rule(max_size=9)

        with caplog.at_level(logging.INFO, LOGGER):
            await live.put_declared()

        assert await queue.rules() == Rule(max_size=9)
        assert "declares limit 20, but limit none is in force" in caplog.text
        assert await queue.reset_rules("limit", by="ada") == Rule(limit=20, max_size=9)

    async def test_a_reset_is_for_the_named_rules_or_for_all(self, live: Errandry) -> None:
        @live.task(limit=5, rate="10/s")
        async def send() -> None: ...

        await live.put_declared()
        await send.set_rules(limit=1, rate=None)

        assert await send.reset_rules("rate") == Rule(limit=1, rate=Rate(10, 1.0, 1))
        assert await send.reset_rules() == Rule(limit=5, rate=Rate(10, 1.0, 1))
        with pytest.raises(InvalidValue, match="field='max_size': a rule of a task has limit, rate"):
            await send.reset_rules("max_size")

    async def test_a_group_that_is_reset_has_no_rule(self, live: Errandry) -> None:
        group = live.queue("mail").group("acme")
        await group.set_rules(limit=2, weight=3)

        assert await group.reset_rules("limit") == Rule(weight=3)
        assert await group.reset_rules() == Rule()
        assert await live.rules() == []

    async def test_the_last_version_of_the_code_to_start_wins_and_logs_both(
        self, live: Errandry, caplog: pytest.LogCaptureFixture, another: Callable[..., Errandry]
    ) -> None:
        live.declare_queue("mail", limit=20, max_size=9)
        await live.put_declared()
        newer = another(live)
        queue = newer.declare_queue("mail", limit=30, rate="10/s")

        with caplog.at_level(logging.INFO, LOGGER):
            assert await newer.put_declared() == ["queue mail"]

        assert await queue.rules() == Rule(limit=30, rate=Rate(10, 1.0, 1))
        assert [record.message for record in caplog.records if record.name == LOGGER] == [
            "queue mail: this program declares limit 30, rate 10/second (burst 1), max size none; "
            "the program 'app' declared limit 20, rate none, max size 9 before"
        ]

    async def test_each_field_tells_its_source(self, live: Errandry) -> None:
        queue = live.declare_queue("mail", limit=20, max_size=9)
        await live.put_declared()
        await queue.set_rules(limit=50, ageing="1m", by="ada")

        rule_info = (await gate(live)).rule_info

        assert rule_info is not None
        assert rule_info.sources == {
            "limit": Source.OPERATOR,
            "max_size": Source.CODE,
            "ageing": Source.OPERATOR,
        }
        assert (rule_info.by, rule_info.declared_rule) == ("ada", Rule(limit=20, max_size=9))

    async def test_prune_removes_the_declared_rules_of_the_same_program_only(
        self, live: Errandry, another: Callable[..., Errandry]
    ) -> None:
        other = another(live, "other")
        other.declare_queue("others", limit=1)
        await other.put_declared()
        live.declare_queue("old", limit=1)
        live.declare_queue("changed", limit=1, max_size=9)
        await live.put_declared()
        await live.queue("changed").set_rules(limit=2)
        await live.queue("by hand").set_rules(limit=3)

        later = another(live)
        await run_burst(later)
        assert len(await live.rules()) == 4
        await run_burst(later, prune_declared=True)

        assert {record.name: record.rule for record in await live.rules()} == {
            "by hand": Rule(limit=3),
            "changed": Rule(limit=2),
            "others": Rule(limit=1),
        }

    async def test_two_programs_that_declare_the_same_write_once(
        self, live: Errandry, another: Callable[..., Errandry]
    ) -> None:
        other = another(live, "other")
        for app in (live, other):
            app.declare_queue("mail", limit=1)

        assert await live.put_declared() == ["queue mail"]
        assert await other.put_declared() == []
        assert await another(live, "other").put_declared(prune=True) == []
        assert [gate.owners for gate in await live.rules()] == [("app",)]

    async def test_prune_keeps_what_another_program_declares_too(
        self, live: Errandry, another: Callable[..., Errandry]
    ) -> None:
        for app in (live, another(live, "other")):
            app.declare_queue("mail", limit=20)
            app.schedule("nightly", app.task(name="report")(_report), "@daily")
            await app.put_declared()

        assert await another(live).put_declared(prune=True) == []  # the next version declares nothing

        assert (await live.queue("mail").rules()).limit == 20
        assert [schedule.owners for schedule in await live.schedules.list()] == [("other",)]

    async def test_an_operator_can_remove_what_a_program_of_another_owner_declares(
        self, live: Errandry, another: Callable[..., Errandry]
    ) -> None:
        old = another(live, "old")
        old.declare_queue("mail", limit=1)
        await old.put_declared()

        assert await live.queue("mail").reset_rules() == Rule(limit=1)
        assert await live.queue("mail").reset_rules(declared=True) == Rule()
        assert await live.rules() == []

    async def test_a_task_resets_what_the_code_declares_too(self, live: Errandry) -> None:
        @live.task(limit=5)
        async def send() -> None: ...

        await live.put_declared()

        assert await send.reset_rules() == Rule(limit=5)
        assert await send.reset_rules(declared=True) == Rule()

    async def test_a_queue_declared_without_rules_has_none_of_the_code(
        self, live: Errandry, another: Callable[..., Errandry]
    ) -> None:
        live.declare_queue("mail", limit=20)
        await live.put_declared()
        later = another(live)
        later.declare_queue("mail")

        assert await later.put_declared() == ["queue mail"]
        assert await live.rules() == []

    async def test_a_queue_can_be_declared_again_with_the_same_rules_only(self, live: Errandry) -> None:
        for _ in range(2):
            live.declare_queue("mail", limit=5, ageing="1m")
        why = "is declared already with limit 5, ageing 1m, now with rate 1/second"
        with pytest.raises(InvalidValue, match=why):
            live.declare_queue("mail", rate="1/s")
        with pytest.raises(InvalidValue, match="now with no rules"):
            live.declare_queue("mail")

        await live.put_declared()
        assert await live.queue("mail").rules() == Rule(limit=5, ageing=60.0)

    async def test_a_task_declared_again_without_a_limit_declares_none(self, live: Errandry) -> None:
        async def send() -> None: ...

        live.task(limit=5)(send)
        live.task(send)

        assert await live.put_declared() == []

    async def test_obliterate_removes_declared_rules_too(self, live: Errandry) -> None:
        queue = live.declare_queue("mail", limit=20)
        await live.put_declared()
        await queue.set_rules(limit=50)
        await queue.group("acme").set_rules(limit=1)

        await queue.obliterate()

        assert await live.rules() == []

    async def test_an_unchanged_declaration_emits_no_event(self, live: Errandry) -> None:
        live.declare_queue("mail", limit=20)
        await live.put_declared()
        cursor = await live.latest_cursor()

        await live.put_declared()

        page = await live.engine.call(live.store.events, cursor, 100)
        assert [entry for entry in page.entries if entry.event.kind is EventKind.RULE_CHANGED] == []

    @pytest.mark.parametrize(
        ("rules", "why"),
        [
            ({"limits": 5}, "limits=5: unknown option; did you mean limit"),
            ({"limit": 0}, "limit=0: must be a whole number from 1"),
            ({"rate": "fast"}, "rate='fast': not a rate"),
            ({"burst": 5}, "burst=5: says how many of the rate may begin at once"),
            ({"weight": 2}, "weight=2: a rule of a queue has limit"),
            ({"overflow": "explode"}, "overflow='explode'"),
        ],
    )
    def test_a_wrong_rule_of_a_queue_is_refused_where_it_is_declared(
        self, rules: dict[str, Any], why: str
    ) -> None:
        with pytest.raises(InvalidValue, match=why):
            Errandry("memory:").declare_queue("mail", **rules)

    @pytest.mark.parametrize(
        ("options", "why"),
        [
            ({"limit": 0}, "limit=0: must be a whole number from 1"),
            ({"rate": "often"}, "rate='often': not a rate"),
            ({"burst": 3}, "burst=3: says how many of the rate"),
            ({"max_size": 3}, "max_size=3: unknown option"),
        ],
    )
    def test_a_wrong_rule_of_a_task_is_refused_where_it_is_declared(
        self, options: dict[str, Any], why: str
    ) -> None:
        async def send() -> None: ...

        jobs = Errandry("memory:")
        with pytest.raises(InvalidValue, match=why):
            jobs.task(**options)(send)
        assert jobs.tasks == {}

    def test_a_wrong_name_is_refused_where_it_is_given(self) -> None:
        with pytest.raises(InvalidValue, match="queue"):
            Errandry("memory:").declare_queue("", limit=1)
        with pytest.raises(InvalidValue, match="owner"):
            Errandry("memory:", owner="")


class TestSchedules:
    async def test_a_worker_that_starts_leaves_an_operators_plan_in_force_and_logs_both(
        self, jobs: Errandry, caplog: pytest.LogCaptureFixture
    ) -> None:
        @jobs.task(schedule="0 3 * * *")
        async def clean() -> None: ...

        await run_burst(jobs)
        await jobs.schedules.edit("clean", when="0 5 * * *", options={"queue": "slow"}, by="ada")

        with caplog.at_level(logging.INFO, LOGGER):
            await run_burst(jobs)

        schedule = await jobs.schedules.get("clean")
        assert (schedule.when, schedule.queue) == ("0 5 * * *", "slow")
        assert (schedule.source, schedule.owners) == (Source.OPERATOR, ("app",))
        assert [record.message for record in caplog.records if record.name == LOGGER] == [
            "schedule clean: this program declares when 0 3 * * *, queue default, "
            "but when 0 5 * * *, queue slow is in force, set by ada; "
            "for the declared plan run: errandry schedules reset clean"
        ]

    async def test_other_options_are_written_in_words(
        self, jobs: Errandry, caplog: pytest.LogCaptureFixture
    ) -> None:
        @jobs.task(backoff="linear", keep="2 days", timeout="90s", tags=["a", "b"], lifo=True, group="g")
        async def clean() -> None: ...

        jobs.schedule("all of it", clean, "0 3 * * *", limit=5)
        await jobs.put_declared()
        plain: dict[str, Any] = {
            "backoff": None,
            "keep": None,
            "timeout": None,
            "tags": [],
            "lifo": False,
            "group": "",
        }
        await jobs.schedules.edit("all of it", options=plain, limit=None, by="ada")

        with caplog.at_level(logging.INFO, LOGGER):
            await jobs.put_declared()

        assert (await jobs.schedules.get("all of it")).declared == {
            "limit": "5",
            "group": "g",
            "lifo": "yes",
            "timeout": "1m30s",
            "backoff": "linear from 1s",
            "keep": "2 days",
            "tags": "a b",
        }
        assert (
            "but limit none, group none, lifo no, timeout none, backoff default, keep default, tags none is"
        ) in caplog.text
        assert "run: errandry schedules reset 'all of it'\n" in caplog.text

    async def test_a_schedule_made_by_an_operator_stays_when_code_declares_its_name(
        self, jobs: Errandry, caplog: pytest.LogCaptureFixture
    ) -> None:
        @jobs.task
        async def report(of: str) -> None: ...

        await jobs.schedules.put("nightly", report.new("all"), "0 5 * * *")
        jobs.schedule("nightly", report.new("secret"), "0 5 * * *")

        with caplog.at_level(logging.INFO, LOGGER):
            assert await jobs.put_declared() == ["schedule nightly"]

        assert (await jobs.schedules.get("nightly")).arguments == {"of": "all"}
        assert "declares arguments …, but arguments … is in force, set by an operator" in caplog.text
        assert "secret" not in caplog.text

    async def test_a_reset_returns_to_the_declared_plan(self, jobs: Errandry, clock: FakeClock) -> None:
        @jobs.task(schedule="every 10s")
        async def clean() -> None: ...

        await jobs.put_declared()
        assert not await jobs.schedules.reset("clean")
        await jobs.schedules.put("clean", clean, "every 20s")

        assert await jobs.schedules.reset("clean", by="eve")

        schedule = await jobs.schedules.get("clean")
        assert (schedule.when, schedule.source, schedule.by) == ("every 10s", Source.CODE, "eve")
        assert schedule.next_tick == as_datetime(clock.time() + 10)
        assert await jobs.put_declared() == []

    async def test_the_last_version_of_the_code_to_start_wins_and_logs_both(
        self, jobs: Errandry, caplog: pytest.LogCaptureFixture, another: Callable[..., Errandry]
    ) -> None:
        @jobs.task
        async def report() -> None: ...

        jobs.schedule("nightly", report, "0 3 * * *")
        await jobs.put_declared()
        newer = another(jobs, "shop")
        newer.schedule("nightly", newer.task(report.function), "0 4 * * *", overlap="skip")

        with caplog.at_level(logging.INFO, LOGGER):
            assert await newer.put_declared() == ["schedule nightly"]

        assert (await jobs.schedules.get("nightly")).when == "0 4 * * *"
        assert [record.message for record in caplog.records if record.name == LOGGER] == [
            "schedule nightly: this program declares when 0 4 * * *, overlap skip; "
            "the program 'app' declared when 0 3 * * *, overlap allow before"
        ]

    async def test_arguments_that_are_sealed_differently_are_no_change(
        self, clock: FakeClock, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with Errandry("memory:", clock=clock, codec=Counting()) as jobs:

            @jobs.task
            async def report(of: str) -> None: ...

            jobs.schedule("nightly", report.new("all"), "0 3 * * *")
            await jobs.put_declared()
            with caplog.at_level(logging.INFO, LOGGER):
                assert await jobs.put_declared() == []
            later = Errandry(store=jobs.store, clock=clock, codec=jobs.codec)
            later.schedule("nightly", later.task(report.function).new("some"), "0 3 * * *")
            assert await later.put_declared() == ["schedule nightly"]

            assert caplog.text == ""
            schedule = await jobs.schedules.get("nightly")
            assert schedule.arguments == {"of": "some"}
            await later.close()

    async def test_metadata_that_a_hook_makes_new_at_each_start_is_no_change(self, jobs: Errandry) -> None:
        @jobs.task
        async def report() -> None: ...

        numbers = iter(range(9))

        @jobs.on_enqueue
        def stamp(job: NewJob) -> NewJob:
            return replace(job, metadata=json.dumps({"start": next(numbers)}))

        jobs.schedule("nightly", report.new(), "0 3 * * *")

        assert await jobs.put_declared() == ["schedule nightly"]
        assert await jobs.put_declared() == []

    async def test_prune_leaves_the_plan_of_an_operator(
        self, jobs: Errandry, another: Callable[..., Errandry]
    ) -> None:
        @jobs.task
        async def report() -> None: ...

        jobs.schedule("old", report, "@daily")
        jobs.schedule("changed", report, "@daily")
        await jobs.put_declared()
        await jobs.schedules.edit("changed", when="@hourly")

        changed = await another(jobs).put_declared(prune=True)

        assert sorted(changed) == ["schedule changed", "schedule old"]
        [schedule] = await jobs.schedules.list()
        assert (schedule.name, schedule.when, schedule.owners) == ("changed", "@hourly", ())


async def test_a_worker_starts_although_the_declared_rules_cannot_be_stored(
    jobs: Errandry, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail() -> None:
        raise StoreUnavailable("memory:", "no answer")

    jobs.declare_queue("mail", limit=1)
    monkeypatch.setattr(jobs.store, "rules", fail)

    async with running_worker(jobs):
        pass

    assert "cannot store the declared schedules and rules" in caplog.text
