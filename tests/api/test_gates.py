"""Queues, tasks and groups: paused, and with rules that change while everything runs."""

import pytest

from errandry import Errandry
from errandry.core.rule import Comeback, Overflow, Rate, Rule
from errandry.errors import InvalidValue
from errandry.testing import drain


async def test_what_is_given_changes_and_the_rest_stays(jobs: Errandry) -> None:
    queue = jobs.queue("mail")
    assert await queue.rule() == Rule()

    await queue.put(limit=20, rate="100/minute", by="ada")
    await queue.put(ageing="10 minutes", order="hold", overflow="drop_oldest", max_size=5)
    assert await queue.put(rate="50/s", burst=7) == Rule(
        limit=20,
        rate=Rate(50, 1.0, 7),
        ageing=600.0,
        order=Comeback.HOLD,
        overflow=Overflow.DROP_OLDEST,
        max_size=5,
    )
    await queue.put(limit=None, ageing=None, order=None, overflow=None, max_size=None)

    assert await queue.rule() == Rule(rate=Rate(50, 1.0, 7))
    assert [one.key for one in await jobs.rules()] == [("queue", "mail", "")]


async def test_tasks_and_groups_have_rules_of_their_own(jobs: Errandry) -> None:
    await jobs.task_gate("send").put(limit=3)
    await jobs.queue("mail").group("acme").put(weight=2, rate=Rate(1, 1.0, 1))
    await jobs.queue("mail").put(group_limit=1, group_rate="10/s", group_burst=2)

    assert await jobs.task_gate("send").rule() == Rule(limit=3)
    assert await jobs.queue("mail").group("acme").rule() == Rule(weight=2, rate=Rate(1, 1.0, 1))
    assert await jobs.queue("mail").rule() == Rule(group_limit=1, group_rate=Rate(10, 1.0, 2))
    assert await jobs.queue("mail").group("other").rule() == Rule()


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"limits": 5}, "limits=5: is not an option here: did you mean limit"),
        ({"limit": 0}, "limit=0: must be a whole number from 1"),
        ({"rate": "fast"}, "rate='fast': not a rate; write how many in which time"),
        ({"burst": 5}, "burst=5: says how many of the rate may begin at once: give rate too"),
        ({"overflow": "explode"}, "overflow='explode'"),
        ({"order": "chaos"}, "order='chaos'"),
        ({"ageing": "soon"}, "ageing='soon'"),
        ({"weight": 2}, "weight=2: a rule of a queue has limit"),
    ],
)
async def test_what_makes_no_sense_is_refused_and_changes_nothing(
    jobs: Errandry, changes: dict[str, object], why: str
) -> None:
    await jobs.queue("mail").put(limit=2)
    with pytest.raises(InvalidValue, match=why):
        await jobs.queue("mail").put(**changes)  # type: ignore[arg-type]
    assert await jobs.queue("mail").rule() == Rule(limit=2)


async def test_a_paused_group_waits_and_says_so(jobs: Errandry) -> None:
    seen: list[str] = []

    @jobs.task(queue="mail")
    async def send(to: str) -> None:
        seen.append(to)

    held = await send.using(group="acme").enqueue("ada")
    await send.using(group="other").enqueue("grace")
    group = jobs.queue("mail").group("acme")
    assert await group.pause(by="eve")
    assert not await group.pause()
    await drain(jobs)

    assert seen == ["grace"]
    [reason, *_] = (await jobs.why(held.id)).reasons
    assert reason.code == "group_paused"
    assert reason.text.startswith("The group acme of queue mail was paused")
    assert await group.resume()
    await drain(jobs)
    assert seen == ["grace", "ada"]
