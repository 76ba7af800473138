"""Schedules as pure functions: their ticks, and which ticks run."""

from itertools import islice
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from errandry.core.job import NewJob
from errandry.core.schedule import CatchUp, Overlap, PutSchedule, SchedulePlan, ScheduleRecord, job_id
from errandry.core.tick import CATCH_UP_MAX, decide_ticks, due_at, new_job, new_schedule, ticks_between
from errandry.core.unique import UniqueKey
from errandry.errors import InvalidValue

JOB = NewJob(id="-", task="report", payload="{}")
NOW = 1_750_000_000.0


def plan(**fields: Any) -> SchedulePlan:
    given: dict[str, Any] = {"job": JOB, "every": 10.0} | fields
    return SchedulePlan(**given)


def schedule(now: float = NOW, **fields: Any) -> ScheduleRecord:
    return new_schedule("s", plan(**fields), now)


def test_ticks_of_an_interval_do_not_depend_on_when_the_schedule_was_put() -> None:
    for begin in (NOW, NOW + 0.001, NOW + 9.999):
        assert schedule(begin).tick == NOW + 10
    assert schedule(start=NOW + 3).tick == NOW + 3
    assert schedule(NOW + 3, start=NOW + 3).tick == NOW + 13


@given(every=st.floats(1.0, 1e7), moment=st.floats(0, 4e9), start=st.none() | st.floats(0, 4e9))
def test_the_next_tick_is_at_most_one_interval_after_the_moment(
    every: float, moment: float, start: float | None
) -> None:
    tick = plan(every=every, start=start).after(moment)

    assert tick is not None
    assert tick > moment or tick == start
    assert tick <= max(moment, start or 0.0) + every + 1e-3


@given(
    tick=st.integers(1, 400),
    late=st.floats(0, 5_000),
    overlap=st.sampled_from(Overlap),
    catch_up=st.sampled_from(CatchUp),
    limit=st.none() | st.integers(1, 50),
    jitter=st.sampled_from([0.0, 7.0, 25.0]),
    alive=st.integers(0, 20),
)
def test_every_tick_runs_or_is_missed_and_never_both(
    tick: int,
    late: float,
    overlap: Overlap,
    catch_up: CatchUp,
    limit: int | None,
    jitter: float,
    alive: int,
) -> None:
    before = schedule(NOW + tick, overlap=overlap, catch_up=catch_up, limit=limit, jitter=jitter)
    now = (before.due_at or 0.0) + late

    decision = decide_ticks(before, [f"run-{n}" for n in range(alive)], now)

    ran = [run.tick for run in decision.runs]
    assert sorted({*ran, *decision.missed}) == sorted([*ran, *decision.missed])
    assert decision.schedule.runs == len(ran)
    assert decision.schedule.missed >= len(decision.missed)
    assert len(ran) <= min(CATCH_UP_MAX, limit or CATCH_UP_MAX)
    assert catch_up is CatchUp.ALL or len(ran) <= 1
    assert all(due_at(before, tick) <= now for tick in [*ran, *decision.missed])
    if overlap is Overlap.SKIP and alive:
        assert not ran
    if overlap is not Overlap.ALLOW:
        assert [run.after is None for run in decision.runs] == [not alive and n == 0 for n in range(len(ran))]
    if decision.schedule.tick is not None:
        assert decision.schedule.tick > max([*ran, *decision.missed])
        assert due_at(before, decision.schedule.tick) > now or jitter


def test_the_jitter_depends_only_on_the_schedule_and_the_tick() -> None:
    first, second = schedule(jitter=5.0), replace(schedule(jitter=5.0), name="other")
    ticks = list(islice(ticks_between(first, NOW, NOW + 1_000), 50))

    delays = [due_at(first, tick) - tick for tick in ticks]

    assert delays == [due_at(first, tick) - tick for tick in ticks]
    assert all(0 <= delay < 5 for delay in delays)
    assert len(set(delays)) > 40
    assert delays != [due_at(second, tick) - tick for tick in ticks]


def test_the_id_of_a_job_has_the_schedule_and_the_tick() -> None:
    tick = NOW + 10
    job = new_job(schedule(job=replace(JOB, metadata='{"tenant":7}')), tick)

    assert (job.id, job.run_at) == ("s@2025-06-15T15:06:50Z", tick)
    assert msgspec.json.decode(job.metadata or "") == {
        "tenant": 7,
        "errandry.schedule": "s",
        "errandry.tick": tick,
    }
    assert job_id("s", NOW + 0.5) == "s@2025-06-15T15:06:40.500000Z"


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"every": None}, "give either cron or every"),
        ({"cron": "@daily"}, "give either cron or every"),
        ({"every": 0.5}, "at least 1 second"),
        ({"every": None, "cron": "* *"}, "has 2 fields"),
        ({"every": None, "cron": "@daily", "zone": "Mars/Base"}, "unknown time zone"),
        ({"zone": "Mars/Base"}, "unknown time zone"),
        ({"start": 60.0, "end": 59.0}, "end='1970-01-01T00:00:59Z': is before start, 1970-01-01T00:01:00Z"),
        ({"every": None, "cron": "@daily", "start": 60.0, "end": 90.0}, "there is no tick between start"),
        ({"limit": 0}, "whole number from 1"),
        ({"jitter": -1}, "number of seconds"),
        ({"start": -5}, "seconds since 1970"),
        ({"job": replace(JOB, run_at=5.0)}, "cannot be set for the jobs of a schedule"),
        ({"job": replace(JOB, unique=UniqueKey("k"))}, "cannot be set for the jobs of a schedule"),
        ({"job": replace(JOB, metadata="[1]")}, "must be a JSON object"),
    ],
)
def test_an_invalid_plan_is_refused(fields: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidValue, match=why):
        PutSchedule("s", plan(**fields))


@pytest.mark.parametrize("name", ["", "x" * 151, "a\nb", 5])
def test_an_invalid_schedule_name_is_refused(name: Any) -> None:
    with pytest.raises(InvalidValue, match="schedule="):
        PutSchedule(name, plan())
