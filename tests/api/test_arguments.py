"""Arguments and results: supported types, checks, and refused values."""

import threading
from decimal import Decimal
from typing import Any, Literal

import pytest

from errandry import Errandry, JobContext
from errandry.core.state import State
from errandry.errors import InvalidArguments, TooLarge
from errandry.store.contract import StoreLimits
from errandry.testing import drain
from tests.api.shop import CUSTOMER, NOON, ORDER, VALUES, Address, Colour, Customer, Order, Positive


async def is_empty(jobs: Errandry) -> bool:
    return await jobs.counts() == {}


@pytest.mark.parametrize(("kind", "value"), VALUES, ids=lambda case: str(case)[:30])
async def test_arguments_and_results_keep_their_types(jobs: Errandry, kind: Any, value: Any) -> None:
    seen: list[Any] = []

    async def echo(value: Any) -> Any:
        seen.append(value)
        return value

    echo.__annotations__ = {"value": kind, "return": kind}
    task = jobs.task(echo)

    job = await task.enqueue(value)
    await drain(jobs, strict=True)
    result = await job.result(30)

    assert seen == [value]
    assert type(seen[0]) is type(value)
    assert result == value
    assert type(result) is type(value)


async def test_arguments_are_given_by_name_or_position_and_defaults_are_not_stored(
    jobs: Errandry,
) -> None:
    calls: list[Any] = []

    @jobs.task
    async def send(to: str, subject: str = "Hi", *, copies: int = 1) -> None:
        calls.append((to, subject, copies))

    first = await send.enqueue("ada")
    await send.enqueue("ada", "Yo", copies=2)
    await send.enqueue(subject="Yo", to="ada")
    await drain(jobs, strict=True)

    assert calls == [("ada", "Hi", 1), ("ada", "Yo", 2), ("ada", "Yo", 1)]
    assert first.record.payload == '{"to":"ada"}'


async def test_a_default_can_be_anything(jobs: Errandry) -> None:
    seen: list[Any] = []
    lock = threading.Lock()

    @jobs.task
    async def send(
        to: list[str] = ["ada"],  # noqa: B006 - people write this
        address: Address = Address("Main St"),  # noqa: B008 - and this
        colour: Colour | None = None,
        guard: Any = lock,
    ) -> None:
        seen.append((to, address, colour, guard))

    await send.enqueue()
    await drain(jobs, strict=True)

    assert seen == [(["ada"], Address("Main St"), None, lock)]


async def test_the_context_is_not_an_argument(jobs: Errandry) -> None:
    seen: list[Any] = []

    @jobs.task
    async def first(ctx: JobContext, n: int) -> None:
        seen.append((ctx.attempt, n))

    @jobs.task
    async def perhaps(ctx: JobContext | None, n: int) -> None:
        seen.append((ctx and ctx.attempt, n))

    @jobs.task
    def last(n: int, *, ctx: JobContext) -> None:
        seen.append((ctx.attempt, n))

    await first.enqueue(1)
    await perhaps.enqueue(2)
    await jobs.enqueue("last", {"n": 3})
    await drain(jobs, strict=True)

    assert seen == [(1, 1), (1, 2), (1, 3)]


async def test_types_may_be_declared_after_the_handler(jobs: Errandry) -> None:
    space: dict[str, Any] = {"jobs": jobs, "__name__": "cell"}
    exec("@jobs.task\nasync def f(at: 'Place') -> 'Place':\n    return at", space)
    exec("from dataclasses import dataclass\n@dataclass\nclass Place:\n    name: str", space)

    job = await space["f"].enqueue(at=space["Place"]("here"))
    await drain(jobs, strict=True)

    assert await job.result(30) == space["Place"]("here")


