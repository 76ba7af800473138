"""The targets of figures on two processors, and whether a report meets them."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from errandry.bench.report import Measurement, Report
from errandry.cli.bench import format_number


class Target(NamedTuple):
    """The bound of a figure, which is named by part and name; `of` returns the value to compare."""

    part: str
    name: str
    bound: float
    of: Callable[[Measurement], float] = lambda figure: figure.value


TARGETS = (
    Target("enqueue", "100 at once", 10_000),
    Target("drain", "1 worker, preloaded", 12_000),
    Target("cancel", "reaches a running handler", 100, lambda figure: figure.high),
    Target("footprint", "from errandry import Errandry", 150),
    Target("footprint", "idle worker, memory", 50),
    Target("footprint", "idle worker, processor", 1.5),
)


def target_rows(report: Report) -> Iterator[str]:
    """Rows of a Markdown table: the figure, its target, the measured value, and whether that meets it."""
    figures = {(figure.part, figure.name): figure for figure in report.figures}
    for target in TARGETS:
        if figure := figures.get((target.part, target.name)):
            value, is_more = target.of(figure), figure.better == "more"
            is_met = value >= target.bound if is_more else value <= target.bound
            bound = f"at {'least' if is_more else 'most'} {target.bound:,g} {figure.unit}"
            met = "yes" if is_met else "**no**"
            yield f"| {target.part}: {target.name} | {bound} | {format_number(value)} | {met} |"
