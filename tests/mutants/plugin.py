"""Runs a test session on mutated code: `ERRANDRY_MUTANT=fence_match pytest -p tests.mutants.plugin …`.

The edit is made while Python imports the module or the store reads the SQL file. No file on disk changes.
Hypothesis does not shrink or store failing examples in such a session.
"""

import ast
import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

import pytest
from hypothesis import Phase, settings

from tests.mutants.catalogue import MUTANTS, Mutant
from tests.mutants.edits import Edit, Misfit, SqlEdit, replaced
from tests.mutants.markers import Marker, marked_node, marked_sql, markers

SOURCES = Path(__file__).parents[2] / "src"


def pytest_configure() -> None:
    settings.register_profile("mutant", phases=[Phase.generate], derandomize=True, database=None)
    settings.load_profile("mutant")


class Mutated(SourceFileLoader):
    """Compiles the edited module; neither reads nor writes a cache of compiled code."""

    def __init__(self, fullname: str, mutant: Mutant, marker: Marker) -> None:
        super().__init__(fullname, str(marker.path))
        self.mutant, self.marker = mutant, marker

    def get_code(self, fullname: str) -> CodeType:
        return compile(edited_tree(self.mutant, self.marker), self.path, "exec", dont_inherit=True)


class Finder(MetaPathFinder):
    """Finds the one module that is mutated."""

    def __init__(self, mutant: Mutant, marker: Marker) -> None:
        self.mutant, self.marker = mutant, marker
        self.module = module_name(marker.path)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path, target) if fullname == self.module else None
        if spec is not None:
            if spec.origin != str(self.marker.path):
                raise pytest.UsageError(f"the tests import {spec.origin}, not {self.marker.path}")
            spec.loader = Mutated(fullname, self.mutant, self.marker)
        return spec


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCES).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def the_marker(mutant: Mutant) -> Marker:
    """Return the one marker of the mutant."""
    found = [marker for marker in markers(SOURCES / "errandry") if marker.name == mutant.name]
    if len(found) != 1:
        places = ", ".join(f"{marker.path}:{marker.line}" for marker in found)
        raise pytest.UsageError(
            f"the marker 'guard: {mutant.name}' must occur once in {SOURCES / 'errandry'}, but occurs "
            f"{len(found)} times{': ' if places else ''}{places}"
        )
    return found[0]


def edited_tree(mutant: Mutant, marker: Marker) -> ast.Module:
    """Return the syntax tree of the module with the edit; line numbers stay those of the file."""
    tree = ast.parse(marker.path.read_text("utf-8"), str(marker.path))
    node = marked_node(tree, marker.line)
    try:
        if not isinstance(mutant.edit, Edit):
            raise Misfit("an edit for SQL marks a Python file")
        replaced(tree, node, mutant.edit.change(node))
    except Misfit as misfit:
        raise _usage_error(mutant, marker, misfit) from None
    return ast.fix_missing_locations(tree)


def edited_sql(mutant: Mutant, marker: Marker, text: str) -> str:
    """Return the text of the SQL file with the edit."""
    place = marked_sql(text, marker.line)
    try:
        if not isinstance(mutant.edit, SqlEdit):
            raise Misfit("an edit for Python marks an SQL file")
        return text[: place.start] + mutant.edit.apply(text[place]) + text[place.stop :]
    except Misfit as misfit:
        raise _usage_error(mutant, marker, misfit) from None


def _usage_error(mutant: Mutant, marker: Marker, misfit: Misfit) -> pytest.UsageError:
    return pytest.UsageError(f"mutant {mutant.name} does not fit {marker.path}:{marker.line}: {misfit}")


def mutate(mutant: Mutant) -> None:
    """Make the edit effective in this process, or raise an error at once if it does not fit."""
    marker = the_marker(mutant)
    if marker.path.suffix == ".py":
        edited_tree(mutant, marker)
        loaded = [name for name in sys.modules if name.split(".")[0] == "errandry"]
        if loaded:
            raise pytest.UsageError(f"too late to mutate, these modules are loaded: {', '.join(loaded)}")
        sys.meta_path.insert(0, Finder(mutant, marker))
    else:
        edited_sql(mutant, marker, marker.path.read_text("utf-8"))
        _mutate_sql(mutant, marker)


def _mutate_sql(mutant: Mutant, marker: Marker) -> None:
    read_text = Path.read_text

    def reading(self: Path, encoding: str | None = None, errors: str | None = None) -> str:
        text = read_text(self, encoding, errors)
        return edited_sql(mutant, marker, text) if self == marker.path else text

    Path.read_text = reading  # type: ignore[method-assign]


if chosen := os.environ.get("ERRANDRY_MUTANT"):
    known = {mutant.name: mutant for mutant in MUTANTS}
    if chosen not in known:
        raise pytest.UsageError(f"ERRANDRY_MUTANT={chosen}: the catalogue has no mutant of this name")
    mutate(known[chosen])
