"""The sample of the guide that guards a write on PostgreSQL by a fence runs there as it is written."""

from collections.abc import Iterator
from types import ModuleType

import psycopg
import pytest
from psycopg import sql

from errandry import Errandry
from tests.docs_page import blocks
from tests.run_worker import run_burst
from tests.store.server import server
from tools.docs import DOCS

SCHEMA = "fence_sample"


@pytest.fixture
def shop() -> Iterator[str]:
    """The URL of a database with an empty schema for the tables of the sample."""
    with psycopg.connect(server().url(), autocommit=True) as db:
        schema = sql.Identifier(SCHEMA)
        db.execute(sql.SQL("CREATE SCHEMA {}").format(schema))
        try:
            yield psycopg.conninfo.make_conninfo(server().url(), options=f"-csearch_path={SCHEMA}")
        finally:
            db.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(schema))


def sample(store: str, shop: str) -> ModuleType:
    """The program of the guide, with these addresses in it."""
    page = (DOCS / "guide/fences.md").read_text("utf-8")
    [text] = [block.text for block in blocks(page) if block.skip_reason == "needs a server"]
    address = '"postgresql://localhost/shop"'
    assert text.count(address) == 2
    text = text.replace(f"Errandry({address})", f"Errandry({store!r})").replace(address, repr(shop))
    module = ModuleType("fence_sample")
    exec(compile(text, f"{module.__name__}.py", "exec"), vars(module))
    return module


async def test_the_sample_of_the_guide_stores_fences_on_postgresql(shop: str) -> None:
    with server().lend_url() as url, psycopg.connect(shop, autocommit=True) as db:
        program = sample(url, shop)
        jobs: Errandry = program.jobs
        async with jobs:
            first = await program.recount.enqueue(item="apples", count=7)
            await run_burst(jobs)
            again = await program.recount.enqueue(item="apples", count=8)
            await run_burst(jobs)
            await again.refresh()

            assert (await first.result(timeout=30), await again.result(timeout=30)) == (True, True)
            rows = db.execute("SELECT item, count, fence FROM stock").fetchall()
            assert rows == [("apples", 8, again.fence)]

            db.execute("UPDATE stock SET count = 9, fence = %s", (again.fence + 2**40,))
            late = await program.recount.enqueue(item="apples", count=1)
            await run_burst(jobs)

            assert await late.result(timeout=30) is False
            assert db.execute("SELECT count FROM stock").fetchall() == [(9,)]
