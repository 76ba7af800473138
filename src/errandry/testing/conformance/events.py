"""The event log: what happened, in commit order, from a cursor."""

import pytest

from errandry.core.command import (
    CancelJobs,
    Claim,
    CompleteOutcome,
    FailOutcome,
    Insert,
    Note,
    ReleaseOutcome,
    RetryOutcome,
    Settle,
)
from errandry.core.event import Event, EventKind
from errandry.core.job import LogLine, Progress
from errandry.errors import InvalidCursor
from errandry.store.contract import Store, StoreLimits
from errandry.testing.clock import FakeClock
from errandry.testing.conformance import requests
from errandry.testing.conformance.fixtures import MakeStore
from errandry.testing.given import Given, ref


class Reporting:
    async def test_an_event_names_its_job_and_attempt_and_the_time(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        job = await given.waiting(queue="q", task="t")
        clock.advance(5)
        await given.taken(job)

        events = await store.events()

        assert [(entry.at, entry.event) for entry in events.entries] == [
            (clock.time() - 5, Event(EventKind.WAITING, job.id, "q", "t", 0)),
            (clock.time(), Event(EventKind.CLAIMED, job.id, "q", "t", 1)),
            (clock.time(), Event(EventKind.STARTED, job.id, "q", "t", 1)),
            (clock.time(), Event(EventKind.DRAINED, "", "q", "")),
        ]

    async def test_a_queue_is_not_drained_while_one_waits_whoever_else_claims_in_the_pass(
        self, store: Store, given: Given
    ) -> None:
        """What claims have found before, and those beside this one look for, is elsewhere."""
        for queue, task in (("q", "a"), ("other", "b")):
            await given.waiting(queue=queue, task=task)
            await requests.claim(store, tasks=(task,))
        for queue in ("q", "q", "other"):
            await given.waiting(queue=queue, task="b")
        head = await store.latest_cursor()

        await store.commit([Claim(worker=one, nonce="n", tasks=(one,)) for one in ("a", "b")])

        assert await requests.kinds(store, head) == [EventKind.CLAIMED, EventKind.STARTED]

    @pytest.mark.parametrize(
        ("fields", "kind"),
        [
            ({}, EventKind.WAITING),
            ({"delay": 1.0}, EventKind.SCHEDULED),
        ],
    )
    async def test_an_insert_is_reported_as_the_state_reached(
        self, store: Store, given: Given, fields: dict[str, object], kind: EventKind
    ) -> None:
        await given.waiting(**fields)

        assert await requests.kinds(store) == [kind]

    async def test_outcomes_that_ended_otherwise_are_reported_as_what_came_of_them(
        self, store: Store, given: Given
    ) -> None:
        spent, asked = await given.running(max_attempts=1), await given.running()
        await requests.operate(store, CancelJobs(ids=(asked.id,)))
        delayed, at_once = await given.running(), await given.running()
        head = await store.latest_cursor()
        await requests.settle(store, spent, RetryOutcome())
        await requests.settle(store, asked, CompleteOutcome())
        await requests.settle(store, delayed, ReleaseOutcome(60.0))
        await requests.settle(store, at_once, RetryOutcome(delay=0.0))

        kinds = [EventKind.FAILED, EventKind.CANCELED, EventKind.SCHEDULED, EventKind.RETRYING]
        assert await requests.kinds(store, head) == kinds

    async def test_an_expiry_is_reported_as_stalled_and_then_the_state_reached(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        await given.running(lease=10.0, max_attempts=1)
        await given.running(lease=20.0)
        head = await store.latest_cursor()
        clock.advance(20)
        await requests.upkeep(store)

        stalled = [EventKind.STALLED, EventKind.FAILED, EventKind.STALLED, EventKind.WAITING]
        assert await requests.kinds(store, head) == stalled

    async def test_progress_and_log_lines_are_reported(self, store: Store, given: Given) -> None:
        job = await given.running(queue="q", task="t")
        head = await store.latest_cursor()
        await requests.one(
            store, Note(ref(job), Progress(0.25), (LogLine(1.0, "one"), LogLine(2.0, "x" * 2_000)))
        )

        progress, line, long = await requests.events(store, head)

        assert (progress.kind, progress.job, progress.text) == (EventKind.PROGRESS, job.id, "0.25")
        assert (line.kind, line.job, line.queue, line.task) == (EventKind.LOG, job.id, "q", "t")
        assert line.text == "one"
        assert len(long.text) <= 200

    async def test_the_events_of_a_pass_stand_in_the_order_of_its_commands(
        self, store: Store, given: Given
    ) -> None:
        one, two = await given.running(), await given.running()
        head = await store.latest_cursor()

        await store.commit(
            [
                Settle(ref(two), CompleteOutcome()),
                Settle(ref(one), FailOutcome()),
                Insert((given.job(id="new"),)),
            ]
        )

        assert [(event.kind, event.job) for event in await requests.events(store, head)] == [
            (EventKind.COMPLETED, two.id),
            (EventKind.FAILED, one.id),
            (EventKind.WAITING, "new"),
        ]


class Resuming:
    async def test_a_reader_that_was_away_goes_on_where_it_stopped(self, store: Store, given: Given) -> None:
        await given.waiting(id="a")
        seen = await store.events()
        await given.waiting(id="b")
        await given.waiting(id="c")

        events = await store.events(seen.cursor)

        assert [entry.event.job for entry in events.entries] == ["b", "c"]
        assert not events.missed

    async def test_a_reader_without_a_cursor_begins_with_the_oldest_event(
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
        await given.inserted(*(given.job() for _ in range(5)))
        await given.inserted(*(given.job() for _ in range(5)))
        cursor, found = None, []
        for _ in range(12):
            page = await store.events(cursor, limit)
            assert len(page.entries) <= limit
            found += [entry.event.job for entry in page.entries]
            cursor = page.cursor

        assert found == [f"job-{number}" for number in range(1, 11)]

    async def test_every_event_carries_the_cursor_that_continues_after_it(
        self, store: Store, given: Given
    ) -> None:
        await given.inserted(*(given.job() for _ in range(3)))
        await given.waiting()
        entries = (await store.events()).entries

        for number, entry in enumerate(entries, 1):
            rest = await store.events(entry.cursor)
            assert rest.entries == entries[number:]
            assert not rest.missed

    async def test_the_head_lies_after_all_that_has_happened(self, store: Store, given: Given) -> None:
        assert (await store.events(await store.latest_cursor())).entries == ()
        await given.waiting(id="before")
        head = await store.latest_cursor()
        await given.waiting(id="after")

        assert [event.job for event in await requests.events(store, head)] == ["after"]

    async def test_waiting_at_the_end_gives_a_cursor_to_wait_with(self, store: Store, given: Given) -> None:
        empty = await store.events()
        again = await store.events(empty.cursor)
        await given.waiting(id="a")

        assert (empty.entries, again.entries) == ((), ())
        assert [event.job for event in await requests.events(store, again.cursor)] == ["a"]

    async def test_a_reader_is_told_when_it_has_missed_something(
        self, open_store: MakeStore, clock: FakeClock
    ) -> None:
        store = await open_store(clock, StoreLimits(events_age=60.0))
        given = Given(store)
        old = await store.latest_cursor()
        await given.waiting(id="a")
        seen = await store.events(old)
        await given.waiting(id="b")
        clock.advance(30)
        await given.waiting(id="c")
        clock.advance(30)
        await requests.upkeep(store)

        for cursor in (old, seen.cursor):
            events = await store.events(cursor)
            assert events.missed
            assert [entry.event.job for entry in events.entries] == ["c"]
            assert not (await store.events(events.cursor)).missed

    async def test_a_reader_that_has_seen_everything_trimmed_missed_nothing(
        self, open_store: MakeStore, clock: FakeClock
    ) -> None:
        store = await open_store(clock, StoreLimits(events_age=60.0))
        await Given(store).waiting()
        seen = await store.events()
        clock.advance(60)
        await requests.upkeep(store)

        assert not (await store.events(seen.cursor)).missed
        assert not (await store.events(await store.latest_cursor())).missed

    async def test_a_reader_that_missed_everything_is_told_once(
        self, open_store: MakeStore, clock: FakeClock
    ) -> None:
        store = await open_store(clock, StoreLimits(events_age=60.0))
        old = await store.latest_cursor()
        await Given(store).waiting()
        clock.advance(60)
        await requests.upkeep(store)

        events = await store.events(old)

        assert (events.entries, events.missed) == ((), True)
        assert not (await store.events(events.cursor)).missed

    async def test_a_cursor_of_jobs_is_not_one_of_events(self, store: Store, given: Given) -> None:
        await given.inserted(*(given.job() for _ in range(2)))
        page = await store.list(limit=1)

        with pytest.raises(InvalidCursor):
            await store.events(page.cursor)
        with pytest.raises(InvalidCursor):
            await store.list(cursor=await store.latest_cursor())
