"""Tables: fitted to the width of a terminal, and not cut if the output goes to a file or a pipe."""

import shutil
from collections.abc import Iterator, Sequence
from itertools import islice, zip_longest
from typing import NamedTuple

from errandry.cli.session import Session
from errandry.cli.text import truncate, width, wrap
from errandry.core.printable import one_line

GAP = 2
WIDTH_MIN = 6
"""Minimum width of a column that was shrunk."""


class Column(NamedTuple):
    """A column, and how it fits a narrow terminal.

    One with `can_shrink` may be cut, or left out, the last such first. One with `can_wrap` becomes narrower
    too, but its text continues on further lines, so that nothing of it is lost.
    """

    title: str
    is_right: bool = False
    can_shrink: bool = False
    can_wrap: bool = False


class Cell(NamedTuple):
    """A text with its color on a terminal."""

    text: str
    color: str | None = None


TableRow = Sequence[str | Cell]


def print_table(
    session: Session, columns: Sequence[Column], rows: Sequence[TableRow], titles: bool = True
) -> None:
    """Print a table on stdout; without `titles`, only its rows."""
    room = shutil.get_terminal_size().columns if session.is_terminal else None
    session.print("\n".join(islice(lines(session, columns, rows, room), 0 if titles else 1, None)))


def lines(
    session: Session, columns: Sequence[Column], rows: Sequence[TableRow], room: int | None = None
) -> Iterator[str]:
    """The lines of a table, its titles first, at most `room` characters wide if that is given."""
    titles = [Cell(column.title) for column in columns]
    cells = [titles, *([cell if isinstance(cell, Cell) else Cell(cell) for cell in row] for row in rows)]
    texts = [[one_line(cell.text) for cell in row] for row in cells]
    widths = [max(map(width, column)) for column in zip(*texts, strict=True)]
    if room is not None:
        widths = _fit(columns, widths, room)
    for row, row_texts in zip(cells, texts, strict=True):
        wrapped = [
            wrap(text, room) if column.can_wrap else [text]
            for column, room, text in zip(columns, widths, row_texts, strict=True)
        ]
        for line in zip_longest(*wrapped, fillvalue=""):
            yield _line(session, columns, widths, row, line, bold=row is titles)


def _line(
    session: Session,
    columns: Sequence[Column],
    widths: Sequence[int],
    cells: Sequence[Cell],
    texts: Sequence[str],
    bold: bool,
) -> str:
    parts = []
    for column, room, cell, text in zip(columns, widths, cells, texts, strict=True):
        if not room:
            continue
        cut = truncate(text, room)
        blank = " " * (room - width(cut))
        styled = session.style(cut, cell.color, bold=bold)
        parts.append(blank + styled if column.is_right else styled + blank)
    return (" " * GAP).join(parts).rstrip()


def _fit(columns: Sequence[Column], natural: Sequence[int], room: int) -> list[int]:
    """Shrink columns to fit into `room`, down to `WIDTH_MIN`; if that is not enough, leave out the last."""
    widths = list(natural)
    shrinkable = [index for index, column in enumerate(columns) if column.can_shrink or column.can_wrap]
    removable = [index for index in shrinkable if not columns[index].can_wrap]
    while _total_width(shrunk := _shrunk(widths, shrinkable, room)) > room and removable:
        widths[removable.pop()] = 0
    return shrunk


def _shrunk(natural: Sequence[int], shrinkable: Sequence[int], room: int) -> list[int]:
    """Cut the widest of the columns that may shrink, again and again, until the table fits."""
    widths = list(natural)
    while (excess := _total_width(widths) - room) > 0:
        widest = max(shrinkable, key=lambda index: (widths[index], index), default=None)
        if widest is None or widths[widest] <= WIDTH_MIN:
            break
        others = [widths[index] for index in shrinkable if index != widest]
        widths[widest] -= min(excess, max(1, widths[widest] - max([WIDTH_MIN, *others])))
    return widths


def _total_width(widths: Sequence[int]) -> int:
    shown = [width for width in widths if width]
    return sum(shown) + GAP * (len(shown) - 1)
