"""For tests: a clock that moves when told, jobs in any state, and the suite every store must pass.

`errandry.testing.conformance` needs pytest and pytest-asyncio; the rest needs nothing.
"""

from errandry.testing.clock import FakeClock
from errandry.testing.given import Given, ref

__all__ = ["FakeClock", "Given", "ref"]
