"""Measure the SQLite store as ratios to raw SQLite in the same run; both survive a power cut.

    python -m bench.store            all parts, about two minutes
    python -m bench.store life       one part: life, enqueue, bulk, neighbors, claim

Raw SQLite and the store take turns in small rounds, so that a noisy machine affects both equally.
"""

import asyncio
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import apsw

from errandry.core.answer import WRITTEN, Claims
from errandry.core.command import Claim, CompleteOutcome, Insert, Ref, Settle
from errandry.core.job import NewJob, uuid7
from errandry.store.engine.engine import Engine
from errandry.store.sqlite.driver import SqliteStore

PASS_SIZE = 100
REFERENCE_RATE = 122_000
"""Raw jobs per second of the machine on which the targets in jobs per second were set."""
_nonces = (f"n{number}" for number in count())


def new_job(number: int) -> NewJob:
    return NewJob(id=uuid7(time.time(), os.urandom(10)), task="noop", payload=f'{{"i":{number}}}')


def time_raw_jobs(db: apsw.Connection, jobs: int) -> float:
    """Seconds to insert, claim and delete rows in plain SQL, in transactions of 100."""
    took = 0.0
    for _ in range(0, jobs, PASS_SIZE):
        rows = [(f'{{"i":{number}}}',) for number in range(PASS_SIZE)]
        start = time.perf_counter()
        with db:
            db.executemany("INSERT INTO job (state, payload) VALUES ('waiting', ?)", rows)
        with db:
            taken = db.execute(
                "UPDATE job SET state = 'running', claimed_at = ? WHERE seq IN "
                "(SELECT seq FROM job WHERE state = 'waiting' ORDER BY seq LIMIT ?) RETURNING seq, payload",
                (1.0, PASS_SIZE),
            ).fetchall()
        with db:
            db.executemany("DELETE FROM job WHERE seq = ?", [(seq,) for seq, _ in taken])
        took += time.perf_counter() - start
    return took


def open_raw_database(path: Path) -> apsw.Connection:
    db = apsw.Connection(str(path))
    db.pragma("journal_mode", "wal")
    db.pragma("synchronous", "full")
    db.execute("CREATE TABLE job (seq INTEGER PRIMARY KEY, state TEXT, payload TEXT, claimed_at REAL)")
    db.execute("CREATE INDEX ready ON job (seq) WHERE state = 'waiting'")
    return db


async def time_our_jobs(store: SqliteStore, jobs: int) -> float:
    """Seconds for the same with the store: fences, leases, results, history, events and totals."""
    took = 0.0
    for _ in range(0, jobs, PASS_SIZE):
        inserts = [Insert((new_job(number),)) for number in range(PASS_SIZE)]
        start = time.perf_counter()
        await store.commit(inserts)
        [claims] = await store.commit([Claim(worker="w", nonce=next(_nonces), limit=PASS_SIZE)])
        took += time.perf_counter() - start
        if not isinstance(claims, Claims) or len(claims.jobs) != PASS_SIZE:
            raise RuntimeError(f"claimed {claims}")
        settles = [Settle(Ref(job.id, job.fence), CompleteOutcome('{"ok":true}')) for job in claims.jobs]
        start = time.perf_counter()
        answers = await store.commit(settles)
        took += time.perf_counter() - start
        if answers != [WRITTEN] * PASS_SIZE:
            raise RuntimeError(f"settled {answers}")
    return took


async def life(folder: Path, jobs: int = 20_000, rounds: int = 20) -> None:
    db, store = open_raw_database(folder / "raw.db"), SqliteStore(folder / "ours.db")
    await store.open()
    each = jobs // rounds
    raws, ours = [], []
    for _ in range(rounds):
        raws.append(time_raw_jobs(db, each))
        ours.append(await time_our_jobs(store, each))
    await store.close()
    db.close()
    ratio = statistics.median(raw / our for raw, our in zip(raws, ours, strict=True))
    report("whole life, raw", jobs / sum(raws), "jobs/s")
    report("whole life, Errandry", jobs / sum(ours), "jobs/s")
    report("  ratio (at least 0.25)", ratio, "of raw")


@contextmanager
def compare_with_raw(folder: Path, what: str, jobs: int, bar: int) -> Iterator[None]:
    """Print the rate of the block, and its ratio to raw SQLite before and after it."""
    db = open_raw_database(folder / "beside.db")
    raw = time_raw_jobs(db, 2_000)
    start = time.perf_counter()
    yield
    rate = jobs / (time.perf_counter() - start)
    raw += time_raw_jobs(db, 2_000)
    db.close()
    report(what, rate, f"jobs/s (at least {bar:,} where raw is {REFERENCE_RATE:,})")
    report(
        f"  ratio (at least {bar / REFERENCE_RATE:.2f})", rate / (4_000 / raw), f"of raw ({4_000 / raw:,.0f})"
    )


async def enqueue(folder: Path, jobs: int = 20_000, callers: int = 100) -> None:
    engine = Engine(SqliteStore(folder / "enqueue.db"))
    await engine.start()
    numbers = iter(range(jobs))

    async def caller() -> None:
        for number in numbers:
            await engine.submit(Insert((new_job(number),)))

    with compare_with_raw(folder, f"{callers} coroutines, single inserts", jobs, bar=20_000):
        await asyncio.gather(*(caller() for _ in range(callers)))
    await engine.stop()


