"""The documentation matches the code: generated pages, links, and every block of code."""

import re
import shutil
import subprocess
import sys
import tomllib
import venv
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from pkgutil import resolve_name
from types import ModuleType
from xml.etree import ElementTree

import pytest

import errandry
from errandry import Errandry, Job, telemetry, testing
from errandry.core.state import OPERATOR_ACTORS, TABLE, Move, State
from tests.docs_page import blocks, blocks_to_run, output_differences, problems
from tools import api, diagram, screen
from tools.api import ApiPage
from tools.docs import DOCS, PAGES, descriptions

ROOT = DOCS.parent
SITE = tomllib.loads((ROOT / "zensical.toml").read_text("utf-8"))["project"]
TEXTS = {
    path.relative_to(ROOT).as_posix(): path.read_text("utf-8")
    for path in (ROOT / "README.md", *sorted(DOCS.rglob("*.md")))
}
USER_PAGES = [name for name in TEXTS if not re.match(r"docs/(internals|store|proof|adr/)", name)]
NAMES_OF_OTHERS = {"acks_late", "on_commit", "pg_dump"}
"""Names in other programs that pages for users give in code."""
PUBLIC_MODULES = {"errandry.errors", "errandry.telemetry", "errandry.testing"}
"""The modules that users import, beside `errandry` itself."""
USER_TEXTS = {
    name: text for name, text in TEXTS.items() if name != "docs/store.md" and "docs/adr/" not in name
} | {
    path.relative_to(ROOT).as_posix(): path.read_text("utf-8")
    for path in sorted((ROOT / "examples").rglob("*.py"))
}
"""The pages for users and the examples. `docs/store.md` is for authors of stores."""
SOURCES = ("src", "tests", "bench", "tools", "examples", "docs")
ELSEWHERE = ("docs/testing.md", "docs/examples.md")
"""The blocks of these pages are files that tests/api/test_testing_page.py and tests/examples run."""
API = [f"docs/{name}" for name in api.pages()]
"""The blocks of these pages are signatures and excerpts of programs."""
RUN = [name for name, text in TEXTS.items() if blocks_to_run(blocks(text)) and name not in (*ELSEWHERE, *API)]
NOT_RUN = {
    ("README.md", "needs this checkout"),
    ("docs/index.md", "needs a checkout"),
    ("docs/quickstart.md", "makes an environment"),
    ("docs/guide/fences.md", "needs a server"),
    ("docs/guide/postgres.md", "needs a server"),
    ("docs/guide/transactions.md", "needs a server"),
    ("docs/guide/sync.md", "needs Flask"),
    ("docs/guide/sync.md", "needs Django"),
    ("docs/guide/sealing.md", "installs"),
    ("docs/guide/telemetry.md", "installs"),
    ("docs/guide/limits.md", "the commands would not end"),
    ("docs/guide/limits.md", "needs the id of a job"),
}
CODE_TOURS = [
    name for name in TEXTS if re.match(r"docs/((reading|internals|store|lifecycle)\.md|adr/)", name)
]
"""The pages that name source files and modules."""
PATHS = [f"/{place}" for place in SOURCES] + [
    path.as_posix() for place in SOURCES for path in (ROOT / place).rglob("*")
]


@pytest.mark.parametrize("name", PAGES)
def test_generated_pages_are_up_to_date(name: str) -> None:
    assert (DOCS / name).read_text("utf-8") == PAGES[name](), "run `make generate` and commit what it wrote"


@pytest.mark.parametrize("name", USER_TEXTS)
def test_no_column_for_a_fence_is_smaller_than_64_bits(name: str) -> None:
    assert re.findall(r"\bfence (?:int|integer|int4|smallint)\b", USER_TEXTS[name], re.IGNORECASE) == []


