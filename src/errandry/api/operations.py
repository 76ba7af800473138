"""What operators do to jobs, from a program: by ids, or to all that match a query, slice by slice."""

import asyncio
import builtins
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar, Unpack

from msgspec.structs import replace

from errandry.api.options import Duration, EditOptions, Moment, job_fields, known, one_of
from errandry.clock import Clock
from errandry.codec.json_codec import Codec, about, to_json
from errandry.core.answer import Moved
from errandry.core.command import (
    CancelJobs,
    Command,
    EditJobs,
    OperatorCommand,
    PostponeJobs,
    PromoteJobs,
    RemoveJobs,
    RerunJobs,
    ResolveJobs,
)
from errandry.core.flow import EdgeRecord
from errandry.core.job import JobRecord
from errandry.core.query import Query, parse
from errandry.core.state import State
from errandry.errors import CommandFailed, InvalidValue, UnknownJob
from errandry.store.contract import Store
from errandry.store.engine.engine import Engine

A = TypeVar("A")

LOOK = 5_000
"""So many jobs are read at a time to tell which an action would move."""
SLICE = 1_000
"""So many jobs are named in one command."""


class Operations:
    """A part of the client.

    A command takes job ids, or a `query` for all that match, or both: those of the ids that match still. With
    a single id a refusal is raised, otherwise the answer lists what was refused. With `dry_run` it lists what
    would move, and nothing does.
    """

    engine: Engine
    clock: Clock
    codec: Codec

    @property
    def store(self) -> Store:
        return self.engine.store

    async def children(self, job_id: str) -> builtins.list[EdgeRecord]:
        """The jobs that one waits for, or has waited for, in their order, and how they ended."""
        return await self.engine.call(self.store.children, job_id)

    async def subtree(self, *ids: str) -> tuple[str, ...]:
        """These jobs and all they wait for, or have waited for; each once, parents before their children."""
        ended: dict[str, None] = {}  # children first
        left = [(one, False) for one in reversed(ids)]
        seen: set[str] = set()
        while left:
            one, is_done = left.pop()
            if is_done:
                ended[one] = None
            elif one not in seen:
                seen.add(one)
                links = await self.children(one)
                left += [(one, True), *[(link.child, False) for link in reversed(links)]]
        return tuple(reversed(ended))

    async def cancel(
        self,
        *ids: str,
        query: str | None = None,
        force: bool = False,
        flow: bool = False,
        dry_run: bool = False,
    ) -> Moved:
        """Stop: at once where no handler runs, by request where one does; with `force`, finished jobs too.

        With `flow`, here and below: also all jobs that these wait for, as far as it can be done to them.
        """
        if flow:
            ids, query = await self.subtree(*ids), query or ""
        return await self._operate(CancelJobs, ids, query, dry_run, force=force)

    async def rerun(
        self,
        *ids: str,
        query: str | None = None,
        reset_attempts: bool = False,
        from_start: bool = False,
        delay: Duration | None = None,
        run_at: Moment | None = None,
        flow: bool = False,
        dry_run: bool = False,
    ) -> Moved:
        """Run finished jobs again, now or after `delay` or at `run_at`.

        They go on after the steps they have done, unless `from_start` has these forgotten.
        """
        when = _when(delay=delay, run_at=run_at)
        if flow:
            ids, query = (await self.subtree(*ids))[::-1], query or ""
        how = {"reset_attempts": reset_attempts, "from_start": from_start, **when}
        return await self._operate(RerunJobs, ids, query, dry_run, **how)

    async def edit(
        self,
        *ids: str,
        query: str | None = None,
        dry_run: bool = False,
        **changes: Unpack[EditOptions],
    ) -> Moved:
        """Change what is given, all arguments together, in jobs no worker has taken yet."""
        known(changes, EditOptions)
        fields: dict[str, Any] = {**changes}
        arguments = fields.pop("arguments", None)
        fields |= _when(run_at=fields.pop("run_at", None), tags=fields.pop("tags", None))
        if arguments is None or dry_run:
            return await self._operate(EditJobs, ids, query, dry_run, **fields)
        return await self._operate_with(EditJobs, "payload", arguments, ids, query, **fields)

    async def postpone(
        self,
        *ids: str,
        query: str | None = None,
        delay: Duration | None = None,
        run_at: Moment | None = None,
        dry_run: bool = False,
    ) -> Moved:
        """Run jobs later: after `delay` or at `run_at`."""
        return await self._operate(PostponeJobs, ids, query, dry_run, **_when(delay=delay, run_at=run_at))

    async def promote(self, *ids: str, query: str | None = None, dry_run: bool = False) -> Moved:
        """Run scheduled jobs now."""
        return await self._operate(PromoteJobs, ids, query, dry_run)

    async def resolve(
        self,
        *ids: str,
        query: str | None = None,
        state: Literal["completed", "failed"] = "completed",
        result: Any = None,
        message: str = "",
        dry_run: bool = False,
    ) -> Moved:
        """Settle by hand jobs no worker has taken yet: completed with a result, or failed with a message."""
        settled: dict[str, Any] = {"state": State(one_of("state", state, ("completed", "failed")))}
        settled["message"] = message
        if result is None or dry_run:
            return await self._operate(ResolveJobs, ids, query, dry_run, **settled)
        return await self._operate_with(ResolveJobs, "result", result, ids, query, **settled)

    async def remove(
        self,
        *ids: str,
        query: str | None = None,
        force: bool = False,
        flow: bool = False,
        dry_run: bool = False,
        progress: Callable[[int], object] | None = None,
    ) -> Moved:
        """Delete the records; with `force`, of running jobs too. `progress` hears how many, by slices."""
        if flow:
            ids, query = await self.subtree(*ids), query or ""
        return await self._operate(RemoveJobs, ids, query, dry_run, progress, force=force)

    async def _operate(
        self,
        kind: type[OperatorCommand],
        ids: tuple[str, ...],
        query: str | None,
        dry_run: bool,
        progress: Callable[[int], object] | None = None,
        **options: Any,
    ) -> Moved:
        meant = None if query is None else parse(query)
        if dry_run:
            return Moved(await self._would_move(kind(ids=ids[:SLICE], query=meant, **options), ids))
        parts: builtins.list[Moved] = []
        for start in range(0, len(ids) or 1, SLICE):
            command: OperatorCommand | None = kind(ids=ids[start : start + SLICE], query=meant, **options)
            while command is not None:  # by query, slice by slice
                part = await self._submit(command, Moved)
                parts.append(part)
                if progress is not None:
                    progress(len(part.moved))
                command = None if part.below is None else replace(command, below=part.below)
        return _unless_refused(ids, joined(parts))

    async def _would_move(self, command: OperatorCommand, given: tuple[str, ...]) -> tuple[str, ...]:
        """The jobs, of those given or of all, that match and are in a state it can be done in."""
        query, states = command.query or Query(), command.states
        if given:
            found = await self.engine.call(self.store.get, given)
            now = await self.engine.call(self.store.now)
            jobs = (job for job in found if job is not None and query.matches(job, now))
            return tuple([job.id for job in jobs if job.state in states])
        narrowed, cursor = parse(f"{query} state:{','.join(sorted(states))}"), None
        ids: builtins.list[str] = []
        while True:
            page = await self.engine.call(self.store.list, narrowed, cursor, LOOK)
            ids += [job.id for job in page.jobs]
            cursor = page.cursor
            if cursor is None:
                return tuple(ids)

    async def _operate_with(
        self,
        kind: type[EditJobs] | type[ResolveJobs],
        field: str,
        value: Any,
        ids: tuple[str, ...],
        query: str | None,
        **options: Any,
    ) -> Moved:
        """The command with a document in it, which a codec seals for one job and no other."""
        if not ids:
            raise InvalidValue("query", query, "what is written into jobs is sealed for each: give their ids")
        meant = None if query is None else parse(query)
        found = dict(zip(ids, await self.engine.call(self.store.get, ids), strict=True))
        commands: list[EditJobs | ResolveJobs] = []
        for record in filter(None, found.values()):
            options[field] = self._document(record, field, value)
            commands.append(kind(ids=(record.id,), query=meant, **options, **self._beside(record, field)))
        unknown = tuple((job_id, UnknownJob(job_id)) for job_id in found if found[job_id] is None)
        parts = await asyncio.gather(*[self._submit(command, Moved) for command in commands])
        return _unless_refused(ids, joined([Moved(refused=unknown), *parts]))

    def _beside(self, record: JobRecord, field: str) -> dict[str, Any]:  # noqa: ARG002 - for who knows tasks
        """What else changes in a job with that document."""
        return {}

    def _document(self, record: JobRecord, field: str, value: Any) -> str:
        """`value` as it is stored in that field of a job."""
        return self.codec.seal(to_json(field, value), about(record, field))

    async def _submit(self, command: Command, expected: type[A]) -> A:
        answer = await self.engine.submit(command)
        if not isinstance(answer, expected):
            raise CommandFailed(type(command).__name__, f"the store answered {answer!r}")
        return answer


def _when(**options: Any) -> dict[str, Any]:
    """`delay`, `run_at` and `tags` as people write them; what is None is left out."""
    given = {name: value for name, value in options.items() if value is not None}
    return {name: value for name, value in job_fields(given).items() if name in given}


def joined(parts: Sequence[Moved]) -> Moved:
    return Moved(
        tuple([one for part in parts for one in part.moved]),
        tuple([one for part in parts for one in part.already]),
        tuple([one for part in parts for one in part.refused]),
    )


def _unless_refused(ids: tuple[str, ...], moved: Moved) -> Moved:
    if len(ids) == 1 and moved.refused:
        raise moved.refused[0][1]
    return moved
