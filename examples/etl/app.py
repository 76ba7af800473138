"""Extract, transform, load: one day per job, from a service that is often busy into a table."""

import json
import os
import sqlite3
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from urllib.error import HTTPError

from errandry import Backoff, Errandry, Fail, JobContext, Retry

SOURCE = os.environ.get("SOURCE", "http://127.0.0.1:8765")

jobs = Errandry("sqlite:///etl.db")


@jobs.task(queue="extract", max_attempts=10, backoff=Backoff(start=0.2), timeout="1 minute")
def extract(ctx: JobContext, day: str) -> int:
    """Fetch the sales of a day, enqueue a job that loads them, and return their number."""
    try:
        with urllib.request.urlopen(f"{SOURCE}/sales/{day}", timeout=10) as answer:
            sales = json.load(answer)
    except HTTPError as error:
        if error.code == 404:
            raise Fail(f"there is no day {day}") from error
        wait = error.headers.get("Retry-After")
        raise Retry(f"{SOURCE} answered {error.code}", after=wait) from error
    ctx.progress(0.5, f"{len(sales)} sales fetched")
    # With this id, a second run of this job adds no second job.
    load.using(id=f"load-{ctx.id}").sync.enqueue(day=day, totals=total_by_item(sales))
    return len(sales)


@jobs.task(queue="load", timeout="1 minute")
def load(ctx: JobContext, day: str, totals: dict[str, int]) -> None:
    """Write the totals of a day to the table, replacing older ones."""
    with warehouse() as db:
        db.executemany(
            "INSERT INTO sales VALUES (:day, :item, :total, :fence) ON CONFLICT (day, item) DO UPDATE"
            " SET total = :total, fence = :fence WHERE sales.fence <= :fence",
            [
                {"day": day, "item": item, "total": total, "fence": ctx.fence}
                for item, total in totals.items()
            ],
        )


def total_by_item(sales: list[dict[str, object]]) -> dict[str, int]:
    """The total of each item."""
    totals: dict[str, int] = {}
    for sale in sales:
        item, count = str(sale["item"]).lower(), int(str(sale["count"]))
        totals[item] = totals.get(item, 0) + count
    return totals


@contextmanager
def warehouse() -> Iterator[sqlite3.Connection]:
    """Open the database with its table, in a transaction."""
    with closing(sqlite3.connect("warehouse.db", timeout=30)) as db, db:
        db.execute(
            "CREATE TABLE IF NOT EXISTS sales"
            " (day TEXT, item TEXT, total INT, fence BIGINT, PRIMARY KEY (day, item))"
        )
        yield db


def main(days: list[str]) -> None:
    enqueued = jobs.sync.enqueue_many([extract.new(day=day) for day in days])
    for day, job in zip(days, enqueued, strict=True):
        job.wait(timeout=60)
        if job.state == "completed":
            jobs.sync.get(f"load-{job.id}").wait(timeout=60)
        print(day, job.state, "after", job.attempts)
    with warehouse() as db:
        for row in db.execute("SELECT day, item, total FROM sales ORDER BY day, item"):
            print(*row)


if __name__ == "__main__":
    main(sys.argv[1:])