def test_a_value_without_a_description_is_reported() -> None:
    class Odd:
        """How odd something is.

        size    how large it is
        """

    assert descriptions(Odd, ["size"]) == {"size": "how large it is"}
    with pytest.raises(LookupError, match="the docstring of Odd does not describe colour"):
        descriptions(Odd, ["size", "colour"])


def test_the_api_pages_have_every_public_member_with_its_signature() -> None:
    page = TEXTS["docs/reference/api/errandry.md"]

    names = re.findall(r"^### `(\w+)`$", page, re.MULTILINE)
    public = {name for name in dir(Errandry) if not name.startswith("_")} - api.INTERNAL
    assert public | {"workers", "schedules", "sync"} <= set(names)
    assert [name for name in names if name.startswith("_")] == []
    assert len(names) == len(set(names))
    assert "async def enqueue_flow(flow: Parallel[R]) -> list[Job[R]]: ..." in page
    assert 'async def list(\n    query: str = "",\n' in page


def test_every_public_name_is_on_a_reference_page() -> None:
    public = {*errandry.__all__, *testing.__all__} - {"__version__"}
    public |= {name for name, value in vars(telemetry).items() if _is_defined_in(telemetry, name, value)}
    shown = {item.__name__ for page in api.PAGES.values() for item in page.items}
    linked = {name for name, link in api.LINKS.items() if _has_target(ROOT / API[0], link)}

    assert public - shown - linked == set()
    assert api.LINKS.keys() - linked == set()


def _is_defined_in(module: ModuleType, name: str, value: object) -> bool:
    return not name.startswith("_") and getattr(value, "__module__", None) == module.__name__


@pytest.mark.parametrize("name", API)
def test_every_member_of_an_api_page_has_a_text(name: str) -> None:
    assert _without_text(TEXTS[name]) == []


def test_a_member_without_text_is_reported() -> None:
    page = "# Job\n\n## `id`\n\n```python\nid: str\n```\n\n## `tags`\n\n```python\ntags: str\n```\n\nTags.\n"

    assert _without_text(page) == ["## `id`"]


def test_docstrings_become_markdown() -> None:
    docstring = """Send it; see `Job` and `other`.

        job = await send.enqueue("ada")

        await job.wait()

    Then go on.

    print("done")
    """

    assert api.markdown(docstring) == (
        "Send it; see [`Job`](job.md) and `other`.\n\n"
        '```python\njob = await send.enqueue("ada")\n\nawait job.wait()\n```\n\n'
        'Then go on.\n\n```python\nprint("done")\n```'
    )


def test_a_default_that_is_a_constant_is_shown_by_its_value() -> None:
    page = TEXTS["docs/reference/api/errandry.md"]

    assert '    owner: str = "app",\n' in page
    assert "    lease: Duration = 30.0,\n" in page


def test_names_with_descriptions_become_a_table() -> None:
    docstring = """A queue.

    name    its name
    waited  how long its first job
            has waited

    A name  is not described here.
    """

    assert api.markdown(docstring) == (
        "A queue.\n\n| name | meaning |\n| --- | --- |\n| `name` | its name |\n"
        "| `waited` | how long its first job has waited |\n\nA name  is not described here."
    )


def test_a_group_that_names_a_missing_member_is_reported() -> None:
    page = ApiPage("Job", "Jobs.", (Job,), {"Read": ("result", "nowhere")})

    with pytest.raises(LookupError, match="Job has no public nowhere"):
        api.text(page)


def test_the_picture_is_drawn_from_the_view_and_names_nothing_of_this_machine() -> None:
    picture = (DOCS / "top.svg").read_text("utf-8")
    texts = [str(text.text) for text in ElementTree.fromstring(picture).findall(".//{*}text")]

    for text in ("Queues", "Workers", "Recently failed", "q quit"):
        assert any(text in line for line in texts)
    assert re.findall(r"https?://(?!www\.w3\.org/2000/svg)", picture) == []
    assert str(Path.home()) not in picture
    assert str(ROOT) not in picture


