"""Pausing and resuming, whatever it is: a queue, a task, a group or a worker."""

import getpass
from typing import TYPE_CHECKING

from errandry.cli.session import Session
from errandry.cli.text import ago
from errandry.core.gate import PauseInfo, RuleInfo

if TYPE_CHECKING:
    from errandry.api.gates import GateHandle


async def pause(session: Session, gate: "GateHandle", by: str | None) -> None:
    """Pause it, in the name of `by` or of whoever sits here, and say so."""
    changed = await gate.pause(by=whoever() if by is None else by)
    _report(session, gate, changed, "is paused" if changed else "was paused already")


async def resume(session: Session, gate: "GateHandle") -> None:
    changed = await gate.resume()
    _report(session, gate, changed, "is resumed" if changed else "was not paused")


def said(what: PauseInfo | RuleInfo | None, now: float) -> str:
    """Since when something is paused, or has its rule, and by whom."""
    if what is None:
        return ""
    return f"{ago(what.at, now)}{f' by {what.by}' if what.by else ''}"


def as_data(gate: "GateHandle") -> dict[str, str]:
    group = {"group": gate.group_key} if gate.group_key else {}
    return {"kind": str(gate.kind), "name": gate.name, **group}


def _report(session: Session, gate: "GateHandle", changed: bool, became: str) -> None:
    if session.json:
        session.data({**as_data(gate), "became": became.split()[1], "changed": changed})
    else:
        session.talk(f"The {gate} {became}.")


def whoever() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""
