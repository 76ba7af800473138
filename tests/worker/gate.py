"""A gate that holds handlers until a test opens it, and a backoff without delay."""

import asyncio

from errandry import Backoff
from errandry.core.retry import Curve

NO_BACKOFF = Backoff(Curve.FIXED, 0.0)


class Gate:
    """Notes when a handler has begun, and holds it until a test sets `opened`."""

    def __init__(self) -> None:
        self.begun, self.opened = asyncio.Event(), asyncio.Event()

    async def pass_through(self) -> None:
        self.begun.set()
        await self.opened.wait()
