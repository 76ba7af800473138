"""Plots as SVG, drawn without a library: bars, curves, and layers over time."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from math import ceil, floor, log10
from typing import NamedTuple

WIDTH = 860
LEFT, RIGHT, TOP = 250, 110, 56
ROW, BAR = 30, 18
PLAIN, OURS, LINE = "#9db2cf", "#2f5d9b", "#b4552d"
COLORS = ("#2f5d9b", "#b4552d", "#4a7a4a", "#8a5a9b", "#b08a2e", "#5b8fa3", "#8c4a4a", "#6d7783")
STYLE = """
svg { background: #fff; font: 13px system-ui, sans-serif; fill: #33404d }
.title { font-size: 16px; font-weight: 600; fill: #1d2733 }
.panel { font-weight: 600; fill: #1d2733 }
.label { text-anchor: end }
.ours { font-weight: 600; fill: #1d2733 }
.value { paint-order: stroke; stroke: #fff; stroke-width: 4px }
.tick { font-size: 11px; text-anchor: middle; fill: #6d7783 }
.side { font-size: 11px; text-anchor: end; fill: #6d7783 }
.grid { stroke: #e3e8ee; stroke-width: 1 }
.whisker { stroke: #1d2733; stroke-width: 1.2 }
.raw { stroke: #b4552d; stroke-width: 1.4; stroke-dasharray: 5 4 }
"""


class Bar(NamedTuple):
    """One value with the least and the most there was of it; `text` is written instead of a bar."""

    label: str
    value: float | None
    low: float = 0.0
    high: float = 0.0
    is_ours: bool = False
    text: str = ""


class Panel(NamedTuple):
    """Bars that can be compared. `line` is drawn across them, with its name."""

    title: str
    bars: Sequence[Bar]
    is_log: bool = False
    line: tuple[str, float] | None = None


class Axis(NamedTuple):
    """Where values are drawn: from `start` to `end` in the drawing."""

    least: float
    most: float
    start: float
    end: float
    is_log: bool = False

    def at(self, value: float) -> float:
        if self.is_log:
            value = max(value, self.least)
            share = log10(value / self.least) / log10(self.most / self.least)
        else:
            share = (value - self.least) / (self.most - self.least)
        return self.start + share * (self.end - self.start)

    def ticks(self) -> list[float]:
        if self.is_log:
            powers = range(round(log10(self.least)), round(log10(self.most)) + 1)
            return [10.0**power for power in powers]
        step = 10 ** floor(log10(self.most / 4))
        step *= next(size for size in (1, 2, 5, 10) if self.most / (step * size) <= 6)
        return [step * number for number in range(int(self.most / step) + 1)]


def axis(values: Sequence[float], start: float, end: float, is_log: bool = False) -> Axis:
    """An axis with room for all of these."""
    most = max([*values, 1e-3])
    if not is_log:
        return Axis(0.0, most, start, end)
    least = min(value for value in values if value > 0)
    low, high = floor(log10(least)), ceil(log10(most))
    return Axis(10.0**low, 10.0 ** max(high, low + 1), start, end, is_log=True)


def bars(title: str, panels: Sequence[Panel]) -> str:
    """Panels of horizontal bars, one below the other."""
    parts, top = list[str](), TOP
    for panel in panels:
        parts += _panel(panel, top)
        top += 58 + ROW * len(panel.bars)
    return _drawing(title, top, parts)


def curves(title: str, lines: Mapping[str, Sequence[float]], raw: float | None = None) -> str:
    """Milliseconds by percentile, on a logarithmic scale: the flatter, the better."""
    left, bottom, height = 70, TOP + 320, TOP + 320 + 50 + 20 * len(lines)
    values = [value for line in lines.values() for value in line if value > 0]
    down = axis([*values, *([raw] if raw else [])], bottom, TOP, is_log=True)
    across = Axis(0.0, 100.0, left, WIDTH - 40)
    parts = [_across(left, WIDTH - 40, down.at(tick), f"{tick:g} ms") for tick in down.ticks()]
    parts += [_down(across.at(tick), TOP, bottom, f"p{tick}") for tick in (1, 25, 50, 75, 90, 95, 99)]
    if raw:
        parts.append(f'<path class="raw" d="M{left} {down.at(raw):.1f}H{WIDTH - 40}"/>')
        parts.append(f'<text x="{left + 6}" y="{down.at(raw) - 5:.1f}">a raw write</text>')
    for number, (name, line) in enumerate(lines.items()):
        points = " ".join(f"{across.at(x):.1f},{down.at(y):.1f}" for x, y in enumerate(line))
        color = COLORS[number % len(COLORS)]
        parts.append(f'<polyline fill="none" stroke="{color}" stroke-width="2" points="{points}"/>')
        parts += _key(name, color, left, bottom + 50 + 20 * number)
    return _drawing(title, height, parts)


def layers(title: str, times: Sequence[float], amounts: Mapping[tuple[str, str], Sequence[float]]) -> str:
    """How much there is of each over time, one above the other; by name and colour."""
    left, bottom, height = 70, TOP + 320, TOP + 320 + 50 + 20 * len(amounts)
    whole = [sum(column) for column in zip(*amounts.values(), strict=True)]
    down, across = axis(whole, bottom, TOP), axis(times, left, WIDTH - 40)
    parts = []
    floor_of = [0.0] * len(times)
    for number, ((name, color), line) in enumerate(amounts.items()):
        roof = [low + more for low, more in zip(floor_of, line, strict=True)]
        there = [f"{across.at(x):.1f},{down.at(y):.1f}" for x, y in zip(times, roof, strict=True)]
        back = [f"{across.at(x):.1f},{down.at(y):.1f}" for x, y in zip(times, floor_of, strict=True)]
        parts.append(f'<polygon fill="{color}" points="{" ".join([*there, *reversed(back)])}"/>')
        parts += _key(name, color, left, bottom + 50 + 20 * number)
        floor_of = roof
    parts += [_across(left, WIDTH - 40, down.at(tick), f"{tick:,.0f}") for tick in down.ticks()]
    parts += [_down(across.at(tick), TOP, bottom, f"{tick:g} s") for tick in across.ticks()]
    return _drawing(title, height, parts)


def _panel(panel: Panel, top: float) -> Iterator[str]:
    values = [bar.high or bar.value for bar in panel.bars if bar.value]
    if not values:
        return
    lows = [bar.value for bar in panel.bars if bar.value]
    line = [panel.line[1]] if panel.line else []
    across = axis([*filter(None, values), *lows, *line], LEFT, WIDTH - RIGHT, panel.is_log)
    bottom = top + 18 + ROW * len(panel.bars)
    yield f'<text class="panel" x="16" y="{top}">{escape(panel.title)}</text>'
    for tick in across.ticks():
        yield _down(across.at(tick), top + 10, bottom, f"{tick:,g}" if tick < 1e6 else f"{tick / 1e6:g}M")
    if panel.line:
        name, value = panel.line
        yield f'<path class="raw" d="M{across.at(value):.1f} {top + 8}V{bottom}"/>'
        yield f'<text class="tick" x="{across.at(value):.1f}" y="{top + 4}">{escape(name)}</text>'
    for number, bar in enumerate(panel.bars):
        yield from _bar(bar, across, top + 18 + ROW * number)


def _bar(bar: Bar, across: Axis, y: float) -> Iterator[str]:
    middle, kind = y + BAR / 2, "label ours" if bar.is_ours else "label"
    yield f'<text class="{kind}" x="{LEFT - 10}" y="{middle + 4}">{escape(bar.label)}</text>'
    if bar.value is None:
        yield f'<text x="{LEFT + 6}" y="{middle + 4}">{escape(bar.text)}</text>'
        return
    end, color = across.at(bar.value), OURS if bar.is_ours else PLAIN
    yield (
        f'<rect x="{LEFT}" y="{y}" width="{max(end - LEFT, 1):.1f}" height="{BAR}" rx="2" fill="{color}"/>'
    )
    edge = end
    if bar.high > bar.low:
        low, high = across.at(bar.low), across.at(bar.high)
        edge = max(end, high)
        yield f'<path class="whisker" d="M{low:.1f} {middle}H{high:.1f}"/>'
    yield f'<text class="value" x="{edge + 6:.1f}" y="{middle + 4}">{escape(bar.text)}</text>'


def _across(start: float, end: float, y: float, text: str) -> str:
    return (
        f'<path class="grid" d="M{start} {y:.1f}H{end}"/>'
        f'<text class="side" x="{start - 6}" y="{y + 4:.1f}">{text}</text>'
    )


def _down(x: float, top: float, bottom: float, text: str) -> str:
    return (
        f'<path class="grid" d="M{x:.1f} {top}V{bottom}"/>'
        f'<text class="tick" x="{x:.1f}" y="{bottom + 15}">{text}</text>'
    )


def _key(name: str, color: str, x: float, y: float) -> Iterator[str]:
    yield f'<rect x="{x}" y="{y - 10}" width="12" height="12" fill="{color}"/>'
    yield f'<text x="{x + 20}" y="{y}">{escape(name)}</text>'


def _drawing(title: str, height: float, parts: Sequence[str]) -> str:
    body = "\n".join(parts)
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" role="img">
<title>{escape(title)}</title>
<style>{STYLE}</style>
<text class="title" x="16" y="26">{escape(title)}</text>
{body}
</svg>
"""
