"""Tables: fitted to a terminal, plain and whole where something else reads them."""

import shutil
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from errandry.cli.session import Session
from errandry.cli.text import fitted, one_line, width

GAP = 2
LEAST = 6
"""A column that gives way keeps at least this much."""


class Column(NamedTuple):
    """`gives` says that it may be cut to fit; the last such column gives way first."""

    title: str
    right: bool = False
    gives: bool = False


class Cell(NamedTuple):
    """A text with the colour it has on a terminal."""

    text: str
    color: str | None = None


TableRow = Sequence[str | Cell]


def show(session: Session, columns: Sequence[Column], rows: Sequence[TableRow], titles: bool = True) -> None:
    """Print a table on stdout, or more of one that has its titles already."""
    room = shutil.get_terminal_size().columns if session.is_terminal else None
    session.print("\n".join(islice(lines(session, columns, rows, room), 0 if titles else 1, None)))


def lines(
    session: Session, columns: Sequence[Column], rows: Sequence[TableRow], room: int | None = None
) -> Iterator[str]:
    """The lines of a table, its titles first, fitted into `room` columns if that is given."""
    titles = [Cell(column.title) for column in columns]
    cells = [titles, *([cell if isinstance(cell, Cell) else Cell(cell) for cell in row] for row in rows)]
    texts = [[one_line(cell.text) for cell in row] for row in cells]
    widths = [max(map(width, column)) for column in zip(*texts, strict=True)]
    if room is not None:
        widths = _fit(columns, widths, room)
    for row, text in zip(cells, texts, strict=True):
        yield _line(session, columns, widths, row, text, bold=row is titles)


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
        cut = fitted(text, room)
        blank = " " * (room - width(cut))
        styled = session.style(cut, cell.color, bold=bold)
        parts.append(blank + styled if column.right else styled + blank)
    return (" " * GAP).join(parts).rstrip()


def _fit(columns: Sequence[Column], natural: Sequence[int], room: int) -> list[int]:
    """Widths that fit: columns that give way do so, down to their least; if need be, the last one goes."""
    widths, giving = list(natural), [index for index, column in enumerate(columns) if column.gives]
    while _total(shrunk := _shrunk(widths, giving, room)) > room and giving:
        widths[giving.pop()] = 0
    return shrunk


def _shrunk(natural: Sequence[int], giving: Sequence[int], room: int) -> list[int]:
    """The widest of those that give way is cut first."""
    widths = list(natural)
    while (over := _total(widths) - room) > 0:
        widest = max(giving, key=lambda index: (widths[index], index), default=None)
        if widest is None or widths[widest] <= LEAST:
            break
        others = [widths[index] for index in giving if index != widest]
        widths[widest] -= min(over, max(1, widths[widest] - max([LEAST, *others])))
    return widths


def _total(widths: Sequence[int]) -> int:
    shown = [width for width in widths if width]
    return sum(shown) + GAP * (len(shown) - 1)
