"""Finds the markers that anchor mutants to the source: `# guard: name` in Python, `-- guard: name` in SQL.

In Python a marker is at the end of a line, or on a line of its own above it. It marks the code that begins on
this line: a statement, an `elif`, or one operand or argument of a longer statement. Put the marker of an
operand or argument on a line of its own, so that the formatter does not move it when it splits a line.

In SQL a marker is on a line of its own and marks the statement that follows.
Commas separate several names.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_PYTHON = re.compile(r"#\s*guard:\s*(?P<names>.*)")
_SQL = re.compile(r"^\s*--\s*guard:\s*(?P<names>.*)$", re.MULTILINE)
_NOT_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}


class Marker(NamedTuple):
    """One name at one place. `line`, counted from 1, is the marked line; in SQL it is that of the marker."""

    name: str
    path: Path
    line: int


def markers(folder: Path) -> list[Marker]:
    """Return all markers in the Python and SQL files under `folder`."""
    found = []
    for path in sorted(folder.rglob("*")):
        if path.suffix in {".py", ".sql"} and "guard:" in (text := path.read_text("utf-8")):
            lines = _python_lines(text) if path.suffix == ".py" else _sql_lines(text)
            found += [Marker(name.strip(), path, line) for names, line in lines for name in names.split(",")]
    return found


def _python_lines(text: str) -> Iterator[tuple[str, int]]:
    tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    with_code = sorted({token.start[0] for token in tokens if token.type not in _NOT_CODE})
    for token in tokens:
        if token.type == tokenize.COMMENT and (matched := _PYTHON.fullmatch(token.string)):
            yield matched["names"], next(line for line in with_code if line >= token.start[0])


def _sql_lines(text: str) -> Iterator[tuple[str, int]]:
    for matched in _SQL.finditer(text):
        yield matched["names"], text.count("\n", 0, matched.start()) + 1


def marked_node(tree: ast.Module, line: int) -> ast.AST:
    """Return the outermost node that begins on `line`, inside the statement that covers it.

    If none begins there, return the statement: the formatter moves a comment behind a closing parenthesis.
    """
    statement = max(
        (
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.stmt) and node.lineno <= line <= _head_end(node)
        ),
        key=lambda node: node.lineno,
    )
    if statement.lineno == line:
        return statement
    level: list[ast.AST] = [statement]
    while level := [child for node in level for child in ast.iter_child_nodes(node)]:
        for node in level:
            if isinstance(node, ast.expr | ast.keyword) and node.lineno == line:
                return node
    return statement


def _head_end(statement: ast.stmt) -> int:
    """The last line of a statement, without its body if it has one."""
    body = getattr(statement, "body", None)
    end = statement.end_lineno or statement.lineno
    return max(statement.lineno, body[0].lineno - 1) if body else end


def marked_sql(text: str, line: int) -> slice:
    """Return the slice of `text` with the SQL statement after the marker on `line`."""
    start = sum(len(row) for row in text.splitlines(keepends=True)[:line])
    end = text.find(";", start)
    return slice(start, len(text) if end < 0 else end + 1)
