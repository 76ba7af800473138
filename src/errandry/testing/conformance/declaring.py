"""Rules and schedules that code declares, and what an operator has changed of them."""

import pytest
from msgspec.structs import replace

from errandry.core.answer import ALREADY, WRITTEN
from errandry.core.event import EventKind
from errandry.core.gate import DeclareRule, GateKind, PutRule, ResetRule
from errandry.core.job import NewJob
from errandry.core.rule import NO_RULE, Overflow, Rate, Rule
from errandry.core.rule_info import DeclaredRule, OperatorChange, RuleInfo, Source
from errandry.core.schedule import (
    DeclareSchedule,
    PauseSchedule,
    PutSchedule,
    RemoveSchedule,
    ResetSchedule,
    SchedulePlan,
    ScheduleRecord,
)
from errandry.errors import TooLarge, UnknownSchedule
from errandry.store.contract import Store, StoreLimits
from errandry.testing.clock import FakeClock
from errandry.testing.conformance import requests
from errandry.testing.conformance.fixtures import MakeStore
from errandry.testing.given import Given

EVERY_FIELD = Rule(
    limit=20,
    rate=Rate(100, 60.0, 10),
    group_limit=2,
    max_size=1_000,
    overflow=Overflow.DROP_OLDEST,
    ageing=12.5,
)
DECLARED_KINDS = pytest.mark.parametrize("kind", [GateKind.QUEUE, GateKind.TASK])


