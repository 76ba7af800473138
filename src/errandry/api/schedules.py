"""`jobs.schedules`: declare schedules in code, or put, edit, pause and remove them at any time."""

import builtins
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Unpack

from msgspec import Struct
from msgspec.structs import replace

from errandry.api.job import Job
from errandry.api.options import Moment, check_names, job_fields
from errandry.api.schedule import Schedule, arguments_document, schedule_of_record
from errandry.api.schedule_options import (
    ScheduleOptions,
    TimingChanges,
    TimingOptions,
    read_schedule,
    timing_of_plan,
)
from errandry.api.signature import read_arguments
from errandry.api.task import Call, Task
from errandry.codec.json_codec import DocumentInfo, from_json, to_json
from errandry.core.answer import Inserted
from errandry.core.argument_version import with_version
from errandry.core.command import Command
from errandry.core.duration import moment
from errandry.core.job import NewJob, uuid7
from errandry.core.schedule import (
    Backfill,
    Backfilled,
    PauseSchedule,
    PutSchedule,
    RemoveSchedule,
    ResetSchedule,
    ResumeSchedule,
    RunSchedule,
    SchedulePlan,
    ScheduleRecord,
    check_plan,
    check_schedule_name,
    differences,
)
from errandry.errors import InvalidValue, ScheduleChanged

if TYPE_CHECKING:
    from errandry.api.app import Errandry

SCHEDULES_PAGE = 1_000
"""Maximum number of schedules read at a time."""
EDIT_TRIES = 100
"""Maximum number of tries of an edit. Each that fails means that another change was written."""

ScheduleTiming = str | timedelta | ScheduleOptions
Schedulable = Call[Any] | Task[..., Any] | NewJob
"""The job to run: `report.new(of="all")`, a task whose arguments have defaults, or a job as stored."""


class _Declared(Struct, frozen=True):
    """A schedule that code declares.

    `plan` has the arguments as plain JSON, to compare declarations: a codec seals the same ones differently.
    `is_option` says that it is the option `schedule` of a task, whose next definition replaces it.
    """

    call: Schedulable
    timing: ScheduleOptions
    plan: SchedulePlan
    is_option: bool = False


