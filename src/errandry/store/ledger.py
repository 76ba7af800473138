"""What one pass has touched: jobs as they were and are, the events, and the deltas of the counters."""

from collections.abc import Iterable

from msgspec.structs import replace

from errandry.core.event import Event, Kind, happened
from errandry.core.job import Job, Order
from errandry.core.state import Move, State
from errandry.store.contract import Bounds
from errandry.store.tables import Change, Tables

LIFETIME = "total."
"""Counters with this prefix only ever rise; the others are how many jobs are in a state now."""

_LIFETIME = {
    Move.INSERT: "total.inserted",
    Move.RETRY: "total.retried",
    Move.EXPIRE: "total.expired",
    Move.REMOVE: "total.removed",
    Move.REMOVE_FORCED: "total.removed",
}


class Ledger:
    """Reads through to the tables, remembers every move, and writes them together."""

    def __init__(self, tables: Tables, now: float, bounds: Bounds) -> None:
        self.tables, self.now, self.bounds = tables, now, bounds
        self.is_tidy = False
        self._jobs: dict[str, Job | None] = {}
        self._changes: dict[str, Change] = {}
        self._events: list[Event] = []
        self._deltas: dict[tuple[str, str], dict[str, int]] = {}

    def load(self, ids: Iterable[str]) -> None:
        """Fetch these jobs in one go, so that `get` need not fetch them one by one."""
        missing = [one for one in ids if one not in self._jobs]
        if missing:
            self._jobs.update(dict.fromkeys(missing))
            self._jobs.update(self.tables.find(missing))

    def get(self, job_id: str) -> Job | None:
        if job_id not in self._jobs:
            self.load((job_id,))
        return self._jobs[job_id]

    def move(self, move: Move, before: Job | None, after: Job) -> Job:
        """`before` has become `after`, which comes back with its place in line if it joined one."""
        if after.state is State.WAITING and (before is None or before.state is not State.WAITING):
            number = after.seq if before is None else self.tables.number()
            after = replace(after, place=number if after.order is Order.FIFO else -number)
        elif after.place is not None and after.state is not State.WAITING:
            after = replace(after, place=None)
        self._keep(before, after)
        self._count(move, before, after)
        for kind in happened(move, after):
            self._events.append(Event(kind, after.id, after.queue, after.task, after.attempts))
        if after.expires_at is not None and after.expires_at <= self.now and move is not Move.REMOVE:
            self.remove(Move.REMOVE, after)
        return after

    def remove(self, move: Move, job: Job) -> None:
        """`job` is gone; what it added to the lifetime totals stays."""
        self._keep(job, None)
        self._count(move, job, None)
        self.tell(Kind.REMOVED, job.queue, job.task, job.id)

    def tell(self, kind: Kind, queue: str = "", task: str = "", job: str = "", text: str = "") -> None:
        self._events.append(Event(kind, job, queue, task, 0, text))

    def flush(self) -> None:
        """Write the changes so far, so that searches see them."""
        if self._changes:
            self.tables.write(self._changes.values())
            self._changes = {}

    def close(self) -> None:
        """Write everything that is left; the pass can then be made durable."""
        self.flush()
        if self._events or self._deltas:
            deltas = {lane: {k: n for k, n in d.items() if n} for lane, d in self._deltas.items()}
            self.tables.append(self.now, self._events, {lane: d for lane, d in deltas.items() if d})

    def _keep(self, before: Job | None, after: Job | None) -> None:
        job_id = (after or before).id  # type: ignore[union-attr]  # one of the two is a job
        earlier = self._changes.get(job_id)
        self._changes[job_id] = Change(earlier.before if earlier else before, after)
        self._jobs[job_id] = after

    def _count(self, move: Move, before: Job | None, after: Job | None) -> None:
        if before is not None and after is not None and before.state is after.state:
            return
        job = after or before
        assert job is not None
        deltas = self._deltas.setdefault((job.queue, job.task), {})
        if before is not None:
            deltas[before.state] = deltas.get(before.state, 0) - 1
        if after is not None:
            deltas[after.state] = deltas.get(after.state, 0) + 1
            if after.finished:
                name = LIFETIME + after.state
                deltas[name] = deltas.get(name, 0) + 1
        if move in _LIFETIME:
            deltas[_LIFETIME[move]] = deltas.get(_LIFETIME[move], 0) + 1
