"""Pausing and resuming, whatever it is: a queue, a task or a worker."""

import getpass
from typing import TYPE_CHECKING

from errandry.cli.session import Session
from errandry.cli.text import ago
from errandry.core.gate import Pausing

if TYPE_CHECKING:
    from errandry.client import Gate


async def pause(session: Session, kind: str, gate: "Gate", by: str | None) -> None:
    """Pause it, in the name of `by` or of whoever sits here, and say so."""
    changed = await gate.pause(by=_whoever() if by is None else by)
    _report(session, kind, gate, changed, "is paused" if changed else "was paused already")


async def resume(session: Session, kind: str, gate: "Gate") -> None:
    changed = await gate.resume()
    _report(session, kind, gate, changed, "is resumed" if changed else "was not paused")


def said(paused: Pausing | None, now: float) -> str:
    """Since when something is paused, and by whom."""
    if paused is None:
        return ""
    return f"{ago(paused.at, now)}{f' by {paused.by}' if paused.by else ''}"


def _report(session: Session, kind: str, gate: "Gate", changed: bool, became: str) -> None:
    if session.json:
        session.data({"kind": kind, "name": gate.name, "became": became.split()[1], "changed": changed})
    else:
        session.talk(f"The {kind} {gate.name} {became}.")


def _whoever() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""