def test_terminal_lines_are_drawn_with_their_colors_in_their_columns() -> None:
    drawn = ElementTree.fromstring(screen.drawing("t", ["\x1b[31mred\x1b[0m  a < b"], 20))
    texts = [(text.get("class"), text.text, text.get("x")) for text in drawn.findall(".//{*}text")]

    assert texts == [
        ("red", "red", f"{screen.MARGIN:.1f}"),
        (None, "a < b", f"{screen.MARGIN + 5 * screen.CHARACTER:.1f}"),
    ]


def test_the_diagram_has_every_state_and_every_move_except_those_of_operators() -> None:
    drawn = ElementTree.fromstring(diagram.states())
    words = re.findall(r"\w+", " ".join(str(text.text) for text in drawn.findall(".//{*}text")))

    moves = {
        move for move, rule in TABLE.items() if rule.by not in OPERATOR_ACTORS and rule.leads.keys() != {None}
    }
    without_change = {move for move in moves if all(a is b for a, b in TABLE[move].leads.items())}
    assert set(State) <= set(words)
    assert moves - without_change <= set(words)
    assert not {Move.RERUN, Move.EDIT, *without_change} & set(words)


@pytest.mark.parametrize("name", [*RUN, *API])
def test_the_blocks_of_a_page_are_valid_and_used(name: str) -> None:
    assert problems(blocks(TEXTS[name])) == []


@pytest.mark.slow(reason="starts an interpreter, and the workers the page starts")
@pytest.mark.parametrize("name", RUN)
def test_the_blocks_of_a_page_print_what_the_page_shows(name: str, tmp_path: Path) -> None:
    assert output_differences(blocks(TEXTS[name]), tmp_path) == []


@pytest.mark.prove
def test_the_quickstart_works_in_a_new_environment(tmp_path: Path) -> None:
    venv.create(tmp_path / "env", with_pip=True)
    python, folder = str(tmp_path / "env" / "bin" / "python"), tmp_path / "folder"
    subprocess.run([python, "-m", "pip", "install", "--quiet", str(ROOT)], check=True, capture_output=True)
    folder.mkdir()

    assert output_differences(blocks(TEXTS["docs/quickstart.md"]), folder, python) == []


def test_a_comment_before_a_block_says_why_it_is_not_run(tmp_path: Path) -> None:
    page = blocks("<!-- not run here: fails -->\n```sh\nfalse\n```\n\n```sh\necho one\n```\n")

    assert [(block.text, block.skip_reason) for block in page] == [("false\n", "fails"), ("echo one\n", None)]
    assert blocks_to_run(page) == page[1:]


def test_only_the_listed_blocks_are_not_run() -> None:
    reasons = {
        (name, block.skip_reason)
        for name, text in TEXTS.items()
        for block in blocks(text)
        if block.skip_reason
    }

    assert reasons == NOT_RUN


@pytest.mark.parametrize("name", TEXTS)
def test_links_have_a_target(name: str) -> None:
    assert [link for link in _links(TEXTS[name]) if not _has_target(ROOT / name, link)] == []


@pytest.mark.parametrize("name", CODE_TOURS)
def test_the_source_files_and_modules_that_a_page_names_exist(name: str) -> None:
    assert _missing_paths(TEXTS[name]) == []
    assert _missing_modules(TEXTS[name]) == []


def test_a_missing_source_file_or_module_is_reported() -> None:
    page = (
        "`core/state.py` `store/gone.py` `state.py` `gone.py` `worker/children/` `worker/gone/`\n"
        "`errandry.core.state.TABLE` `errandry.core.state.GONE` `python -m bench.gone` `bench.retention`\n"
        "```text\napi/task.py api/gone.py\n```\n"
    )

    assert _missing_paths(page) == ["store/gone.py", "gone.py", "worker/gone/", "api/gone.py"]
    assert _missing_modules(page) == ["errandry.core.state.GONE", "bench.gone"]


