"""Select jobs by command-line arguments: ids, their beginnings or ends, or a query."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click
from msgspec import Struct

from errandry.cli.command import QUERY_TERM
from errandry.core.query import parse, quote
from errandry.errors import QueryError, UnknownJob

if TYPE_CHECKING:
    from errandry.api.app import Errandry

ID_PART_MIN = 4
"""Minimum number of characters of a shortened id."""


class JobTarget(Struct, frozen=True):
    """The jobs that a command applies to: ids or their parts, or a query; with `flow`, their children too."""

    ids: tuple[str, ...] = ()
    query: str | None = None
    flow: bool = False


def parse_target(words: Sequence[str], flow: bool = False) -> JobTarget:
    """Parse ids or a query; giving both or neither is a usage error."""
    if not words:
        raise click.UsageError("No jobs given: write ids, or a query such as state:failed task:send.")
    terms = [word for word in words if QUERY_TERM.match(word)]
    if not terms:
        return JobTarget(ids=tuple(words), flow=flow)
    if len(terms) < len(words):
        odd = next(word for word in words if word not in terms)
        raise click.UsageError(f"{odd!r} is an id, {terms[0]!r} a query term: give ids or a query, not both.")
    if flow:
        raise click.UsageError("--flow needs the id of a job, not a query.")
    return JobTarget(query=query(words))


def query(words: Sequence[str]) -> str:
    """Join the words to one query; add the quotes that the shell has removed from values with spaces.

    It is checked here, so that an error shows only what the user wrote, before a command adds its own terms.
    """
    text = " ".join(_quote_term(word) for word in words)
    parse(text)
    return text


def _quote_term(word: str) -> str:
    if not any(char.isspace() for char in word):
        return word
    try:
        parse(word)
    except QueryError:
        head = QUERY_TERM.match(word)
        if head is not None:
            end = head.end() + word[head.end() :].startswith("=")
            return word[:end] + quote(word[end:])
    return word


async def resolve_ids(jobs: "Errandry", parts: Sequence[str]) -> tuple[str, ...]:
    """The whole ids; an error if a shortened id matches no job, or several."""
    records = await jobs.engine.call(jobs.store.get, list(parts))
    return tuple(
        [
            part if job is not None else await _complete_id(jobs, part)
            for part, job in zip(parts, records, strict=True)
        ]
    )


async def resolve_id(jobs: "Errandry", part: str) -> str:
    [job_id] = await resolve_ids(jobs, [part])
    return job_id


async def _complete_id(jobs: "Errandry", part: str) -> str:
    if len(part) < ID_PART_MIN:
        raise UnknownJob(part)
    matches = await jobs.ids(part) or await jobs.ids(part.lower())
    if not matches:
        raise UnknownJob(part)
    if len(matches) > 1:
        shown = ", ".join(matches[:5])
        more = ", …" if len(matches) > 5 else ""
        raise click.ClickException(f"{part} matches several jobs: {shown}{more}")
    return matches[0]
