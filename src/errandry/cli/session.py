"""What the common options say, and the app they lead to."""

import asyncio
import os
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec

import click

if TYPE_CHECKING:
    from errandry.app import Errandry

P = ParamSpec("P")


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

    def talk(self, text: str) -> None:
        """Say something to whoever sits there, beside the data."""
        click.echo(text, err=True)

    def jobs(self) -> "Errandry":
        """The app named; without one, an app without tasks. Nothing is opened yet."""
        from errandry.app import Errandry
        from errandry.cli.locate import app_at

        if self.app is None:
            return Errandry(self.url or self.configured_url)
        if self.configured_url:
            os.environ["ERRANDRY_URL"] = self.configured_url
        return app_at(self.app)

    def run(
        self, function: "Callable[[Errandry], Coroutine[Any, Any, int | None]]", makes_store: bool = False
    ) -> int | None:
        """Call `function` with the app, opened, and close it at the end."""
        from errandry.store.url import store_at

        jobs = self.jobs()

        async def opened() -> int | None:
            if not makes_store:
                _must_exist(jobs)
            try:
                return await function(jobs)
            finally:
                await jobs.close()

        with ExitStack() as stack:
            if self.app is not None and self.url is not None:
                stack.enter_context(jobs.on(store_at(self.url)))
            return asyncio.run(opened())


def _must_exist(jobs: "Errandry") -> None:
    """Whoever only looks would be misled by a new, empty store where a name is mistyped."""
    path = getattr(jobs.store, "path", None)
    if path is not None and not os.path.exists(path):
        raise click.ClickException(
            f"there is no store at {path} yet: enqueue a job or run a worker, or name another with --url"
        )


Body = Callable[Concatenate[Session, "Errandry", P], Coroutine[Any, Any, int | None]]


def client(function: Body[P]) -> Callable[P, int | None]:
    """An async function as a command: called with the session and its app, which is open meanwhile."""
    return _command(function, makes_store=False)


def maker(function: Body[P]) -> Callable[P, int | None]:
    """`client` for commands that make the store if there is none."""
    return _command(function, makes_store=True)


def _command(function: Body[P], makes_store: bool) -> Callable[P, int | None]:
    @wraps(function)
    def command(*args: P.args, **kwargs: P.kwargs) -> int | None:
        session = click.get_current_context().ensure_object(Session)
        return session.run(lambda jobs: function(session, jobs, *args, **kwargs), makes_store)

    return command
