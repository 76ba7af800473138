"""Amounts of memory as people write them."""

from typing import Any

import pytest

from errandry.core.size import format_size, size
from errandry.errors import InvalidValue


@pytest.mark.parametrize(
    ("written", "count"),
    [
        (0, 0),
        (536_870_912, 536_870_912),
        ("100", 100),
        ("512 MB", 512_000_000),
        ("512mb", 512_000_000),
        ("1.5 GiB", 1_610_612_736),
        (" 64 KiB ", 65_536),
        ("2 tb", 2_000_000_000_000),
    ],
)
def test_sizes_are_parsed(written: str | int, count: int) -> None:
    assert size(written) == count


@pytest.mark.parametrize(
    "written", [-1, 1.5, True, None, "", "MB", "5 apples", "1e9", "-5 MB", 2**61, "9" * 30]
)
def test_an_invalid_size_is_refused(written: Any) -> None:
    with pytest.raises(InvalidValue, match=r"memory=.*: not a size; write bytes"):
        size(written, "memory")


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (64_000_000, "64 MB"), (536_870_912, "537 MB"), (1_500_000_000, "1.5 GB")],
)
def test_sizes_are_written_with_three_digits(count: int, text: str) -> None:
    assert format_size(count) == text
