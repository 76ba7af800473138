"""New jobs with short ids, and the command that inserts them."""

from typing import Any

from errandry.core.command import Insert
from errandry.core.job import NewJob


def new_job(job_id: str, **fields: Any) -> NewJob:
    return NewJob(**({"id": job_id, "task": "task", "payload": "{}"} | fields))


def insert(*ids: str, **fields: Any) -> Insert:
    """Insert jobs with these ids and the same fields."""
    return Insert(tuple(new_job(job_id, **fields) for job_id in ids))
