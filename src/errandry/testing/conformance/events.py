"""The event log: which events a move writes, and how a reader reads them in commit order from a cursor."""

import pytest

from errandry.core.answer import WRITTEN
from errandry.core.command import (
    CancelJobs,
    Claim,
    CompleteOutcome,
    FailOutcome,
    Insert,
    Note,
    ReleaseOutcome,
    ReportTrouble,
    RetryOutcome,
    Settle,
)
from errandry.core.event import EventKind, EventRecord
from errandry.core.job import Failure, Keep, LogLine, Progress
from errandry.core.state import Reason
from errandry.errors import InvalidCursor
from errandry.store.contract import Store, StoreLimits
from errandry.testing.clock import FakeClock
from errandry.testing.conformance import requests
from errandry.testing.conformance.fixtures import MakeStore
from errandry.testing.given import Given, ref


class ReportedEvents:
    async def test_an_event_carries_its_time_job_and_attempt(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        job = await given.waiting(queue="q", task="t")
        clock.advance(5)
        await given.claim(job)

        events = await store.events()

        assert [(entry.at, entry.event) for entry in events.entries] == [
            (clock.time() - 5, EventRecord(EventKind.WAITING, job.id, "q", "t", 0)),
            (clock.time(), EventRecord(EventKind.CLAIMED, job.id, "q", "t", 1)),
            (clock.time(), EventRecord(EventKind.STARTED, job.id, "q", "t", 1)),
            (clock.time(), EventRecord(EventKind.DRAINED, "", "q", "")),
        ]

    async def test_a_queue_with_a_waiting_job_is_not_drained_by_other_claims_of_the_pass(
        self, store: Store, given: Given
    ) -> None:
        """A claim of task `a` sees no job of task `b`, and must not conclude that the queue is empty."""
        for queue, task in (("q", "a"), ("other", "b")):
            await given.waiting(queue=queue, task=task)
            await requests.claim(store, tasks=(task,))
        for queue in ("q", "q", "other"):
            await given.waiting(queue=queue, task="b")
        cursor = await store.latest_cursor()

        await store.commit([Claim(worker=worker, nonce="n", tasks=(worker,)) for worker in ("a", "b")])

        assert await requests.event_kinds(store, cursor) == [EventKind.CLAIMED, EventKind.STARTED]

    @pytest.mark.parametrize(
        ("fields", "kind"),
        [
            ({}, EventKind.WAITING),
            ({"delay": 1.0}, EventKind.SCHEDULED),
        ],
    )
    async def test_an_insert_is_reported_as_the_state_the_job_reached(
        self, store: Store, given: Given, fields: dict[str, object], kind: EventKind
    ) -> None:
        await given.waiting(**fields)

        assert await requests.event_kinds(store) == [kind]

    async def test_events_report_the_state_reached_rather_than_the_outcome_sent(
        self, store: Store, given: Given
    ) -> None:
        spent, cancel_requested = await given.running(max_attempts=1), await given.running()
        await requests.operate(store, CancelJobs(ids=(cancel_requested.id,)))
        delayed, at_once = await given.running(), await given.running()
        cursor = await store.latest_cursor()
        await requests.settle(store, spent, RetryOutcome())
        await requests.settle(store, cancel_requested, CompleteOutcome())
        await requests.settle(store, delayed, ReleaseOutcome(60.0))
        await requests.settle(store, at_once, RetryOutcome(delay=0.0))

        kinds = [EventKind.FAILED, EventKind.CANCELED, EventKind.SCHEDULED, EventKind.RETRYING]
        assert await requests.event_kinds(store, cursor) == kinds

    async def test_an_expired_lease_is_reported_as_stalled_and_then_the_state_reached(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        await given.running(lease=10.0, max_attempts=1)
        await given.running(lease=20.0)
        cursor = await store.latest_cursor()
        clock.advance(20)
        await requests.run_upkeep(store)

        stalled = [EventKind.STALLED, EventKind.FAILED, EventKind.STALLED, EventKind.WAITING]
        assert await requests.event_kinds(store, cursor) == stalled

    async def test_failed_and_retrying_events_carry_the_error(self, store: Store, given: Given) -> None:
        boom = Failure(Reason.ERROR, "ValueError", "no such customer")
        long = Failure(Reason.TIMEOUT, "TimeoutError", "x" * 500)
        failed, other = await given.running(keep=Keep(failed=0.0)), await given.running()
        retried, long_failed = await given.running(), await given.running()
        cursor = await store.latest_cursor()

        await store.commit(
            [
                Settle(ref(failed), FailOutcome(boom)),
                Settle(ref(other), FailOutcome(Failure(Reason.ERROR, "KeyError", "'name'"))),
                Settle(ref(retried), RetryOutcome(boom, 60.0)),
                Settle(ref(long_failed), FailOutcome(long)),
            ]
        )

        texts = {(event.job, event.kind): event.text for event in await requests.read_events(store, cursor)}
        assert texts == {
            (failed.id, EventKind.FAILED): "ValueError: no such customer",
            (failed.id, EventKind.REMOVED): "",
            (other.id, EventKind.FAILED): "KeyError: 'name'",
            (retried.id, EventKind.RETRYING): "ValueError: no such customer",
            (long_failed.id, EventKind.FAILED): f"TimeoutError: {'x' * 500}"[:200],
        }

    async def test_a_failure_without_an_error_carries_its_reason(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        job = await given.waiting(deadline=clock.time() + 10)
        cursor = await store.latest_cursor()
        clock.advance(10)
        await requests.run_upkeep(store)

        [failed] = [
            event for event in await requests.read_events(store, cursor) if event.kind is EventKind.FAILED
        ]

        assert (failed.job, failed.text) == (job.id, "deadline")

    async def test_progress_and_log_lines_are_reported(self, store: Store, given: Given) -> None:
        job = await given.running(queue="q", task="t")
        cursor = await store.latest_cursor()
        await requests.send(
            store, Note(ref(job), Progress(0.25), (LogLine(1.0, "one"), LogLine(2.0, "x" * 2_000)))
        )

        progress, line, long = await requests.read_events(store, cursor)

        assert (progress.kind, progress.job, progress.text) == (EventKind.PROGRESS, job.id, "0.25")
        assert (line.kind, line.job, line.queue, line.task) == (EventKind.LOG, job.id, "q", "t")
        assert line.text == "one"
        assert len(long.text) <= 200

    async def test_reported_trouble_is_an_error_event_of_no_job(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        await given.waiting()
        cursor = await store.latest_cursor()
        clock.advance(5)

        answers = await store.commit(
            [
                ReportTrouble("mail-1", ("cannot claim jobs: StoreFull: größe", "upkeep failed")),
                ReportTrouble("mail-2", ("x" * 500,)),
            ]
        )

        entries = (await store.events(cursor)).entries
        assert answers == [WRITTEN, WRITTEN]
        assert [(entry.at, entry.event) for entry in entries] == [
            (clock.time(), EventRecord(EventKind.ERROR, "", "", "", 0, text))
            for text in (
                "worker mail-1: cannot claim jobs: StoreFull: größe",
                "worker mail-1: upkeep failed",
                f"worker mail-2: {'x' * 500}"[:200],
            )
        ]

    async def test_reported_trouble_wakes_readers_and_changes_nothing_else(
        self, store: Store, given: Given
    ) -> None:
        await given.waiting()
        before, version = await requests.snapshot(store), store.version()

        await requests.send(store, ReportTrouble("w", ("characters that no store keeps: \0 \udcff",)))

        assert await store.wait_for_change(version, 10.0)
        assert (await requests.snapshot(store))[:-1] == before[:-1]
        [*_, trouble] = await requests.read_events(store)
        assert trouble.text == "worker w: characters that no store keeps: \ufffd \ufffd"

    async def test_the_events_of_a_pass_follow_the_order_of_its_commands(
        self, store: Store, given: Given
    ) -> None:
        first, second = await given.running(), await given.running()
        cursor = await store.latest_cursor()

        await store.commit(
            [
                Settle(ref(second), CompleteOutcome()),
                Settle(ref(first), FailOutcome()),
                Insert((given.new_job(id="new"),)),
            ]
        )

        assert [(event.kind, event.job) for event in await requests.read_events(store, cursor)] == [
            (EventKind.COMPLETED, second.id),
            (EventKind.FAILED, first.id),
            (EventKind.WAITING, "new"),
        ]


class EventCursors:
    async def test_a_reader_resumes_where_it_stopped(self, store: Store, given: Given) -> None:
        await given.waiting(id="a")
        page = await store.events()
        await given.waiting(id="b")
        await given.waiting(id="c")

        events = await store.events(page.cursor)

        assert [entry.event.job for entry in events.entries] == ["b", "c"]
        assert not events.missed

    async def test_a_reader_without_a_cursor_starts_at_the_oldest_event(
        self, store: Store, given: Given
    ) -> None:
        await given.waiting(id="a")
        await given.waiting(id="b")

        events = await store.events()

        assert [entry.event.job for entry in events.entries] == ["a", "b"]
        assert not events.missed

    @pytest.mark.parametrize("limit", [1, 2, 3, 7])
    async def test_a_page_may_end_in_the_middle_of_a_pass(
        self, store: Store, given: Given, limit: int
    ) -> None:
        await given.inserted(*(given.new_job() for _ in range(5)))
        await given.inserted(*(given.new_job() for _ in range(5)))
        cursor, job_ids = None, []
        for _ in range(12):
            page = await store.events(cursor, limit)
            assert len(page.entries) <= limit
            job_ids += [entry.event.job for entry in page.entries]
            cursor = page.cursor

        assert job_ids == [f"job-{number}" for number in range(1, 11)]

    async def test_every_event_carries_the_cursor_to_resume_after_it(
        self, store: Store, given: Given
    ) -> None:
        await given.inserted(*(given.new_job() for _ in range(3)))
        await given.waiting()
        entries = (await store.events()).entries

        for number, entry in enumerate(entries, 1):
            rest = await store.events(entry.cursor)
            assert rest.entries == entries[number:]
            assert not rest.missed

    async def test_the_latest_cursor_is_after_all_events_so_far(self, store: Store, given: Given) -> None:
        assert (await store.events(await store.latest_cursor())).entries == ()
        await given.waiting(id="before")
        cursor = await store.latest_cursor()
        await given.waiting(id="after")

        assert [event.job for event in await requests.read_events(store, cursor)] == ["after"]

    async def test_reading_at_the_end_answers_a_cursor_to_resume_from(
        self, store: Store, given: Given
    ) -> None:
        empty = await store.events()
        repeated = await store.events(empty.cursor)
        await given.waiting(id="a")

        assert (empty.entries, repeated.entries) == ((), ())
        assert [event.job for event in await requests.read_events(store, repeated.cursor)] == ["a"]

    async def test_a_reader_learns_that_unread_events_were_trimmed(
        self, open_store: MakeStore, clock: FakeClock
    ) -> None:
        store = await open_store(clock, StoreLimits(events_age=60.0))
        given = Given(store)
        old = await store.latest_cursor()
        await given.waiting(id="a")
        page = await store.events(old)
        await given.waiting(id="b")
        clock.advance(30)
        await given.waiting(id="c")
        clock.advance(30)
        await requests.run_upkeep(store)

        for cursor in (old, page.cursor):
            events = await store.events(cursor)
            assert events.missed
            assert [entry.event.job for entry in events.entries] == ["c"]
            assert not (await store.events(events.cursor)).missed

    async def test_a_reader_has_missed_nothing_if_it_had_read_the_trimmed_events(
        self, open_store: MakeStore, clock: FakeClock
    ) -> None:
        store = await open_store(clock, StoreLimits(events_age=60.0))
        await Given(store).waiting()
        page = await store.events()
        clock.advance(60)
        await requests.run_upkeep(store)

        assert not (await store.events(page.cursor)).missed
        assert not (await store.events(await store.latest_cursor())).missed

    async def test_missed_events_are_reported_once_even_if_none_are_left(
        self, open_store: MakeStore, clock: FakeClock
    ) -> None:
        store = await open_store(clock, StoreLimits(events_age=60.0))
        old = await store.latest_cursor()
        await Given(store).waiting()
        clock.advance(60)
        await requests.run_upkeep(store)

        events = await store.events(old)

        assert (events.entries, events.missed) == ((), True)
        assert not (await store.events(events.cursor)).missed

    async def test_a_cursor_of_jobs_is_refused_for_events_and_the_other_way_round(
        self, store: Store, given: Given
    ) -> None:
        await given.inserted(*(given.new_job() for _ in range(2)))
        page = await store.list(limit=1)

        with pytest.raises(InvalidCursor):
            await store.events(page.cursor)
        with pytest.raises(InvalidCursor):
            await store.list(cursor=await store.latest_cursor())
