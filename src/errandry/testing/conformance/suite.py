"""All topics of the suite as one class."""

import pytest

from errandry.testing.conformance.bad_input import BadInput
from errandry.testing.conformance.capacity import GroupOrder, PriorityAgeing, QueueSizeLimits
from errandry.testing.conformance.claiming import (
    BatchClaims,
    ClaimableJobs,
    ClaimOrder,
    SuspectClaims,
)
from errandry.testing.conformance.clock import ClockJumps
from errandry.testing.conformance.declaring import DeclaredRules, DeclaredSchedules
from errandry.testing.conformance.drained_queues import DrainedQueues
from errandry.testing.conformance.events import EventCursors, ReportedEvents
from errandry.testing.conformance.fixtures import Fixtures, MakeStore
from errandry.testing.conformance.flow_reruns import AwaitedChildren, FlowCancels, FlowEdgeCleanup, FlowReruns
from errandry.testing.conformance.flows import FlowEdges, Flows
from errandry.testing.conformance.inserting import Inserts
from errandry.testing.conformance.leasing import (
    Fences,
    LeaseExpiry,
    LeaseRenewal,
    ProgressAndLogs,
    StartAndCancel,
)
from errandry.testing.conformance.limiting import ConcurrencyLimits, Fairness, RateLimits
from errandry.testing.conformance.losing import CrashCap, SuspectKinds, WorkerLosses
from errandry.testing.conformance.opening_and_waking import ChangeNotification, OpeningAndClosing
from errandry.testing.conformance.operating import BulkCommands, OperatorCommands
from errandry.testing.conformance.pausing import Pauses
from errandry.testing.conformance.querying import JobCounts, JobPages, JobQueries, JobsById, WorkerBeats
from errandry.testing.conformance.queue_moves import BulkScanLimit, QueueChanges, RecheckedCommands
from errandry.testing.conformance.repeating import RepeatedNonces
from errandry.testing.conformance.retention import KeepByCount, PrunableJobs
from errandry.testing.conformance.rules import QueueRules
from errandry.testing.conformance.schedule_changes import ManualRuns, NextTickChanges, ScheduleChanges
from errandry.testing.conformance.scheduling import (
    ScheduleBounds,
    ScheduleCatchUp,
    ScheduleOverlap,
    ScheduleTicks,
)
from errandry.testing.conformance.settling import KeepTimes, RepeatedCommands, SettledOutcomes
from errandry.testing.conformance.statistics import Statistics
from errandry.testing.conformance.stepping import DurableSleeps, Signals, Steps
from errandry.testing.conformance.transitions import ConditionalTransitions, TransitionTable
from errandry.testing.conformance.unique_windows import SingleKeyHolder, UniqueKeysOfReruns, UniqueWindows
from errandry.testing.conformance.uniqueness import ReplaceOnConflict, UniqueKeys, UniqueKeysInBulk
from errandry.testing.conformance.upkeep import UpkeepSteps

__all__ = ["Conformance", "MakeStore"]


@pytest.mark.asyncio
class Conformance(
    Fixtures,
    OpeningAndClosing,
    ChangeNotification,
    Inserts,
    UniqueKeys,
    UniqueKeysInBulk,
    ReplaceOnConflict,
    UniqueWindows,
    UniqueKeysOfReruns,
    SingleKeyHolder,
    ClaimableJobs,
    ClaimOrder,
    SuspectClaims,
    BatchClaims,
    DrainedQueues,
    Pauses,
    QueueRules,
    DeclaredRules,
    ConcurrencyLimits,
    RateLimits,
    Fairness,
    QueueSizeLimits,
    PriorityAgeing,
    GroupOrder,
    LeaseRenewal,
    StartAndCancel,
    LeaseExpiry,
    WorkerLosses,
    CrashCap,
    SuspectKinds,
    Fences,
    ProgressAndLogs,
    SettledOutcomes,
    RepeatedCommands,
    RepeatedNonces,
    KeepTimes,
    KeepByCount,
    PrunableJobs,
    TransitionTable,
    ConditionalTransitions,
    Flows,
    FlowEdges,
    FlowCancels,
    FlowReruns,
    AwaitedChildren,
    FlowEdgeCleanup,
    Steps,
    DurableSleeps,
    Signals,
    OperatorCommands,
    BulkCommands,
    QueueChanges,
    RecheckedCommands,
    BulkScanLimit,
    UpkeepSteps,
    ScheduleTicks,
    ScheduleBounds,
    ScheduleOverlap,
    ScheduleCatchUp,
    ScheduleChanges,
    DeclaredSchedules,
    NextTickChanges,
    ManualRuns,
    JobsById,
    JobPages,
    JobQueries,
    JobCounts,
    Statistics,
    WorkerBeats,
    ReportedEvents,
    EventCursors,
    BadInput,
    ClockJumps,
):
    """The rules that every store follows. Inherit from this class once; there is nothing to override."""

    def __init_subclass__(cls) -> None:
        changed = [name for name in vars(cls) if not name.startswith("__")]
        if changed:
            raise TypeError(f"{cls.__name__} changes {', '.join(changed)}: a store passes the suite as it is")
