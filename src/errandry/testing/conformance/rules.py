"""Rules of queues, tasks and groups: storing, replacing, reporting and listing them."""

import pytest

from errandry.core.answer import ALREADY, WRITTEN
from errandry.core.event import EventKind, EventRecord
from errandry.core.gate import GateKind, GateRecord, Pause, PauseRecord, PutRule, Resume
from errandry.core.rule import NO_RULE, OnReturn, Overflow, Rate, Rule
from errandry.core.rule_info import OperatorChange, RuleInfo
from errandry.store.contract import Store
from errandry.testing.clock import FakeClock
from errandry.testing.conformance import requests
from errandry.testing.given import Given

WHOLE = Rule(
    limit=20,
    rate=Rate(100, 60.0, 10),
    group_limit=2,
    group_rate=Rate(1, 0.25, 1),
    max_size=1_000,
    group_max_size=10,
    overflow=Overflow.DROP_OLDEST,
    ageing=12.5,
    on_return=OnReturn.HOLD_GROUP,
)
GATES = pytest.mark.parametrize(
    ("kind", "group"), [(GateKind.QUEUE, ""), (GateKind.TASK, ""), (GateKind.GROUP, "acme")]
)


class QueueRules:
    async def test_a_rule_records_its_author_and_its_time(self, store: Store, clock: FakeClock) -> None:
        at = clock.time()
        await requests.send(store, PutRule(GateKind.GROUP, "mail", Rule(weight=2.5), "acme", "bob"))
        await requests.send(store, PutRule(GateKind.TASK, "send", Rule(limit=3), by="eve"))
        await requests.send(store, PutRule(GateKind.QUEUE, "mail", WHOLE, by="ada"))
        clock.advance(10)

        assert await store.rules() == [
            GateRecord(GateKind.QUEUE, "mail", rule_info=_set_rule(WHOLE, at, "ada")),
            GateRecord(GateKind.TASK, "send", rule_info=_set_rule(Rule(limit=3), at, "eve")),
            GateRecord(GateKind.GROUP, "mail", "acme", rule_info=_set_rule(Rule(weight=2.5), at, "bob")),
        ]

    @GATES
    async def test_a_rule_replaces_the_previous_one_and_an_empty_rule_removes_it(
        self, store: Store, clock: FakeClock, kind: GateKind, group: str
    ) -> None:
        await requests.send(store, PutRule(kind, "name", Rule(limit=3, rate=Rate(1, 1.0, 1)), group))
        clock.advance(5)
        assert await requests.send(store, PutRule(kind, "name", Rule(limit=4), group, "ada")) is WRITTEN
        rule_info = _set_rule(Rule(limit=4), clock.time(), "ada")
        assert await store.rules() == [GateRecord(kind, "name", group, rule_info=rule_info)]

        assert await requests.send(store, PutRule(kind, "name", NO_RULE, group)) is WRITTEN

        assert await store.rules() == []

    @GATES
    async def test_putting_the_same_rule_again_answers_already(
        self, store: Store, clock: FakeClock, kind: GateKind, group: str
    ) -> None:
        await requests.send(store, PutRule(kind, "name", Rule(limit=3), group, "ada"))
        clock.advance(5)
        before = await requests.snapshot(store)

        assert await requests.send(store, PutRule(kind, "name", Rule(limit=3), group, "bob")) is ALREADY
        assert await requests.send(store, PutRule(kind, "other", NO_RULE, group)) is ALREADY
        assert await requests.snapshot(store) == before

    async def test_a_pause_and_a_rule_are_independent(self, store: Store, clock: FakeClock) -> None:
        at = clock.time()
        await requests.send(store, PutRule(GateKind.QUEUE, "q", Rule(limit=3)))
        await requests.send(store, Pause(GateKind.QUEUE, "q", "ada"))
        rule_info, pausing = _set_rule(Rule(limit=3), at), PauseRecord(at, "ada")
        assert await store.rules() == [GateRecord(GateKind.QUEUE, "q", paused=pausing, rule_info=rule_info)]

        await requests.send(store, PutRule(GateKind.QUEUE, "q", NO_RULE))
        assert await store.rules() == [GateRecord(GateKind.QUEUE, "q", paused=pausing)]
        await requests.send(store, PutRule(GateKind.QUEUE, "q", Rule(limit=3)))
        await requests.send(store, Resume(GateKind.QUEUE, "q"))

        assert await store.rules() == [GateRecord(GateKind.QUEUE, "q", rule_info=rule_info)]

    async def test_a_changed_rule_is_reported_with_its_values_and_the_operator(self, store: Store) -> None:
        cursor = await store.latest_cursor()
        rate = Rate(5, 1.0, 1)
        await requests.send(store, PutRule(GateKind.QUEUE, "q", Rule(limit=3), by="ada"))
        await requests.send(store, PutRule(GateKind.QUEUE, "q", Rule(limit=4, rate=rate), by="ada"))
        await requests.send(store, PutRule(GateKind.TASK, "t", Rule(limit=3)))
        await requests.send(store, PutRule(GateKind.GROUP, "q", Rule(limit=3), "acme", "ada"))
        await requests.send(store, PutRule(GateKind.GROUP, "q", NO_RULE, "acme"))

        assert await requests.read_events(store, cursor) == [
            EventRecord(EventKind.RULE_CHANGED, "", "q", "", 0, "limit none -> 3, by ada"),
            EventRecord(
                *(EventKind.RULE_CHANGED, "", "q", "", 0),
                "limit 3 -> 4, rate none -> 5/second (burst 1), by ada",
            ),
            EventRecord(EventKind.RULE_CHANGED, "", "", "t", 0, "limit none -> 3"),
            EventRecord(EventKind.RULE_CHANGED, "", "q", "", 0, "group acme: limit none -> 3, by ada"),
            EventRecord(EventKind.RULE_CHANGED, "", "q", "", 0, "group acme: limit 3 -> none"),
        ]

    async def test_the_text_of_an_event_about_a_rule_is_bounded_and_names_the_operator(
        self, store: Store
    ) -> None:
        cursor = await store.latest_cursor()
        await requests.send(store, PutRule(GateKind.QUEUE, "q", WHOLE, by="o" * 200))
        await requests.send(store, PutRule(GateKind.GROUP, "q", Rule(limit=1), "g" * 200, "o" * 200))

        texts = [event.text for event in await requests.read_events(store, cursor)]
        assert all(text.endswith(f", by {'o' * 200}") for text in texts)
        assert max(map(len, texts)) < 650

    async def test_upkeep_leaves_rules_and_pauses_alone(self, store: Store, clock: FakeClock) -> None:
        await requests.send(store, PutRule(GateKind.GROUP, "q", Rule(limit=3), "acme"))
        await requests.send(store, Pause(GateKind.GROUP, "q", group="other"))
        before = await store.rules()
        clock.advance(100_000)
        await requests.run_upkeep(store)

        assert await store.rules() == before

    async def test_groups_are_listed_with_their_job_counts_and_effective_rules(
        self, store: Store, given: Given
    ) -> None:
        rate = Rate(60, 60.0, 2)
        await requests.send(store, PutRule(GateKind.QUEUE, "q", Rule(group_limit=2, group_rate=rate)))
        await requests.send(store, PutRule(GateKind.GROUP, "q", Rule(limit=5), "b"))
        await requests.send(store, Pause(GateKind.GROUP, "q", "ada", "quiet"))
        await given.running(queue="q", group="b")
        for task in ("t", "u"):
            await given.waiting(queue="q", task=task, group="a")
        await given.waiting(queue="q", group="")
        await given.waiting(queue="other", group="a")

        groups = await store.groups("q")
        assert [(info.gate.group, info.waiting, info.held, info.limit, info.rate) for info in groups] == [
            ("a", 2, 0, 2, rate),
            ("b", 0, 1, 5, rate),
            ("quiet", 0, 0, 2, rate),
        ]
        assert [info.gate.paused is None for info in groups] == [True, True, False]
        assert [(info.gate.name, info.gate.group) for info in await store.groups(limit=2)] == [
            *(("other", "a"), ("q", "a"))
        ]
        assert await store.groups("none") == []

    async def test_gates_reports_the_limits_rates_and_held_jobs_of_each_gate(
        self, store: Store, given: Given
    ) -> None:
        rate = Rate(60, 60.0, 2)
        await requests.send(
            store, PutRule(GateKind.QUEUE, "q", Rule(limit=9, group_limit=2, group_rate=rate))
        )
        await requests.send(store, PutRule(GateKind.GROUP, "q", Rule(limit=5), "acme"))
        await given.running(queue="q", task="t", group="acme")
        await given.running(queue="q", task="u", group="other")

        of_queue, of_task, of_group = await store.gates("q", "t", "acme")
        assert (of_queue.limit, of_queue.rate, of_queue.held, of_queue.wait) == (9, None, 2, 0.0)
        assert (of_task.limit, of_task.rate, of_task.held, of_task.wait) == (None, None, 1, 0.0)
        assert (of_group.limit, of_group.rate, of_group.held) == (5, rate, 1)
        assert [info.gate.name for info in await store.gates("none", "such")] == ["none", "such"]


def _set_rule(rule: Rule, at: float, by: str = "") -> RuleInfo:
    """The info of a rule that only an operator has set."""
    return RuleInfo(rule, at, by, dict.fromkeys(rule.given_fields, OperatorChange(at, by)))
