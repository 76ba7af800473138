"""Reads: jobs by id and by query, pages, counts, queues and workers."""

from typing import Any

import pytest

from errandry.core.command import Beat, CompleteOutcome, FailOutcome, ReleaseOutcome, RerunJobs, RetryOutcome
from errandry.core.job import Failure
from errandry.core.query import PARAMS, parse
from errandry.core.state import Reason, State
from errandry.errors import InvalidCursor, InvalidValue
from errandry.store.contract import Store, StoreLimits
from errandry.testing.clock import FakeClock
from errandry.testing.conformance import requests
from errandry.testing.conformance.fixtures import MakeStore
from errandry.testing.given import Given


class JobsById:
    async def test_jobs_are_read_in_the_order_asked_with_none_for_unknown_ids(
        self, store: Store, given: Given
    ) -> None:
        live, completed = await given.waiting(), await given.completed()

        assert await store.get([completed.id, "unknown", live.id, completed.id]) == [
            completed,
            None,
            live,
            completed,
        ]

    async def test_ids_are_found_by_prefix_or_suffix(self, store: Store, given: Given) -> None:
        for name in ("größe-1", "a-größe", "x-größe-x", "a%_-1"):
            await given.waiting(id=name)
        await given.completed(id="b-größe")

        assert await store.ids("größe") == ["a-größe", "b-größe", "größe-1"]
        assert await store.ids("größe", limit=2) == ["a-größe", "b-größe"]
        assert await store.ids("-1") == ["a%_-1", "größe-1"]
        assert (await store.ids("a%"), await store.ids("A"), await store.ids("%")) == (["a%_-1"], [], [])
        with pytest.raises(InvalidValue, match="part="):
            await store.ids("")

    async def test_reading_no_ids_gives_no_jobs(self, store: Store) -> None:
        assert await store.get([]) == []

    async def test_ids_are_compared_exactly(self, store: Store, given: Given) -> None:
        job = await given.waiting(id="Ab é")

        assert await store.get(["Ab é", "ab é", "Ab e\u0301", "Ab é "]) == [job, None, None, None]

    async def test_an_impossible_id_or_worker_name_is_refused(self, store: Store) -> None:
        for name in ("", " ", "\0", "a\0b", "\ud800", "x" * 10_000):
            with pytest.raises(InvalidValue, match=r"^id="):
                await store.get(["fine", name])
            with pytest.raises(InvalidValue, match=r"^worker="):
                await store.cancels(name)

    async def test_thousands_of_jobs_can_be_read_at_once(self, store: Store, given: Given) -> None:
        jobs = [given.new_job() for _ in range(3_000)]
        await requests.insert(store, *jobs)

        stored = await store.get([job.id for job in jobs])

        assert [job.id for job in stored if job] == [job.id for job in jobs]