class Schedules:
    """The schedules of a store.

        await jobs.schedules.put("nightly", report.new(of="all"), "0 3 * * *", timezone="Europe/Vienna")

    A schedule that is put or edited here has the plan of an operator, which stays in force whatever code
    declares, until it is reset.
    """

    def __init__(self, app: "Errandry") -> None:
        self._app = app
        self._declared: dict[str, _Declared] = {}

    def declare(
        self, name: str, call: Schedulable, when: ScheduleTiming, **timing: Unpack[TimingOptions]
    ) -> None:
        """Declare a schedule; workers that start, and `jobs.put_declared`, write it to the store.

        `timing` takes the fields of `ScheduleOptions`. A wrong declaration raises InvalidValue here, and so
        does a second one of the same name with another plan.
        """
        with _naming(name):
            options = _read_timing(when, timing)
            plan = self._plain_plan(name, call, options)
        self._add(name, _Declared(call, options, plan))

    def _declare_option(self, task: Task[..., Any]) -> None:
        """Declare the schedule of a task, named as the task, in place of that of its earlier definition."""
        if task.schedule is None:
            if task.name in self._declared and self._declared[task.name].is_option:
                del self._declared[task.name]
            return
        with _naming(task.name):
            plan = self._plain_plan(task.name, task, task.schedule)
        self._add(task.name, _Declared(task, task.schedule, plan, is_option=True))

    def _add(self, name: str, declared: _Declared) -> None:
        known = self._declared.get(name)
        if known is not None and not (known.is_option and declared.is_option):
            if changes := differences(known.plan, declared.plan):
                why = "; ".join(_change_text(field, *values) for field, values in changes.items())
                raise InvalidValue("schedule", name, f"is declared already, with {why}: choose another name")
            declared = replace(declared, is_option=known.is_option)
        self._declared[name] = declared

    @property
    def declared(self) -> tuple[str, ...]:
        """The names of the schedules declared in code."""
        return tuple(self._declared)

    async def put(
        self,
        name: str,
        call: Schedulable,
        when: ScheduleTiming,
        *,
        by: str = "",
        **timing: Unpack[TimingOptions],
    ) -> Schedule:
        """Create or replace a schedule: `put("nightly", report.new(of="all"), "0 3 * * *", overlap="skip")`.

        `timing` takes the fields of `ScheduleOptions`; `by` names the operator, for the event.
        """
        with _naming(name):
            plan = _read_timing(when, timing).plan(self._job_template(name, call))
            check_plan(name, plan)
        await self._submit_change(PutSchedule(name, plan, by))
        return await self.get(name)

    async def edit(
        self,
        name: str,
        *,
        arguments: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
        by: str = "",
        **timing: Unpack[TimingChanges],
    ) -> Schedule:
        """Change the given parts of a schedule, for all ticks from now on; the rest stays.

        `options` are options of its jobs, such as queue and priority; `timing` takes the fields of
        `ScheduleOptions`. Edits at the same time all take effect: each is made to the plan that the one
        before has left. Raises ScheduleChanged if the plan changes again and again in the meantime.
        """
        check_names(timing, TimingChanges)
        fields = job_fields(options or {})
        for tries_left in reversed(range(EDIT_TRIES)):
            before = (await self._app.client.schedule(name)).plan
            job = self._edited_job(name, replace(before.job, **fields), arguments)
            new_timing: dict[str, Any] = {**timing_of_plan(before), **timing}
            plan = ScheduleOptions(**new_timing).plan(job)
            try:
                await self._submit_change(PutSchedule(name, plan, by, edited=before))
                break
            except ScheduleChanged:
                if not tries_left:
                    raise
        return await self.get(name)

    async def reset(self, name: str, *, by: str = "") -> bool:
        """Put the plan that code declares in force again, in place of what `put` and `edit` have changed.

        Returns False if it is in force, or if code declares none.
        """
        return await self._submit_change(ResetSchedule(name, by))

    async def list(self) -> builtins.list[Schedule]:
        """All schedules, by name."""
        return [schedule_of_record(record, self._app.codec) for record in await self._read_records()]

    async def get(self, name: str) -> Schedule:
        """The schedule with this name; raises UnknownSchedule if there is none."""
        return schedule_of_record(await self._app.client.schedule(name), self._app.codec)

    async def _read_records(self) -> builtins.list[ScheduleRecord]:
        records: builtins.list[ScheduleRecord] = []
        while True:
            after = records[-1].name if records else ""
            page = await self._app.engine.call(self._app.store.schedules, after, SCHEDULES_PAGE)
            records += page
            if len(page) < SCHEDULES_PAGE:
                return records

    async def pause(self, name: str, by: str = "") -> bool:
        """Stop its ticks until it is resumed; False if it was paused already."""
        return await self._submit_change(PauseSchedule(name, by))

    async def resume(self, name: str) -> bool:
        """Continue with its next tick; False if it was not paused."""
        return await self._submit_change(ResumeSchedule(name))

    async def remove(self, name: str) -> bool:
        """Remove the schedule; a running job of it goes on. False if there was none."""
        return await self._submit_change(RemoveSchedule(name))

    async def run(self, name: str) -> Job[Any]:
        """Run the schedule's job once now, in addition to its ticks, even if it is paused."""
        job_id = uuid7(self._app.clock.time(), secrets.token_bytes(10))
        await self._submit(RunSchedule(name, job_id), Inserted)
        return await self._app.get(job_id)

    async def backfill(self, name: str, since: Moment, until: Moment | None = None) -> builtins.list[str]:
        """Run the ticks of a past span that have no job yet; returns the ids of the new jobs.

        If its `overlap` is not `allow`, each run waits for the one before.
        """
        last = await self._app.engine.call(self._app.store.now) if until is None else moment("until", until)
        first: float | None = moment("since", since)
        new_ids: builtins.list[str] = []
        while first is not None:
            answer = await self._submit(Backfill(name, first, last), Backfilled)
            new_ids += [job_id for job_id in answer.ids if job_id not in answer.existed]
            first = answer.first
        return new_ids

    def _declared_plan(self, name: str, known: SchedulePlan | None) -> SchedulePlan:
        """The checked plan that code declares, in which values that are new at each start are as in `known`.

        An encryption seals the same arguments differently each time. Enqueue hooks may add metadata that
        differs each time, such as the `traceparent` of the program's start.
        """
        with _naming(name):
            plan = self._declared[name].timing.plan(self._declared_job(name, known))
            check_plan(name, plan)
        return plan

    def _declared_job(self, name: str, known: SchedulePlan | None) -> NewJob:
        declared = self._declared[name]
        job = self._job_template(name, declared.call)
        if known is not None and known.job.task == job.task:
            document = arguments_document(name, job.task)
            unseal = self._app.codec.unseal
            with suppress(Exception):  # the key of the known plan may be gone; a codec raises what it likes
                if unseal(known.job.payload, document) == unseal(job.payload, document):
                    job = replace(job, payload=known.job.payload)
            unhooked = self._plain_job(_single_job(declared.call)).metadata
            if _differs_only_by_hooks(unhooked, job.metadata, known.job.metadata):
                same_metadata = replace(job, metadata=known.job.metadata)
                job = same_metadata if same_metadata == known.job else job
        return job

    def _plain_plan(self, name: str, call: Schedulable, timing: ScheduleOptions) -> SchedulePlan:
        """The checked plan of a declaration, with plain arguments. Enqueue hooks do not run."""
        job = call._job_without_arguments() if isinstance(call, Task) else self._plain_job(_single_job(call))
        plan = timing.plan(job)
        check_plan(name, plan)
        return plan

    def _job_template(self, name: str, call: Schedulable) -> NewJob:
        """The job that is copied for each tick, with arguments that the codec seals once for all of them."""
        [job] = self._app._apply_hooks([_single_job(call)])
        plain = self._plain_job(job)
        return replace(plain, payload=self._seal_arguments(name, plain.task, plain.payload))

    def _plain_job(self, job: NewJob) -> NewJob:
        """The job without its own id, and with its arguments as plain JSON."""
        text = self._app.codec.unseal(job.payload, DocumentInfo(job.id, job.task, "payload"))
        return replace(job, id="-", payload=text)

    def _edited_job(self, name: str, job: NewJob, arguments: Mapping[str, Any] | None) -> NewJob:
        """The job of a schedule with other arguments, or with the same if they are None."""
        if arguments is None:
            return job
        payload = self._seal_arguments(name, job.task, self._encode_arguments(job.task, arguments))
        task = self._app.tasks.get(job.task)
        version = {} if task is None else {"metadata": with_version(job.metadata, task.run_rules.version)}
        return replace(job, payload=payload, **version)

    def _encode_arguments(self, task: str, arguments: Mapping[str, Any]) -> str:
        declared, by_name = self._app.tasks.get(task), read_arguments(task, arguments)
        return to_json("arguments", by_name) if declared is None else declared.signature.write(by_name)

    def _seal_arguments(self, name: str, task: str, text: str) -> str:
        return self._app.codec.seal(text, arguments_document(name, task))

    async def _submit_change(self, command: Command) -> bool:
        return await self._app.client.submit_change(command)

    async def _submit(self, command: Command, expected: type[Any]) -> Any:
        return await self._app.client.submit(command, expected)