async def bulk(folder: Path, jobs: int = 100_000, size: int = 1_000) -> None:
    engine = Engine(SqliteStore(folder / "bulk.db"))
    await engine.start()
    batches = [Insert(tuple(new_job(number) for number in range(size))) for _ in range(jobs // size)]
    with compare_with_raw(folder, "bulk inserts", jobs, bar=80_000):
        for batch in batches:
            await engine.submit(batch)
    await engine.stop()


def _insert_until(path: str, ready: Callable[[], None], stop: Callable[[], bool]) -> None:
    async def main() -> None:
        store = SqliteStore(path)
        await store.open()
        ready()
        while not stop():
            await store.commit([Insert((new_job(number),)) for number in range(PASS_SIZE)])
        await store.close()

    asyncio.run(main())


async def neighbors(folder: Path, commits: int = 200) -> None:
    path = str(folder / "neighbors.db")
    store = SqliteStore(path)
    await store.open()
    context = multiprocessing.get_context("spawn")
    ready, stop = context.Event(), context.Event()
    busy = context.Process(target=_insert_until, args=(path, ready.set, stop.is_set))
    busy.start()
    ready.wait()
    waits = []
    for number in range(commits):
        await asyncio.sleep(0.02)
        start = time.perf_counter()
        await store.commit([Insert((new_job(number),))])
        waits.append(time.perf_counter() - start)
    stop.set()
    busy.join()
    await store.close()
    waits.sort()
    report("light producer beside a busy one, p50", waits[len(waits) // 2] * 1e3, "ms")
    report("  p99 (at most 25)", waits[int(len(waits) * 0.99)] * 1e3, "ms")


def insert_rows(db: apsw.Connection, waiting: int, history: int) -> None:
    """Insert rows directly into the tables. The store's counters do not include them; a claim needs none."""
    columns = [row[1] for row in db.execute("PRAGMA table_info(history)")]
    given = {
        "seq": "n",
        "id": "'f' || n",
        "task": "'noop'",
        "queue": "'default'",
        "grp": "''",
        "lifo": "0",
        "payload": "'{}'",
        "priority": "0",
        "attempts": "0",
        "max_attempts": "5",
        "releases": "0",
        "crashes": "0",
        "max_crashes": "3",
        "open_children": "0",
        "children": "0",
        "parents": "0",
        "fence": "0",
        "cancel_requested": "0",
        "created_at": "1",
        "updated_at": "1",
    }
    live = given | {"state": "'waiting'", "place": "n", "lane": "(SELECT lane FROM lanes)"}
    done = given | {"state": "'completed'", "finished_at": "1", "expires_at": "4e9"}
    for table, amount, start, values, names in (
        ("live", waiting, 1_000_000, live, [*columns, "lane"]),
        ("history", history, 100_000_000, done, columns),
    ):
        chosen = ", ".join(values.get(name, "NULL") for name in names)
        with db:
            db.execute(
                f"WITH RECURSIVE n(n) AS (VALUES ({start}) UNION ALL SELECT n + 1 FROM n LIMIT {amount}) "
                f"INSERT INTO {table} ({', '.join(names)}) SELECT {chosen} FROM n"
            )


async def pages_per_claim(path: Path, waiting: int, history: int, claims: int = 50) -> float:
    """The mean number of pages that SQLite reads for a claim of ten jobs."""
    store = SqliteStore(path, durability="process")
    await store.open()
    await store.commit([Insert((new_job(0),))])
    writer = store.writer
    insert_rows(writer, waiting, history)
    pages = []
    for _ in range(claims):
        before = _pages_read(writer)
        await store.commit([Claim(worker="w", nonce=next(_nonces), limit=10)])
        pages.append(_pages_read(writer) - before)
    await store.close()
    return statistics.mean(pages)


def _pages_read(db: apsw.Connection) -> int:
    return sum(
        db.status(kind)[0] for kind in (apsw.SQLITE_DBSTATUS_CACHE_HIT, apsw.SQLITE_DBSTATUS_CACHE_MISS)
    )


async def claim(folder: Path, large: int = 1_000_000) -> None:
    few = await pages_per_claim(folder / "few.db", 1_000, 0)
    many = await pages_per_claim(folder / "many.db", large, 0)
    old = await pages_per_claim(folder / "old.db", 1_000, large)
    report("pages per claim of ten, 1k waiting", few, "pages")
    report(f"  {large:,} waiting (at most 1.5)", many / few, "times that")
    report(f"  {large:,} finished (at most 1.5)", old / few, "times that")


def report(what: str, value: float, unit: str) -> None:
    print(f"{what:<52} {value:>12,.2f} {unit}", flush=True)


PARTS: dict[str, Callable[[Path], Coroutine[None, None, None]]] = {
    "life": life,
    "enqueue": enqueue,
    "bulk": bulk,
    "neighbors": neighbors,
    "claim": claim,
}


def _selected_parts(names: list[str]) -> Iterator[str]:
    for name in names or PARTS:
        if name not in PARTS:
            sys.exit(f"there is no part {name!r}: choose from {', '.join(PARTS)}")
        yield name


def main() -> None:
    for name in list(_selected_parts(sys.argv[1:])):
        with tempfile.TemporaryDirectory(prefix="errandry-bench-", dir=".") as folder:
            asyncio.run(PARTS[name](Path(folder)))


if __name__ == "__main__":
    main()
