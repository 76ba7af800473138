"""What the common options say, and the app they lead to."""

import os
import sys
from collections.abc import Callable, Coroutine
from contextlib import ExitStack, suppress
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from errandry.cli.text import clean, to_json
from errandry.errors import StoreError

if TYPE_CHECKING:
    from errandry.api.app import Errandry


class Session:
    """One call of the program.

    `url` is what a flag says and goes before what the app says; `configured_url` comes from the
    environment or pyproject.toml and is for apps that name no store.
    """

    def __init__(self) -> None:
        self.url: str | None = None
        self.configured_url: str | None = None
        self.app: str | None = None
        self.json = False
        self.no_color = False

    @property
    def is_terminal(self) -> bool:
        """Whether somebody sees what is printed, not a file or another program."""
        return sys.stdout.isatty()

    @property
    def has_color(self) -> bool:
        if self.no_color or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
            return False
        return self.is_terminal or bool(os.environ.get("FORCE_COLOR"))

    def style(self, text: str, color: str | None = None, bold: bool = False) -> str:
        return click.style(text, fg=color, bold=bold or None) if self.has_color and text else text

    def print(self, text: str = "") -> None:
        """Data, on stdout."""
        click.echo(text, color=self.has_color)

    def data(self, value: Any) -> None:
        """One thing, as a line of JSON."""
        click.echo(to_json(value), color=False)

    def talk(self, text: str) -> None:
        """Say something to whoever sits there, beside the data."""
        click.echo(clean(text), err=True)

    def jobs(self) -> "Errandry":
        """The app named; without one, an app without tasks. Nothing is opened yet."""
        from errandry.api.app import Errandry
        from errandry.cli.app_import import app_at

        if self.app is None:
            return Errandry(self.url or self.configured_url)
        if self.configured_url:
            os.environ["ERRANDRY_URL"] = self.configured_url
        return app_at(self.app)

    def run(
        self, function: "Callable[[Errandry], Coroutine[Any, Any, int | None]]", makes_store: bool = False
    ) -> int | None:
        """Call `function` with the app, opened, and close it at the end."""
        import asyncio

        from errandry.store.url import store_at

        jobs = self.jobs()

        async def opened() -> int | None:
            if not makes_store:
                await _must_exist(jobs)
            try:
                return await function(jobs)
            finally:
                await jobs.close()

        with ExitStack() as stack:
            if self.app is not None and self.url is not None:
                stack.enter_context(jobs.override_store(store_at(self.url)))
            return asyncio.run(opened())


async def _must_exist(jobs: "Errandry") -> None:
    """Whoever only looks would be misled by a new, empty store where a name is mistyped."""
    with suppress(StoreError):  # a store that cannot be looked at cannot be opened either
        if (missing := await jobs.store.needs_setup()) is not None:
            todo = "enqueue a job or run a worker, or name another with --url"
            raise click.ClickException(f"there is no store at {missing} yet: {todo}")


CommandBody = Callable[..., Coroutine[Any, Any, int | None]]


def client(function: CommandBody) -> Callable[..., int | None]:
    """An async function as a command: called with the session and its app, which is open meanwhile."""
    return _command(function, makes_store=False)


def maker(function: CommandBody) -> Callable[..., int | None]:
    """`client` for commands that make the store if there is none."""
    return _command(function, makes_store=True)


def _command(function: CommandBody, makes_store: bool) -> Callable[..., int | None]:
    @wraps(function)
    def command(*args: Any, **kwargs: Any) -> int | None:
        session = click.get_current_context().ensure_object(Session)
        return session.run(lambda jobs: function(session, jobs, *args, **kwargs), makes_store)

    return command
