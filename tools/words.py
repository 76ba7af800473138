"""Report prose that a reader has to decode: `python -m tools.words`, part of `make check`.

It looks for the marker patterns of the rules in CONTRIBUTING.md ("Words"): in docstrings, comments, strings
and function names of Python files, in comments of SQL files, and in Markdown pages outside of code blocks.
Quoted lines (`> …`) are exempt. It also reports names such as `job_id` without backticks in docstrings of the
package, because a search and replace may have put them there, and commit subjects that are too long.
"""

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
PLACES = (
    "src",
    "docs",
    "bench",
    "tools",
    "tests",
    "examples",
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
)
EXEMPT = {"tools/words.py", "tests/test_words.py", "CONTRIBUTING.md"}
"""Files that name the patterns."""

SUBJECT_MAX = 60
FIRST_CHECKED = "1a0c42484254d45a7c01db76edadc0c249fba3b0"
"""Subjects of commits after this one are checked."""

_PEOPLE = (
    "person|people|users?|readers?|engineers?|developers?|operators?|authors?|customers?|programmers?|"
    "anyone|everyone"
)
PATTERNS = {
    'name the worker, caller, pass or server instead of "who"': re.compile(
        rf"(?P<people>\b(?:{_PEOPLE}) who\b)|\b(?:who|whoever|whom|whomever)\b", re.IGNORECASE
    ),
    'write the number, "at most …" or "for … seconds" instead of "so many", "so long"': re.compile(
        r"\bso (?:many|much|long|often)\b(?! as\b)", re.IGNORECASE
    ),
    'write "again" or "a new …" instead of "anew"': re.compile(r"\banew\b", re.IGNORECASE),
    'name the actor instead of "somebody", "nobody"': re.compile(
        r"\b(?:somebody|nobody)(?:'s)?\b", re.IGNORECASE
    ),
}

_QUOTED = re.compile(r"`[^`\n]*`|\"[^\"\n]*\"|'[^'\n]*'")
_BARE_NAME = re.compile(r"(?<![\w./\\=:-])[a-z][a-z0-9]*(?:_[a-z0-9]+)+(?![\w(=/-]|\.\w)")
_TABLE_ROW = re.compile(r"\S {2,}\S")
BARE_NAME_ADVICE = "put a name into backticks, or write words instead of it"


class Passage(NamedTuple):
    """A piece of prose and the line of its file that it begins on."""

    line: int
    text: str


def problems(path: Path) -> Iterator[tuple[int, str, str]]:
    """The line, the words and the advice for each pattern in the prose of a file."""
    for passage in passages(path):
        text = "\n".join(
            "" if line.lstrip(" #-").startswith(">") else line for line in passage.text.split("\n")
        )
        for advice, pattern in PATTERNS.items():
            for match in pattern.finditer(text):
                if not match.groupdict().get("people"):
                    yield passage.line + text.count("\n", 0, match.start()), match[0], advice


def bare_names(path: Path) -> Iterator[tuple[int, str, str]]:
    """Like `problems`: names in snake_case without backticks in the docstrings of a Python file.

    Indented blocks, quoted names, and the first word of each row of a table are exempt.
    """
    for docstring in _docstrings(path.read_text("utf-8")):
        line = docstring.line
        for paragraph in docstring.text.split("\n\n"):
            text = "" if paragraph.startswith("    ") else _QUOTED.sub("", paragraph)
            if _TABLE_ROW.search(paragraph):
                text = re.sub(r"^\w+", "", text, flags=re.M)
            for match in _BARE_NAME.finditer(text):
                yield line + text.count("\n", 0, match.start()), match[0], BARE_NAME_ADVICE
            line += paragraph.count("\n") + 2


def _docstrings(text: str) -> Iterator[Passage]:
    """The docstrings of modules, classes, functions and attributes, without their indentation."""
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Expr(value=ast.Constant(value=str(docstring))):
                first, *others = docstring.split("\n")
                yield Passage(node.lineno, "\n".join([first, *(line[node.col_offset :] for line in others)]))


def passages(path: Path) -> Iterator[Passage]:
    text = path.read_text("utf-8")
    match path.suffix:
        case ".py":
            yield from _python(text)
        case ".sql":
            lines = enumerate(text.splitlines(), 1)
            yield from (Passage(number, line.partition("--")[2]) for number, line in lines)
        case ".md":
            blank = re.sub(
                r"^```.*?^```$", lambda block: "\n" * block[0].count("\n"), text, flags=re.M | re.S
            )
            yield Passage(1, re.sub(r"`[^`\n]*`", "", blank))


def _python(text: str) -> Iterator[Passage]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", -1)):
            if " " in token.string:  # a single word is a value, not prose
                yield Passage(token.start[0], token.string)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield Passage(node.lineno, node.name.replace("_", " "))


def long_subjects() -> list[str]:
    """Subjects of new commits with more than `SUBJECT_MAX` characters; none where git knows no history."""
    log = ["git", "log", "--no-merges", "--format=%h %s", f"{FIRST_CHECKED}..HEAD"]
    done = subprocess.run(log, cwd=ROOT, capture_output=True, text=True, check=False)
    return [line for line in done.stdout.splitlines() if len(line.partition(" ")[2]) > SUBJECT_MAX]


def files(places: list[str]) -> Iterator[Path]:
    for place in places:
        found = ROOT / place
        yield from [found] if found.is_file() else sorted(found.rglob("*"))


def main(places: list[str]) -> int:
    count = 0
    for path in files(places or list(PLACES)):
        name = str(path.relative_to(ROOT))
        if path.suffix in {".py", ".sql", ".md"} and name not in EXEMPT:
            of_package = bare_names(path) if name.startswith("src/") and path.suffix == ".py" else ()
            for line, words, advice in (*problems(path), *of_package):
                count += 1
                print(f"{name}:{line}: {words!r}: {advice}")
    for commit in long_subjects():
        count += 1
        print(f"commit {commit}: the subject has more than {SUBJECT_MAX} characters")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
