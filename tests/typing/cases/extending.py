"""The types of middleware, hooks, backoffs and codecs are checked."""

from typing import Any

from errandry import Errandry, JobContext
from errandry.api.app import CallNext
from errandry.codec.json_codec import DocumentInfo
from errandry.core.job import NewJob

jobs = Errandry("memory:")


@jobs.middleware
async def timed(ctx: JobContext, call_next: CallNext) -> Any:
    return await call_next(ctx)


@jobs.middleware  # E: Argument 1 to "middleware" of "Errandry" has incompatible type
def not_async(ctx: JobContext, call_next: CallNext) -> str:
    return "no"


@jobs.middleware  # E: Argument 1 to "middleware" of "Errandry" has incompatible type
async def without_next(ctx: JobContext) -> Any:
    return None


@jobs.on_enqueue
def stamp(job: NewJob) -> NewJob:
    return job


@jobs.on_enqueue  # E: Argument 1 to "on_enqueue" of "Errandry" has incompatible type
def forgetful(job: NewJob) -> None: ...


@jobs.backoff
def squares(attempt: int) -> float:
    return float(attempt**2)


@jobs.backoff  # E: Argument 1 to "backoff" of "Errandry" has incompatible type
def in_words(attempt: int) -> str:
    return f"{attempt} minutes"


class Good:
    def seal(self, text: str, document: DocumentInfo) -> str:
        return text + document.field

    def unseal(self, text: str, document: DocumentInfo) -> str:
        return text.removesuffix(document.field)


class Bad:
    def seal(self, text: bytes) -> bytes:
        return text


Errandry("memory:", codec=Good())
Errandry("memory:", codec=Bad())  # E: Argument "codec" to "Errandry" has incompatible type "Bad"