class DeclaredRules:
    """Rules that code declares, and fields of them that an operator has set."""

    @DECLARED_KINDS
    async def test_a_declared_rule_is_in_force_and_names_its_program(
        self, store: Store, clock: FakeClock, kind: GateKind
    ) -> None:
        rule = Rule(limit=3, rate=Rate(1, 0.25, 1))
        assert await requests.send(store, DeclareRule(kind, "name", rule, "shop")) is WRITTEN

        info = await _rule_info(store)

        assert info == RuleInfo(rule, clock.time(), "", {}, DeclaredRule(rule, clock.time(), ("shop",)))
        assert info.sources == {"limit": Source.CODE, "rate": Source.CODE}

    async def test_a_declared_limit_bounds_the_claims(self, store: Store, given: Given) -> None:
        for _ in range(3):
            await given.waiting(queue="q")

        await requests.send(store, DeclareRule(GateKind.QUEUE, "q", Rule(limit=2), "shop"))

        assert len(await requests.claim(store, limit=3)) == 2

    async def test_declaring_the_same_rule_again_changes_nothing(
        self, store: Store, clock: FakeClock
    ) -> None:
        await requests.send(store, DeclareRule(GateKind.QUEUE, "q", EVERY_FIELD, "shop"))
        before = await requests.snapshot(store)
        clock.advance(5)

        assert await requests.send(store, DeclareRule(GateKind.QUEUE, "q", EVERY_FIELD, "shop")) is ALREADY
        assert await requests.send(store, DeclareRule(GateKind.QUEUE, "other", NO_RULE, "shop")) is ALREADY
        assert await requests.snapshot(store) == before

    async def test_a_rule_that_two_programs_declare_stays_until_neither_declares_it(
        self, store: Store, clock: FakeClock
    ) -> None:
        await requests.send(store, DeclareRule(GateKind.QUEUE, "q", EVERY_FIELD, "shop"))
        declared_at = clock.time()
        clock.advance(5)
        cursor = await store.latest_cursor()

        assert await requests.send(store, DeclareRule(GateKind.QUEUE, "q", EVERY_FIELD, "crm")) is ALREADY
        declared = DeclaredRule(EVERY_FIELD, declared_at, ("shop", "crm"))
        assert await _rule_info(store) == RuleInfo(EVERY_FIELD, declared_at, "", {}, declared)

        assert await requests.send(store, DeclareRule(GateKind.QUEUE, "q", NO_RULE, "shop")) is ALREADY
        declared = DeclaredRule(EVERY_FIELD, declared_at, ("crm",))
        assert await _rule_info(store) == RuleInfo(EVERY_FIELD, declared_at, "", {}, declared)
        assert await requests.read_events(store, cursor) == []

        assert await requests.send(store, DeclareRule(GateKind.QUEUE, "q", NO_RULE, "crm")) is WRITTEN
        assert await store.rules() == []

    async def test_the_last_declared_rule_replaces_the_one_before(
        self, store: Store, clock: FakeClock
    ) -> None:
        await requests.send(store, DeclareRule(GateKind.QUEUE, "q", Rule(limit=3, max_size=9), "shop"))
        clock.advance(5)

        await requests.send(store, DeclareRule(GateKind.QUEUE, "q", Rule(limit=4), "crm"))

        declared = DeclaredRule(Rule(limit=4), clock.time(), ("crm",))
        assert await _rule_info(store) == RuleInfo(Rule(limit=4), clock.time(), "", {}, declared)

    @DECLARED_KINDS
    async def test_an_operators_fields_stay_in_force_when_code_declares_others(
        self, store: Store, clock: FakeClock, kind: GateKind
    ) -> None:
        rate = Rate(60, 60.0, 2)
        await requests.send(store, DeclareRule(kind, "name", Rule(limit=3), "shop"))
        clock.advance(5)
        set_at = clock.time()
        await requests.send(store, PutRule(kind, "name", Rule(limit=50), by="ada", fields=("limit",)))
        clock.advance(5)
        await requests.send(store, DeclareRule(kind, "name", Rule(limit=4, rate=rate), "shop"))

        info = await _rule_info(store)

        declared = DeclaredRule(Rule(limit=4, rate=rate), clock.time(), ("shop",))
        assert info == RuleInfo(
            Rule(limit=50, rate=rate), set_at, "ada", {"limit": OperatorChange(set_at, "ada")}, declared
        )
        assert info.sources == {"limit": Source.OPERATOR, "rate": Source.CODE}
        assert info.overridden_fields == ("limit",)

    async def test_an_operators_fields_stay_in_force_when_code_declares_the_rule_later(
        self, store: Store
    ) -> None:
        await requests.send(store, PutRule(GateKind.QUEUE, "q", Rule(limit=50), fields=("limit",)))

        await requests.send(store, DeclareRule(GateKind.QUEUE, "q", Rule(limit=4, max_size=9), "shop"))

        assert (await _rule_info(store)).rule == Rule(limit=50, max_size=9)

    async def test_an_operators_none_removes_a_declared_limit_until_it_is_reset(
        self, store: Store, given: Given, clock: FakeClock
    ) -> None:
        declare = DeclareRule(GateKind.QUEUE, "q", Rule(limit=1), "shop")
        await requests.send(store, declare)
        await requests.send(store, PutRule(GateKind.QUEUE, "q", NO_RULE, fields=("limit",)))
        await requests.send(store, declare)
        clock.advance(100_000)
        await requests.run_upkeep(store)
        info = await _rule_info(store)
        assert (info.rule, info.sources) == (NO_RULE, {"limit": Source.OPERATOR})
        for _ in range(3):
            await given.waiting(queue="q")
        assert len(await requests.claim(store, limit=2)) == 2

        assert await requests.send(store, ResetRule(GateKind.QUEUE, "q")) is WRITTEN

        assert await requests.claim(store) == ()

    async def test_a_field_set_to_the_declared_value_is_the_operators(self, store: Store) -> None:
        await requests.send(store, DeclareRule(GateKind.QUEUE, "q", Rule(limit=3), "shop"))

        put = PutRule(GateKind.QUEUE, "q", Rule(limit=3), fields=("limit",))
        assert await requests.send(store, put) is WRITTEN
        assert await requests.send(store, put) is ALREADY
        await requests.send(store, DeclareRule(GateKind.QUEUE, "q", Rule(limit=4), "shop"))

        assert (await _rule_info(store)).rule == Rule(limit=3)

    async def test_a_put_changes_only_the_given_fields(self, store: Store) -> None:
        await requests.send(store, PutRule(GateKind.QUEUE, "q", Rule(limit=3, max_size=9)))

        put = PutRule(GateKind.QUEUE, "q", Rule(limit=4), fields=("limit",))
        assert await requests.send(store, put) is WRITTEN

        assert (await _rule_info(store)).rule == Rule(limit=4, max_size=9)

    async def test_each_field_keeps_the_operator_who_set_it(self, store: Store, clock: FakeClock) -> None:
        rates = Rate(5, 1.0, 1), Rate(6, 1.0, 1)
        times = [clock.time() + 10 * number for number in range(4)]
        for by, rule in (
            ("ada", Rule(limit=50, max_size=9)),
            ("bob", Rule(rate=rates[0])),
            ("eve", Rule(rate=rates[1], limit=50)),
        ):
            await requests.send(store, PutRule(GateKind.QUEUE, "q", rule, by=by, fields=rule.given_fields))
            clock.advance(10)
        await requests.send(store, ResetRule(GateKind.QUEUE, "q", by="carl", fields=("max_size",)))

        info = await _rule_info(store)

        assert info.operator_fields == {
            "limit": OperatorChange(times[0], "ada"),
            "rate": OperatorChange(times[2], "eve"),
        }
        assert (info.at, info.by) == (times[3], "carl")

    async def test_a_reset_can_remove_what_code_declares_whatever_its_owner(
        self, store: Store, clock: FakeClock
    ) -> None:
        code = Rule(limit=3, max_size=9)
        declared = DeclaredRule(Rule(max_size=9), clock.time(), ("shop",))
        await requests.send(store, DeclareRule(GateKind.QUEUE, "q", code, "shop"))
        await requests.send(store, PutRule(GateKind.QUEUE, "q", Rule(max_size=99), fields=("max_size",)))

        some = ResetRule(GateKind.QUEUE, "q", fields=("limit",), declared=True)
        assert await requests.send(store, some) is WRITTEN
        assert await requests.send(store, some) is ALREADY
        info = await _rule_info(store)
        assert (info.rule, info.declared) == (Rule(max_size=99), declared)
        assert await requests.send(store, ResetRule(GateKind.QUEUE, "q", declared=True)) is WRITTEN
        assert await store.rules() == []

        await requests.send(store, DeclareRule(GateKind.QUEUE, "q", code, "crm"))

        assert (await _rule_info(store)).rule == code

    async def test_a_reset_returns_some_or_all_fields_to_the_declared_values(
        self, store: Store, clock: FakeClock
    ) -> None:
        code, own = Rule(limit=3, max_size=9), Rule(limit=50, max_size=99, ageing=5.0)
        declared, of_bob = DeclaredRule(code, clock.time(), ("shop",)), OperatorChange(clock.time(), "bob")
        await requests.send(store, DeclareRule(GateKind.QUEUE, "q", code, "shop"))
        await requests.send(store, PutRule(GateKind.QUEUE, "q", own, by="bob", fields=own.given_fields))
        clock.advance(5)

        reset = ResetRule(GateKind.QUEUE, "q", by="ada", fields=("limit", "rate"))
        assert await requests.send(store, reset) is WRITTEN
        assert await _rule_info(store) == RuleInfo(
            Rule(limit=3, max_size=99, ageing=5.0),
            clock.time(),
            "ada",
            {"max_size": of_bob, "ageing": of_bob},
            declared,
        )
        assert await requests.send(store, ResetRule(GateKind.QUEUE, "q", by="ada")) is WRITTEN

        assert await _rule_info(store) == RuleInfo(code, clock.time(), "ada", {}, declared)

    @pytest.mark.parametrize(
        ("kind", "group"), [(GateKind.QUEUE, ""), (GateKind.TASK, ""), (GateKind.GROUP, "acme")]
    )
    async def test_a_reset_of_an_undeclared_rule_removes_it(
        self, store: Store, kind: GateKind, group: str
    ) -> None:
        await requests.send(store, PutRule(kind, "name", Rule(limit=3), group))

        assert await requests.send(store, ResetRule(kind, "name", group)) is WRITTEN

        assert await store.rules() == []

    async def test_a_reset_without_an_operators_field_changes_nothing(self, store: Store) -> None:
        await requests.send(store, DeclareRule(GateKind.QUEUE, "q", Rule(limit=3), "shop"))
        before = await requests.snapshot(store)

        assert await requests.send(store, ResetRule(GateKind.QUEUE, "q", by="ada")) is ALREADY
        assert await requests.send(store, ResetRule(GateKind.TASK, "none")) is ALREADY
        assert await requests.snapshot(store) == before

    async def test_an_empty_rule_removes_the_declaration_of_the_same_program_only(self, store: Store) -> None:
        await requests.send(store, DeclareRule(GateKind.QUEUE, "q", Rule(limit=3), "shop"))

        assert await requests.send(store, DeclareRule(GateKind.QUEUE, "q", NO_RULE, "crm")) is ALREADY
        assert (await _rule_info(store)).rule == Rule(limit=3)
        assert await requests.send(store, DeclareRule(GateKind.QUEUE, "q", NO_RULE, "shop")) is WRITTEN

        assert await store.rules() == []

    async def test_an_operators_fields_outlast_the_declaration(self, store: Store) -> None:
        await requests.send(store, DeclareRule(GateKind.QUEUE, "q", Rule(limit=3, max_size=9), "shop"))
        await requests.send(store, PutRule(GateKind.QUEUE, "q", Rule(limit=50), fields=("limit",)))

        await requests.send(store, DeclareRule(GateKind.QUEUE, "q", NO_RULE, "shop"))

        info = await _rule_info(store)
        assert (info.rule, info.declared) == (Rule(limit=50), None)

    async def test_declarations_and_resets_of_rules_are_reported_as_events(self, store: Store) -> None:
        cursor = await store.latest_cursor()
        await requests.send(store, DeclareRule(GateKind.QUEUE, "q", Rule(limit=3), "shop"))
        await requests.send(store, DeclareRule(GateKind.TASK, "t", Rule(limit=3), "shop"))
        await requests.send(store, PutRule(GateKind.TASK, "t", Rule(limit=4), by="ada"))
        await requests.send(store, DeclareRule(GateKind.TASK, "t", Rule(limit=5), "shop"))
        await requests.send(store, ResetRule(GateKind.TASK, "t", by="eve"))
        await requests.send(store, PutRule(GateKind.TASK, "t", Rule(limit=5), by="ada"))

        events = await requests.read_events(store, cursor)
        assert {event.kind for event in events} == {EventKind.RULE_CHANGED}
        assert [(event.queue, event.task, event.text) for event in events] == [
            ("q", "", "limit none -> 3, by code of shop"),
            ("", "t", "limit none -> 3, by code of shop"),
            ("", "t", "limit 3 -> 4, by ada"),
            ("", "t", "declared limit 3 -> 5, by code of shop"),
            ("", "t", "limit 4 -> 5, by eve"),
            ("", "t", "limit 5 (operator), by ada"),
        ]