class JobPages:
    async def test_live_and_finished_jobs_are_listed_together_newest_first(
        self, store: Store, given: Given
    ) -> None:
        jobs = [await given.in_state(state) for state in State]

        page = await store.list(parse("-queue:children"))

        assert page.jobs == tuple(reversed(jobs))
        assert page.cursor is None

    @pytest.mark.parametrize("limit", [1, 2, 3, 4, 5])
    async def test_pages_join_without_gap_or_repeat(self, store: Store, given: Given, limit: int) -> None:
        jobs = [await given.in_state(state) for state in (State.WAITING, State.FAILED) * 2]

        assert await requests.list_jobs(store, page_size=limit) == jobs[::-1]

    async def test_a_page_of_exactly_the_limit_is_the_last(self, store: Store, given: Given) -> None:
        await given.inserted(*(given.new_job() for _ in range(4)))

        assert (await store.list(limit=4)).cursor is None

    async def test_pages_stay_stable_while_jobs_move(self, store: Store, given: Given) -> None:
        first, second, third = [await given.running() for _ in range(3)]
        fourth = await given.completed()
        page = await store.list(limit=2)
        await requests.settle(store, second, CompleteOutcome())
        await requests.settle(store, third, ReleaseOutcome())
        await requests.operate(store, RerunJobs(ids=(fourth.id,)))
        await given.waiting()

        rest = await store.list(cursor=page.cursor, limit=10)

        assert [job.id for job in (*page.jobs, *rest.jobs)] == [fourth.id, third.id, second.id, first.id]

    async def test_a_cursor_continues_its_own_query(self, store: Store, given: Given) -> None:
        matching = [await given.waiting(queue="q"), await given.completed(queue="q")]
        await given.waiting()
        matching.append(await given.waiting(queue="q"))

        assert await requests.list_jobs(store, parse("queue:q"), page_size=1) == matching[::-1]

    async def test_a_cursor_works_with_any_page_size(self, store: Store, given: Given) -> None:
        jobs = [await given.waiting() for _ in range(5)]
        page = await store.list(limit=2)

        assert [job.id for job in (await store.list(cursor=page.cursor, limit=1)).jobs] == [jobs[2].id]

    async def test_a_cursor_of_another_query_is_refused(self, store: Store, given: Given) -> None:
        await given.inserted(*(given.new_job() for _ in range(3)))
        page = await store.list(parse("state:waiting"), limit=1)

        with pytest.raises(InvalidCursor, match="another query"):
            await store.list(parse("state:failed"), page.cursor)

    async def test_a_cursor_of_another_store_is_refused(
        self, store: Store, open_store: MakeStore, clock: FakeClock
    ) -> None:
        other = await open_store(clock, StoreLimits())
        await requests.insert(other, *(Given(other).new_job(id=name) for name in ("a", "b")))
        page = await other.list(limit=1)

        with pytest.raises(InvalidCursor, match="another store"):
            await store.list(cursor=page.cursor)
        with pytest.raises(InvalidCursor, match="another store"):
            await store.events(await other.latest_cursor())

    async def test_an_invalid_limit_is_refused(self, store: Store) -> None:
        invalid: list[Any] = [0, -1, 10_001, 2**70, True, 1.0, None]
        for limit in invalid:
            with pytest.raises(InvalidValue, match="limit"):
                await store.list(limit=limit)
            with pytest.raises(InvalidValue, match="limit"):
                await store.events(limit=limit)


QUERIES: dict[str, dict[str, str]] = {
    "state": {
        "": "abcdefgh",
        "state:blocked": "a",
        "state:scheduled,waiting": "bc",
        "state:claimed,running": "de",
        "-state:blocked,scheduled,waiting,claimed,running": "fgh",
        "state:waiting state:failed": "",
        "reason:timeout": "g",
        "reason:canceled,timeout": "gh",
        "-reason:timeout": "abcdefh",
    },
    "name": {
        "id:c": "c",
        "id:C": "",
        "id~C": "c",
        "-id:a,b,c,d,e,f": "gh",
        "task:send": "ag",
        "task:Send": "",
        "task~EN": "ag",
        "-task~en": "bcdefh",
        "task~%": "d",
        "task~_": "e",
        'task:"it\'s, \\"quoted\\" \\\\ 100%"': "d",
        "queue:bulk": "bf",
        "-id~B,c": "adefgh",
        "queue:default -task:send": "cdeh",
        "-queue:default": "bf",
        "queue~BUL": "bf",
        "-queue~bul": "acdegh",
        "group:g": "c",
        "-group:g": "abdefgh",
        "group~G": "c",
        "-group~G": "abdefgh",
        "worker:w2": "eg",
        "-worker:w2": "abcdfh",
        "worker~W": "defgh",
        "-worker~2": "abcdfh",
    },
    "tag": {
        "tag:red": "ab",
        "tag:red tag:blue": "b",
        "tag:red,blue": "abc",
        "-tag:red": "cdefgh",
        "tag:re": "",
    },
    "text": {
        "error~TIMEOUTERROR": "g",
        'error~"timeouterror: took"': "g",
        "-error~took": "abcdefh",
        "payload~bob": "ab",
        "payload~BOB": "ab",
        "payload~é": "b",
        "payload~É": "",
        "-payload~bob": "cdefgh",
        "result~fine": "f",
        "-result~fine": "abcdegh",
    },
    "number": {
        "priority:5": "c",
        "priority>0": "c",
        "priority>=0": "abcefgh",
        "priority<0": "d",
        "-priority:0": "cd",
        "attempts:1": "defgh",
        "-attempts:1": "abc",
        "attempts<1": "abc",
        "children>0": "a",
        "children:1": "a",
        "children<1": "bcdefgh",
        "-children:1": "bcdefgh",
        "parents<1": "abcdefgh",
        "-parents:1": "abcdefgh",
        "parents:0": "abcdefgh",
        "parents>=1": "",
    },
    "time": {
        "created>100s": "gh",
        "created>=100s": "defgh",
        "created<100s": "abc",
        "created<=100s": "abcdef",
        "since:50s": "gh",
        "until:50s since:100s": "def",
        "finished<1h": "",
        "finished>1h": "fgh",
        "finished>0s": "",
        "due<=0s": "",
        "due>+1h": "b",
        "due<+1000m": "b",
        "expires<=0s": "",
        "expires>+3d": "fgh",
        "expires<=+8d": "fh",
    },
    "all at once": {
        "state:failed task~end error~took priority<=0 attempts>=1": "g",
        "state:failed task~end error~took priority<=0 attempts>=2": "",
    },
}
"""For each kind of term: queries, and the ids of the jobs of `_insert_sample_jobs` that they find."""


