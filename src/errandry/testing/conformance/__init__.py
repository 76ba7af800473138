"""The conformance suite: every store passes all of it, with no test overridden or skipped.

A store joins with one fixture, `make_store`, which opens empty stores of its kind and closes
them at the end, and one line:

    @pytest.fixture
    async def make_store(tmp_path: Path) -> AsyncIterator[MakeStore]: ...

    class TestConformance(Conformance): ...
"""

from pathlib import Path

import pytest

pytest.register_assert_rewrite(
    *(f"{__name__}.{path.stem}" for path in Path(__file__).parent.glob("[a-z]*.py"))
)

from errandry.testing.conformance.suite import Conformance, MakeStore  # noqa: E402  # asserts are rewritten

__all__ = ["Conformance", "MakeStore"]
