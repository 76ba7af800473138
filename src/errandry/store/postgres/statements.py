"""What the tables are made of: statements run by name, and questions asked before their answers are needed.

In a pass nothing is waited for but answers. What is known to be asked is asked at once, in one round trip.
"""

from collections.abc import Hashable, Mapping
from typing import Any

from errandry.core.job import JobRecord
from errandry.store.postgres.pipeline import PendingResult, Pipeline, StatementParams
from errandry.store.tables import rows


class StatementRunner:
    """Runs statements over a wire."""

    def __init__(self, wire: Pipeline) -> None:
        self._wire = wire
        self._asked: dict[tuple[str, Hashable], PendingResult] = {}
        self.is_dirty = False

    def _ask(self, name: str, params: StatementParams = ()) -> None:
        """Put a question that `_all` will put again; if it does not, that has only cost some time."""
        key = _key(name, params)
        if key not in self._asked:
            self._asked[key] = self._wire.send(name, params)

    def _is_asked(self, name: str, params: StatementParams = ()) -> bool:
        return _key(name, params) in self._asked

    def _unask(self, *names: str) -> None:
        """The answers to these questions are no longer right."""
        self._asked = {key: reply for key, reply in self._asked.items() if key[0] not in names}

    def _all(self, name: str, params: StatementParams = ()) -> list[Any]:
        asked = self._asked.pop(_key(name, params), None) if self._asked else None
        return self._wire.fetch(asked or self._wire.send(name, params))

    def _planned_anew(self, name: str, params: StatementParams) -> list[Any]:
        """The same of a statement whose plan depends on what it is given."""
        self._run("plan_mode", ("force_custom_plan",))
        found = self._all(name, params)
        self._run("plan_mode", ("force_generic_plan",))
        return found

    def _jobs(self, name: str, params: StatementParams) -> list[JobRecord]:
        return [rows.to_job(row) for row in self._all(name, params)]

    def _run(self, name: str, params: StatementParams = ()) -> None:
        self._wire.send(name, params)


def _key(name: str, params: StatementParams) -> tuple[str, Hashable]:
    return name, tuple(params.values() if isinstance(params, Mapping) else params)
