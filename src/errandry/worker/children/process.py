"""A child process for handlers that may block, crash or be killed, as its worker sees it.

Only the handler runs in the child. The worker claims, renews and settles; the child has no connection to the
store. It has its own process group, so that processes which the handler has started are killed with it.
"""

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from functools import partial
from typing import IO, cast

from errandry.claims.leases import StopReason
from errandry.claims.log_record import log_with_fields
from errandry.errors import ProcessDied
from errandry.worker.children.messages import (
    CallEnded,
    ChildReady,
    Hello,
    JobNotes,
    RunCall,
    StepResult,
    StepSaved,
    StopJobs,
    ToChild,
    ToWorker,
    WorkerLogLine,
    encode_frame,
    frames_to_worker,
)
from errandry.worker.handler_call import HandlerCall, JobRun

log = logging.getLogger("errandry.worker")

STOP_TIMEOUT = 0.2
"""Seconds that a handler has to stop after it was asked to, before SIGTERM."""
TERMINATE_TIMEOUT = 0.3
"""Seconds that a handler has to stop after SIGTERM, before SIGKILL."""
EXIT_TIMEOUT = 1.0
"""Seconds that a child that is no longer needed may take to exit, before SIGKILL."""
TRACE_MAX = 8_000
"""Maximum number of bytes of a crash report that are kept."""
WORKER_VARIABLES = ("ERRANDRY_FAILPOINT", "ERRANDRY_WORKER_")
"""Prefixes of environment variables for the worker only.

The child gets all others, which the app may need. That includes `ERRANDRY_URL`: without it, handlers would
enqueue into another store.
"""

GUARD_MESSAGE = (
    "a child process of a worker imports the program it belongs to: "
    'write `if __name__ == "__main__":` above what only the program itself should do'
)

is_child = False
"""Whether this process is a child. Set by the child's program."""


def refuse_in_child() -> None:
    """Raise in a child: a program that starts a worker when it is imported would start children endlessly."""
    if is_child:
        raise RuntimeError(GUARD_MESSAGE)


async def start_child(hello: Hello, lock_descriptor: int | None) -> "ChildProcess":
    """Start a child; `ready` is done when it has imported the app.

    Its only descriptors are two sockets, the file for crash reports, and the worker's liveness lock.
    """
    with ExitStack() as cleanup:
        messages, child_messages, interrupts, child_interrupts = (
            cleanup.enter_context(end) for pair in (socket.socketpair(), socket.socketpair()) for end in pair
        )
        crash_file = cleanup.enter_context(tempfile.TemporaryFile())
        descriptors = [
            child_messages.fileno(),
            child_interrupts.fileno(),
            crash_file.fileno(),
            *([] if lock_descriptor is None else [lock_descriptor]),
        ]
        process = subprocess.Popen(  # noqa: ASYNC220, S603 - it must be a child of this thread, to die with it
            [sys.executable, "-P", "-m", "errandry.worker.children.program", *map(str, descriptors)],
            stdin=subprocess.DEVNULL,
            pass_fds=descriptors,
            process_group=0,
            env={name: value for name, value in os.environ.items() if not name.startswith(WORKER_VARIABLES)},
        )
        cleanup.pop_all()  # from here on, ChildProcess closes the worker's ends
    child_messages.close()
    child_interrupts.close()
    child = ChildProcess(process, interrupts, crash_file)
    await asyncio.get_running_loop().create_unix_connection(lambda: child, sock=messages)
    child.send(hello)
    return child