def _differs_only_by_hooks(declared: str | None, hooked: str | None, known: str | None) -> bool:
    """Whether metadata differs from the known one only in the values of keys that hooks have set."""
    before, after, stored = (from_json(text) if text else {} for text in (declared, hooked, known))
    set_by_hooks = {key for key in after if key not in before or after[key] != before[key]}
    return bool(after | {key: stored[key] for key in set_by_hooks & stored.keys()} == stored)


def _change_text(field: str, old: str, new: str) -> str:
    return f"other {field}" if old == new else f"{field} {old}, not {new}"


def _single_job(call: Schedulable) -> NewJob:
    if isinstance(call, Task):
        call.signature.check_defaults()
        return call.new().single_job
    if isinstance(call, Call):
        return call.single_job
    if not isinstance(call, NewJob):
        why = 'must be a call such as report.new(of="all"), or a task whose arguments have defaults'
        raise InvalidValue("call", call, why)
    return call


@contextmanager
def _naming(name: str) -> Iterator[None]:
    """Check the name of a schedule, and name the schedule in each InvalidValue of the block."""
    check_schedule_name(name)
    try:
        yield
    except InvalidValue as error:
        raise InvalidValue("schedule", name, str(error)) from error


def _read_timing(when: ScheduleTiming, timing: Mapping[str, Any]) -> ScheduleOptions:
    options = read_schedule("when", when)
    if options is None:
        raise InvalidValue("when", when, 'say when: cron ("0 3 * * *"), or "every 5 minutes"')
    check_names(timing, TimingOptions)
    return replace(options, **timing) if timing else options
