"""What the figures should be at least, or at most, on two processors; and whether they were."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from errandry.bench.report import Measurement, Report
from errandry.cli.bench import amount


class Target(NamedTuple):
    """A figure of a report by its part and name, and the bound for it. `of` says which value is meant."""

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


def compared(report: Report) -> Iterator[str]:
    """Rows of a Markdown table: what, the bound, what was found, and whether that is enough."""
    figures = {(figure.part, figure.name): figure for figure in report.figures}
    for target in TARGETS:
        if figure := figures.get((target.part, target.name)):
            found, is_more = target.of(figure), figure.better == "more"
            is_met = found >= target.bound if is_more else found <= target.bound
            bound = f"at {'least' if is_more else 'most'} {target.bound:,g} {figure.unit}"
            met = "yes" if is_met else "**no**"
            yield f"| {target.part}: {target.name} | {bound} | {amount(found)} | {met} |"