class ChildProcess(asyncio.Protocol):
    """One child process, as its worker sees it. It writes its stack to `crash_file` when it crashes."""

    def __init__(
        self, process: "subprocess.Popen[bytes]", interrupts: socket.socket, crash_file: IO[bytes]
    ) -> None:
        self._process, self._interrupts, self._crash_file = process, interrupts, crash_file
        self._frames = frames_to_worker()
        self._call: HandlerCall | None = None
        self._answer: asyncio.Future[CallEnded] | None = None
        self._late_answer: CallEnded | None = None
        self._call_number, self._stopped_runs = 0, set[JobRun]()
        self._transport: asyncio.Transport | None = None
        self._is_leaving = False
        self._fault: str | None = None
        self.death: ProcessDied | None = None
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def is_alive(self) -> bool:
        """Whether it can take a call."""
        return self._transport is not None and not self._transport.is_closing()

    def send(self, message: ToChild) -> None:
        if self._transport is not None:
            self._transport.write(encode_frame(message))

    async def run_call(self, call: HandlerCall, message: RunCall) -> CallEnded:
        """Run a call in the child. If canceled, ask the handler to stop; if it does not, kill the process."""
        answer: asyncio.Future[CallEnded] = asyncio.get_running_loop().create_future()
        self._call, self._answer, self._late_answer = call, answer, None
        self._call_number, self._stopped_runs, call.on_stop = message.number, set(), self._send_stops
        self.send(message)
        self._send_stops([run for run in call.runs if run.stop_reason is not None])
        try:
            return await answer
        except asyncio.CancelledError:
            answer = self._wait_again()
            self._send_stops(call.runs)
            await asyncio.wait({answer}, timeout=STOP_TIMEOUT)
            if not answer.done():
                self._signal(signal.SIGTERM)
                await asyncio.wait({answer}, timeout=TERMINATE_TIMEOUT)
            if not answer.done() or answer.exception() is not None:
                raise
            return answer.result()
        finally:
            has_ended = self._answer.done()
            call.on_stop = self._call = self._answer = None
            if not has_ended:
                await self.kill()

    def _send_stops(self, runs: list[JobRun]) -> None:
        """Stop these runs, once each; the others of the call go on."""
        places = {run: place for place, run in enumerate(self._call.runs)} if self._call is not None else {}
        new_runs = [run for run in runs if run in places and run not in self._stopped_runs]
        self._stopped_runs.update(new_runs)
        if new_runs:
            stops = tuple((places[run], run.stop_reason or StopReason.SHUTDOWN) for run in new_runs)
            with suppress(OSError):
                self._interrupts.sendall(encode_frame(StopJobs(self._call_number, stops)))

    def _wait_again(self) -> "asyncio.Future[CallEnded]":
        """A new future for the answer: the first was canceled together with the task that awaited it."""
        self._answer = asyncio.get_running_loop().create_future()
        if self._late_answer is not None:
            self._answer.set_result(self._late_answer)
        return self._answer

    async def retire(self) -> None:
        """Let it exit by itself, so that its exit handlers run; kill it after `EXIT_TIMEOUT`."""
        self._is_leaving = True
        if self._transport is not None:
            self._transport.close()
        if await self._wait_for_exit(EXIT_TIMEOUT) is None:
            await self.kill()
        self._close_files()

    async def kill(self) -> None:
        """Kill it and its process group. Returns when it is dead."""
        self._is_leaving = True
        await self._kill_group()
        self._close_files()

    async def _kill_group(self) -> int:
        if self._process.returncode is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
        if self._transport is not None:
            self._transport.close()
        return await self._wait_for_exit() or 0

    async def _wait_for_exit(self, timeout: float = float("inf")) -> int | None:
        """Its exit code; None after the timeout. Polled, because it exits within moments."""
        pause, waited = 0.001, 0.0
        while (code := self._process.poll()) is None and waited < timeout:
            await asyncio.sleep(pause)
            waited, pause = waited + pause, min(0.05, pause * 2)
        return code

    def _close_files(self) -> None:
        self._crash_file.close()
        self._interrupts.close()

    def _signal(self, number: signal.Signals) -> None:
        if self._process.poll() is None:
            self._process.send_signal(number)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # The transport of uvloop is no subclass of asyncio.Transport, but has its methods.
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if self._fault is not None:
            return
        try:
            for message in self._frames.feed(data):
                self._receive(message)
        except Exception as error:  # what follows cannot be understood either, so the process is killed
            self._fault = f"the process sent a message that cannot be read: {error}"
            if self._transport is not None:
                self._transport.abort()

    def _receive(self, message: ToWorker) -> None:
        match message:
            case JobNotes(place, progress, logs) if self._call is not None:
                self._call.runs[place].note(progress, logs)
            case StepResult(place, name, result) if self._call is not None:
                future = self._call.runs[place].save_step(name, result)
                future.add_done_callback(partial(self._send_step_saved, place, name))
            case WorkerLogLine(logger, level, text, traceback, fields):
                log_with_fields(logging.getLogger(logger), level, text, fields, traceback)
            case CallEnded() if self._answer is not None and self._answer.cancelled():
                self._late_answer = message
            case CallEnded() if self._answer is not None:
                self._answer.set_result(message)
            case ChildReady() if not self.ready.done():
                self.ready.set_result(None)

    def _send_step_saved(self, place: int, name: str, future: "Future[None]") -> None:
        error = future.exception()
        with suppress(OSError):
            self._interrupts.sendall(
                encode_frame(StepSaved(place, name, "" if error is None else str(error)))
            )

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002 - as asyncio calls it
        if not self._is_leaving:
            self._death_report = asyncio.ensure_future(self._report_death())

    async def _report_death(self) -> None:
        """Kill the process group, and raise ProcessDied in the tasks that wait for this child."""
        end = f"the process {describe_exit(await self._kill_group())}"
        death = ProcessDied(self._fault or end)
        self._crash_file.seek(0)
        if crash_report := self._crash_file.read(TRACE_MAX).decode(errors="replace"):
            death.add_note(crash_report)
        self.death = death
        self._close_files()
        for future in (self.ready, self._answer):
            if future is not None and not future.done():
                future.set_exception(death)


def describe_exit(code: int) -> str:
    """How a process ended, in words, from its exit code."""
    if code >= 0:
        return f"exited with code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = " (from outside: perhaps memory ran out)" if -code == signal.SIGKILL else ""
    return f"ended with {name}{hint}"
