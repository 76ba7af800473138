"""All areas of the suite as one class."""

import pytest

from errandry.testing.conformance.bad_input import BadInput
from errandry.testing.conformance.capacity import Ageing, Bounding, KeepingOrder
from errandry.testing.conformance.claiming import Batching, Claiming, Draining, Ordering, Suspecting
from errandry.testing.conformance.clock import ClockMoving
from errandry.testing.conformance.events import Reporting, Resuming
from errandry.testing.conformance.fixtures import Fixtures, MakeStore
from errandry.testing.conformance.flow_reruns import Awaiting, Canceling, Forgetting, Rerunning
from errandry.testing.conformance.flows import Flowing, Tying
from errandry.testing.conformance.inserting import Inserting
from errandry.testing.conformance.leasing import Expiring, Fencing, Leasing, Noting, Starting
from errandry.testing.conformance.limiting import Limiting, Rating, TakingTurns
from errandry.testing.conformance.opening_and_waking import Opening, Waking
from errandry.testing.conformance.operating import Operating, Slicing
from errandry.testing.conformance.pausing import PausingRules
from errandry.testing.conformance.querying import Beating, Counting, Getting, Listing, Querying
from errandry.testing.conformance.queue_moves import Looking, Rechecking, Relocating
from errandry.testing.conformance.retention import Outliving, Retaining
from errandry.testing.conformance.rules import RulePutting
from errandry.testing.conformance.schedule_changes import Meddling, Replanning, RunningNow
from errandry.testing.conformance.scheduling import CatchingUp, Ending, Overlapping, Scheduling
from errandry.testing.conformance.settling import Keeping, Repeating, Settling
from errandry.testing.conformance.statistics import Statistics
from errandry.testing.conformance.stepping import Signaling, Sleeping, Stepping
from errandry.testing.conformance.transitions import Moving, MovingOtherwise
from errandry.testing.conformance.unique_windows import NeverTwo, RerunningUnique, Windows
from errandry.testing.conformance.uniqueness import Holding, HoldingInBulk, Replacing
from errandry.testing.conformance.upkeep import Upkeeping

__all__ = ["Conformance", "MakeStore"]


@pytest.mark.asyncio
class Conformance(
    Fixtures,
    Opening,
    Waking,
    Inserting,
    Holding,
    HoldingInBulk,
    Replacing,
    Windows,
    RerunningUnique,
    NeverTwo,
    Claiming,
    Ordering,
    Suspecting,
    Batching,
    Draining,
    PausingRules,
    RulePutting,
    Limiting,
    Rating,
    TakingTurns,
    Bounding,
    Ageing,
    KeepingOrder,
    Leasing,
    Starting,
    Expiring,
    Fencing,
    Noting,
    Settling,
    Repeating,
    Keeping,
    Retaining,
    Outliving,
    Moving,
    MovingOtherwise,
    Flowing,
    Tying,
    Canceling,
    Rerunning,
    Awaiting,
    Forgetting,
    Stepping,
    Sleeping,
    Signaling,
    Operating,
    Slicing,
    Relocating,
    Rechecking,
    Looking,
    Upkeeping,
    Scheduling,
    Ending,
    Overlapping,
    CatchingUp,
    Replanning,
    Meddling,
    RunningNow,
    Getting,
    Listing,
    Querying,
    Counting,
    Statistics,
    Beating,
    Reporting,
    Resuming,
    BadInput,
    ClockMoving,
):
    """What every store does, in the same way. Inherit it once; there is nothing to fill in."""

    def __init_subclass__(cls) -> None:
        changed = [name for name in vars(cls) if not name.startswith("__")]
        if changed:
            raise TypeError(f"{cls.__name__} changes {', '.join(changed)}: a store passes the suite as it is")
