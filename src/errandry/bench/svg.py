"""Charts as SVG, drawn without a library: bars, curves, and stacked layers over time."""

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
@media (prefers-color-scheme: dark) {
svg { background: #14181f; fill: #c9d2dc }
.title, .panel, .ours { fill: #e6ebf1 }
.value { stroke: #14181f }
.tick, .side { fill: #9aa5b1 }
.grid { stroke: #2b333e }
.whisker { stroke: #e6ebf1 }
.raw { stroke: #e0855c }
[fill="#2f5d9b"] { fill: #5f96dc } [stroke="#2f5d9b"] { stroke: #5f96dc }
[fill="#9db2cf"] { fill: #56677f }
[fill="#b4552d"] { fill: #e0855c } [stroke="#b4552d"] { stroke: #e0855c }
[fill="#4a7a4a"] { fill: #7ab87a } [stroke="#4a7a4a"] { stroke: #7ab87a }
[fill="#8a5a9b"] { fill: #b98acb } [stroke="#8a5a9b"] { stroke: #b98acb }
}
"""


class Bar(NamedTuple):
    """One value with its minimum and maximum; without a value, `text` is shown instead of a bar."""

    label: str
    value: float | None
    low: float = 0.0
    high: float = 0.0
    is_ours: bool = False
    text: str = ""


class Panel(NamedTuple):
    """Bars on one axis. `line` is a named value that is drawn across them."""

    title: str
    bars: Sequence[Bar]
    is_log: bool = False
    line: tuple[str, float] | None = None


class Axis(NamedTuple):
    """Maps values from `minimum` to `maximum` to positions from `start` to `end`."""

    minimum: float
    maximum: float
    start: float
    end: float
    is_log: bool = False

    def at(self, value: float) -> float:
        if self.is_log:
            value = max(value, self.minimum)
            share = log10(value / self.minimum) / log10(self.maximum / self.minimum)
        else:
            share = (value - self.minimum) / (self.maximum - self.minimum)
        return self.start + share * (self.end - self.start)

    def ticks(self) -> list[float]:
        if self.is_log:
            powers = range(round(log10(self.minimum)), round(log10(self.maximum)) + 1)
            return [10.0**power for power in powers]
        step = 10 ** floor(log10(self.maximum / 4))
        step *= next(size for size in (1, 2, 5, 10) if self.maximum / (step * size) <= 6)
        return [step * number for number in range(int(self.maximum / step) + 1)]


def axis(values: Sequence[float], start: float, end: float, is_log: bool = False) -> Axis:
    """An axis that covers all of these values."""
    maximum = max([*values, 1e-3])
    if not is_log:
        return Axis(0.0, maximum, start, end)
    minimum = min(value for value in values if value > 0)
    low, high = floor(log10(minimum)), ceil(log10(maximum))
    return Axis(10.0**low, 10.0 ** max(high, low + 1), start, end, is_log=True)


def bars(title: str, panels: Sequence[Panel]) -> str:
    """A chart with panels of horizontal bars, one below the other."""
    parts, top = list[str](), TOP
    for panel in panels:
        parts += _panel(panel, top)
        top += 58 + ROW * len(panel.bars)
    return _document(title, top, parts)


def curves(title: str, lines: Mapping[str, Sequence[float]], raw: float | None = None) -> str:
    """A chart of milliseconds by percentile, on a logarithmic scale."""
    left, bottom, height = 70, TOP + 320, TOP + 320 + 50 + 20 * len(lines)
    values = [value for line in lines.values() for value in line if value > 0]
    y_axis = axis([*values, *([raw] if raw else [])], bottom, TOP, is_log=True)
    x_axis = Axis(0.0, 100.0, left, WIDTH - 40)
    parts = [_horizontal_line(left, WIDTH - 40, y_axis.at(tick), f"{tick:g} ms") for tick in y_axis.ticks()]
    parts += [
        _vertical_line(x_axis.at(tick), TOP, bottom, f"p{tick}") for tick in (1, 25, 50, 75, 90, 95, 99)
    ]
    if raw:
        parts.append(f'<path class="raw" d="M{left} {y_axis.at(raw):.1f}H{WIDTH - 40}"/>')
        parts.append(f'<text x="{left + 6}" y="{y_axis.at(raw) - 5:.1f}">a raw write</text>')
    for number, (name, line) in enumerate(lines.items()):
        points = " ".join(f"{x_axis.at(x):.1f},{y_axis.at(y):.1f}" for x, y in enumerate(line))
        color = COLORS[number % len(COLORS)]
        parts.append(f'<polyline fill="none" stroke="{color}" stroke-width="2" points="{points}"/>')
        parts += _legend_entry(name, color, left, bottom + 50 + 20 * number)
    return _document(title, height, parts)


def layers(title: str, times: Sequence[float], amounts: Mapping[tuple[str, str], Sequence[float]]) -> str:
    """A chart of amounts over time, stacked; the keys are name and color."""
    left, bottom, height = 70, TOP + 320, TOP + 320 + 50 + 20 * len(amounts)
    totals = [sum(column) for column in zip(*amounts.values(), strict=True)]
    y_axis, x_axis = axis(totals, bottom, TOP), axis(times, left, WIDTH - 40)
    parts = []
    base = [0.0] * len(times)
    for number, ((name, color), line) in enumerate(amounts.items()):
        top = [low + more for low, more in zip(base, line, strict=True)]
        upper = [f"{x_axis.at(x):.1f},{y_axis.at(y):.1f}" for x, y in zip(times, top, strict=True)]
        lower = [f"{x_axis.at(x):.1f},{y_axis.at(y):.1f}" for x, y in zip(times, base, strict=True)]
        parts.append(f'<polygon fill="{color}" points="{" ".join([*upper, *reversed(lower)])}"/>')
        parts += _legend_entry(name, color, left, bottom + 50 + 20 * number)
        base = top
    parts += [_horizontal_line(left, WIDTH - 40, y_axis.at(tick), f"{tick:,.0f}") for tick in y_axis.ticks()]
    parts += [_vertical_line(x_axis.at(tick), TOP, bottom, f"{tick:g} s") for tick in x_axis.ticks()]
    return _document(title, height, parts)


def _panel(panel: Panel, top: float) -> Iterator[str]:
    values = [bar.high or bar.value for bar in panel.bars if bar.value]
    if not values:
        return
    lows = [bar.value for bar in panel.bars if bar.value]
    line = [panel.line[1]] if panel.line else []
    x_axis = axis([*filter(None, values), *lows, *line], LEFT, WIDTH - RIGHT, panel.is_log)
    bottom = top + 18 + ROW * len(panel.bars)
    yield f'<text class="panel" x="16" y="{top}">{escape(panel.title)}</text>'
    for tick in x_axis.ticks():
        yield _vertical_line(
            x_axis.at(tick), top + 10, bottom, f"{tick:,g}" if tick < 1e6 else f"{tick / 1e6:g}M"
        )
    if panel.line:
        name, value = panel.line
        yield f'<path class="raw" d="M{x_axis.at(value):.1f} {top + 8}V{bottom}"/>'
        yield f'<text class="tick" x="{x_axis.at(value):.1f}" y="{top + 4}">{escape(name)}</text>'
    for number, bar in enumerate(panel.bars):
        yield from _bar(bar, x_axis, top + 18 + ROW * number)


def _bar(bar: Bar, x_axis: Axis, y: float) -> Iterator[str]:
    center, kind = y + BAR / 2, "label ours" if bar.is_ours else "label"
    yield f'<text class="{kind}" x="{LEFT - 10}" y="{center + 4}">{escape(bar.label)}</text>'
    if bar.value is None:
        yield f'<text x="{LEFT + 6}" y="{center + 4}">{escape(bar.text)}</text>'
        return
    end, color = x_axis.at(bar.value), OURS if bar.is_ours else PLAIN
    yield (
        f'<rect x="{LEFT}" y="{y}" width="{max(end - LEFT, 1):.1f}" height="{BAR}" rx="2" fill="{color}"/>'
    )
    edge = end
    if bar.high > bar.low:
        low, high = x_axis.at(bar.low), x_axis.at(bar.high)
        edge = max(end, high)
        yield f'<path class="whisker" d="M{low:.1f} {center}H{high:.1f}"/>'
    yield f'<text class="value" x="{edge + 6:.1f}" y="{center + 4}">{escape(bar.text)}</text>'


def _horizontal_line(start: float, end: float, y: float, text: str) -> str:
    return (
        f'<path class="grid" d="M{start} {y:.1f}H{end}"/>'
        f'<text class="side" x="{start - 6}" y="{y + 4:.1f}">{text}</text>'
    )


def _vertical_line(x: float, top: float, bottom: float, text: str) -> str:
    return (
        f'<path class="grid" d="M{x:.1f} {top}V{bottom}"/>'
        f'<text class="tick" x="{x:.1f}" y="{bottom + 15}">{text}</text>'
    )


def _legend_entry(name: str, color: str, x: float, y: float) -> Iterator[str]:
    yield f'<rect x="{x}" y="{y - 10}" width="12" height="12" fill="{color}"/>'
    yield f'<text x="{x + 20}" y="{y}">{escape(name)}</text>'


def _document(title: str, height: float, parts: Sequence[str]) -> str:
    body = "\n".join(parts)
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" role="img">
<title>{escape(title)}</title>
<style>{STYLE}</style>
<text class="title" x="16" y="26">{escape(title)}</text>
{body}
</svg>
"""
