"""The architecture: imports point downwards, the core is pure, and each name of a type has one meaning."""

import ast
import sys
from collections.abc import Container, Iterator
from importlib.util import resolve_name
from pathlib import Path

import pytest

SOURCES = Path(__file__).parent.parent / "src"

DRIVERS = {f"errandry.store.{name}" for name in ("memory", "sqlite", "postgres")}
LAYERS: list[set[str]] = [  # lowest first; the longest prefix of a module that is listed here is its layer
    {"errandry.errors", "errandry.clock", "errandry.failpoint", "errandry.event_loop"},
    {"errandry.core"},
    {"errandry.store", "errandry.codec"},
    DRIVERS,
    {"errandry.store.url"},
    {"errandry.claims"},
    {"errandry.api"},
    {"errandry.worker"},
    {
        "errandry",
        *(f"errandry.{n}" for n in ("__main__", "bench", "cli", "demo", "telemetry", "testing")),
    },
    {"errandry_pytest"},
]
MAY_NAME_A_DRIVER = {"errandry.store.url", "errandry.bench", "errandry.cli", "errandry.testing"}
# fmt: off
IMPURE = {
    "asyncio", "concurrent", "http", "logging", "multiprocessing", "os", "pathlib", "random",
    "secrets", "select", "selectors", "shutil", "signal", "socket", "sqlite3", "ssl",
    "subprocess", "tempfile", "threading", "time", "urllib",
}
# fmt: on
CORE_MAY_USE = (sys.stdlib_module_names | {"msgspec", "cronsim"}) - IMPURE
UNSAFE = {"dill", "eval", "exec", "marshal", "pickle", "shelve"}
VAGUE = {"base", "common", "helper", "helpers", "manager", "misc", "util", "utils"}
TYPE_VARIABLES = {"ParamSpec", "TypeVar", "TypeVarTuple"}


def violations(sources: Path) -> Iterator[str]:
    files = {_module(path.relative_to(sources)): path for path in sorted(sources.rglob("*.py"))}
    types: dict[str, str] = {}
    for module, path in files.items():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if VAGUE & set(module.split(".")):
            yield f"{module}: the name is too vague"
        package = module if path.name == "__init__.py" else module.rpartition(".")[0]
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in UNSAFE:
                yield f"{module}:{node.lineno}: calls {node.func.id}"
            if isinstance(node, ast.Import | ast.ImportFrom):
                for problem in _import_problems(node, module, package, files.keys()):
                    yield f"{module}:{node.lineno}: {problem}"
        for name, line in _type_names(tree):
            if name in types:
                yield f"{module}:{line}: {name} is also the name of a type in {types[name]}"
            types.setdefault(name, module)
        if _layer(module) is None:
            yield f"{module}: has no layer; give it one in LAYERS"


def _import_problems(
    node: ast.Import | ast.ImportFrom, module: str, package: str, known: Container[str]
) -> Iterator[str]:
    for name in _imported(node, package, known):
        if why := _refusal(module, name):
            yield f"{why} {name}"
    for alias in node.names:
        if alias.asname:
            yield f"renames {alias.name} to {alias.asname}"


