"""Read SQL files: named statements with comments, and numbered migrations."""

import re
from collections.abc import Iterator
from functools import cache
from importlib.resources import files

_NAME = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)
_COMMENT = re.compile(r"^--.*\n", re.MULTILINE)


@cache
def statements(package: str, file: str = "queries.sql") -> dict[str, str]:
    """Return the statements of a file by name. Each begins with a line `-- name: …`.

    Comments and the final semicolon are removed: drivers cache prepared statements by their text, and some
    do not cache a text that has more than the statement.
    """
    parts = _NAME.split(files(package).joinpath(file).read_text("utf-8"))
    texts = (_COMMENT.sub("", text).strip().removesuffix(";") for text in parts[2::2])
    statements_by_name = dict(zip(parts[1::2], texts, strict=True))
    if len(statements_by_name) < len(parts[1::2]):
        raise ValueError(f"a name occurs twice in {package}/{file}")
    return statements_by_name


def migrations(package: str) -> Iterator[tuple[int, str, str]]:
    """Yield number, name and text of the files `NNNN_name.sql` of a package, in order."""
    for file in sorted(files(package).iterdir(), key=lambda file: file.name):
        if matched := re.fullmatch(r"(\d{4})_(\w+)\.sql", file.name):
            yield int(matched[1]), matched[2], file.read_text("utf-8")