class JobQueries:
    @pytest.mark.parametrize("kind", list(QUERIES))
    async def test_a_query_finds_the_matching_jobs(
        self, store: Store, clock: FakeClock, given: Given, kind: str
    ) -> None:
        await _insert_sample_jobs(clock, given)
        ids_by_query = {}
        for text in QUERIES[kind]:
            jobs = await requests.list_jobs(store, parse(text), page_size=3)
            ids_by_query[text] = "".join(sorted(job.id for job in jobs if job.queue != "children"))

        assert ids_by_query == QUERIES[kind]

    async def test_every_term_of_the_query_language_has_a_case(self) -> None:
        tried = [parse(text).params(0.0) for queries in QUERIES.values() for text in queries]

        assert {name for params in tried for name, value in params.items() if value is not None} == set(
            PARAMS
        )


async def _insert_sample_jobs(clock: FakeClock, given: Given) -> None:
    await given.blocked(id="a", task="send", tags=("red",), payload='{"to": "bob"}')
    await given.scheduled(
        id="b", task="plan", delay=7_200.0, queue="bulk", tags=("red", "blue"), payload='["Bob", "é"]'
    )
    await given.waiting(id="c", task="wait", group="g", priority=5, tags=("blue",))
    clock.advance(50)
    await given.claimed("w1", 600.0, id="d", task='it\'s, "quoted" \\ 100%', priority=-5)
    await given.running("w2", 600.0, id="e", task="a_b")
    await given.completed('"FINE"', id="f", task="plan", queue="bulk", worker="w1")
    clock.advance(75)
    boom = Failure(Reason.TIMEOUT, "TimeoutError", "took too long")
    await given.settled(FailOutcome(boom), id="g", task="send", worker="w2")
    await given.canceled(id="h", task="stop", worker="w3")
    clock.advance(25)