class DeclaredSchedules:
    """Schedules that code declares, and plans of an operator in their place."""

    async def test_a_declared_schedule_ticks_and_names_its_program(
        self, store: Store, clock: FakeClock
    ) -> None:
        assert await requests.send(store, DeclareSchedule("s", _plan(10.0), "shop")) is WRITTEN

        schedule = await _schedule(store)

        assert (schedule.plan, schedule.owners, schedule.source) == (_plan(10.0), ("shop",), Source.CODE)
        clock.advance(10)
        assert await requests.claim_ids(store) == [schedule.job]

    async def test_declaring_the_same_schedule_again_changes_nothing(
        self, store: Store, clock: FakeClock
    ) -> None:
        await requests.send(store, DeclareSchedule("s", _plan(10.0), "shop"))
        before = await requests.snapshot(store), await store.schedules()
        clock.advance(5)

        assert await requests.send(store, DeclareSchedule("s", _plan(10.0), "shop")) is ALREADY
        assert (await requests.snapshot(store), await store.schedules()) == before

    async def test_a_schedule_that_two_programs_declare_stays_until_neither_declares_it(
        self, store: Store, clock: FakeClock
    ) -> None:
        await requests.send(store, DeclareSchedule("s", _plan(10.0), "shop"))
        before, jobs = await _schedule(store), await requests.list_jobs(store)
        cursor = await store.latest_cursor()
        clock.advance(5)

        assert await requests.send(store, DeclareSchedule("s", _plan(10.0), "crm")) is ALREADY
        assert await _schedule(store) == replace(before, owners=("shop", "crm"))
        assert await requests.send(store, DeclareSchedule("s", None, "shop")) is ALREADY
        assert await _schedule(store) == replace(before, owners=("crm",))
        assert await requests.list_jobs(store) == jobs
        assert await requests.read_events(store, cursor) == []

        assert await requests.send(store, DeclareSchedule("s", None, "crm")) is WRITTEN
        assert await store.schedules() == []

    async def test_the_last_declared_plan_replaces_the_one_before(
        self, store: Store, clock: FakeClock
    ) -> None:
        await requests.send(store, DeclareSchedule("s", _plan(10.0), "shop"))

        assert await requests.send(store, DeclareSchedule("s", _plan(7.0), "crm")) is WRITTEN

        schedule = await _schedule(store)
        assert (schedule.plan, schedule.owners, schedule.source) == (_plan(7.0), ("crm",), Source.CODE)
        assert schedule.tick == clock.time() + 7 - clock.time() % 7
        [job] = await requests.list_jobs(store)
        assert job.id == schedule.job

    async def test_an_operators_plan_stays_in_force_when_code_declares_another(self, store: Store) -> None:
        await requests.send(store, DeclareSchedule("s", _plan(10.0), "shop"))
        await requests.send(store, PutSchedule("s", _plan(20.0), "ada"))
        before = await _schedule(store)
        jobs = await requests.list_jobs(store)
        assert (before.plan, before.declared, before.by) == (_plan(20.0), _plan(10.0), "ada")

        assert await requests.send(store, DeclareSchedule("s", _plan(7.0), "crm")) is WRITTEN
        assert await requests.send(store, DeclareSchedule("s", _plan(7.0), "crm")) is ALREADY

        after = await _schedule(store)
        assert (after.plan, after.declared, after.owners) == (_plan(20.0), _plan(7.0), ("crm",))
        assert (after.source, after.by, after.tick) == (Source.OPERATOR, "ada", before.tick)
        assert await requests.list_jobs(store) == jobs

    async def test_an_operators_schedule_stays_in_force_when_code_declares_its_name_later(
        self, store: Store
    ) -> None:
        await requests.send(store, PutSchedule("s", _plan(20.0), "ada"))
        assert (await _schedule(store)).source is Source.OPERATOR

        await requests.send(store, DeclareSchedule("s", _plan(7.0), "shop"))

        schedule = await _schedule(store)
        assert (schedule.plan, schedule.declared, schedule.owners) == (_plan(20.0), _plan(7.0), ("shop",))

    async def test_a_plan_equal_to_the_declared_one_is_the_operators(self, store: Store) -> None:
        await requests.send(store, DeclareSchedule("s", _plan(10.0), "shop"))

        assert await requests.send(store, PutSchedule("s", _plan(10.0), "ada")) is WRITTEN
        assert await requests.send(store, PutSchedule("s", _plan(10.0), "ada")) is ALREADY
        await requests.send(store, DeclareSchedule("s", _plan(7.0), "shop"))

        assert (await _schedule(store)).plan == _plan(10.0)

    async def test_a_reset_puts_the_declared_plan_in_force_at_once(
        self, store: Store, clock: FakeClock
    ) -> None:
        await requests.send(store, PutSchedule("s", _plan(20.0), "ada"))
        await requests.send(store, DeclareSchedule("s", _plan(10.0), "shop"))
        clock.advance(5)

        assert await requests.send(store, ResetSchedule("s", "eve")) is WRITTEN

        schedule = await _schedule(store)
        assert (schedule.plan, schedule.declared, schedule.source) == (_plan(10.0), None, Source.CODE)
        assert (schedule.by, schedule.updated_at, schedule.tick) == ("eve", clock.time(), clock.time() + 5)
        [job] = await requests.list_jobs(store)
        assert job.id == schedule.job

    async def test_a_reset_without_an_operators_plan_over_a_declared_one_changes_nothing(
        self, store: Store
    ) -> None:
        await requests.send(store, DeclareSchedule("s", _plan(10.0), "shop"))
        await requests.send(store, PutSchedule("by hand", _plan(10.0)))
        before = await requests.snapshot(store)

        assert await requests.send(store, ResetSchedule("s")) is ALREADY
        assert await requests.send(store, ResetSchedule("by hand")) is ALREADY
        assert isinstance(await requests.send(store, ResetSchedule("none")), UnknownSchedule)
        assert await requests.snapshot(store) == before

    async def test_declarations_and_resets_leave_a_schedule_paused(self, store: Store) -> None:
        await requests.send(store, PutSchedule("s", _plan(20.0)))
        await requests.send(store, PauseSchedule("s"))

        await requests.send(store, DeclareSchedule("s", _plan(10.0), "shop"))
        await requests.send(store, ResetSchedule("s"))

        schedule = await _schedule(store)
        assert schedule.paused is not None
        assert (schedule.plan, schedule.tick) == (_plan(10.0), None)
        assert await requests.list_jobs(store) == []

    async def test_the_end_of_a_declaration_removes_the_schedule_of_the_same_program(
        self, store: Store
    ) -> None:
        await requests.send(store, DeclareSchedule("s", _plan(10.0), "shop"))

        assert await requests.send(store, DeclareSchedule("s", None, "crm")) is ALREADY
        assert len(await store.schedules()) == 1
        assert await requests.send(store, DeclareSchedule("s", None, "shop")) is WRITTEN
        assert await requests.send(store, DeclareSchedule("s", None, "shop")) is ALREADY

        assert await store.schedules() == []
        assert await requests.list_jobs(store) == []

    async def test_an_operators_plan_outlasts_the_declaration(self, store: Store) -> None:
        await requests.send(store, DeclareSchedule("s", _plan(10.0), "shop"))
        await requests.send(store, PutSchedule("s", _plan(20.0)))

        assert await requests.send(store, DeclareSchedule("s", None, "shop")) is WRITTEN

        schedule = await _schedule(store)
        assert (schedule.plan, schedule.declared, schedule.owners) == (_plan(20.0), None, ())
        assert len(await requests.list_jobs(store)) == 1

    async def test_declarations_and_resets_of_schedules_are_reported_as_events(self, store: Store) -> None:
        await requests.send(store, PutSchedule("s", _plan(20.0)))
        cursor = await store.latest_cursor()

        await requests.send(store, DeclareSchedule("s", _plan(10.0), "shop"))
        await requests.send(store, ResetSchedule("s", "eve"))
        await requests.send(store, PutSchedule("s", _plan(20.0), "ada"))
        await requests.send(store, DeclareSchedule("s", _plan(15.0), "shop"))
        await requests.send(store, PauseSchedule("s", "ada"))
        await requests.send(store, DeclareSchedule("s", None, "shop"))
        await requests.send(store, RemoveSchedule("s"))

        events = await requests.read_events(store, cursor)
        assert [event.text for event in events if event.kind is EventKind.SCHEDULE_CHANGED] == [
            "s declared, by code of shop",
            "s reset: when every 20s -> every 10s, by eve",
            "s put: when every 10s -> every 20s, by ada",
            "s declared: when every 10s -> every 15s, by code of shop",
            "s paused, by ada",
            "s no longer declared, by code of shop",
            "s removed",
        ]

    async def test_a_declared_schedule_with_too_large_a_payload_is_refused(
        self, open_store: MakeStore, clock: FakeClock
    ) -> None:
        store = await open_store(clock, StoreLimits(payload=10))

        answer = await requests.send(store, DeclareSchedule("s", _plan(10.0), "shop"))

        assert isinstance(answer, TooLarge)
        assert await store.schedules() == []


def _plan(every: float) -> SchedulePlan:
    return SchedulePlan(job=NewJob(id="-", task="report", payload='{"of":"all"}'), every=every)


async def _rule_info(store: Store) -> RuleInfo:
    """The info of the only rule."""
    [gate] = await store.rules()
    assert gate.rule_info is not None
    return gate.rule_info


async def _schedule(store: Store) -> ScheduleRecord:
    """The only schedule."""
    [schedule] = await store.schedules()
    return schedule
