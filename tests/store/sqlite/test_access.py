"""Which paths an SQLite store accepts, and which users may use its files."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from errandry.errors import (
    ErrandryError,
    InvalidValue,
    StoreRefused,
)
from errandry.store.sqlite import file
from errandry.store.sqlite.driver import SqliteStore
from errandry.store.sqlite.read_only import ReadOnlyFile
from errandry.testing.conformance import requests
from tests.store.sqlite.processes import run_program
from tests.store.sqlite.stores import (
    SIDES,
    file_contents,
    job_ids,
    new_job,
    open_error,
    open_store,
)


def file_modes(path: Path) -> set[int]:
    return {os.stat(f"{path}{side}").st_mode & 0o777 for side in SIDES}


class TestMode:
    @pytest.mark.parametrize("umask", [0o000, 0o022, 0o377])
    async def test_only_the_owner_may_use_new_files(self, path: Path, umask: int) -> None:
        before = os.umask(umask)
        try:
            async with open_store(path) as store:
                await requests.insert(store, new_job("a"))
                modes = file_modes(path)
        finally:
            os.umask(before)

        assert modes == {0o600}

    @pytest.mark.parametrize("mode", [0o600, 0o640, 0o666])
    async def test_an_existing_file_keeps_its_mode_and_the_other_files_follow_it(
        self, path: Path, mode: int
    ) -> None:
        path.touch()
        path.chmod(mode)

        async with open_store(path) as store:
            await requests.insert(store, new_job("a"))
            modes = file_modes(path)

        assert modes == {mode}

    async def test_the_other_files_follow_a_changed_mode(self, path: Path) -> None:
        async with open_store(path):
            pass
        path.chmod(0o660)

        async with open_store(path):
            modes = file_modes(path)

        assert modes == {0o660}


class TestPath:
    @pytest.mark.parametrize(
        ("name", "kind", "advice"),
        [
            ("missing/jobs.db", StoreRefused, "the folder does not exist: create it first"),
            ("file/jobs.db", StoreRefused, "Not a directory"),
            ("folder", StoreRefused, "is not a file: give the path"),
            ("link", StoreRefused, "is not a file: give the path"),
            ("pipe", StoreRefused, "is not a file: give the path"),
            ("nul\0", InvalidValue, "it contains a NUL character"),
            ("surrogate\udcff", InvalidValue, "surrogates not allowed"),
            ("x" * 300, StoreRefused, "name too long"),
        ],
        ids=lambda value: str(value)[:20].replace("\0", "0"),
    )
    async def test_a_path_that_cannot_be_a_file_is_refused(
        self, tmp_path: Path, name: str, kind: type[ErrandryError], advice: str
    ) -> None:
        (tmp_path / "file").write_text("not a folder")
        (tmp_path / "folder").mkdir()
        (tmp_path / "link").symlink_to("nowhere")
        os.mkfifo(tmp_path / "pipe")
        before = sorted(os.listdir(tmp_path))

        error = await open_error(f"{tmp_path}/{name}")

        assert type(error) is kind
        assert advice in str(error)
        assert f"{tmp_path}/{name}" in error.args
        assert sorted(os.listdir(tmp_path)) == before

    async def test_a_file_name_may_look_like_a_url(self, tmp_path: Path) -> None:
        path = tmp_path / "file:jobs #1.db?mode=ro&x=%20"

        async with open_store(path) as store:
            await requests.insert(store, new_job("a"))

        assert path.stat().st_size > 0

    async def test_a_relative_path_does_not_follow_the_working_directory(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path)
        store = SqliteStore("jobs.db")
        monkeypatch.chdir(tmp_path / "elsewhere")

        await store.open()
        await store.close()

        assert (tmp_path / "jobs.db").exists()

    async def test_a_link_leads_to_the_same_store(self, tmp_path: Path, path: Path) -> None:
        link = tmp_path / "link.db"
        async with open_store(path) as store:
            link.symlink_to(path)
            async with open_store(link) as same:
                await requests.insert(same, new_job("a"))
                assert await job_ids(store) == {"a"}
                assert {file.name for file in tmp_path.iterdir()} == {
                    "link.db",
                    *(f"jobs.db{side}" for side in SIDES),
                }

    @pytest.mark.slow("starts another program")
    @pytest.mark.parametrize("name", ["new", "in a closed folder", "read-only", "secret"])
    async def test_a_user_without_write_permission_gets_an_error_that_says_so(self, name: str) -> None:
        with tempfile.TemporaryDirectory() as folder:
            os.chmod(folder, 0o755)
            path = Path(folder) / "jobs.db"
            if name != "new":
                async with open_store(path) as store:
                    await requests.insert(store, new_job("a"))
                for side in ("", "-next", "-turn"):
                    os.chmod(f"{path}{side}", {"read-only": 0o444, "secret": 0o000}.get(name, 0o666))
            os.chmod(folder, 0o777 if name in {"read-only", "secret"} else 0o555)
            before = file_contents(Path(folder)) if name != "secret" or os.geteuid() == 0 else {}

            kind, message = run_program("open_as_other_user", path)

            assert kind == "StoreRefused"
            assert str(path) in message
            assert "owner and mode" in message
            assert not before or file_contents(Path(folder)) == before


@pytest.mark.slow("starts another program")
class TestReadOnly:
    """A file that the user can read and cannot write: the command line lists it and writes nothing."""

    @pytest.fixture
    def folder(self) -> Iterator[Path]:
        with tempfile.TemporaryDirectory() as folder:
            os.chmod(folder, 0o755)
            (Path(folder) / "jobs.db").touch(0o644)
            yield Path(folder)
            os.chmod(folder, 0o755)

    @pytest.mark.parametrize("folder_mode", [0o555, 0o777], ids=["closed folder", "open folder"])
    async def test_a_store_that_no_program_uses_is_listed(self, folder: Path, folder_mode: int) -> None:
        path = folder / "jobs.db"
        async with open_store(path) as store:
            await requests.insert(store, new_job("a"))
        protect(folder, folder_mode)
        before = file_contents(folder)

        codes, out, err = run_program("list_as_other_user", path)

        assert (codes, "a " in out) == ([0, 78], True), err
        assert f"{path}: cannot be written by this user" in err
        assert file_contents(folder) == before

    @pytest.mark.parametrize("folder_mode", [0o555, 0o777], ids=["closed folder", "open folder"])
    async def test_a_store_in_use_is_listed_with_its_log(self, folder: Path, folder_mode: int) -> None:
        path = folder / "jobs.db"
        async with open_store(path) as store:
            await requests.insert(store, new_job("in-the-log"))
            protect(folder, folder_mode)
            codes, out, err = run_program("list_as_other_user", path)
            protect(folder, 0o755, 0o644)

            assert (codes, "in-the-log" in out) == ([0, 78], True), err
            await requests.insert(store, new_job("later"))
            assert await job_ids(store) == {"in-the-log", "later"}

    async def test_the_log_of_a_killed_program_is_read(self, folder: Path) -> None:
        path, copy = folder / "jobs.db", folder / "copy"
        copy.mkdir(mode=0o755)
        async with open_store(path) as store:
            await requests.insert(store, new_job("in-the-log"))
            for side in ("", "-wal", "-shm"):
                shutil.copy(f"{path}{side}", copy)
        protect(copy, 0o555)

        codes, out, err = run_program("list_as_other_user", copy / "jobs.db")

        assert (codes, "in-the-log" in out) == ([0, 78], True), err

    async def test_a_log_that_cannot_be_read_is_not_ignored(self, folder: Path) -> None:
        path, copy = folder / "jobs.db", folder / "copy"
        copy.mkdir(mode=0o755)
        async with open_store(path) as store:
            await requests.insert(store, new_job("in-the-log"))
            for side in ("", "-wal"):
                shutil.copy(f"{path}{side}", copy)
        protect(copy, 0o555)

        codes, _, err = run_program("list_as_other_user", copy / "jobs.db")

        assert codes == [78, 78]
        assert "its write-ahead log cannot be read without write permission" in err

    async def test_a_file_that_cannot_be_read_is_refused(self, folder: Path) -> None:
        path = folder / "jobs.db"
        async with open_store(path):
            pass
        os.chmod(path, 0o000)

        codes, _, err = run_program("list_as_other_user", path)

        assert codes == [78, 78]
        assert "owner and mode" in err


class TestReadOnlyFile:
    async def test_an_older_schema_is_refused(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        async with open_store(path):
            pass
        number, *_ = file._MIGRATIONS[-1]
        monkeypatch.setattr(file, "_MIGRATIONS", [*file._MIGRATIONS, (number + 1, "more", "SELECT 1")])

        with pytest.raises(StoreRefused, match="its schema is older than this Errandry"):
            ReadOnlyFile(str(path))

    async def test_a_read_is_repeated_if_another_program_wrote_meanwhile(self, path: Path) -> None:
        async with open_store(path) as store:
            await requests.insert(store, new_job("a"))
        counts = list[int]()

        def count_jobs(db: apsw.Connection) -> int:
            [(count,)] = db.execute("SELECT count(*) FROM live")
            counts.append(count)
            if len(counts) == 1:
                writer = apsw.Connection(str(path))
                writer.execute("DELETE FROM live")
                writer.close()
            return int(count)

        reader = ReadOnlyFile(str(path))

        assert reader.read(count_jobs) == 0
        assert counts == [1, 0]


def protect(folder: Path, folder_mode: int, file_mode: int = 0o444) -> None:
    for name in folder.iterdir():
        if name.is_file():
            name.chmod(file_mode)
    folder.chmod(folder_mode)
