"""Pause and resume queues, tasks, groups and workers."""

import getpass
from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING

from errandry.cli.session import Session
from errandry.cli.text import Time, ago
from errandry.core.duration import rough_duration
from errandry.core.gate import GateKind
from errandry.core.query import quote

if TYPE_CHECKING:
    from errandry.api.app import Errandry
    from errandry.api.gate_info import GateInfo, PauseInfo
    from errandry.api.gates import GateHandle


async def pause(session: Session, gate: "GateHandle", by: str | None) -> None:
    """Pause the gate and print that; `by` is recorded as the operator, by default the user name."""
    changed = await gate.pause(by=operator(by))
    report_pause(session, str(gate), as_data(gate), changed)


async def resume(session: Session, jobs: "Errandry", gate: "GateHandle") -> bool:
    """Resume the gate and print that; it may have been closed by a handler instead of paused.

    Returns False if the store knows nothing of that name.
    """
    changed = await gate.resume()
    is_known = changed or is_stored(gate, await jobs.rules()) or await has_jobs(jobs, gate)
    if is_known or session.json:
        report_resume(session, str(gate), as_data(gate), changed)
    if not is_known:
        report_unknown(session, gate)
    return is_known


def is_stored(gate: "GateHandle", infos: "Iterable[GateInfo]") -> bool:
    """Whether the gate, or a group of the queue, is among those with a rule or a pause."""
    of_queue = (GateKind.QUEUE, GateKind.GROUP)
    return any(
        (info.kind, info.name, info.group) == (gate.kind, gate.name, gate.group_key)
        or (gate.kind is GateKind.QUEUE and info.kind in of_queue and info.name == gate.name)
        for info in infos
    )


async def has_jobs(jobs: "Errandry", gate: "GateHandle") -> bool:
    """Whether the store has jobs of the task or group, or ever had jobs of the queue."""
    if gate.kind is GateKind.QUEUE:
        return any(info.name == gate.name for info in await jobs.queues())
    query = f"task:{quote(gate.name)}"
    if gate.kind is GateKind.GROUP:
        query = f"queue:{quote(gate.name)} group:{quote(gate.group_key)}"
    return bool((await jobs.list(query, limit=1)).jobs)


def report_unknown(session: Session, gate: "GateHandle") -> None:
    """Print that the name is probably a typing error."""
    session.print_message(f"Nothing is stored about {gate}: it has no jobs, no rules and no pause.")


def report_pause(session: Session, subject: str, data: dict[str, str], changed: bool) -> None:
    """Print that the subject, such as `queue mail`, is paused; `data` is what identifies it in JSON."""
    if session.json:
        session.print_json({**data, "changed": changed, "paused": True})
    else:
        session.print_message(f"The {subject} {'is paused' if changed else 'was paused already'}.")


def report_resume(session: Session, subject: str, data: dict[str, str], changed: bool) -> None:
    """Print that the subject, such as `queue mail`, is not paused; `data` is what identifies it in JSON."""
    if session.json:
        session.print_json({**data, "changed": changed, "paused": False})
    else:
        session.print_message(f"The {subject} {'is resumed' if changed else 'was not paused'}.")


def since_text(paused: "PauseInfo | None", now: Time) -> str:
    """When it was paused, and the operator; empty if it is not paused."""
    return "" if paused is None else time_and_operator(paused.at, paused.by, now)


def time_and_operator(at: Time, by: str, now: Time) -> str:
    """When an operator did something: "2 h ago by ada"."""
    return f"{ago(at, now)}{f' by {by}' if by else ''}"


def closed_text(until: datetime | None, now: datetime) -> str:
    """For how long a group stays closed; empty if it is open."""
    if until is None or until <= now:
        return ""
    return f"closed for {rough_duration((until - now).total_seconds())}"


def as_data(gate: "GateHandle") -> dict[str, str]:
    group = {"group": gate.group_key} if gate.group_key else {}
    return {"kind": str(gate.kind), "name": gate.name, **group}


def operator(by: str | None) -> str:
    """The operator to record: `by`, or without it the user name of this process, empty if it has none."""
    if by is not None:
        return by
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""
