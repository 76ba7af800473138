"""Draw the states and their moves as SVG from the table of moves, without a library."""

from collections.abc import Iterator
from html import escape
from math import hypot
from typing import NamedTuple

from errandry.core.state import OPERATOR_ACTORS, TABLE, TERMINAL, Move, State

WIDTH, HEIGHT = 960, 460
BOX_SIZE = (104, 40)


class Point(NamedTuple):
    x: float
    y: float


POSITIONS = {
    None: Point(310, 165),
    State.BLOCKED: Point(80, 110),
    State.SCHEDULED: Point(80, 400),
    State.WAITING: Point(310, 250),
    State.CLAIMED: Point(480, 250),
    State.RUNNING: Point(650, 250),
    State.COMPLETED: Point(880, 110),
    State.FAILED: Point(880, 250),
    State.CANCELED: Point(880, 400),
}
CURVATURE = {  # how far an arrow bends to its left, to avoid other states
    (State.CLAIMED, State.WAITING): 60.0,
    (State.RUNNING, State.WAITING): -120.0,
    (State.RUNNING, State.SCHEDULED): 70.0,
    (State.RUNNING, State.BLOCKED): -150.0,
    (State.CLAIMED, State.CANCELED): -90.0,
    (State.BLOCKED, State.FAILED): 240.0,
    (State.WAITING, State.FAILED): -300.0,
}
DRAWN_SOURCES_MAX = 3
"""A move from this number of states or more is a note, not arrows, which would hide the others."""


def states() -> str:
    """The SVG document."""
    arrows = "\n".join(_arrow(source, target, moves) for (source, target), moves in _pairs().items())
    boxes = "\n".join(_box(state, POSITIONS[state]) for state in State)
    notes = "\n".join(
        f'<text class="note" x="20" y="{HEIGHT + 20 * number}">{escape(note)}</text>'
        for number, note in enumerate(_notes(), 1)
    )
    height = HEIGHT + 20 * (len(list(_notes())) + 1)
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">
<title>States of a job and the moves between them</title>
<style>
svg {{ background: #fff; font: 13px system-ui, sans-serif }}
.box {{ fill: #eef3fb; stroke: #46658f; stroke-width: 1.5 }}
.end {{ fill: #eef6ee; stroke: #4a7a4a; stroke-width: 1.5 }}
.name {{ text-anchor: middle; font-weight: 600; fill: #1d2733 }}
.way {{ fill: none; stroke: #7a8796; stroke-width: 1.4; marker-end: url(#tip) }}
.move {{ text-anchor: middle; fill: #33404d; paint-order: stroke; stroke: #fff;
    stroke-width: 8px; stroke-linejoin: round }}
.note {{ fill: #33404d }}
.tip {{ fill: #7a8796 }}
@media (prefers-color-scheme: dark) {{
svg {{ background: #14181f }}
.box {{ fill: #1c2738; stroke: #6f94c8 }}
.end {{ fill: #1b2a1e; stroke: #6aa66a }}
.name {{ fill: #e6ebf1 }}
.way {{ stroke: #8d99a8 }}
.tip {{ fill: #8d99a8 }}
.move {{ fill: #c9d2dc; stroke: #14181f }}
.note {{ fill: #c9d2dc }}
}}
</style>
<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" markerHeight="8" orient="auto">
<path class="tip" d="M0 0 10 5 0 10z"/></marker></defs>
{arrows}
{boxes}
{notes}
</svg>
"""


def _pairs() -> dict[tuple[State | None, State], list[Move]]:
    """The arrows from state to state, each with its moves."""
    pairs: dict[tuple[State | None, State], list[Move]] = {}
    for move in _drawn_moves():
        for source, target in TABLE[move].leads.items():
            if target is not None and source is not target:
                pairs.setdefault((source, target), []).append(move)
    return pairs


def _drawn_moves() -> list[Move]:
    return [
        move
        for move, rule in TABLE.items()
        if rule.by not in OPERATOR_ACTORS and len(rule.leads) < DRAWN_SOURCES_MAX
    ]


def _notes() -> Iterator[str]:
    """Notes for the moves from many states, without those of operators."""
    for move, rule in TABLE.items():
        if rule.by in OPERATOR_ACTORS or move in _drawn_moves():
            continue
        for target in dict.fromkeys(rule.leads.values()):
            sources = [source for source, to in rule.leads.items() if to is target and source is not None]
            same = " (asked to stop)" if sources == [target] else ""
            yield f"{move}: {', '.join(sources)} → {target}{same}"


def _arrow(source: State | None, target: State, moves: list[Move]) -> str:
    start, end = POSITIONS[source], POSITIONS[target]
    bow, length = (
        CURVATURE.get((source, target), 0.0) if source else 0.0,
        hypot(end.x - start.x, end.y - start.y),
    )
    middle = Point(
        (start.x + end.x) / 2 + bow * (end.y - start.y) / length,
        (start.y + end.y) / 2 - bow * (end.x - start.x) / length,
    )
    first, last = _edge_point(start, middle) if source else start, _edge_point(end, middle)
    label = Point((first.x + 2 * middle.x + last.x) / 4, (first.y + 2 * middle.y + last.y) / 4)
    return (
        f'<path class="way" d="M{first.x:.0f} {first.y:.0f}Q{middle.x:.0f} {middle.y:.0f} '
        f'{last.x:.0f} {last.y:.0f}"/>\n'
        f'<text class="move" x="{label.x:.0f}" y="{label.y + 4:.0f}">{escape(", ".join(moves))}</text>'
    )


def _edge_point(center: Point, point: Point) -> Point:
    """The point where the line from the center of a box to a point crosses the edge of the box."""
    across, down = point.x - center.x, point.y - center.y
    share = min(
        BOX_SIZE[0] / 2 / abs(across) if across else float("inf"),
        BOX_SIZE[1] / 2 / abs(down) if down else float("inf"),
    )
    return Point(center.x + across * share, center.y + down * share)


def _box(state: State, at: Point) -> str:
    kind, (width, height) = "end" if state in TERMINAL else "box", BOX_SIZE
    corner = f'x="{at.x - width / 2:.0f}" y="{at.y - height / 2:.0f}"'
    return (
        f'<rect class="{kind}" {corner} width="{width}" height="{height}" rx="9"/>\n'
        f'<text class="name" x="{at.x:.0f}" y="{at.y + 4:.0f}">{state}</text>'
    )
