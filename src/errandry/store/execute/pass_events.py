"""What happened in a pass: the events to tell, and the changes of the counters."""

from collections import Counter
from collections.abc import Iterator

from errandry.core.event import KINDS, EventKind, EventRun
from errandry.core.job import JobRecord
from errandry.core.state import RUNNING, TERMINAL, Move, State
from errandry.core.stats import COUNTED, RUNS, WAITS, bucket

LIFETIME = COUNTED
"""Counters with this prefix only ever rise; those of `core.stats` too. The others are how many jobs are in a
state now."""

_LIFETIME = {
    Move.INSERT: "total.inserted",
    Move.RETRY: "total.retried",
    Move.EXPIRE: "total.expired",
}
_REMOVED = (EventKind.REMOVED,)

_About = tuple[Move | None, State | None, State | None, str, str, int]
"""What jobs that moved alike have in common: the move, the state left and reached, queue, task, attempts."""


class PassEvents:
    """Jobs mostly move one after the other in the same way: such a run is looked up and written once."""

    def __init__(self, now: float) -> None:
        self.told: list[EventRun] = []
        self._now = now
        self._runs: list[tuple[_About, list[str], list[float]]] = []
        self._about: _About | None = None
        self._jobs: list[str] = []
        self._since: list[float] = []

    def moved(
        self, move: Move | None, before: JobRecord | None, after: JobRecord | None, job: JobRecord
    ) -> None:
        """`job`, as it is or was, has come, changed or gone; without a move nobody is told."""
        left = None if before is None else before.state
        reached = None if after is None else after.state
        about = move, left, reached, job.queue, job.task, job.attempts
        if about == self._about:
            self._jobs.append(job.id)
        else:
            self._begin(about, job.id)
        if before is None or after is None or (left is RUNNING) is (reached is RUNNING):
            return
        since = before.started_at
        if reached is RUNNING:
            since = max(job.created_at, job.run_at) if job.run_at else job.created_at
        if since is not None:
            self._since.append(since)

    def left_queue(self, before: JobRecord, after: JobRecord) -> None:
        """A job is about to be in another queue."""
        for queue, left, reached in ((before.queue, before.state, None), (after.queue, None, before.state)):
            about = Move.EDIT, left, reached, queue, before.task, before.attempts
            self._runs.append((about, [before.id], []))

    def tell(self, kind: EventKind, queue: str, task: str, job: str, text: str) -> None:
        self._about = None
        self.told.append(EventRun((kind,), [job], queue, task, 0, text))

    def deltas(self) -> dict[tuple[str, str], dict[str, int]]:
        """By queue and task, how much each counter has changed."""
        deltas: dict[tuple[str, str], dict[str, int]] = {}
        for (move, left, reached, queue, task, _), jobs, since in self._runs:
            counters = deltas.setdefault((queue, task), {})
            for name, sign in _counted(move, left, reached):
                counters[name] = counters.get(name, 0) + sign * len(jobs)
            if move is Move.EXPIRE:
                continue  # nobody knows how long it ran
            names = WAITS if reached is RUNNING else RUNS
            for at, times in Counter(since).items():
                name = bucket(names, self._now - at)
                counters[name] = counters.get(name, 0) + times
        return deltas

    def _begin(self, about: _About, job: str) -> None:
        self._about, self._jobs, self._since = about, [job], []
        self._runs.append((about, self._jobs, self._since))
        move, _, reached, queue, task, attempts = about
        kinds = _REMOVED if reached is None else () if move is None else KINDS[move, reached]
        if kinds:
            self.told.append(EventRun(kinds, self._jobs, queue, task, attempts))


def _counted(move: Move | None, left: State | None, reached: State | None) -> Iterator[tuple[str, int]]:
    if left is not reached:
        if left is not None:
            yield left, -1
        elif move is Move.EDIT:
            yield "total.moved_in", 1
        if reached is not None:
            yield reached, 1
            if reached in TERMINAL:
                yield LIFETIME + reached, 1  # guard: finished_totals
        else:
            yield "total.moved_out" if move is Move.EDIT else "total.removed", 1  # guard: keep_0_totals
    if move in _LIFETIME and not (move is Move.RETRY and reached in TERMINAL):
        yield _LIFETIME[move], 1