def _type_names(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """The classes and type aliases (CapWords names) at module level, with their lines."""
    for node in tree.body:
        match node:
            case ast.ClassDef(name=name):
                yield name, node.lineno
            case ast.Assign(value=ast.Call(func=ast.Name(id=function))) if function in TYPE_VARIABLES:
                pass
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                if name.lstrip("_")[:1].isupper() and not name.isupper():
                    yield name, node.lineno


def _refusal(module: str, name: str) -> str | None:
    """Why `module` may not import `name`; None if it may."""
    importer, imported = _layer(module), _layer(name)
    top = name.partition(".")[0]
    if top in UNSAFE:
        return "imports the unsafe"
    if importer is None:
        return None
    rank, prefix = importer
    if top != "errandry":
        return "is pure but imports" if prefix == "errandry.core" and top not in CORE_MAY_USE else None
    if imported is None or imported[0] > rank:
        return "imports upwards"
    if imported[1] in DRIVERS and prefix != imported[1] and prefix not in MAY_NAME_A_DRIVER:
        return "names the driver"
    return None


def _layer(module: str) -> tuple[int, str] | None:
    parts = module.split(".")
    prefixes = [".".join(parts[:length]) for length in range(len(parts), 1, -1)] or [module]
    return next(((rank, p) for p in prefixes for rank, names in enumerate(LAYERS) if p in names), None)


def _imported(node: ast.Import | ast.ImportFrom, package: str, known: Container[str]) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    else:
        source = resolve_name("." * node.level + (node.module or ""), package)
        for alias in node.names:
            yield name if (name := f"{source}.{alias.name}") in known else source


def _module(path: Path) -> str:
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def test_the_sources_keep_the_architecture() -> None:
    assert list(violations(SOURCES)) == []


@pytest.mark.parametrize(
    ("file", "text", "violation"),
    [
        ("core/job.py", "import os", "errandry.core.job:1: is pure but imports os"),
        ("core/job.py", "from rich import box", "errandry.core.job:1: is pure but imports rich"),
        (
            "core/job.py",
            "from errandry.store import x",
            "errandry.core.job:1: imports upwards errandry.store",
        ),
        ("errors.py", "from errandry import core", "errandry.errors:1: imports upwards errandry.core"),
        (
            "store/tables/protocol.py",
            "if 1:\n  import errandry",
            "errandry.store.tables.protocol:2: imports upwards errandry",
        ),
        (
            "store/x.py",
            "from .memory import y",
            "errandry.store.x:1: imports upwards errandry.store.memory",
        ),
        (
            "store/sqlite/x.py",
            "from ...api import client",
            "errandry.store.sqlite.x:1: imports upwards errandry.api.client",
        ),
        (
            "store/sqlite/x.py",
            "from ..memory import y",
            "errandry.store.sqlite.x:1: names the driver errandry.store.memory",
        ),
        (
            "store/memory/driver.py",
            "import errandry.worker",
            "errandry.store.memory.driver:1: imports upwards errandry.worker",
        ),
        (
            "worker/x.py",
            "import errandry.store.postgres",
            "errandry.worker.x:1: names the driver errandry.store.postgres",
        ),
        ("worker/x.py", "def f():\n  import pickle", "errandry.worker.x:2: imports the unsafe pickle"),
        ("cli/x.py", "eval('1')", "errandry.cli.x:1: calls eval"),
        ("core/utils.py", "", "errandry.core.utils: the name is too vague"),
        (
            "core/x.py",
            "import msgspec as m",
            "errandry.core.x:1: renames msgspec to m",
        ),
        (
            "api/x.py",
            "def f():\n  from errandry.core import job as record",
            "errandry.api.x:2: renames job to record",
        ),
        (
            "core/x.py",
            "class Job: ...\nclass Job: ...",
            "errandry.core.x:2: Job is also the name of a type in errandry.core.x",
        ),
        (
            "core/x.py",
            "class Alias: ...",
            "errandry.core.x:1: Alias is also the name of a type in errandry.api.client",
        ),
        (
            "core/x.py",
            "Client: type = int",
            "errandry.core.x:1: Client is also the name of a type in errandry.api.client",
        ),
        ("odd.py", "", "errandry.odd: has no layer; give it one in LAYERS"),
    ],
)
def test_a_planted_violation_is_found(tmp_path: Path, file: str, text: str, violation: str) -> None:
    for name in ("__init__.py", "api/client.py", "core/__init__.py", file):
        (tmp_path / "errandry" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "errandry" / name).touch()
    (tmp_path / "errandry" / "api" / "client.py").write_text("class Client: ...\nAlias = Client\n")
    (tmp_path / "errandry" / file).write_text(text)

    assert list(violations(tmp_path)) == [violation]


def test_imports_that_point_downwards_are_allowed(tmp_path: Path) -> None:
    (tmp_path / "errandry" / "store" / "sqlite").mkdir(parents=True)
    driver = tmp_path / "errandry" / "store" / "sqlite" / "driver.py"
    driver.write_text(
        "import os, apsw\nfrom errandry.store.sqlite import x\nfrom errandry.core.job import Job\n"
    )

    assert list(violations(tmp_path)) == []


def test_type_variables_and_constants_may_have_the_same_name_in_several_modules(tmp_path: Path) -> None:
    (tmp_path / "errandry" / "core").mkdir(parents=True)
    for name in ("job", "flow"):
        text = (
            "T = TypeVar('T')\nItem = TypeVar('Item')\nLIMIT = 3\n_cache = {}\ndef f():\n  class Local: ...\n"
        )
        (tmp_path / "errandry" / "core" / f"{name}.py").write_text(text)

    assert list(violations(tmp_path)) == []
