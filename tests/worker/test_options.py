"""Options of a worker."""

from typing import Any, Literal, get_type_hints

import pytest

from errandry import WorkerOptions
from errandry.api.run_options import Names, RunWorkerOptions
from errandry.errors import InvalidValue


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"concurrency": 0}, "concurrency=0: must be a whole number from 1"),
        ({"thread_slots": 0}, "thread_slots=0: must be a whole number from 1"),
        ({"thread_slots": 2.5}, "thread_slots=2.5: must be a whole number"),
        ({"process_slots": 1_001}, "process_slots=1001: must be a whole number from 1"),
        ({"prefetch": -1}, "prefetch=-1"),
        ({"lease": 0}, "lease=0: must be more than 0 seconds"),
        ({"lease": "30s"}, "lease='30s': must be a number of seconds"),
        ({"lease": 30, "renew_every": 16}, "renew_every=16: .* leave a second try within the lease of 30 s"),
        ({"renew_every": 0}, "renew_every=0"),
        ({"upkeep_every": 0}, "upkeep_every=0: must be more than 0"),
        ({"grace": -1}, "grace=-1"),
        ({"stall_after": 0}, "stall_after=0"),
        ({"on_unknown": "ignore"}, "on_unknown='ignore': must be release or fail"),
        ({"release_delay": -1}, "release_delay=-1"),
        ({"queues": ("",)}, "queue='': must be a name"),
        ({"tasks": (7,)}, "task=7: must be a name"),
        ({"tasks": b"send"}, "tasks=b'send': must be a name, a list of names, or None for all"),
        ({"queues": {"mail": 1}}, "queues=.*: must be a name, a list"),
        ({"id": "a\nb"}, "id="),
        ({"id": ""}, "id=''"),
        ({"queues": ["a", "b"], "queue_order": "fair"}, "queue_order='fair'"),
        ({"queues": ["a", "b"], "queue_order": (3,)}, "must be 'strict', or 2 weights, one for each"),
        ({"grace": True}, "grace=True: must be a number of seconds"),
        ({"upkeep": 1}, "upkeep=1: must be True or False"),
        ({"prune_declared": "no"}, "prune_declared='no'"),
        ({"burst": None}, "burst=None"),
    ],
    ids=lambda case: str(case) if isinstance(case, dict) else "",
)
def test_invalid_options_are_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidValue, match=why):
        WorkerOptions(**options)


@pytest.mark.parametrize(("cores", "slots"), [(6, 6), (2_000, 1_000)])
def test_by_default_there_is_one_process_slot_for_each_core(
    monkeypatch: pytest.MonkeyPatch, cores: int, slots: int
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(cores)), raising=False)

    assert WorkerOptions().process_slots == slots


def test_queues_and_tasks_are_one_name_or_a_list_of_names() -> None:
    options = WorkerOptions(queues="mail", tasks=["send", "receive"])  # type: ignore[arg-type]

    assert (options.queues, options.tasks) == (("mail",), ("send", "receive"))
    assert WorkerOptions(queues=("mail",), tasks=()) == WorkerOptions(queues="mail", tasks=[])  # type: ignore[arg-type]
    assert WorkerOptions(queues=["a", "b"], queue_order=[1, 2]).queue_order == (1, 2)  # type: ignore[arg-type]


def test_type_checkers_know_the_options_of_run_worker() -> None:
    converted = {
        "queues": Names | None,
        "tasks": Names | None,
        "queue_order": Literal["strict"] | tuple[float, ...] | list[float] | None,
    }
    assert get_type_hints(RunWorkerOptions) == get_type_hints(WorkerOptions) | converted
    assert list(RunWorkerOptions.__annotations__) == list(WorkerOptions.__annotations__)
