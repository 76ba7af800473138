"""Pause and resume queues, tasks, groups and workers."""

import getpass
from typing import TYPE_CHECKING

from errandry.cli.session import Session
from errandry.cli.text import ago
from errandry.core.gate import PauseRecord, RuleInfo

if TYPE_CHECKING:
    from errandry.api.gates import GateHandle


async def pause(session: Session, gate: "GateHandle", by: str | None) -> None:
    """Pause the gate and print that; `by` is recorded as the operator, by default the user name."""
    changed = await gate.pause(by=operator(by))
    report_pause(session, str(gate), as_data(gate), changed)


async def resume(session: Session, gate: "GateHandle") -> None:
    changed = await gate.resume()
    report_resume(session, str(gate), as_data(gate), changed)


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


def since_text(info: PauseRecord | RuleInfo | None, now: float) -> str:
    """When it was paused or the rule was set, and the operator: "2 h ago by ada"."""
    if info is None:
        return ""
    return f"{ago(info.at, now)}{f' by {info.by}' if info.by else ''}"


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
