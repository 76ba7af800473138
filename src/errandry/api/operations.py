"""Cancel, rerun, edit, postpone, promote, resolve and remove jobs, by id or by query."""

import asyncio
import builtins
from collections.abc import Callable, Sequence
from typing import Any, Literal, Unpack

from msgspec.structs import replace

from errandry.api.options import Duration, EditOptions, Moment, check_choice, check_names, job_fields
from errandry.api.signature import read_arguments
from errandry.api.store_client import StoreClient
from errandry.clock import Clock
from errandry.codec.json_codec import Codec, document_info, to_json
from errandry.core.answer import Moved
from errandry.core.command import (
    CancelJobs,
    EditJobs,
    OperatorCommand,
    PostponeJobs,
    PromoteJobs,
    RemoveJobs,
    RerunJobs,
    ResolveJobs,
)
from errandry.core.job import JobRecord
from errandry.core.query import Query, parse
from errandry.core.state import State
from errandry.errors import InvalidValue, UnknownJob
from errandry.store.contract import Store
from errandry.store.engine.engine import Engine

DRY_RUN_PAGE = 5_000
"""Maximum number of jobs read at a time for a dry run."""
COMMAND_JOBS_MAX = 1_000
"""Maximum number of job ids in one command."""


class Operations:
    """The operator commands of the client.

        await jobs.rerun(query="state:failed task:send since:1d")

    A command takes job ids, or a `query` for all jobs that match, or both: then it moves those of the ids
    that match. A refusal is raised if a single id was given; otherwise the answer lists it. With `dry_run`
    the answer lists the jobs that would move, and none moves.
    """

    client: StoreClient
    """Access to the store for Errandry's own modules; programs do not need it."""

    @property
    def engine(self) -> Engine:
        return self.client.engine

    @property
    def store(self) -> Store:
        return self.client.store

    @property
    def clock(self) -> Clock:
        return self.client.clock

    @property
    def codec(self) -> Codec:
        return self.client.codec

    async def subtree(self, *ids: str) -> tuple[str, ...]:
        """The ids of these jobs and of all their descendants; each once, parents before their children."""
        children_first: dict[str, None] = {}
        stack = [(job_id, False) for job_id in reversed(ids)]
        seen: set[str] = set()
        while stack:
            job_id, is_expanded = stack.pop()
            if is_expanded:
                children_first[job_id] = None
            elif job_id not in seen:
                seen.add(job_id)
                edges = await self.client.edges(job_id)
                stack += [(job_id, True), *[(edge.child, False) for edge in reversed(edges)]]
        return tuple(reversed(children_first))

    async def cancel(
        self,
        *ids: str,
        query: str | None = None,
        force: bool = False,
        flow: bool = False,
        children: bool = True,
        dry_run: bool = False,
    ) -> Moved:
        """Cancel jobs: at once if they are not running, else by asking their handlers to stop.

        `force` cancels finished jobs too. `flow` includes all descendants of the jobs; those in a state that
        cannot be canceled are left alone. `children=False` leaves the jobs alone that the canceled ones wait
        for; they would be canceled too.
        """
        if flow:
            if not children:
                raise InvalidValue("children", children, "flow cancels the children too: give one of both")
            ids, query = await self.subtree(*ids), query or ""
        return await self._operate(CancelJobs, ids, query, dry_run, force=force, children=children)

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
        """Run finished jobs again, now, after `delay` or at `run_at`.

        Their stored steps are kept, so that they continue after them; `from_start` deletes them.
        `reset_attempts` sets their attempts to 0. `flow` includes all their descendants.
        """
        when = _job_fields(delay=delay, run_at=run_at)
        if flow:
            ids, query = (await self.subtree(*ids))[::-1], query or ""
        options = {"reset_attempts": reset_attempts, "from_start": from_start, **when}
        return await self._operate(RerunJobs, ids, query, dry_run, **options)

    async def edit(
        self,
        *ids: str,
        query: str | None = None,
        dry_run: bool = False,
        **changes: Unpack[EditOptions],
    ) -> Moved:
        """Change jobs that no worker has claimed: `jobs.edit(job_id, queue="slow", priority=5)`.

        `arguments` replaces all arguments. See `EditOptions`.
        """
        check_names(changes, EditOptions)
        fields: dict[str, Any] = {**changes}
        arguments = fields.pop("arguments", None)
        fields |= _job_fields(run_at=fields.pop("run_at", None), tags=fields.pop("tags", None))
        if arguments is None or dry_run:
            return await self._operate(EditJobs, ids, query, dry_run, **fields)
        return await self._operate_with_value(EditJobs, "payload", arguments, ids, query, **fields)

    async def postpone(
        self,
        *ids: str,
        query: str | None = None,
        delay: Duration | None = None,
        run_at: Moment | None = None,
        dry_run: bool = False,
    ) -> Moved:
        """Run waiting or scheduled jobs later: after `delay` or at `run_at`."""
        return await self._operate(
            PostponeJobs, ids, query, dry_run, **_job_fields(delay=delay, run_at=run_at)
        )

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
        """Settle jobs that no worker has claimed: completed with a result, or failed with a message."""
        settled: dict[str, Any] = {"state": State(check_choice("state", state, ("completed", "failed")))}
        settled["message"] = message
        if result is None or dry_run:
            return await self._operate(ResolveJobs, ids, query, dry_run, **settled)
        return await self._operate_with_value(ResolveJobs, "result", result, ids, query, **settled)

    async def remove(
        self,
        *ids: str,
        query: str | None = None,
        force: bool = False,
        flow: bool = False,
        dry_run: bool = False,
        progress: Callable[[int], object] | None = None,
    ) -> Moved:
        """Delete jobs; with `force`, also those that workers hold.

        `flow` includes all their descendants. `progress` is called after each slice with the number of jobs
        it deleted.
        """
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
        parsed = None if query is None else parse(query)
        if dry_run:
            return Moved(
                await self._would_move(kind(ids=ids[:COMMAND_JOBS_MAX], query=parsed, **options), ids)
            )
        parts: builtins.list[Moved] = []
        for start in range(0, len(ids) or 1, COMMAND_JOBS_MAX):
            command: OperatorCommand | None = kind(
                ids=ids[start : start + COMMAND_JOBS_MAX], query=parsed, **options
            )
            while command is not None:  # the store moves one slice of a query for each command
                part = await self.client.submit(command, Moved)
                parts.append(part)
                if progress is not None:
                    progress(len(part.moved))
                command = None if part.below is None else replace(command, below=part.below)
        return _raise_single_refusal(ids, merge_answers(parts))

    async def _would_move(self, command: OperatorCommand, given: tuple[str, ...]) -> tuple[str, ...]:
        """The jobs, of those given or of all, that match the query and are in a state the command moves."""
        query, states = command.query or Query(), command.states
        if given:
            records = await self.engine.call(self.store.get, given)
            now = await self.engine.call(self.store.now)
            jobs = (job for job in records if job is not None and query.matches(job, now))
            return tuple([job.id for job in jobs if job.state in states])
        narrowed, cursor = parse(f"{query} state:{','.join(sorted(states))}"), None
        ids: builtins.list[str] = []
        while True:
            page = await self.engine.call(self.store.list, narrowed, cursor, DRY_RUN_PAGE)
            ids += [job.id for job in page.jobs]
            cursor = page.cursor
            if cursor is None:
                return tuple(ids)

    async def _operate_with_value(
        self,
        kind: type[EditJobs] | type[ResolveJobs],
        field: str,
        value: Any,
        ids: tuple[str, ...],
        query: str | None,
        **options: Any,
    ) -> Moved:
        """Submit a command with a value in it, one for each job: the codec seals the value for one job."""
        if not ids:
            raise InvalidValue("query", query, "a value is sealed for each job separately: give their ids")
        parsed = None if query is None else parse(query)
        records = dict(zip(ids, await self.engine.call(self.store.get, ids), strict=True))
        commands: list[EditJobs | ResolveJobs] = []
        for record in filter(None, records.values()):
            options[field] = self._seal_value(record, field, value)
            metadata = self._metadata_change(record, field)
            commands.append(kind(ids=(record.id,), query=parsed, **options, **metadata))
        unknown = tuple((job_id, UnknownJob(job_id)) for job_id in records if records[job_id] is None)
        parts = await asyncio.gather(*[self.client.submit(command, Moved) for command in commands])
        return _raise_single_refusal(ids, merge_answers([Moved(refused=unknown), *parts]))

    def _metadata_change(self, record: JobRecord, field: str) -> dict[str, Any]:  # noqa: ARG002 - for the app
        """The change of `metadata` with a new value; an app records the version of new arguments."""
        return {}

    def _seal_value(self, record: JobRecord, field: str, value: Any) -> str:
        """The value as stored in that field of the job: JSON, sealed by the codec."""
        text = to_json(field, read_arguments(record.task, value) if field == "payload" else value)
        return self.codec.seal(text, document_info(record, field))


def _job_fields(**options: Any) -> dict[str, Any]:
    """`delay`, `run_at` and `tags` as fields of a job; options that are None are left out."""
    given = {name: value for name, value in options.items() if value is not None}
    return {name: value for name, value in job_fields(given).items() if name in given}


def merge_answers(parts: Sequence[Moved]) -> Moved:
    return Moved(
        tuple([job_id for part in parts for job_id in part.moved]),
        tuple([job_id for part in parts for job_id in part.already]),
        tuple([refusal for part in parts for refusal in part.refused]),
    )


def _raise_single_refusal(ids: tuple[str, ...], moved: Moved) -> Moved:
    if len(ids) == 1 and moved.refused:
        raise moved.refused[0][1]
    return moved
