"""The documentation says what the code does: its tables, its links, and every block of code in it."""

import re
import shutil
import subprocess
import sys
import tomllib
import venv
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from errandry.core.state import TABLE, Actor, Move, State
from tests.page import blocks, differences, faults, runnable
from tools import diagram
from tools.docs import DOCS, PAGES, worded

ROOT = DOCS.parent
SITE = tomllib.loads((ROOT / "zensical.toml").read_text("utf-8"))["project"]
TEXTS = {
    path.relative_to(ROOT).as_posix(): path.read_text("utf-8")
    for path in (ROOT / "README.md", *sorted(DOCS.rglob("*.md")))
}
ELSEWHERE = ("docs/testing.md", "docs/examples.md")
"""What these show are files, run by tests/api/test_testing_page.py and tests/examples."""
RUN = [name for name, text in TEXTS.items() if runnable(blocks(text)) and name not in ELSEWHERE]
NOT_RUN = {
    ("README.md", "needs this checkout"),
    ("docs/quickstart.md", "makes an environment"),
    ("docs/guide/postgres.md", "needs a server"),
    ("docs/guide/transactions.md", "needs a server"),
    ("docs/guide/sync.md", "needs Flask"),
    ("docs/guide/sync.md", "needs Django"),
    ("docs/guide/sealing.md", "installs"),
    ("docs/guide/telemetry.md", "installs"),
    ("docs/guide/limits.md", "they would not end"),
    ("docs/guide/limits.md", "needs the id of a job"),
}


@pytest.mark.parametrize("name", PAGES)
def test_generated_pages_are_up_to_date(name: str) -> None:
    assert (DOCS / name).read_text("utf-8") == PAGES[name](), "run `make generate` and commit what it wrote"


def test_what_nobody_describes_is_found() -> None:
    class Odd:
        """How odd something is.

        size    how large it is
        """

    assert worded(Odd, ["size"]) == {"size": "how large it is"}
    with pytest.raises(LookupError, match="the docstring of Odd says nothing of colour"):
        worded(Odd, ["size", "colour"])


def test_the_drawing_has_every_state_and_every_move_but_those_of_operators() -> None:
    drawn = ElementTree.fromstring(diagram.states())
    words = re.findall(r"\w+", " ".join(str(text.text) for text in drawn.findall(".//{*}text")))

    moves = {
        move for move, rule in TABLE.items() if rule.by is not Actor.OPERATOR and rule.leads.keys() != {None}
    }
    still = {move for move in moves if all(a is b for a, b in TABLE[move].leads.items())}
    assert set(State) <= set(words)
    assert moves - still <= set(words)
    assert not {Move.RERUN, Move.EDIT, *still} & set(words)


@pytest.mark.parametrize("name", RUN)
def test_the_blocks_of_a_page_can_be_read_and_are_used(name: str) -> None:
    assert faults(blocks(TEXTS[name])) == []


@pytest.mark.slow(reason="starts an interpreter, and the workers the page starts")
@pytest.mark.parametrize("name", RUN)
def test_a_page_does_what_it_says(name: str, tmp_path: Path) -> None:
    assert differences(blocks(TEXTS[name]), tmp_path) == []


@pytest.mark.prove
def test_the_quickstart_works_in_a_new_environment_with_nothing_else_in_it(tmp_path: Path) -> None:
    venv.create(tmp_path / "env", with_pip=True)
    python, folder = str(tmp_path / "env" / "bin" / "python"), tmp_path / "folder"
    subprocess.run([python, "-m", "pip", "install", "--quiet", str(ROOT)], check=True, capture_output=True)
    folder.mkdir()

    assert differences(blocks(TEXTS["docs/quickstart.md"]), folder, python) == []


def test_few_blocks_are_not_run() -> None:
    found = {(name, block.why_not) for name, text in TEXTS.items() for block in blocks(text) if block.why_not}

    assert found == NOT_RUN


@pytest.mark.parametrize("name", TEXTS)
def test_links_lead_somewhere(name: str) -> None:
    assert [link for link in _links(TEXTS[name]) if not _leads(ROOT / name, link)] == []


