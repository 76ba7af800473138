"""The SVG charts."""

from pathlib import Path
from xml.etree import ElementTree

import pytest

from errandry.bench.svg import STYLE, Bar, Panel, axis, bars, curves, layers


def _widths(drawing: str) -> list[float]:
    return [float(rect.attrib["width"]) for rect in ElementTree.fromstring(drawing).findall(".//{*}rect")]


def _texts(drawing: str) -> list[str]:
    return [str(text.text) for text in ElementTree.fromstring(drawing).findall(".//{*}text")]


def test_a_bar_is_as_long_as_its_value_is_large() -> None:
    drawing = bars("t", [Panel("p", [Bar("a", 100.0, text="100"), Bar("b", 400.0, text="400")])])

    short, long = _widths(drawing)
    assert long == pytest.approx(4 * short, abs=0.2)
    assert {"t", "p", "a", "b", "100", "400"} <= set(_texts(drawing))


def test_on_a_logarithmic_scale_a_bar_grows_by_the_same_for_every_factor() -> None:
    drawing = bars("t", [Panel("p", [Bar("a", 1.0), Bar("b", 10.0), Bar("c", 100.0)], is_log=True)])

    first, second, third = _widths(drawing)
    assert third - second == pytest.approx(second - first, abs=2)


def test_a_bar_without_a_value_shows_its_text() -> None:
    drawing = bars("t", [Panel("p", [Bar("a", 1.0, text="1"), Bar("b", None, text="not installed")])])

    assert "not installed" in _texts(drawing)
    assert len(_widths(drawing)) == 1


def test_labels_are_escaped() -> None:
    odd = '<script>"&'

    drawing = bars(odd, [Panel(odd, [Bar(odd, 1.0, text=odd)], line=(odd, 1.0))])

    assert _texts(drawing).count(odd) == 5  # the title, the panel, its line, the bar's name and its text
    assert "<script>" not in drawing


def test_longer_times_are_drawn_higher() -> None:
    drawing = ElementTree.fromstring(curves("t", {"quick": [1.0] * 101, "slow": [10.0] * 101}, raw=0.5))

    heights = [
        float(line.attrib["points"].split()[0].split(",")[1]) for line in drawing.findall(".//{*}polyline")
    ]
    assert heights[1] < heights[0]  # y counts downwards


def test_layers_are_stacked() -> None:
    drawing = layers("t", [0.0, 1.0], {("a", "#111"): [2.0, 2.0], ("b", "#222"): [1.0, 3.0]})

    first, second = (
        shape.attrib["points"] for shape in ElementTree.fromstring(drawing).findall(".//{*}polygon")
    )
    assert set(first.split()[:2]) <= set(second.split())


@pytest.mark.parametrize("most", [0.3, 1.0, 7.0, 999.0, 31_385.0, 1_200_000.0])
def test_a_scale_has_a_few_round_ticks(most: float) -> None:
    ticks = axis([most], 0, 100).ticks()

    assert 2 <= len(ticks) <= 8
    assert ticks[0] == 0
    assert ticks[-1] <= most


def test_the_charts_of_the_documentation_have_the_present_colors() -> None:
    charts = sorted((Path(__file__).parent.parent.parent / "docs" / "benchmarks").glob("*.svg"))

    assert len(charts) == 4
    assert [chart.name for chart in charts if STYLE not in chart.read_text("utf-8")] == []
