"""How a pass in PostgreSQL starts: what its commands are known to need is asked at once. No rules."""

from collections import deque
from collections.abc import Sequence
from itertools import repeat
from typing import Any

from errandry.core import check
from errandry.core.command import Claim, Command, Insert, Upkeep, touched_ids
from errandry.core.gate import LaneKey
from errandry.core.job import JobRecord
from errandry.store.execute.upkeep import PRUNED
from errandry.store.postgres.array import array, columns
from errandry.store.postgres.counters import PostgresCounters
from errandry.store.postgres.pipeline import Pipeline, StatementParams
from errandry.store.postgres.row_cache import RowCache
from errandry.store.postgres.scan_position import ALWAYS, DueFloors, ScanPositions

DUE = ("expired", "ticking", "due", "lapsed")
"""What an upkeep asks first, with the times between which something may be due, and its limit."""


class PostgresPrefetch(PostgresCounters):
    """Part of what `store.tables.Tables` asks for."""

    def __init__(self, wire: Pipeline) -> None:
        super().__init__(wire)
        self.identity = ""
        self.event_row: tuple[Any, ...] | None = None
        self.held: dict[str, JobRecord | None] = {}
        self._known = RowCache()
        self._fresh: frozenset[str] = frozenset()
        self._new: frozenset[str] = frozenset()
        self._recalled: dict[str, tuple[int, str | None]] = {}
        self._numbers: deque[int] = deque()
        self._wanted = 0
        self._is_unseen = False
        self._at: float | None = None

    def begin(
        self,
        lock_timeout: str,
        commands: Sequence[Command],
        payload: int,
        known: RowCache,
        trail: ScanPositions,
    ) -> tuple[float, float]:
        """Read what a pass starts from: the time nobody may go back behind, and the server's.

        With it goes what the commands are known to need; a job with more than `payload` is refused.
        """
        self._start(known, trail)
        claims = [command for command in commands if isinstance(command, Claim)]
        head = lock_timeout, array(sorted({claim.worker for claim in claims}))
        self._ask("head", head)
        ids = [one for command in commands for one in touched_ids(command)]
        new = self._foresee(commands, ids, payload)
        if claims:
            if ids:
                self._wire.call()  # it is decided about these while the server looks for others
            others = [command for command in commands if not isinstance(command, Claim)]
            self._foresee_claims(claims, known.are_alone(others, ids), has_news=new is not None)
        self._wire.call()
        [found] = self._all("head", head)
        *_, has_bound, self._has_unlined, self.has_gates, self._has_groups, self.identity, _, floor, now = (
            found
        )
        self.is_dirty = has_bound
        self.event_row = (0.0, 0, "[]", "[]") if has_bound else None  # what others inserted is to be numbered
        numbers = [] if new is None else self._all("numbers_for_new", new)
        self._new = self._fresh if numbers else frozenset()
        self._numbers = deque(*numbers[0]) if numbers else deque()
        return floor, now

    def begin_unseen(
        self, lock_timeout: str, commands: Sequence[Command], lanes: dict[LaneKey, int], at: float | None
    ) -> None:
        """Begin a pass that brings new jobs for these lanes and nothing else, without having looked.

        The server refuses it if something is not as was thought. `at` is None where its clock counts.
        """
        self._start(self._known, ScanPositions())
        ids = [one for command in commands for one in touched_ids(command)]
        self._fresh = self._new = frozenset(ids)
        self._lanes, self._numbers = lanes, deque(repeat(0, len(ids)))
        self._is_unseen, self._at, self.has_gates, self.event_row = True, at, False, None
        queues, tasks, groups, places = columns([(*key, lane) for key, lane in sorted(lanes.items())])
        self._run("settings", (lock_timeout,))
        self._run("wake_lanes", {"at": at, "lanes": places})
        named = {"queues": queues, "tasks": tasks, "groups": groups, "lanes": places}
        self._run("unseen", {"ids": array(ids), "least": min(ids), "most": max(ids), "at": at, **named})

    def _start(self, known: RowCache, trail: ScanPositions) -> None:
        """Forget the pass before."""
        self._asked, self.held, self._known = {}, {}, known
        self._marks, self._lanes, self._counted, self._is_foreseen = None, {}, {}, False
        self._recalled, self._wanted, self._is_unseen = {}, 0, False
        self._left.clear()
        self._set_out(trail)

    def _foresee(
        self, commands: Sequence[Command], ids: Sequence[str], payload: int
    ) -> StatementParams | None:
        """Ask for the jobs the commands name; or, if they only bring new ones, whether these are new indeed.

        Then for their lanes, too, and their numbers, where none can be refused: no number must be left over.
        """
        inserts = [command for command in commands if isinstance(command, Insert)]
        fresh = [new for command in inserts for new in command.jobs]
        self._fresh = frozenset([new.id for new in fresh])
        if len(ids) > len(fresh):
            unknown = self._known.unknown(ids)
            if len(unknown) < len(ids):
                self._ask("lock_known", (array(ids),))
            if unknown:
                self._ask("lock_live", (array(unknown),))
        if not fresh or len(ids) > len(fresh):
            return None
        is_tied = any(command.edges for command in inserts)
        is_sure = not is_tied and all(
            new.unique is None and check.fits(new.payload, payload) for new in fresh
        )
        new = {
            "ids": array(ids),
            "least": min(ids),
            "most": max(ids),
            "count": len(fresh) if is_sure else 0,
        }
        self._ask("numbers_for_new", new)
        if not is_tied:
            self._ask_lanes(dict.fromkeys((new.queue, new.task, new.group) for new in fresh))
        return new

    def foresee_upkeep(self, commands: Sequence[Command], now: float) -> None:
        """Ask at once what an upkeep asks first: mostly nothing is due.

        Not if there are others: these may have to wait for a lock, which must not be done with jobs in hand.
        """
        self._now = now
        match commands:
            case [Upkeep(limit=limit, prune=prune)]:
                for name in DUE:
                    self._ask(name, self._span(name, now, limit))
                if prune:
                    self._ask("outlived", (now, min(limit, PRUNED)))
                    self._ask("shelves")
                self._ask("canceling", (limit,))
                self._ask("outlived_flows", (now, limit))
                self._ask("may_trim")

    def look(self) -> tuple[float, float]:
        """The same for who only reads."""
        self._marks = None
        [(*_, self.identity, _, floor, now, self.has_gates)] = self._all("head_read")
        return floor, now

    def next_number(self) -> int:
        """From a sequence, as many at once as are known to be wanted: none must be left over.

        A number given to a later pass would put its job before those that came first.
        """
        self.is_dirty = True
        if not self._numbers:
            self._numbers.extend([one for (one,) in self._all("numbers", (max(1, self._wanted),))])
            self._wanted = 0
        return self._numbers.popleft()

    @property
    def reserves_numbers(self) -> bool:
        """Unless they came with the answers to the first questions."""
        return not self._numbers

    def expect_numbers(self, numbers: int) -> None:
        self._wanted = max(self._wanted, numbers - len(self._numbers))

    def _span(self, name: str, now: float, limit: int) -> tuple[float, float, int]:
        """When what one of `DUE` asks for may be due."""
        floors = self._floors or DueFloors()
        since = {"expired": floors.lease_until, "due": floors.run_at, "lapsed": floors.deadline}
        return since.get(name, ALWAYS), now, limit
