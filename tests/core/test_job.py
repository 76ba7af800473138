"""The checks of the records, and the ids of jobs."""

from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from errandry.core.job import DAY, JobRecord, Keep, NewJob, Progress, uuid7
from errandry.core.state import TERMINAL, State
from errandry.errors import InvalidValue, TooLarge


def new(**fields: Any) -> NewJob:
    return NewJob(**({"id": "job", "task": "task", "payload": "{}"} | fields))


def test_the_defaults_equal_the_design() -> None:
    job = new()

    assert (job.queue, job.group, job.priority, job.lifo) == ("default", "", 0, False)
    assert (job.max_attempts, job.max_crashes) == (5, 3)
    assert (job.run_at, job.delay, job.timeout, job.deadline) == (None, None, None, None)
    assert (job.backoff, job.keep, job.tags, job.metadata) == (None, None, (), None)


@pytest.mark.parametrize(
    "fields",
    [
        {"priority": -(2**31)},
        {"priority": 2**31 - 1},
        {"max_attempts": 1},
        {"max_attempts": 10_000},
        {"delay": 0},
        {"delay": 0.5},
        {"run_at": 0},
        {"timeout": 0.001},
        {"tags": tuple(map(str, range(20)))},
        {"metadata": "{}"},
        {"metadata": f'"{"x" * 65_534}"'},
    ],
)
def test_values_at_their_limits_are_accepted(fields: dict[str, Any]) -> None:
    job = new(**fields)

    assert {name: getattr(job, name) for name in fields} == fields


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"id": ""}, "id"),
        ({"task": "x" * 10_000}, "task"),
        ({"queue": "a\0b"}, "queue"),
        ({"group": " "}, "group"),
        ({"tags": ("fine", "")}, "tag"),
        ({"tags": tuple(map(str, range(21)))}, "tags"),
        ({"payload": "NaN"}, "payload"),
        ({"metadata": "{"}, "metadata"),
        ({"metadata": f'"{"x" * 65_535}"'}, "metadata"),
        ({"priority": 2**31}, "priority"),
        ({"priority": 1.0}, "priority"),
        ({"max_attempts": 0}, "max_attempts"),
        ({"max_attempts": 10_001}, "max_attempts"),
        ({"max_crashes": 0}, "max_crashes"),
        ({"delay": -1.0}, "delay"),
        ({"run_at": -1.0}, "run_at"),
        ({"run_at": 1.0, "delay": 1.0}, "run_at"),
        ({"deadline": float("nan")}, "deadline"),
        ({"timeout": 0.0}, "timeout"),
        ({"timeout": -1.0}, "timeout"),
    ],
)
def test_a_job_that_cannot_be_stored_is_refused(fields: dict[str, Any], name: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        new(**fields)

    assert caught.value.name == name


def test_large_metadata_is_refused_by_its_size() -> None:
    with pytest.raises(TooLarge, match="metadata has 65,537 bytes: at most 65,536"):
        new(metadata=f'"{"x" * 65_535}"')


@pytest.mark.parametrize("state", sorted(TERMINAL))
def test_keep_has_a_time_and_a_number_for_each_state(state: State) -> None:
    assert replace(Keep(), **{state: 5.0}).span(state) == 5.0
    assert (replace(Keep(), **{f"last_{state}": 5}).last(state), Keep().last(state)) == (5, None)
    assert {ended: Keep().span(ended) / DAY for ended in TERMINAL} == {
        "completed": 7,
        "failed": 30,
        "canceled": 7,
    }


@pytest.mark.parametrize("state", sorted(TERMINAL))
@pytest.mark.parametrize("span", [-1.0, float("nan"), True, "7d"])
def test_an_invalid_keep_is_refused(state: State, span: Any) -> None:
    with pytest.raises(InvalidValue) as caught:
        Keep(**{state: span})

    assert caught.value.name == f"keep.{state}"


@pytest.mark.parametrize("share", [0, 1, 0.5])
def test_progress_is_a_share_from_0_to_1(share: float) -> None:
    assert Progress(share).share == share


@pytest.mark.parametrize("share", [-0.01, 1.01, float("nan"), True, "0.5", None])
def test_progress_outside_0_to_1_is_refused(share: Any) -> None:
    with pytest.raises(InvalidValue, match="progress"):
        Progress(share)


@pytest.mark.parametrize("state", list(State))
def test_a_job_is_finished_exactly_in_a_terminal_state(state: State) -> None:
    fields: dict[str, Any] = dict.fromkeys(JobRecord.__struct_fields__)

    assert JobRecord(**fields | {"state": state}).finished == (state in TERMINAL)


times = st.integers(0, 2**48 - 1).map(lambda millis: millis / 1000)


@given(times, st.binary(min_size=10, max_size=16))
def test_an_id_is_a_uuid_of_version_7(now: float, entropy: bytes) -> None:
    uuid = UUID(uuid7(now, entropy))

    assert str(uuid) == uuid7(now, entropy)
    assert (uuid.version, uuid.variant) == (7, "specified in RFC 4122")
    assert uuid.int >> 80 == int(now * 1000)


@given(st.tuples(times, times), st.tuples(*[st.binary(min_size=10, max_size=10)] * 2))
def test_ids_sort_by_their_time(moments: tuple[float, float], entropies: tuple[bytes, bytes]) -> None:
    early, late = sorted(moments)
    if int(early * 1000) < int(late * 1000):
        assert uuid7(early, entropies[0]) < uuid7(late, entropies[1])


@given(times, st.sets(st.binary(min_size=10, max_size=10), min_size=2, max_size=2))
def test_ids_differ_by_their_entropy(now: float, entropies: set[bytes]) -> None:
    """All bits count except the 6 bits of version and variant."""
    free = (1 << 80) - 1 & ~(0xF << 76) & ~(3 << 62)
    expected = {int.from_bytes(entropy) & free for entropy in entropies}

    assert {UUID(uuid7(now, entropy)).int & free for entropy in entropies} == expected


@pytest.mark.parametrize(
    ("keep", "words"),
    [
        (Keep(), "7 days (failed 30 days)"),
        (Keep(2 * DAY, 2 * DAY, 2 * DAY), "2 days"),
        (Keep(DAY, 0.0, 5_400.0, 9, 9, 9), "1 day (failed 0s, canceled 1h30m, last 9)"),
        (Keep(DAY, DAY, DAY, last_failed=5), "1 day (last 5 failed)"),
    ],
)
def test_a_retention_is_written_in_words(keep: Keep, words: str) -> None:
    assert str(keep) == words
