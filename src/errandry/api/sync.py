"""`jobs.sync`: blocking methods for code without an event loop: scripts, Flask and Django views, threads.

Every call runs the async method on the engine's thread and waits for it. Thread-safe and fork-safe.
"""

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from errandry.api.client import JobPage
from errandry.api.job import Job
from errandry.core.answer import Moved

if TYPE_CHECKING:
    from errandry.api.app import Errandry

P = ParamSpec("P")
T = TypeVar("T")


class Sync:
    """Blocking twins of the app's methods: `jobs.sync.result(job, timeout=30)`.

    For a method without a twin, use `run`: `jobs.sync.run(jobs.edit, job_id, queue="slow")`.
    """

    def __init__(self, app: "Errandry") -> None:
        self._app = app

    def run(self, function: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run an async method of the app, a task or a job and wait for it: `jobs.sync.run(job.refresh)`."""

        async def call() -> T:
            return await function(*args, **kwargs)

        return self._app.engine.call_sync(call)

    def get(self, job_id: str) -> Job[Any]:
        return self.run(self._app.get, job_id)

    def result(self, job: Job[T], timeout: float | None = None) -> T:
        return self.run(job.result, timeout)

    def wait(self, job: Job[T], timeout: float | None = None) -> Job[T]:
        return self.run(job.wait, timeout)

    def list(self, query: str = "", *, cursor: str | None = None, limit: int = 50) -> JobPage:
        return self.run(self._app.list, query, cursor=cursor, limit=limit)

    def counts(self) -> dict[str, dict[str, int]]:
        return self.run(self._app.counts)

    def cancel(self, *ids: str, query: str | None = None, force: bool = False) -> Moved:
        return self.run(self._app.cancel, *ids, query=query, force=force)

    def rerun(
        self, *ids: str, query: str | None = None, reset_attempts: bool = False, from_start: bool = False
    ) -> Moved:
        options = {"reset_attempts": reset_attempts, "from_start": from_start}
        return self.run(self._app.rerun, *ids, query=query, **options)

    def signal(self, job_id: str, name: str, payload: Any = None) -> bool:
        return self.run(self._app.signal, job_id, name, payload)

    def remove(self, *ids: str, query: str | None = None, force: bool = False) -> Moved:
        return self.run(self._app.remove, *ids, query=query, force=force)

    def close(self, timeout: float | None = None) -> None:
        """Write what was accepted and close the store."""
        self._app.retire().stop_sync(timeout)