async def test_unreadable_annotations_are_refused_at_enqueue(jobs: Errandry) -> None:
    @jobs.task
    async def f(at: "Nowhere") -> None: ...  # type: ignore[name-defined]  # noqa: F821

    @jobs.task
    async def g(at: Customer | Order | threading.Thread | Errandry) -> None: ...

    with pytest.raises(InvalidArguments, match=r"task f: .* name 'Nowhere' is not defined"):
        await f.enqueue(1)
    with pytest.raises(InvalidArguments, match=r"task g: .* annotations cannot be checked"):
        await g.enqueue(at=ORDER)
    assert await is_empty(jobs)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({}, "argument 'order' is missing; it takes order: Order, codes: "),
        ({"order": ORDER, "nope": 1}, "there is no argument 'nope': it takes order: Order"),
        ({"order": 5}, "argument order=5: must be Order, not int"),
        ({"order": {"id": 5}}, r"argument order\.id=5: must be UUID, not int"),
        (
            {"order": ORDER, "codes": [1, "2"]},
            r"argument codes\[1\]='2': must be int, not str",
        ),
        ({"order": ORDER, "count": 0}, "argument count=0: must be int >= 1"),
        ({"order": ORDER, "mode": "slow"}, "argument mode='slow': must be 'fast'"),
        (
            {"order": ORDER, "customer": {"name": " ", "since": NOON}},
            r"argument customer\.name=' ': a customer has a name",
        ),
        ({"order": ORDER, "customer": {"name": "Ada"}}, "argument customer: 'since' is missing"),
        ({"order": object()}, "argument order: cannot be written as JSON: "),
        ({"order": ORDER, "codes": [threading.Lock()]}, "argument codes: cannot be written as JSON: "),
    ],
    ids=lambda case: case if isinstance(case, str) else "",
)
async def test_a_wrong_argument_is_refused_with_its_path(
    jobs: Errandry, arguments: dict[str, Any], why: str
) -> None:
    @jobs.task
    async def ship(
        order: Order,
        codes: list[int] = [],  # noqa: B006 - people write this
        count: Positive = 1,
        mode: Literal["fast"] = "fast",
        customer: Customer = CUSTOMER,
    ) -> None: ...

    with pytest.raises(InvalidArguments, match=why) as refusal:
        await ship.enqueue(**arguments)

    assert refusal.value.task == "ship"
    assert isinstance(refusal.value, TypeError)
    assert await is_empty(jobs)


async def test_too_many_arguments_and_duplicates_are_refused(jobs: Errandry) -> None:
    @jobs.task
    async def send(ctx: JobContext, to: str, *, copies: int = 1) -> None: ...

    with pytest.raises(InvalidArguments, match="2 arguments are given by position, it takes 1: to"):
        await send.enqueue("ada", 5)  # type: ignore[call-arg]
    with pytest.raises(InvalidArguments, match="argument 'to' is given twice"):
        await send.enqueue("ada", to="grace")  # type: ignore[misc]
    assert await is_empty(jobs)


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (float("nan"), "is not a number JSON has"),
        ([1.0, {"deep": float("inf")}], "is not a number JSON has"),
        (Address("Main St", float("-inf")), "is not a number JSON has"),  # type: ignore[arg-type]
        ("a\0b", "NUL character"),
        ({"a\0b": 1}, "NUL character"),
        ("\ud800", "surrogates not allowed"),
        ({"\udfff": 1}, "surrogates not allowed"),
        (2**63, "beyond 64 bit: pass it as text"),
        (-(2**63) - 1, "beyond 64 bit"),
        (10**5_000, "cannot be written as JSON"),
        (nested(200), "nested deeper than 100 levels"),
        (nested(100_000), "cannot be written as JSON: maximum recursion depth"),
    ],
    ids=lambda case: case if isinstance(case, str) and case.isprintable() else "",
)
async def test_values_that_some_store_cannot_keep_are_refused(jobs: Errandry, value: Any, why: str) -> None:
    @jobs.task
    async def take(first: int, value: Any) -> None: ...

    with pytest.raises(InvalidArguments, match=why) as refusal:
        await take.enqueue(1, value)

    assert "argument value: " in str(refusal.value)
    assert await is_empty(jobs)


async def test_a_payload_over_its_limit_is_refused() -> None:
    async with Errandry("memory:", store_limits=StoreLimits(payload=100)) as jobs:

        @jobs.task
        async def take(text: str) -> None: ...

        await take.enqueue("x" * 89)
        with pytest.raises(TooLarge, match="payload has 101 bytes: at most 100 bytes are allowed"):
            await take.enqueue("x" * 90)

        assert await jobs.counts() == {"default": {"waiting": 1}}


async def test_the_default_payload_limit_is_one_mebibyte(jobs: Errandry) -> None:
    @jobs.task
    async def take(text: str) -> None: ...

    with pytest.raises(TooLarge) as refusal:
        await take.enqueue("ä" * 2**19)

    assert (refusal.value.size, refusal.value.bound) == (2**20 + 11, 2**20)
    assert await is_empty(jobs)


async def test_a_result_that_does_not_match_its_declared_type_is_returned_as_plain_values(
    jobs: Errandry,
) -> None:
    @jobs.task
    async def f() -> Decimal:
        return {"not": "a number"}  # type: ignore[return-value]

    job = await f.enqueue()
    await drain(jobs, strict=True)

    assert await job.result(30) == {"not": "a number"}


async def test_a_result_can_be_read_where_the_task_is_not_declared(tmp_path: Any) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    async with Errandry(url) as jobs, Errandry(url) as elsewhere:

        @jobs.task
        async def ship() -> Customer:
            return CUSTOMER

        job = await ship.enqueue()
        await drain(jobs, strict=True)
        seen = await elsewhere.get(job.id)

        assert seen.state is State.COMPLETED
        assert await seen.result(30) == {"name": "Ada", "since": "2026-01-31T12:00:00Z", "colours": ["blue"]}
        assert await job.result(30) == CUSTOMER
