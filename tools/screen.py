"""Draw the lines of a terminal as SVG, without a library. It follows the reader's dark or light theme."""

import re
from collections.abc import Iterator, Sequence
from html import escape

CHARACTER, LINE, MARGIN = 8.4, 19, 16
"""Width of a character, height of a line, and margin around the text, in pixels."""
CLASSES = {
    0: "",
    1: "bold",
    31: "red",
    32: "green",
    33: "yellow",
    34: "blue",
    35: "magenta",
    36: "cyan",
    90: "gray",
}
"""The style of each code for colors and weight that the command line prints."""
STYLE = """
svg { font: 14px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; fill: #24292f }
text { white-space: pre }
.screen { fill: #fbfcfd; stroke: #d0d7de }
.bold { font-weight: 600 }
.red { fill: #b42318 } .green { fill: #1a7f37 } .yellow { fill: #8a6100 } .blue { fill: #0550ae }
.magenta { fill: #8250df } .cyan { fill: #0b7285 } .gray { fill: #6e7781 }
@media (prefers-color-scheme: dark) {
svg { fill: #d6dde6 }
.screen { fill: #12161d; stroke: #2b333e }
.red { fill: #ff7b72 } .green { fill: #7ee787 } .yellow { fill: #e3b341 } .blue { fill: #79c0ff }
.magenta { fill: #d2a8ff } .cyan { fill: #56d4dd } .gray { fill: #8b949e }
}
"""
_CODE = re.compile(r"\x1b\[(\d+)m")


def drawing(title: str, lines: Sequence[str], columns: int) -> str:
    """The SVG document of these lines, which may contain codes for colors and weight."""
    width, height = 2 * MARGIN + columns * CHARACTER, 2 * MARGIN + len(lines) * LINE
    texts = "\n".join(
        text for number, line in enumerate(lines) for text in _texts(line, MARGIN + (number + 0.75) * LINE)
    )
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" role="img">
<title>{escape(title)}</title>
<style>{STYLE}</style>
<rect class="screen" x="0.5" y="0.5" width="{width - 1:.0f}" height="{height - 1:.0f}" rx="8"/>
{texts}
</svg>
"""


def _texts(line: str, y: float) -> Iterator[str]:
    """The words of a line. Each has its position and length, so that columns align in every font."""
    styles, column = set[str](), 0
    for number, part in enumerate(_CODE.split(line)):
        if number % 2:
            styles = {*styles, CLASSES[int(part)]} if part != "0" else set()
            continue
        kind = f' class="{" ".join(sorted(styles))}"' if styles else ""
        for word in re.finditer(r"\S+(?: \S+)*", part):
            x, length = MARGIN + (column + word.start()) * CHARACTER, len(word[0]) * CHARACTER
            yield f'<text{kind} x="{x:.1f}" y="{y:.1f}" textLength="{length:.1f}">{escape(word[0])}</text>'
        column += len(part)
