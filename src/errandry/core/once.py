"""Commands that a store applies once, however often they are sent."""

from copy import copy
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import force_setattr

from errandry.core import check


class OnceCommand(Struct, frozen=True, kw_only=True, gc=False):
    """A command that would change something again, or get another answer, if it was sent again.

    A store saves its answer under the `nonce`. If the command is sent again with the same nonce, it changes
    nothing and gets the saved answer. Without a nonce, each sending is a command of its own.
    """

    nonce: str | None = None

    def __post_init__(self) -> None:
        if self.nonce is not None:
            check.name("nonce", self.nonce)


OnceCommandT = TypeVar("OnceCommandT", bound=OnceCommand)


def with_nonce(command: OnceCommandT, nonce: str) -> OnceCommandT:
    """A copy of the command with this nonce."""
    numbered = copy(command)
    force_setattr(numbered, "nonce", nonce)
    return numbered