@pytest.mark.parametrize("name", USER_PAGES)
def test_the_names_that_a_page_for_users_gives_in_code_exist(name: str) -> None:
    assert _unknown_names(TEXTS[name]) == set()


def test_a_name_that_is_not_in_the_code_is_reported() -> None:
    page = "`enqueue_many(limit=1_000)` `gone_name` `acks_late` `own_name`\n```python\nown_name = 1\n```\n"

    assert _unknown_names(page) == {"gone_name"}


@pytest.mark.parametrize("name", USER_TEXTS)
def test_pages_and_examples_for_users_import_public_modules_only(name: str) -> None:
    assert _internal_imports(USER_TEXTS[name]) == set()


def test_an_import_of_an_internal_module_is_reported() -> None:
    lines = [
        "import errandry, errandry.errors",
        "from errandry import Errandry",
        "from errandry.testing import drain",
        "from errandry.telemetry import instrument",
        "import os, errandry.clock",
        "    from errandry.core.job import JobRecord",
        "python -c 'from errandry.api.task import Call; print(Call)'",
    ]

    assert _internal_imports("\n".join(lines)) == {
        "errandry.clock",
        "errandry.core.job",
        "errandry.api.task",
    }


def test_every_page_is_in_the_navigation() -> None:
    listed = list(_listed(SITE["nav"]))
    pages = [path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md") if path.parent.name != "adr"]

    assert sorted(listed) == sorted(pages)


@pytest.mark.slow(reason="builds the site")
def test_the_site_is_built_and_loads_nothing_from_other_hosts(tmp_path: Path) -> None:
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
    assert {name: tags for name, text in pages.items() if (tags := _foreign(text))} == {}
    assert re.search(r'rel="icon" href="[./]*favicon\.svg"', pages["index.html"])
    assert [name for name, text in pages.items() if "not run here" in re.sub("<!--.*?-->", "", text)] == []
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
def test_a_tag_that_loads_from_another_host_is_reported(tag: str, is_foreign: bool) -> None:
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


def test_a_correct_page_passes(tmp_path: Path) -> None:
    assert problems(blocks(PAGE)) == output_differences(blocks(PAGE), tmp_path) == []


@pytest.mark.parametrize(
    ("before", "after", "problem"),
    [
        ("Hello, A…", "Hello, B…", "the page shows the output 'Hello, B…\\n', but it is 'Hello, Ada'"),
        ("\none\n", "\ntwo\n", "the page shows the output 'two\\n', but it is 'one'"),
    ],
)
def test_output_that_differs_is_reported(tmp_path: Path, before: str, after: str, problem: str) -> None:
    assert output_differences(blocks(PAGE.replace(before, after)), tmp_path) == [problem]


@pytest.mark.parametrize(
    ("before", "after", "problem"),
    [
        ("echo one", "false", "Command 'false' returned non-zero exit status 1"),
        ("echo one", "errandry no-such-command &\necho one", "errandry no-such-command ended with"),
        ("echo one", "python -c 'raise SystemExit(3)' &", "has not printed anything"),
        ("print(hello", "print(goodbye", "NameError: name 'goodbye' is not defined"),
        ("print(hello", "await print(hello", "TypeError"),
    ],
)
def test_a_page_that_fails_is_reported(tmp_path: Path, before: str, after: str, problem: str) -> None:
    with pytest.raises(AssertionError, match=re.escape(problem)):
        output_differences(blocks(PAGE.replace(before, after)), tmp_path)


def test_an_unused_file_and_a_block_of_invalid_python_are_reported() -> None:
    page = "```python\n# lonely.py\n```\n\n```python\nthis is no Python\n```\n"

    assert [problem.partition(":")[0] for problem in problems(blocks(page))] == [
        "nothing uses lonely.py",
        "no Python",
    ]


def _without_text(page: str) -> list[str]:
    """The headings of a page that are followed by nothing but code, and by no heading below them."""
    parts = re.split(r"^(#+ .+)$", re.sub(r"^```.*?^```$", "", page, flags=re.S | re.M), flags=re.M)
    heads = [*zip(parts[1::2], parts[2::2], strict=True), ("#", "")]
    return [
        head
        for (head, text), (after, _) in pairwise(heads)
        if not text.strip() and after.count("#") <= head.count("#")
    ]


_FOREIGN = re.compile(
    r"""<(?!a\b)\w+\b[^>]*?\b(?:src|href|srcset|data)=["']?(?:https?:)?//[^>]*>|<pre class="mermaid">"""
)
"""Tags whose target a browser loads by itself; a mermaid diagram makes it load a library."""


def _foreign(page: str) -> list[str]:
    return _FOREIGN.findall(page)


def _internal_imports(text: str) -> set[str]:
    """The modules of errandry that a text imports although they are not public."""
    imports = re.findall(r"\bfrom +([\w.]+) +import\b|\bimport +([\w.]+(?: *, *[\w.]+)*)", text)
    modules = {module for pair in imports for part in pair for module in re.split(r" *, *", part)}
    return {module for module in modules if module.startswith("errandry.")} - PUBLIC_MODULES


_MODULE = re.compile(r"\b(?:errandry|bench|tools|tests)(?:\.\w+)+")


def _missing_paths(text: str) -> list[str]:
    """The files and folders that a page names in code, and that no path of the repository ends with."""
    words = [word for code in _code_outside_of_programs(text) for word in re.findall(r"[\w./-]+", code)]
    named = [word for word in words if re.search(r"\w/|\.(?:py|sql|md)$", word)]
    return [path for path in named if not any(real.endswith(f"/{path.rstrip('/')}") for real in PATHS)]


def _missing_modules(text: str) -> list[str]:
    """The modules, and names in modules, that a page names in code and that cannot be imported."""
    code = _code_outside_of_programs(text)
    return [name for part in code for name in _MODULE.findall(part) if not _can_import(name)]


def _code_outside_of_programs(text: str) -> list[str]:
    """The code in the lines of a page, and its `text` blocks: the other blocks are run."""
    drawings = [block.text for block in blocks(text) if block.kind == "text"]
    return re.findall(r"`([^`\n]+)`", re.sub(r"^ *```.*?^ *```$", "", text, flags=re.S | re.M)) + drawings


def _unknown_names(text: str) -> set[str]:
    """The names in snake case that a page gives in code, and that neither its programs nor `src` have.

    Names of Python files are left out.
    """
    name_pattern = re.compile(r"\b[A-Za-z_]\w*\b(?!\.py\b)")
    named = {word for code in _code_outside_of_programs(text) for word in name_pattern.findall(code)}
    programs = {word for block in blocks(text) for word in re.findall(r"\w+", block.text)}
    snake_case = {name for name in named if "_" in name.strip("_") and name.islower()}
    return snake_case - programs - _source_words() - NAMES_OF_OTHERS


@cache
def _source_words() -> set[str]:
    """All words in the code of the package."""
    files = [path for path in (ROOT / "src").rglob("*") if path.suffix in (".py", ".sql")]
    return {word for path in files for word in re.findall(r"\w+", path.read_text("utf-8"))}


def _can_import(name: str) -> bool:
    try:
        resolve_name(name)
    except (ImportError, AttributeError):
        return False
    return True


_CODE = re.compile(r"^ *```.*?^ *```$|`[^`\n]*`", re.DOTALL | re.MULTILINE)


def _links(text: str) -> list[str]:
    return re.findall(r"\]\(([^)\s]+)\)", _CODE.sub("", text))


def _has_target(page: Path, link: str) -> bool:
    """Whether the file of a link within the repository exists and has the heading that the link names."""
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