def test_every_page_has_a_place_in_the_navigation() -> None:
    listed = list(_listed(SITE["nav"]))
    there = [path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md") if path.parent.name != "adr"]

    assert sorted(listed) == sorted(there)


@pytest.mark.slow(reason="builds the site")
def test_the_site_is_built_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    shutil.copytree(DOCS, tmp_path / "docs")
    shutil.copy(ROOT / "zensical.toml", tmp_path)

    built = subprocess.run(
        [str(Path(sys.executable).parent / "zensical"), "build", "--strict"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert built.returncode == 0, built.stdout + built.stderr
    site = tmp_path / SITE["site_dir"]
    pages = {path.relative_to(site).as_posix(): path.read_text("utf-8") for path in site.rglob("*.html")}
    assert {Path(name).with_suffix(".html").as_posix() for name in _listed(SITE["nav"])} <= pages.keys()
    assert {name: found for name, text in pages.items() if (found := _foreign(text))} == {}
    assert [
        path for path in site.rglob("*.css") if re.search(r"url\(\W?https?:", path.read_text("utf-8"))
    ] == []


@pytest.mark.parametrize(
    ("tag", "is_foreign"),
    [
        ('<script src="https://cdn.example/x.js">', True),
        ('<link rel=stylesheet href="//fonts.example/x.css">', True),
        ("<img alt='' src=http://example.com/x.png>", True),
        ('<img src="states.svg">', False),
        ('<a href="https://example.com/">', False),
        ('<pre class="mermaid">', True),
    ],
)
def test_what_comes_from_elsewhere_is_found(tag: str, is_foreign: bool) -> None:
    assert bool(_foreign(tag)) == is_foreign


PAGE = """
```python
# greet.py
def hello(name: str) -> str:
    return f"Hello, {name}"
```

```python
from greet import hello

print(hello("Ada"))
```

```text
Hello, A…
```

```sh
echo one
```

```text
one
```
"""


def test_a_page_that_is_right_passes(tmp_path: Path) -> None:
    assert faults(blocks(PAGE)) == differences(blocks(PAGE), tmp_path) == []


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        ("Hello, A…", "Hello, B…", "'Hello, B…\\n' is said to be printed, but it is 'Hello, Ada'"),
        ("\none\n", "\ntwo\n", "'two\\n' is said to be printed, but it is 'one'"),
    ],
)
def test_what_is_printed_otherwise_is_found(tmp_path: Path, before: str, after: str, found: str) -> None:
    assert differences(blocks(PAGE.replace(before, after)), tmp_path) == [found]


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        ("echo one", "false", "Command 'false' returned non-zero exit status 1"),
        ("echo one", "errandry no-such-command &\necho one", "errandry no-such-command ended with"),
        ("echo one", "python -c 'raise SystemExit(3)' &", "has not said that it is there"),
        ("print(hello", "print(goodbye", "NameError: name 'goodbye' is not defined"),
        ("print(hello", "await print(hello", "TypeError"),
    ],
)
def test_what_goes_wrong_is_found(tmp_path: Path, before: str, after: str, found: str) -> None:
    with pytest.raises(AssertionError, match=re.escape(found)):
        differences(blocks(PAGE.replace(before, after)), tmp_path)


def test_a_file_nobody_uses_and_a_block_that_is_no_python_are_found() -> None:
    page = "```python\n# lonely.py\n```\n\n```python\nthis is no Python\n```\n"

    assert [fault.partition(":")[0] for fault in faults(blocks(page))] == [
        "nothing uses lonely.py",
        "no Python",
    ]


_FOREIGN = re.compile(
    r"""<(?!a\b)\w+\b[^>]*?\b(?:src|href|srcset|data)=["']?(?:https?:)?//[^>]*>|<pre class="mermaid">"""
)
"""What a browser would load by itself; a diagram of mermaid has it load a library."""


def _foreign(page: str) -> list[str]:
    return _FOREIGN.findall(page)


_CODE = re.compile(r"^ *```.*?^ *```$|`[^`\n]*`", re.DOTALL | re.MULTILINE)


def _links(text: str) -> list[str]:
    return re.findall(r"\]\(([^)\s]+)\)", _CODE.sub("", text))


def _leads(page: Path, link: str) -> bool:
    """Whether a link within the repository has a file at its end, and that a heading of this name."""
    if "://" in link:
        return True
    path, _, anchor = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    return target.exists() and (not anchor or anchor in _anchors(target.read_text("utf-8")))


def _anchors(text: str) -> list[str]:
    heads = re.findall(
        r"^#+ (.+)$", _CODE.sub(lambda code: code[0].strip("`") if "\n" not in code[0] else "", text), re.M
    )
    return [re.sub(r"[^\w\- ]", "", head).strip().lower().replace(" ", "-") for head in heads]


def _listed(nav: list[dict[str, object]]) -> Iterator[str]:
    for entry in nav:
        for value in entry.values():
            if isinstance(value, str):
                yield value
            elif isinstance(value, list):
                yield from _listed(value)
