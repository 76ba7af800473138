"""Types of arguments and results, as programs use them."""

from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Annotated, Any
from uuid import UUID

from msgspec import Meta, Struct
from pydantic import BaseModel, ConfigDict, field_validator


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Size(IntEnum):
    SMALL = 1
    LARGE = 2


@dataclass
class Address:
    street: str
    number: int = 1


class Item(Struct, frozen=True):
    name: str
    price: Decimal
    colour: Colour = Colour.RED


@dataclass
class Order:
    id: UUID
    items: list[Item]
    to: Address
    placed: datetime
    notes: dict[str, str] = field(default_factory=dict)


class Customer(BaseModel):
    """A strict model: it accepts a text as a date only when it reads JSON."""

    model_config = ConfigDict(strict=True)

    name: str
    since: datetime
    colours: list[Colour] = []

    @field_validator("name")
    @classmethod
    def has_a_name(cls, value: str) -> str:
        if not value.strip():
            raise ValueError("a customer has a name")
        return value


NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
ORDER = Order(
    UUID(int=7),
    [Item("tea", Decimal("3.20")), Item("cup", Decimal(9), Colour.BLUE)],
    Address("Main St"),
    NOON,
)
CUSTOMER = Customer(name="Ada", since=NOON, colours=[Colour.BLUE])

Positive = Annotated[int, Meta(gt=0)]

# fmt: off
VALUES: list[tuple[Any, Any]] = [
    (str, "ä€🙂"), (str, ""), (int, -(2**63)), (int, 2**63 - 1), (float, 0.1), (float, -0.0), (bool, True),
    (None, None), (int | None, None), (str | int, 5),
    (list[int], [1, 2]), (set[int], {1, 2}), (frozenset[str], frozenset("a")), (tuple[int, str], (1, "a")),
    (dict[str, int], {"a": 1}), (dict[int, str], {1: "a"}), (bytes, b"\x00\xff"),
    (datetime, NOON), (date, NOON.date()), (timedelta, timedelta(seconds=90.5)),
    (Decimal, Decimal("0.10")), (UUID, UUID(int=1)),
    (Colour, Colour.BLUE), (Size, Size.LARGE), (Positive, 5),
    (Address, Address("Side St", 3)), (Item, Item("tea", Decimal(1))), (Order, ORDER),
    (Customer, CUSTOMER), (list[Customer], [CUSTOMER]), (dict[str, Customer], {"a": CUSTOMER}),
    (Customer | None, CUSTOMER), (Customer | None, None),
    (Any, {"a": [1, None, "x"]}),
]
# fmt: on
