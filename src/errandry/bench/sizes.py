"""The sizes of the parts in a full run and in a quick one."""

from msgspec import Struct


class Sizes(Struct, frozen=True, kw_only=True):
    """The sizes of the parts.

    rounds      rounds for each rate
    single      jobs enqueued one by one in a round
    concurrent  jobs enqueued by concurrent callers in a round
    bulk        jobs enqueued in bulk in a round
    drain       jobs preloaded for workers
    pickups     jobs enqueued on an idle worker
    paced       seconds of jobs at a fixed rate
    kills       workers killed with -9
    starts      interpreters started for the import time
    idle        seconds that an idle worker is measured
    raw         raw writes before and after each round
    """

    rounds: int
    single: int
    concurrent: int
    bulk: int
    drain: int
    pickups: int
    paced: float
    kills: int
    starts: int
    idle: float
    raw: int


FULL = Sizes(
    rounds=3,
    single=1_000,
    concurrent=10_000,
    bulk=50_000,
    drain=20_000,
    pickups=400,
    paced=8.0,
    kills=5,
    starts=7,
    idle=8.0,
    raw=200,
)
QUICK = Sizes(
    rounds=2,
    single=200,
    concurrent=2_000,
    bulk=5_000,
    drain=4_000,
    pickups=60,
    paced=2.0,
    kills=2,
    starts=3,
    idle=1.0,
    raw=100,
)
