"""`jobs.schedules`: what runs again and again, declared in code, or put and changed at any time."""

import builtins
import secrets
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from errandry.api.job import Job
from errandry.api.options import Moment, job_fields
from errandry.api.schedule_options import ScheduleOptions, of_plan, schedule
from errandry.api.task import Call, Task
from errandry.codec.argument_version import versioned
from errandry.codec.json_codec import DocumentInfo, to_json
from errandry.core.answer import WRITTEN, Inserted
from errandry.core.command import Command
from errandry.core.duration import moment
from errandry.core.job import NewJob, uuid7
from errandry.core.schedule import (
    Backfill,
    Backfilled,
    PauseSchedule,
    PutSchedule,
    RemoveSchedule,
    ResumeSchedule,
    RunSchedule,
    ScheduleRecord,
)
from errandry.core.tick import sealed_for
from errandry.errors import InvalidValue, UnknownSchedule

if TYPE_CHECKING:
    from errandry.api.app import Errandry

PAGE = 1_000
OWNER = "app"

ScheduleTiming = str | timedelta | ScheduleOptions
Schedulable = Call[Any] | Task[..., Any] | NewJob
"""What is to run: `report.new(of="all")`, a task whose arguments have defaults, or a job as stored."""


class Schedules:
    """The schedules of a store. `owner` is in whose name this program declares them.

    Programs that share a store and remove what they no longer declare need owners of their own.
    """

    def __init__(self, app: "Errandry") -> None:
        self._app = app
        self.owner = OWNER
        self._declared: dict[str, tuple[Schedulable, ScheduleOptions]] = {}

    def declare(self, name: str, call: Schedulable, when: ScheduleTiming, **timing: Any) -> None:
        """Have a schedule put by every worker that starts, and by `sync`. See `Schedule` for the timing."""
        self._declared[name] = call, _timed(when, timing)

    @property
    def declared(self) -> tuple[str, ...]:
        """The names of those declared in code."""
        return tuple(self._declared)

    async def sync(self, *, prune: bool = False) -> builtins.list[str]:
        """Put what is declared; with `prune`, remove what its owner declares no longer. What has changed.

        What was paused stays paused, and what is as it was is left alone.
        """
        changed = []
        for name, (call, timing) in self._declared.items():
            plan = timing.plan(self._template(name, call))
            if await self._is_written(PutSchedule(name, plan, self.owner)):
                changed.append(name)
        if prune:
            for known in await self.list():
                if known.owner == self.owner and known.name not in self._declared:
                    await self.remove(known.name)
                    changed.append(known.name)
        return changed

    async def put(
        self, name: str, call: Schedulable, when: ScheduleTiming, *, by: str = "", **timing: Any
    ) -> ScheduleRecord:
        """This schedule holds from now on: `put("nightly", report.new(of="all"), "0 3 * * *")`.

        See `Schedule` for the timing: `timezone="Europe/Vienna", overlap="skip"`.
        """
        plan = _timed(when, timing).plan(self._template(name, call))
        await self._app.engine.submit(PutSchedule(name, plan, by=by))
        return await self.get(name)

    async def edit(
        self,
        name: str,
        *,
        arguments: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
        by: str = "",
        **timing: Any,
    ) -> ScheduleRecord:
        """Change what is given, leave the rest; for all ticks from now on.

        `options` are those of its jobs, such as queue and priority.
        """
        before = await self.get(name)
        job = replace(before.plan.job, **job_fields(options or {}))
        if arguments is not None:
            job = replace(job, payload=self._sealed(name, job.task, self._written(job.task, arguments)))
            if (known := self._app.tasks.get(job.task)) is not None:
                job = replace(job, metadata=versioned(job.metadata, known.rules.version))
        plan = replace(of_plan(before.plan), **timing).plan(job)
        await self._app.engine.submit(PutSchedule(name, plan, before.owner, by))
        return await self.get(name)

    async def list(self) -> builtins.list[ScheduleRecord]:
        """All of them, by name."""
        found: builtins.list[ScheduleRecord] = []
        while True:
            after = found[-1].name if found else ""
            page = await self._app.engine.call(self._app.store.schedules, after, PAGE)
            found += page
            if len(page) < PAGE:
                return found

    async def get(self, name: str) -> ScheduleRecord:
        """The schedule of this name; UnknownSchedule if there is none."""
        found = await self._app.engine.call(self._app.store.schedule, name)
        if found is None:
            raise UnknownSchedule(name)
        return found

    async def pause(self, name: str, by: str = "") -> bool:
        """No ticks until it is resumed; False if it was paused already."""
        return await self._is_written(PauseSchedule(name, by))

    async def resume(self, name: str) -> bool:
        """From its next tick on; False if it was not paused."""
        return await self._is_written(ResumeSchedule(name))

    async def remove(self, name: str) -> bool:
        """It ticks no more, and what runs goes on; False if there was none."""
        return await self._is_written(RemoveSchedule(name))

    async def run(self, name: str) -> Job[Any]:
        """Run it now, beside its ticks, paused or not."""
        job_id = uuid7(self._app.clock.time(), secrets.token_bytes(10))
        await self._asked(RunSchedule(name, job_id), Inserted)
        return await self._app.get(job_id)

    async def backfill(self, name: str, since: Moment, until: Moment | None = None) -> builtins.list[str]:
        """Run its ticks of a time that has passed, as far as they have no jobs. The ids of those made now.

        Where its runs must not overlap, each waits for the one before.
        """
        last = await self._app.now() if until is None else moment("until", until)
        first: float | None = moment("since", since)
        made: builtins.list[str] = []
        while first is not None:
            answer = await self._asked(Backfill(name, first, last), Backfilled)
            made += [one for one in answer.ids if one not in answer.existed]
            first = answer.first
        return made

    def arguments(self, record: ScheduleRecord) -> str:
        """What its jobs are enqueued with, as JSON."""
        job = record.plan.job
        return self._app.codec.unseal(job.payload, _about(record.name, job.task))

    def _template(self, name: str, call: Schedulable) -> NewJob:
        """The job its ticks are made from: with no time of its own, its arguments sealed for all of them."""
        request = call.new() if isinstance(call, Task) else call
        job = request.alone if isinstance(request, Call) else request
        [job] = self._app._hooked([job])
        text = self._app.codec.unseal(job.payload, DocumentInfo(job.id, job.task, "payload"))
        return replace(job, id="-", payload=self._sealed(name, job.task, text))

    def _written(self, task: str, arguments: Mapping[str, Any]) -> str:
        known = self._app.tasks.get(task)
        if known is None:
            return to_json("arguments", dict(arguments))
        return known.signature.write(dict(arguments))

    def _sealed(self, name: str, task: str, text: str) -> str:
        return self._app.codec.seal(text, _about(name, task))

    async def _is_written(self, command: Command) -> bool:
        return await self._app.engine.submit(command) == WRITTEN

    async def _asked(self, command: Command, expected: type[Any]) -> Any:
        return await self._app._submit(command, expected)


def _timed(when: ScheduleTiming, timing: Mapping[str, Any]) -> ScheduleOptions:
    found = schedule("when", when)
    if found is None:
        raise InvalidValue("when", when, 'say when: cron ("0 3 * * *"), or "every 5 minutes"')
    return replace(found, **timing) if timing else found


def _about(name: str, task: str) -> DocumentInfo:
    return DocumentInfo(sealed_for(name), task, "payload")
