"""Which jobs are meant: ids, whole or the beginning or end of one, or a query."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click
from msgspec import Struct

from errandry.cli.command import MINUS, TERM
from errandry.core.query import parse, quoted
from errandry.errors import QueryError, UnknownJob

if TYPE_CHECKING:
    from errandry.api.app import Errandry

PART_MIN = 4
"""Fewer characters of an id could mean anything."""


class JobTarget(Struct, frozen=True):
    """Words of the command line: the parts of ids, or a query; `flow`: and all that these jobs wait for."""

    ids: tuple[str, ...] = ()
    query: str | None = None
    flow: bool = False


def target(words: Sequence[str], flow: bool = False) -> JobTarget:
    """Ids or a query; never both, and not nothing."""
    if not words:
        raise click.UsageError("Which jobs? Give ids, or a query such as state:failed task:send.")
    plain = tuple(word.removeprefix(MINUS) for word in words)
    terms = [word for word in plain if TERM.match(word)]
    if not terms:
        return JobTarget(ids=plain, flow=flow)
    if len(terms) < len(plain):
        odd = next(word for word in plain if word not in terms)
        raise click.UsageError(f"{odd!r} is an id, {terms[0]!r} a term of a query: give either.")
    if flow:
        raise click.UsageError("--flow is about the jobs under one: name it by its id.")
    return JobTarget(query=query(plain))


def query(words: Sequence[str]) -> str:
    """The words as one query; a value with spaces that a shell has taken the quotes from gets them back."""
    return " ".join(_term(word.removeprefix(MINUS)) for word in words)


def _term(word: str) -> str:
    if not any(char.isspace() for char in word):
        return word
    try:
        parse(word)
    except QueryError:
        head = TERM.match(word)
        if head is not None:
            end = head.end() + word[head.end() :].startswith("=")
            return word[:end] + quoted(word[end:])
    return word


async def ids_of(jobs: "Errandry", parts: Sequence[str]) -> tuple[str, ...]:
    """The ids these stand for; an error if one stands for none, or for several."""
    found = await jobs.engine.call(jobs.store.get, list(parts))
    return tuple(
        [
            part if job is not None else await _completed(jobs, part)
            for part, job in zip(parts, found, strict=True)
        ]
    )


async def id_of(jobs: "Errandry", part: str) -> str:
    [job_id] = await ids_of(jobs, [part])
    return job_id


async def _completed(jobs: "Errandry", part: str) -> str:
    if len(part) < PART_MIN:
        raise UnknownJob(part)
    fits = await jobs.ids(part) or await jobs.ids(part.lower())
    if not fits:
        raise UnknownJob(part)
    if len(fits) > 1:
        some = ", ".join(fits[:5])
        more = ", …" if len(fits) > 5 else ""
        raise click.ClickException(f"{part} may be any of these jobs: {some}{more}")
    return fits[0]
