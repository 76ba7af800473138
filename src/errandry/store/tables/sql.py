"""SQL in files: whole statements with a name and a comment, and numbered migrations."""

import re
from collections.abc import Iterator
from functools import cache
from importlib.resources import files

_NAME = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)
_COMMENT = re.compile(r"^--.*\n", re.MULTILINE)


@cache
def statements(package: str, file: str = "queries.sql") -> dict[str, str]:
    """The statements of a file, by name: each begins with `-- name: …`.

    Comments and the final semicolon are left out: drivers cache prepared statements by their
    text, and some do not cache a text that goes on after its statement.
    """
    parts = _NAME.split(files(package).joinpath(file).read_text("utf-8"))
    texts = (_COMMENT.sub("", text).strip().removesuffix(";") for text in parts[2::2])
    found = dict(zip(parts[1::2], texts, strict=True))
    if len(found) < len(parts[1::2]):
        raise ValueError(f"a name stands twice in {package}/{file}")
    return found


def migrations(package: str) -> Iterator[tuple[int, str, str]]:
    """The files `NNNN_name.sql` of a package, in order: number, name, text."""
    for file in sorted(files(package).iterdir(), key=lambda file: file.name):
        if matched := re.fullmatch(r"(\d{4})_(\w+)\.sql", file.name):
            yield int(matched[1]), matched[2], file.read_text("utf-8")
