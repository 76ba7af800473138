"""An app with handlers in child processes, which import it from here."""

import asyncio
import ctypes
import logging
import os
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from errandry import Cancel, Errandry, Fail, JobContext, Retry, Snooze
from errandry.api.app import CallNext
from errandry.codec.json_codec import DocumentInfo
from errandry.errors import ProcessDied


class HexCodec:
    """A codec that only the worker must use: a handler could not read the documents that it seals."""

    def seal(self, text: str, document: DocumentInfo) -> str:
        return f'"{text.encode().hex()}"'

    def unseal(self, text: str, document: DocumentInfo) -> str:
        return bytes.fromhex(text.strip('"')).decode()


jobs = Errandry("memory:", codec=HexCodec())
log = logging.getLogger("apart")
called_jobs: list[str] = []
hoard: list[bytes] = []


@jobs.middleware
async def count_calls(ctx: JobContext, call_next: CallNext) -> Any:
    called_jobs.append(ctx.id)
    return await call_next(ctx)


@jobs.task(runner="process")
def process_info(ctx: JobContext) -> dict[str, Any]:
    return {
        "pid": os.getpid(),
        "parent": os.getppid(),
        "is_main": threading.current_thread() is threading.main_thread(),
        "ran_before": len(called_jobs),
        "job": [ctx.id, ctx.attempt, ctx.fence],
        "descriptors": sorted(int(name) for name in os.listdir("/proc/self/fd")),
        "environment": sorted(name for name in os.environ if name.startswith("ERRANDRY")),
        "modules": sorted(name for name in sys.modules if name.startswith("errandry.store.")),
    }


@jobs.task(runner="process")
def spawns_a_child(ctx: JobContext) -> None:
    ctx.spawn(runs_a_loop.new())


@jobs.task(runner="process")
def runs_a_loop() -> int:
    return asyncio.run(_seven())


async def _seven() -> int:
    await asyncio.sleep(0)
    return 7


@jobs.task(runner="process")
def suspends_or_returns(ctx: JobContext, way: str) -> str | type[Cancel]:
    try:
        if way == "sleep":
            ctx.sleep(0.01)
            return "slept"
    except Exception:
        return "swallowed"
    return Cancel


@jobs.task(runner="process")
async def add(one: int, other: int) -> int:
    await asyncio.sleep(0)
    return one + other


@jobs.task(runner="process")
def writes_notes(ctx: JobContext, times: int) -> None:
    log.warning("at work")
    ctx.progress(0.5, "half \udce4 way")
    for number in range(times):
        ctx.log(f"line {number}")


@jobs.task(runner="process")
def logs_at_a_number(ctx: JobContext) -> None:
    ctx.log("on it", logging.WARNING)


@jobs.task(runner="process", backoff=0.01)
def ends(ctx: JobContext, how: str) -> str:
    """End in the given way at the first attempt, and complete at the second."""
    if ctx.attempt == 1:
        _end(how)
    return how


@jobs.task(runner="process", max_attempts=1)
def ends_for_good(ctx: JobContext, how: str) -> None:
    ctx.log("just before the end")
    _end(how)


@jobs.task(runner="process", backoff=0.01)
def writes_to_sockets(ctx: JobContext, text: bytes) -> str:
    """Write to every socket of the process in the first attempt, and go on."""
    if ctx.attempt == 1:
        for name in os.listdir("/proc/self/fd"):
            with suppress(OSError):
                if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                    os.write(int(name), text)
    return "done"


@jobs.task(runner="process", fail_on=ProcessDied)
def dies() -> None:
    os._exit(1)


@jobs.task(runner="process", fail_on=TimeoutError, timeout=0.05)
def hangs(ctx: JobContext) -> None:
    ctx.sleep_or_stop()


@jobs.task(runner="process", max_attempts=1, memory="300 MB")
def allocates(megabytes: int) -> int:
    return len(b"x" * (megabytes * 1_000_000))


@jobs.task(runner="process")
def grows(megabytes: int) -> int:
    hoard.append(b"x" * (megabytes * 1_000_000))
    return os.getpid()


@jobs.task(runner="process", max_attempts=1)
def busy(ctx: JobContext, place: str, obeys: str) -> str:
    """Run for ever, unless it obeys: the stop request ("asked"), SIGTERM ("terminated"), or nothing."""
    helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    Path(place, "pids").write_text(f"{os.getpid()} {helper.pid}")
    try:
        while not (obeys == "asked" and ctx.should_stop):
            if obeys == "nothing":
                ctypes.CDLL(None).usleep(50_000)
            sum(range(10_000))  # Python 3.13 leaves a loop without calls past its `except` on a signal
        helper.kill()
        helper.wait()
        return "stopped when asked"
    except BaseException as error:
        if obeys == "terminated":
            helper.kill()
            helper.wait()
            Path(place, "left").write_text(type(error).__name__)
            raise
        while True:
            time.sleep(1)


@jobs.task(runner="process", max_attempts=1)
async def waits(place: str) -> None:
    Path(place, "pids").write_text(f"{os.getpid()}")
    try:
        await asyncio.sleep(600)
    except asyncio.CancelledError:
        Path(place, "left").write_text("CancelledError")
        raise


class _ErrorWithoutMessage(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no message")


RAISED: dict[str, Callable[[], BaseException]] = {
    "raise": lambda: ValueError("no \udce4 value"),
    "retry": lambda: Retry("not yet", after=0.01),
    "snooze": lambda: Snooze(0.01),
    "fail": lambda: Fail("never"),
    "cancel": lambda: Cancel("not needed"),
    "leave": lambda: SystemExit(3),
    "no message": _ErrorWithoutMessage,
}


def _end(how: str) -> None:
    if how in RAISED:
        error = RAISED[how]()
        raise error
    match how:
        case "segfault":
            ctypes.string_at(0)
        case "exit":
            os._exit(7)
        case "kill":
            os.kill(os.getpid(), 9)
        case "fork":
            if os.fork() == 0:
                time.sleep(600)
            os._exit(5)
        case "close all":
            os.closerange(3, 4_096)  # all: descriptor numbers are high if many files are open
            time.sleep(600)
        case "close event loop":
            for link in Path("/proc/self/fd").iterdir():
                with suppress(OSError):
                    if "eventpoll" in os.readlink(link):
                        os.close(int(link.name))