class JobCounts:
    async def test_jobs_are_counted_by_queue_and_state(self, store: Store, given: Given) -> None:
        for state in State:
            await given.in_state(state, queue="one")
        await given.waiting(queue="two")

        assert await store.counts() == {
            "one": {str(state): 1 for state in State},
            "two": {"waiting": 1},
            "children": {"running": 1},
        }

    async def test_totals_count_every_insert_outcome_removal_and_expiry(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        for outcome in (CompleteOutcome(), CompleteOutcome(), FailOutcome()):
            await given.settled(outcome)
        await given.canceled()
        await given.removed()
        job = await given.running(lease=30.0)
        clock.advance(30)
        await requests.run_upkeep(store)
        await given.claim(job)

        assert await store.totals() == {
            "default": {"inserted": 6, "completed": 2, "failed": 1, "canceled": 1, "removed": 1, "expired": 1}
        }

    async def test_a_retry_counts_as_retried_only_if_the_job_runs_again(
        self, store: Store, given: Given
    ) -> None:
        await given.settled(RetryOutcome())
        await given.settled(RetryOutcome(), max_attempts=1)

        assert await store.totals() == {"default": {"inserted": 2, "retried": 1, "failed": 1}}

    async def test_queues_report_their_states_and_the_waiting_time_of_the_next_job(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        await given.scheduled(queue="a", task="t1", delay=10.0)
        await given.running(queue="b")
        clock.advance(10)
        await requests.run_upkeep(store)
        clock.advance(10)
        await given.waiting(queue="a", task="t2")
        clock.advance(5)

        queues = await store.queues()

        assert [(info.name, info.states, info.waited, info.paused) for info in queues] == [
            ("a", {"waiting": 2}, 15.0, None),
            ("b", {"running": 1}, None, None),
        ]

    async def test_held_lists_claimed_and_running_jobs_by_the_end_of_their_leases(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        await given.waiting()
        await given.scheduled(delay=5.0)
        await given.completed()
        later, sooner = await given.running(lease=60.0), await given.claimed(lease=30.0)
        clock.advance(40)

        assert await store.held() == [sooner, later]
        assert await store.held(limit=1) == [sooner]

    async def test_an_emptied_queue_is_still_listed(self, store: Store, given: Given) -> None:
        await given.removed(queue="q")

        assert [(info.name, dict(info.states)) for info in await store.queues()] == [("q", {})]

    async def test_the_next_due_time_is_that_of_the_earliest_scheduled_job(
        self, store: Store, clock: FakeClock, given: Given
    ) -> None:
        assert await store.due_in() is None
        await given.waiting()
        assert await store.due_in() is None
        await given.scheduled(delay=90.0)
        await given.scheduled(delay=60.0)
        clock.advance(20)
        assert await store.due_in() == 40.0
        clock.advance(50)
        assert await store.due_in() == 0.0
        await requests.run_upkeep(store)

        assert await store.due_in() == 20.0


class WorkerBeats:
    async def test_a_worker_is_listed_with_its_last_beat(self, store: Store, clock: FakeClock) -> None:
        await requests.send(store, Beat(worker="b", started_at=1.5))
        clock.advance(10)
        beat = Beat(
            worker="b",
            host="höst",
            pid=7,
            alive="/run/a worker/b.lock",
            queues=("q1", "q2"),
            tasks=("t",),
            concurrency=100,
            running=3,
            started_at=1.5,
            draining=True,
            blocked_by="task t (job 7)",
        )
        await requests.send(store, beat)
        await requests.send(store, Beat(worker="a"))

        workers = await store.workers()

        assert [info.beat for info in workers] == [Beat(worker="a"), beat]
        assert [info.seen_at for info in workers] == [clock.time()] * 2

    async def test_a_worker_that_says_goodbye_is_no_longer_listed(self, store: Store) -> None:
        await requests.send(store, Beat(worker="a"))
        await requests.send(store, Beat(worker="b"))
        await requests.send(store, Beat(worker="a", gone=True))
        await requests.send(store, Beat(worker="never seen", gone=True))

        assert [info.beat.worker for info in await store.workers()] == ["b"]

    async def test_a_worker_that_says_goodbye_keeps_its_jobs_until_their_leases_end(
        self, store: Store, given: Given
    ) -> None:
        job = await given.running("a")
        await requests.send(store, Beat(worker="a", gone=True))

        assert await requests.current_job(store, job) == job
