"""Tools for tests: a store in memory, a clock that tests move, `drain`, assertions, the conformance suite.

`errandry.testing.conformance`, the suite for stores, needs pytest and pytest-asyncio; the rest needs nothing.
"""

from errandry.store.memory.driver import MemoryStore
from errandry.testing.clock import FakeClock
from errandry.testing.given import Given, ref
from errandry.testing.kit import assert_enqueued, assert_not_enqueued, drain, in_memory

__all__ = [
    "FakeClock",
    "Given",
    "MemoryStore",
    "assert_enqueued",
    "assert_not_enqueued",
    "drain",
    "in_memory",
    "ref",
]
