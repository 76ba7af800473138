"""The common options of a command, its output, and the app that it works on."""

import os
import sys
from collections.abc import Callable, Coroutine
from contextlib import ExitStack, suppress
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from errandry.cli.text import to_json
from errandry.core.printable import clean
from errandry.errors import StoreError

if TYPE_CHECKING:
    from errandry.api.app import Errandry


class Session:
    """One run of the program.

    `url` comes from the command line and takes precedence over the app's own store. `configured_url` comes
    from the environment or pyproject.toml and is used for apps that name no store.
    """

    def __init__(self) -> None:
        self.url: str | None = None
        self.configured_url: str | None = None
        self.app: str | None = None
        self.json = False
        self.no_color = False

    @property
    def is_terminal(self) -> bool:
        """Whether stdout is a terminal, not a file or another program."""
        return sys.stdout.isatty()

    @property
    def has_color(self) -> bool:
        if self.no_color or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
            return False
        return self.is_terminal or bool(os.environ.get("FORCE_COLOR"))

    def style(self, text: str, color: str | None = None, bold: bool = False) -> str:
        return click.style(text, fg=color, bold=bold or None) if self.has_color and text else text

    def print(self, text: str = "") -> None:
        """Print a line of data on stdout."""
        click.echo(text, color=self.has_color)

    def print_json(self, value: Any) -> None:
        """Print one item as a line of JSON on stdout."""
        click.echo(to_json(value), color=False)

    def print_message(self, text: str) -> None:
        """Print a message for the user on stderr, apart from the data."""
        click.echo(clean(text), err=True)

    def load_app(self) -> "Errandry":
        """Import the named app; without a name, return an app without tasks. The store is not opened yet."""
        from errandry.api.app import Errandry
        from errandry.cli.app_import import import_app

        if self.app is None:
            return Errandry(self.url or self.configured_url)
        if self.configured_url:
            os.environ["ERRANDRY_URL"] = self.configured_url
        return import_app(self.app)

    def run(
        self, function: "Callable[[Errandry], Coroutine[Any, Any, int | None]]", makes_store: bool = False
    ) -> int | None:
        """Call `function` with the app, and close the app at the end."""
        import asyncio

        from errandry.store.url import store_at

        jobs = self.load_app()

        async def call() -> int | None:
            if not makes_store:
                jobs.store.allow_read_only()
                await _require_store(jobs)
            try:
                return await function(jobs)
            finally:
                await jobs.close()

        with ExitStack() as stack:
            if self.app is not None and self.url is not None:
                stack.enter_context(jobs.client.override_store(store_at(self.url)))
            return asyncio.run(call())


def store_name(jobs: "Errandry") -> str:
    """The address of the app's store without its password, or the class of a store that has none."""
    from errandry.store.url import without_password

    return type(jobs.store).__name__ if jobs.url is None else without_password(jobs.url)


async def _require_store(jobs: "Errandry") -> None:
    """Fail if the store does not exist: reading a new, empty store would hide a mistyped name."""
    with suppress(StoreError):  # opening the store reports this error
        if (missing := await jobs.store.needs_setup()) is not None:
            todo = "enqueue a job or run a worker to create it, or name another store with --url"
            raise click.ClickException(f"there is no store at {missing} yet: {todo}")


async def store_time(jobs: "Errandry") -> float:
    """The store's time in seconds since 1970, as in the records of jobs and workers."""
    return await jobs.engine.call(jobs.store.now)


CommandBody = Callable[..., Coroutine[Any, Any, int | None]]


def app_command(function: CommandBody) -> Callable[..., int | None]:
    """Turn an async function into the body of a click command; it gets the session and the app."""
    return _command(function, makes_store=False)


def app_command_making_store(function: CommandBody) -> Callable[..., int | None]:
    """Like `app_command`, for commands that create the store if it does not exist."""
    return _command(function, makes_store=True)


def _command(function: CommandBody, makes_store: bool) -> Callable[..., int | None]:
    @wraps(function)
    def command(*args: Any, **kwargs: Any) -> int | None:
        session = click.get_current_context().ensure_object(Session)
        return session.run(lambda jobs: function(session, jobs, *args, **kwargs), makes_store)

    return command
