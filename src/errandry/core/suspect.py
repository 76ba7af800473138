"""Suspects: jobs that were running when their worker was lost, and may have caused its death.

A worker runs few of them at a time, so that a job which kills its worker takes few others with it. See
`claims/suspect_turns.py` for when a worker claims them.
"""

from enum import IntEnum


class SuspectKind(IntEnum):
    """How much of a suspect a job is; in a claim and in searches, which jobs count besides those of NONE.

    NONE      the job has lost no worker
    SHARED    it has, and may run beside other suspects: the next loss would not fail it
    ISOLATED  it has, and the next loss would fail it: it runs with no other suspect on its host
    ANY       in a claim: suspects of both kinds
    """

    NONE = 0
    SHARED = 1
    ISOLATED = 2
    ANY = 3


def suspect_kind(crashes: int, max_crashes: int, attempts: int, max_attempts: int) -> SuspectKind:
    """Return the kind of a waiting job with these numbers. SQL stores generate it as column `suspect`."""
    if not crashes:
        return SuspectKind.NONE
    is_last_chance = crashes + 1 >= max_crashes or attempts + 1 >= max_attempts
    return SuspectKind.ISOLATED if is_last_chance else SuspectKind.SHARED
