"""Errors about wrong arguments name the argument, its value and what is right."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, Any, Literal
from uuid import UUID

import pydantic
import pytest
from msgspec import Meta

from errandry import Errandry, Worker, WorkerOptions
from errandry.api.signature import Signature
from errandry.codec.redaction import REDACTED
from errandry.errors import InvalidArguments

LONG = "4111-" * 20


@dataclass
class Line:
    article: str
    count: int = 1
    kind: Literal["gift", "sale"] = "sale"
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.count < 0:
            raise ValueError(f"Invalid value {self.count}")


class Person(pydantic.BaseModel):
    name: str
    numbers: list[int] = []

    @pydantic.field_validator("name")
    @classmethod
    def check_name(cls, name: str) -> str:
        if not name.strip():
            raise ValueError("a person has a name")
        return name


class Color(Enum):
    RED = "red"
    BLUE = "blue"


async def greet(name: str) -> None: ...


async def order(  # noqa: PLR0917 - one argument for each kind of fault
    lines: list[Line] = [],  # noqa: B006 - people write this
    by_name: dict[str, Line] = {},  # noqa: B006
    numbers: dict[int, str] = {},  # noqa: B006
    person: Person | None = None,
    color: Color | None = None,
    id: UUID | None = None,
    copies: Annotated[int, Meta(ge=1)] = 1,
    size: tuple[int, int] = (1, 1),
    text: int | str | None = None,
) -> None: ...


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        (greet, {}, "argument 'name' is missing; it takes name: str"),
        (greet, {"nam": "ada"}, "there is no argument 'nam': did you mean 'name'?"),
        (greet, {"to": "ada"}, "there is no argument 'to': it takes name: str"),
        (greet, {"name": 3}, "argument name=3: must be str, not int"),
        (greet, {"name": None}, "argument name=None: must be str, not None"),
        (greet, {"name": ["ada"]}, "argument name: must be str, not list"),
        (greet, {"name": {"first": "ada"}}, "argument name: must be str, not dict"),
        (order, {"lines": [{"article": 5}]}, "argument lines[0].article=5: must be str, not int"),
        (order, {"lines": [{}]}, "argument lines[0]: 'article' is missing"),
        (order, {"lines": [7]}, "argument lines[0]=7: must be Line, not int"),
        (order, {"lines": [Line("tea", kind="free")]}, "lines[0].kind='free': must be one of 'gift', 'sale'"),  # type: ignore[arg-type]
        (order, {"lines": [{"article": "tea", "count": -1}]}, "argument lines[0]: Invalid value -1"),
        (order, {"lines": [Line("tea", notes=["a", 2])]}, "lines[0].notes[1]=2: must be str, not int"),  # type: ignore[list-item]
        (order, {"by_name": {"a": {"article": 5}}}, "argument by_name[…].article: must be str, not int"),
        (order, {"numbers": {"one": "a"}}, "a key of argument numbers: must be int, not str"),
        (order, {"person": {"name": " "}}, "argument person.name=' ': a person has a name"),
        (order, {"person": {}}, "argument person: 'name' is missing"),
        (
            order,
            {"person": {"name": "ada", "numbers": [1, "b"]}},
            "argument person.numbers[1]='b': input should be a valid integer",
        ),
        (order, {"person": 5}, "argument person=5: input should be an object"),
        (order, {"color": "green"}, "argument color='green': must be one of 'red', 'blue'"),
        (order, {"id": "x"}, "argument id='x': is not a valid UUID"),
        (order, {"copies": 0}, "argument copies=0: must be int >= 1"),
        (order, {"copies": 1.5}, "argument copies=1.5: must be int, not float"),
        (order, {"size": [1]}, "argument size: must be tuple of length 2"),
        (order, {"text": [1]}, "argument text: must be int or str or None, not list"),
        (greet, {"name": object()}, "argument name: cannot be written as JSON: objects of type object"),
    ],
    ids=lambda case: case if isinstance(case, str) else "",
)
def test_a_wrong_argument_is_described_in_words_of_python(
    jobs: Errandry, function: Callable[..., Any], arguments: dict[str, Any], message: str
) -> None:
    task = jobs.task(function)

    with pytest.raises(InvalidArguments) as refusal:
        task.new(**arguments)

    assert str(refusal.value).startswith(f"task {task.name}: ")
    assert message in str(refusal.value)


def test_a_long_value_is_shortened(jobs: Errandry) -> None:
    @jobs.task
    async def count(number: int) -> None: ...

    with pytest.raises(
        InvalidArguments, match=r"argument number='x{50,60}… \(5,000 characters\): must be int"
    ):
        count.new("x" * 5_000)  # type: ignore[arg-type]


def test_what_a_task_takes_is_shown_with_short_defaults(jobs: Errandry) -> None:
    @jobs.task(redact="pin")
    async def pay(to: str, copies: int = 1, text: str = "x" * 99, pin: str = "1234") -> None: ...

    with pytest.raises(InvalidArguments) as refusal:
        pay.new()  # type: ignore[call-arg]

    takes = f"it takes to: str, copies: int = 1, text: str = …, pin: str = {REDACTED}"
    assert str(refusal.value) == f"task pay: argument 'to' is missing; {takes}"


@pytest.mark.parametrize("payload", ["[1]", "7"])
def test_stored_arguments_without_names_are_refused(jobs: Errandry, payload: str) -> None:
    with pytest.raises(InvalidArguments, match=r"the arguments must be a mapping by name, not (list|int)"):
        jobs.task(greet).signature.read(payload)


@pytest.mark.parametrize(
    ("card", "message"),
    [
        (41_111_111, f"argument card={REDACTED}: must be Person or Line, not int"),
        ({"name": "4111", "numbers": ["4111-11"]}, f"argument card.numbers[0]={REDACTED}: "),
        ({"name": "4111", "article": "4111-11", "count": -4111}, "argument card: "),
    ],
    ids=["value", "nested", "message"],
)
def test_a_redacted_value_is_not_shown(jobs: Errandry, card: Any, message: str) -> None:
    kind: Any = Person if isinstance(card, dict) and "numbers" in card else Line

    async def pay(card: Any) -> None: ...

    pay.__annotations__["card"] = kind
    task = jobs.task(redact="card")(pay)

    with pytest.raises(InvalidArguments) as refusal:
        task.new(card)

    assert message.replace("Person or ", "") in str(refusal.value)
    assert "4111" not in str(refusal.value)


async def test_a_worker_redacts_what_only_the_enqueuing_program_redacts(jobs: Errandry) -> None:
    """In a rolling deploy, the worker's version of the task may redact nothing, and take another type."""
    newer = Errandry(store=jobs.store)
    newer.client.engine = jobs.client.engine

    @newer.task(name="pay", redact="card")
    async def pay(card: str) -> None: ...

    @jobs.task(name="pay")
    async def older_pay(card: int) -> None: ...

    enqueued = [await pay.enqueue(LONG), await pay.enqueue("4111-1111")]
    await Worker(jobs, WorkerOptions(burst=True)).run()

    for job in enqueued:
        [error] = (await job.refresh()).errors
        assert error.message.startswith(f"task pay: argument card='{REDACTED}")
        assert "4111" not in error.message


NESTED = "[" * 3_000 + "]" * 3_000


@pytest.mark.parametrize("value", [NESTED, "1e999", "", '"\ud800"'], ids=["nested", "large", "cut", "half"])
def test_a_payload_that_cannot_be_read_at_all_is_an_error_of_the_arguments(value: str) -> None:
    """Any other error would be retried, with the same payload."""

    async def move(at: Any) -> None: ...

    with pytest.raises(InvalidArguments, match=r"^task move: the arguments cannot be read as JSON: "):
        Signature("move", move).read(f'{{"at": {value}}}')
