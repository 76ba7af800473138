"""`Schedule`: a schedule as it was read from the store."""

from datetime import datetime
from typing import Any

from msgspec import Struct

from errandry.api.gate_info import PauseInfo, pause_info
from errandry.api.schedule_options import timing_of_plan
from errandry.codec.json_codec import Codec, DocumentInfo, from_json
from errandry.core.duration import as_datetime
from errandry.core.job import Keep
from errandry.core.retry import Backoff
from errandry.core.rule_info import Source
from errandry.core.schedule import ScheduleRecord, differences
from errandry.core.tick import seal_context


class Schedule(Struct, frozen=True, kw_only=True):
    """A schedule as it was read, for `jobs.schedules.get` and `list`.

        for schedule in await jobs.schedules.list():
            print(schedule.name, schedule.when, schedule.next_run)

    `when`, `timezone`, `start`, `end`, `limit`, `jitter`, `overlap` and `catch_up` are the fields of
    `ScheduleOptions`, with times as datetimes and lengths of time in seconds. `queue`, `group`, `priority`,
    `lifo`, `max_attempts`, `max_crashes`, `timeout`, `backoff`, `keep`, `tags` and `metadata` are the
    options of its jobs.

    next_tick  its next tick; None if it is paused or over
    next_run   when the job of that tick is due: after the tick by the jitter
    next_job   the id of that job
    last_tick  the last tick that ran
    runs       number of ticks that ran
    missed     number of ticks that did not run
    live       the ids of its latest jobs that may not have ended
    paused     when it was paused, and by which operator; None if it is not paused
    owners     the programs that declare it in code; none if it was put at run time
    by         the operator who changed it last
    source     whether the plan in force comes from code or from an operator
    declared   while it is an operator's: what code declares instead, as text by name
    """

    name: str
    task: str
    when: str
    timezone: str
    start: datetime | None
    end: datetime | None
    limit: int | None
    jitter: float
    overlap: str
    catch_up: str
    queue: str
    group: str
    priority: int
    lifo: bool
    max_attempts: int
    max_crashes: int
    timeout: float | None
    backoff: Backoff | None
    keep: Keep | None
    tags: tuple[str, ...]
    metadata: dict[str, Any]
    next_tick: datetime | None
    next_run: datetime | None
    next_job: str | None
    last_tick: datetime | None
    runs: int
    missed: int
    live: tuple[str, ...]
    paused: PauseInfo | None
    owners: tuple[str, ...]
    by: str
    source: Source
    declared: dict[str, str]
    created_at: datetime
    updated_at: datetime
    _payload: str
    _codec: Codec

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of its jobs, as plain values; raises the codec's error if it cannot decode them."""
        text = self._codec.unseal(self._payload, arguments_document(self.name, self.task))
        arguments: dict[str, Any] = from_json(text)
        return arguments

    def __repr__(self) -> str:
        return f"<schedule {self.name} {self.task} {self.when}>"


def schedule_of_record(record: ScheduleRecord, codec: Codec) -> Schedule:
    job = record.plan.job
    timing = timing_of_plan(record.plan)
    timing["start"], timing["end"] = as_datetime(record.plan.start), as_datetime(record.plan.end)
    return Schedule(
        name=record.name,
        task=job.task,
        **timing,
        queue=job.queue,
        group=job.group,
        priority=job.priority,
        lifo=job.lifo,
        max_attempts=job.max_attempts,
        max_crashes=job.max_crashes,
        timeout=job.timeout,
        backoff=job.backoff,
        keep=job.keep,
        tags=job.tags,
        metadata={} if job.metadata is None else from_json(job.metadata),
        next_tick=as_datetime(record.tick),
        next_run=as_datetime(record.due_at),
        next_job=record.job,
        last_tick=as_datetime(record.last),
        runs=record.runs,
        missed=record.missed,
        live=record.live,
        paused=pause_info(record.paused),
        owners=record.owners,
        by=record.by,
        source=record.source,
        declared=_declared_texts(record),
        created_at=as_datetime(record.created_at),
        updated_at=as_datetime(record.updated_at),
        _payload=job.payload,
        _codec=codec,
    )


def _declared_texts(record: ScheduleRecord) -> dict[str, str]:
    if record.declared is None:
        return {}
    return {name: declared for name, (_, declared) in differences(record.plan, record.declared).items()}


def arguments_document(name: str, task: str) -> DocumentInfo:
    """The document that the arguments of all jobs of a schedule are sealed as."""
    return DocumentInfo(seal_context(name), task, "payload")
