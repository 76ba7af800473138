"""Runs statements by name, and sends queries ahead of time.

A round trip is the main cost of a pass. So the statements that a pass is known to need are sent together, in
one round trip, and their results are kept until the executor asks for them.
"""

from collections.abc import Hashable, Mapping
from typing import Any

from errandry.core.job import JobRecord
from errandry.store.postgres.pipeline import PendingResult, Pipeline, StatementParams
from errandry.store.tables import rows


class StatementRunner:
    """Runs statements over a pipeline."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._prefetched: dict[tuple[str, Hashable], PendingResult] = {}
        self.is_dirty = False

    def _prefetch(self, name: str, params: StatementParams = ()) -> None:
        """Send a query whose rows `_rows` will ask for. If it does not, only time is lost."""
        key = _key(name, params)
        if key not in self._prefetched:
            self._prefetched[key] = self._pipeline.send(name, params)

    def _was_prefetched(self, name: str, params: StatementParams = ()) -> bool:
        return _key(name, params) in self._prefetched

    def _discard(self, *names: str) -> None:
        """Forget the prefetched results of these statements, because a write has made them stale."""
        self._prefetched = {key: reply for key, reply in self._prefetched.items() if key[0] not in names}

    def _rows(self, name: str, params: StatementParams = ()) -> list[Any]:
        reply = self._prefetched.pop(_key(name, params), None) if self._prefetched else None
        return self._pipeline.fetch(reply or self._pipeline.send(name, params))

    def _rows_with_custom_plan(self, name: str, params: StatementParams) -> list[Any]:
        """The rows of a statement that is planned for its parameters."""
        self._send("set_plan_mode", ("force_custom_plan",))
        rows_ = self._rows(name, params)
        self._send("set_plan_mode", ("force_generic_plan",))
        return rows_

    def _jobs(self, name: str, params: StatementParams) -> list[JobRecord]:
        return [rows.to_job(row) for row in self._rows(name, params)]

    def _send(self, name: str, params: StatementParams = ()) -> None:
        self._pipeline.send(name, params)


def _key(name: str, params: StatementParams) -> tuple[str, Hashable]:
    return name, tuple(params.values() if isinstance(params, Mapping) else params)
