"""The events of a pass and its changes of the counters."""

from collections import Counter
from collections.abc import Iterator

from errandry.core.event import ERROR_TEXT_MAX, KINDS_OF_MOVE, EventKind, EventRun
from errandry.core.job import JobRecord
from errandry.core.state import FAILED, RUNNING, TERMINAL, Move, State
from errandry.core.stats import RUNS, TOTAL_PREFIX, WAITS, bucket

LIFETIME_PREFIX = TOTAL_PREFIX
"""Prefix of monotonic counters. Those of `core.stats` are monotonic too; all others are jobs by state now."""

_LIFETIME = {
    Move.INSERT: "total.inserted",
    Move.RETRY: "total.retried",
    Move.EXPIRE: "total.expired",
}
_REMOVED = (EventKind.REMOVED,)

_MoveKind = tuple[Move | None, State | None, State | None, str, str, int, str]
"""What the jobs of a run have in common: move, state left and reached, queue, task, attempts, error text."""


class PassEvents:
    """Collects moves in runs: mostly many jobs in a row make the same move, so its events are stored once."""

    def __init__(self, now: float) -> None:
        self.event_runs: list[EventRun] = []
        self._now = now
        self._runs: list[tuple[_MoveKind, list[str], list[float]]] = []
        self._last_kind: _MoveKind | None = None
        self._jobs: list[str] = []
        self._since: list[float] = []

    def record_move(
        self, move: Move | None, before: JobRecord | None, after: JobRecord | None, job: JobRecord
    ) -> None:
        """Record that `job` was inserted, changed or deleted. Without a move there is no event."""
        left = None if before is None else before.state
        reached = None if after is None else after.state
        error = _error_text(before, after) if reached is FAILED or move is Move.RETRY else ""
        kind = move, left, reached, job.queue, job.task, job.attempts, error
        if kind == self._last_kind:
            self._jobs.append(job.id)
        else:
            self._start_run(kind, job.id)
        if before is None or after is None or (left is RUNNING) is (reached is RUNNING):
            return
        since = before.started_at
        if reached is RUNNING:
            since = max(job.created_at, job.run_at) if job.run_at else job.created_at
        if since is not None:
            self._since.append(since)

    def record_queue_change(self, before: JobRecord, after: JobRecord) -> None:
        """Record that a job moves to another queue."""
        for queue, left, reached in ((before.queue, before.state, None), (after.queue, None, before.state)):
            kind = Move.EDIT, left, reached, queue, before.task, before.attempts, ""
            self._runs.append((kind, [before.id], []))

    def emit(self, kind: EventKind, queue: str, task: str, job: str, text: str) -> None:
        self._last_kind = None
        self.event_runs.append(EventRun((kind,), [job], queue, task, 0, text))

    def deltas(self) -> dict[tuple[str, str], dict[str, int]]:
        """Return the change of each counter, by queue and task."""
        deltas: dict[tuple[str, str], dict[str, int]] = {}
        for (move, left, reached, queue, task, _, _), jobs, since in self._runs:
            counters = deltas.setdefault((queue, task), {})
            for name, sign in _counter_changes(move, left, reached):
                counters[name] = counters.get(name, 0) + sign * len(jobs)
            if move is Move.EXPIRE:
                continue  # the time at which the worker died is not known
            names = WAITS if reached is RUNNING else RUNS
            for at, times in Counter(since).items():
                name = bucket(names, self._now - at)
                counters[name] = counters.get(name, 0) + times
        return deltas

    def _start_run(self, kind: _MoveKind, job: str) -> None:
        self._last_kind, self._jobs, self._since = kind, [job], []
        self._runs.append((kind, self._jobs, self._since))
        move, _, reached, queue, task, attempts, error = kind
        kinds = _REMOVED if reached is None else () if move is None else KINDS_OF_MOVE[move, reached]
        if kinds:
            self.event_runs.append(EventRun(kinds, self._jobs, queue, task, attempts, error))


def _error_text(before: JobRecord | None, after: JobRecord | None) -> str:
    """The type and message of the error that this move recorded; the reason if it recorded none."""
    if after is None:
        return ""
    if not after.errors or (before is not None and after.errors == before.errors):
        return str(after.reason or "")
    error = after.errors[-1]
    return f"{error.type}: {error.message}"[:ERROR_TEXT_MAX]


def _counter_changes(
    move: Move | None, left: State | None, reached: State | None
) -> Iterator[tuple[str, int]]:
    if left is not reached:
        if left is not None:
            yield left, -1
        elif move is Move.EDIT:
            yield "total.moved_in", 1
        if reached is not None:
            yield reached, 1
            if reached in TERMINAL:
                yield LIFETIME_PREFIX + reached, 1  # guard: finished_totals
        else:
            yield "total.moved_out" if move is Move.EDIT else "total.removed", 1  # guard: keep_0_totals
    if move in _LIFETIME and not (move is Move.RETRY and reached in TERMINAL):
        yield _LIFETIME[move], 1
