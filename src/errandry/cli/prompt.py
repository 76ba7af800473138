"""Read from stdin in the middle of a command."""

import asyncio
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click


async def ask_yes_no(question: str) -> bool:
    """Ask the user; only y and yes mean yes.

    The event loop waits for the answer: a blocking read would miss a Ctrl-C that comes just before it.
    """
    click.echo(f"{question} [y/N]: ", nl=False, err=True)
    loop, typed = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(sys.stdin, typed.set)
    try:
        await typed.wait()
    finally:
        loop.remove_reader(sys.stdin)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


@contextmanager
def interruptible() -> Iterator[None]:
    """Let Ctrl-C interrupt a blocking read; asyncio would only cancel the task, which the read blocks."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
