"""How long a run takes: so much of each thing, in a whole run and in a quick one."""

from msgspec import Struct


class Sizes(Struct, frozen=True, kw_only=True):
    """How much of each there is.

    rounds      of every rate
    single      jobs enqueued one by one, in a round
    concurrent  jobs enqueued by many at once
    bulk        jobs enqueued in bulk
    drain       jobs there are for workers to run
    pickups     jobs that find the system at rest
    paced       seconds of jobs at a fixed rate
    kills       workers killed with -9
    starts      interpreters started for the import
    idle        seconds a worker is watched doing nothing
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
