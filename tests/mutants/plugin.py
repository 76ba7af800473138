"""Runs a test session on mutated code: `ERRANDRY_MUTANT=fence_match pytest -p tests.mutants.plugin …`.

The edit is made while the module is imported or the SQL file is read: no file changes, and the product knows
nothing of it. Hypothesis then only searches: what it finds need not be made short, nor be found again.
"""

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

ROOT = Path(__file__).parents[2] / "src" / "errandry"


def pytest_configure() -> None:
    settings.register_profile("mutant", phases=[Phase.generate], derandomize=True, database=None)
    settings.load_profile("mutant")


class Mutated(SourceFileLoader):
    """Compiles the edited source; never from or to a cache."""

    def __init__(self, fullname: str, path: str, mutant: Mutant) -> None:
        super().__init__(fullname, path)
        self.mutant = mutant

    def get_code(self, fullname: str) -> CodeType:
        text = edited(self.mutant, Path(self.path).read_text("utf-8"))
        return compile(text, self.path, "exec", dont_inherit=True)


class Finder(MetaPathFinder):
    """Finds the one module that is mutated."""

    def __init__(self, mutant: Mutant) -> None:
        self.mutant = mutant
        self.path = ROOT / mutant.file
        self.module = ".".join(("errandry", *Path(mutant.file).with_suffix("").parts))

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path, target) if fullname == self.module else None
        if spec is not None:
            spec.loader = Mutated(fullname, str(self.path), self.mutant)
        return spec


def edited(mutant: Mutant, text: str) -> str:
    if text.count(mutant.old) != 1:
        raise pytest.UsageError(
            f"mutant {mutant.name}: {mutant.file} has {text.count(mutant.old)} times, not once:\n{mutant.old}"
        )
    return text.replace(mutant.old, mutant.new)


def mutate(mutant: Mutant) -> None:
    edited(mutant, (ROOT / mutant.file).read_text("utf-8"))  # refuse early what does not fit
    if mutant.file.endswith(".py"):
        loaded = [name for name in sys.modules if name.split(".")[0] == "errandry"]
        if loaded:
            raise pytest.UsageError(f"too late to mutate: {loaded} are loaded")
        sys.meta_path.insert(0, Finder(mutant))
    else:
        _mutate_text(mutant)


def _mutate_text(mutant: Mutant) -> None:
    read_text = Path.read_text

    def reading(self: Path, encoding: str | None = None, errors: str | None = None) -> str:
        text = read_text(self, encoding, errors)
        return edited(mutant, text) if self == ROOT / mutant.file else text

    Path.read_text = reading  # type: ignore[method-assign]


if chosen := os.environ.get("ERRANDRY_MUTANT"):
    mutate(next(mutant for mutant in MUTANTS if mutant.name == chosen))
