"""How a pass in PostgreSQL starts: it sends the queries that its commands are known to need."""

from collections import deque
from collections.abc import Sequence
from itertools import repeat
from typing import Any

from errandry.core import check
from errandry.core.command import Claim, Command, Insert, Upkeep, touched_ids
from errandry.core.gate import LaneKey
from errandry.core.job import JobRecord
from errandry.store.execute.repeat import nonces_of
from errandry.store.execute.upkeep import PRUNED_MAX
from errandry.store.postgres.array import array, columns
from errandry.store.postgres.counters import PostgresCounters
from errandry.store.postgres.pipeline import Pipeline, StatementParams
from errandry.store.postgres.row_cache import RowCache
from errandry.store.postgres.scan_position import NEVER_BEFORE, DueFloors, ScanPositions

DUE_STATEMENTS = ("expired_jobs", "due_schedules", "due_jobs", "lapsed_jobs")
"""The statements that an upkeep runs first. See `_due_params` for their parameters."""


class PostgresPrefetch(PostgresCounters):
    """Part of the `Tables` protocol (store/tables/protocol.py)."""

    def __init__(self, pipeline: Pipeline) -> None:
        super().__init__(pipeline)
        self.identity = ""
        self.event_row: tuple[Any, ...] | None = None
        self.held_jobs: dict[str, JobRecord | None] = {}
        self._row_cache = RowCache()
        self._inserted_ids: frozenset[str] = frozenset()
        self._new_ids: frozenset[str] = frozenset()
        self._saved_claims: dict[str, tuple[int, str | None]] = {}
        self._numbers: deque[int] = deque()
        self._numbers_needed = 0
        self._is_blind = False
        self._clock_time: float | None = None

    def begin(
        self,
        lock_timeout: str,
        commands: Sequence[Command],
        payload: int,
        row_cache: RowCache,
        scan_positions: ScanPositions,
    ) -> tuple[float, float]:
        """Start a pass: return the last known time of the store, and the server's time.

        The same round trip prefetches what the commands are known to need. `payload` is the maximum size of a
        payload.
        """
        self._reset(row_cache, scan_positions)
        claims = [command for command in commands if isinstance(command, Claim)]
        start_params = lock_timeout, array(sorted({claim.worker for claim in claims}))
        self._prefetch("start_pass", start_params)
        if nonces := nonces_of(commands):
            self._prefetch("load_answers", (array(nonces),))
        ids = [job_id for command in commands for job_id in touched_ids(command)]
        new_params = self._prefetch_jobs(commands, ids, payload)
        if claims:
            if ids:
                # This process can work on the replies while the server looks for jobs to claim.
                self._pipeline.request_replies()
            others = [command for command in commands if not isinstance(command, Claim)]
            is_alone = row_cache.are_self_contained(others, ids)
            self._prefetch_claims(claims, is_alone, has_inserts=new_params is not None)
        self._pipeline.request_replies()
        [start] = self._rows("start_pass", start_params)
        *_, has_inbox, self._has_jobs_without_lane, self.has_gates, self._has_groups = start[:-4]
        self.identity, _, floor, now = start[-4:]
        self.is_dirty = has_inbox
        self.event_row = (0.0, 0, "[]", "[]") if has_inbox else None  # moves the inbox to the event log
        numbers = [] if new_params is None else self._rows("numbers_if_new", new_params)
        self._new_ids = self._inserted_ids if numbers else frozenset()
        self._numbers = deque(*numbers[0]) if numbers else deque()
        return floor, now

    def begin_blind(
        self, lock_timeout: str, commands: Sequence[Command], lanes: dict[LaneKey, int], at: float | None
    ) -> None:
        """Start a blind insert: a pass that only inserts new jobs into these lanes.

        The server rolls it back if a guess is wrong. `at` is None if the server's clock is the store's.
        """
        self._reset(self._row_cache, ScanPositions())
        ids = [job_id for command in commands for job_id in touched_ids(command)]
        self._inserted_ids = self._new_ids = frozenset(ids)
        self._lanes, self._numbers = lanes, deque(repeat(0, len(ids)))
        self._is_blind, self._clock_time, self.has_gates, self.event_row = True, at, False, None
        queues, tasks, groups, lane_ids = columns([(*key, lane) for key, lane in sorted(lanes.items())])
        self._send("pass_settings", (lock_timeout,))
        self._send("mark_cached_lanes", {"at": at, "lanes": lane_ids})
        lane_params = {"queues": queues, "tasks": tasks, "groups": groups, "lanes": lane_ids}
        self._send(
            "assert_guess", {"ids": array(ids), "least": min(ids), "most": max(ids), "at": at, **lane_params}
        )

    def _reset(self, row_cache: RowCache, scan_positions: ScanPositions) -> None:
        """Forget the previous pass."""
        self._prefetched, self.held_jobs, self._row_cache = {}, {}, row_cache
        self._due_times, self._lanes, self._waiting_bounds, self._has_prefetched_jobs = None, {}, {}, False
        self._saved_claims, self._numbers_needed, self._is_blind = {}, 0, False
        self._left_waiting.clear()
        self._start_scan(scan_positions)

    def _prefetch_jobs(
        self, commands: Sequence[Command], ids: Sequence[str], payload: int
    ) -> StatementParams | None:
        """Lock the jobs that the commands name. If they only insert jobs, check whether these are new
        instead.

        Then also lock their lanes, and take their numbers if no job can be refused: no number may be left
        over. Returns the parameters of `numbers_if_new` if it was sent.
        """
        inserts = [command for command in commands if isinstance(command, Insert)]
        fresh = [new for command in inserts for new in command.jobs]
        self._inserted_ids = frozenset([new.id for new in fresh])
        if len(ids) > len(fresh):
            unknown = self._row_cache.missing_ids(ids)
            if len(unknown) < len(ids):
                self._prefetch("lock_cached", (array(ids),))
            if unknown:
                self._prefetch("lock_live", (array(unknown),))
        if not fresh or len(ids) > len(fresh):
            return None
        has_edges = any(command.edges for command in inserts)
        cannot_be_refused = not has_edges and all(
            new.unique is None and check.fits(new.payload, payload) for new in fresh
        )
        params = {
            "ids": array(ids),
            "least": min(ids),
            "most": max(ids),
            "count": len(fresh) if cannot_be_refused else 0,
        }
        self._prefetch("numbers_if_new", params)
        if not has_edges:
            self._prefetch_lanes(dict.fromkeys((new.queue, new.task, new.group) for new in fresh))
        return params

    def prefetch_upkeep(self, commands: Sequence[Command], now: float) -> None:
        """Send the first queries of an upkeep: mostly nothing is due.

        Not if the pass has other commands: these may wait for a lock, and a pass must not do that while it
        has locked due jobs.
        """
        self._now = now
        match commands:
            case [Upkeep(limit=limit, prune=prune)]:
                for name in DUE_STATEMENTS:
                    self._prefetch(name, self._due_params(name, now, limit))
                if prune:
                    self._prefetch("prunable_jobs", (now, min(limit, PRUNED_MAX)))
                    self._prefetch("keep_last_tasks")
                self._prefetch("flows_to_cancel", (limit,))
                self._prefetch("prunable_flows", (now, limit))
                self._prefetch("lock_trim")

    def begin_read(self) -> tuple[float, float]:
        """Start a read: return the last known time of the store, and the server's time."""
        self._due_times = None
        [(*_, self.identity, _, floor, now, self.has_gates)] = self._rows("start_read")
        return floor, now

    def next_number(self) -> int:
        """The next number. The sequence is asked for as many numbers as the pass is known to need.

        None may be left over: a later pass would use it, and its job would come before jobs inserted earlier.
        """
        self.is_dirty = True
        if not self._numbers:
            self._numbers.extend(
                [number for (number,) in self._rows("next_numbers", (max(1, self._numbers_needed),))]
            )
            self._numbers_needed = 0
        return self._numbers.popleft()

    @property
    def reserves_numbers(self) -> bool:
        """False if `numbers_if_new` has already returned the numbers."""
        return not self._numbers

    def expect_numbers(self, count: int) -> None:
        self._numbers_needed = max(self._numbers_needed, count - len(self._numbers))

    def _due_params(self, name: str, now: float, limit: int) -> tuple[float, float, int]:
        """The parameters of one of `DUE_STATEMENTS`: the times between which to scan, and the limit."""
        floors = self._floors or DueFloors()
        since = {
            "expired_jobs": floors.lease_until,
            "due_jobs": floors.run_at,
            "lapsed_jobs": floors.deadline,
        }
        return since.get(name, NEVER_BEFORE), now, limit
