"""A bulk deletion is killed halfway and repeated: no job is lost or counted twice."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from errandry import Errandry
from errandry.core.job import Keep, NewJob
from tests.store.server import server

pytestmark = [pytest.mark.slow("kills programs"), pytest.mark.timeout(120)]

JOBS, SLICES = 5_000, 3
APP = """
import os
from pathlib import Path
from errandry import Errandry

jobs = Errandry(os.environ["STORE"])


@jobs.archive
def archive(records):
    with Path(os.environ["ARCHIVE"]).open("a") as file:
        file.write("".join(f"{record.id}\\n" for record in records))
        file.flush()
        if Path(os.environ["BOMB"]).exists():
            os.unlink(os.environ["BOMB"])
            os._exit(9)
"""


def url_of(kind: str, folder: Path) -> str:
    return f"sqlite:///{folder}/jobs.db" if kind == "sqlite" else server().new_url()


def start(folder: Path, url: str, *words: str, **environment: str) -> "subprocess.Popen[bytes]":
    variables = {
        **os.environ,
        "STORE": url,
        "ERRANDRY_URL": url,
        "TMPDIR": str(folder),
        "ARCHIVE": str(folder / "archive"),
        "BOMB": str(folder / "bomb"),
        **environment,
    }
    command = [sys.executable, "-m", "errandry", *words]
    output = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.Popen(command, cwd=folder, env=variables, **output)  # type: ignore[call-overload,no-any-return]


async def fill(app: Errandry, count: int, **fields: object) -> None:
    jobs = [NewJob(id=f"job-{n}", task="t", payload="{}", queue="mail", **fields) for n in range(count)]  # type: ignore[arg-type]
    await app.client.insert(jobs)


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
@pytest.mark.parametrize("action", ["purge", "obliterate", "move"])
async def test_a_bulk_action_that_is_killed_can_be_repeated(tmp_path: Path, kind: str, action: str) -> None:
    url = url_of(kind, tmp_path)
    words = ["queues", action, "mail", *(["slow"] if action == "move" else []), "--yes"]
    async with Errandry(url) as app:
        await fill(app, JOBS)
        killed = start(tmp_path, url, *words, ERRANDRY_FAILPOINT=f"after_operator_commit:{SLICES}")
        assert await asyncio.to_thread(killed.wait) == -signal.SIGKILL
        left = (await app.counts())["mail"]["waiting"]
        assert 0 < left < JOBS

        repeated = start(tmp_path, url, *words)

        assert await asyncio.to_thread(repeated.wait) == 0
        counts, totals = await app.counts(), (await app.totals())["mail"]
        assert counts["mail"] == {}
        assert totals.get("removed", 0) + totals.get("moved_out", 0) == JOBS
        assert counts.get("slow", {"waiting": 0})["waiting"] == (JOBS if action == "move" else 0)
        assert await app.rules() == []


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_jobs_are_archived_before_deletion_even_if_a_worker_dies(tmp_path: Path, kind: str) -> None:
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "bomb").touch()
    url = url_of(kind, tmp_path)
    async with Errandry(url) as app:
        await fill(app, 1_200, keep=Keep(completed=0.01))
        await app.resolve(query="")
        head = await app.latest_cursor()

        first = start(tmp_path, url, "worker", "app:jobs")
        assert await asyncio.to_thread(first.wait) == 9
        assert len((await app.list(limit=5_000)).jobs) == 1_200
        second = start(tmp_path, url, "worker", "app:jobs")
        try:
            removed: set[str] = set()
            async for event in app.events(after=head, kind="removed"):
                removed.add(event.job)
                if len(removed) == 1_200:
                    break
        finally:
            second.kill()
            second.wait()

        archived = (tmp_path / "archive").read_text().split()
        assert set(archived) == removed
        assert len(archived) == 1_200 + 500  # the first batch twice
        assert (await app.totals())["mail"]["removed"] == 1_200
