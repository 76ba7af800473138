"""Options of a worker."""

from typing import Any

import pytest

from errandry import WorkerOptions
from errandry.errors import InvalidValue


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"concurrency": 0}, "concurrency=0: must be a whole number from 1"),
        ({"threads": 0}, "threads=0: must be a whole number from 1"),
        ({"threads": 2.5}, "threads=2.5: must be a whole number"),
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
        ({"id": "a\nb"}, "id="),
    ],
    ids=lambda case: str(case) if isinstance(case, dict) else "",
)
def test_invalid_options_are_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidValue, match=why):
        WorkerOptions(**options)
