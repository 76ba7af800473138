"""Pause and resume queues, tasks, groups and workers."""

import getpass
from typing import TYPE_CHECKING

from errandry.cli.session import Session
from errandry.cli.text import ago
from errandry.core.gate import PauseInfo, RuleInfo

if TYPE_CHECKING:
    from errandry.api.gates import GateHandle


async def pause(session: Session, gate: "GateHandle", by: str | None) -> None:
    """Pause the gate and print that; `by` is recorded as the operator, by default the user name."""
    changed = await gate.pause(by=user_name() if by is None else by)
    _report(session, gate, changed, "is paused" if changed else "was paused already")


async def resume(session: Session, gate: "GateHandle") -> None:
    changed = await gate.resume()
    _report(session, gate, changed, "is resumed" if changed else "was not paused")


def since_text(info: PauseInfo | RuleInfo | None, now: float) -> str:
    """When it was paused or the rule was set, and the operator: "2 h ago by ada"."""
    if info is None:
        return ""
    return f"{ago(info.at, now)}{f' by {info.by}' if info.by else ''}"


def as_data(gate: "GateHandle") -> dict[str, str]:
    group = {"group": gate.group_key} if gate.group_key else {}
    return {"kind": str(gate.kind), "name": gate.name, **group}


def _report(session: Session, gate: "GateHandle", changed: bool, became: str) -> None:
    if session.json:
        session.print_json({**as_data(gate), "became": became.split()[1], "changed": changed})
    else:
        session.print_message(f"The {gate} {became}.")


def user_name() -> str:
    """The user name of this process; empty if it has none."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""
