"""The catalogue fits the code. Every test run checks this, so that no mutant is stale in `make prove`."""

import ast
import importlib
from collections import Counter

import pytest

from tests.mutants.catalogue import MUTANTS, Mutant
from tests.mutants.edits import Edit
from tests.mutants.markers import markers
from tests.mutants.plugin import SOURCES, edited_sql, edited_tree, module_name

MARKERS = markers(SOURCES / "errandry")
BY_NAME = {marker.name: marker for marker in MARKERS}


def test_every_mutant_has_its_own_name() -> None:
    assert [name for name, number in Counter(mutant.name for mutant in MUTANTS).items() if number > 1] == []


def test_every_mutant_has_one_marker_and_every_marker_a_mutant() -> None:
    assert sorted(marker.name for marker in MARKERS) == sorted(mutant.name for mutant in MUTANTS)


def test_every_mutant_is_for_at_least_one_suite() -> None:
    assert [mutant.name for mutant in MUTANTS if not (mutant.in_conformance or mutant.in_model)] == []


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_edit_fits_and_changes_the_marked_code(mutant: Mutant) -> None:
    marker = BY_NAME[mutant.name]
    text = marker.path.read_text("utf-8")

    if marker.path.suffix == ".sql":
        edited, original = edited_sql(mutant, marker, text), text
    else:
        tree = edited_tree(mutant, marker)
        compile(tree, str(marker.path), "exec", dont_inherit=True)
        edited, original = ast.unparse(tree), ast.unparse(ast.parse(text))

    assert edited != original


@pytest.mark.parametrize(
    "mutant",
    [mutant for mutant in MUTANTS if isinstance(mutant.edit, Edit) and mutant.edit.code],
    ids=lambda mutant: mutant.name,
)
def test_the_edit_uses_names_that_its_module_has(mutant: Mutant) -> None:
    assert isinstance(mutant.edit, Edit)
    module = importlib.import_module(module_name(BY_NAME[mutant.name].path))

    assert mutant.edit.unknown_names(vars(module)) == []


def test_an_edit_that_does_not_fit_names_the_mutant_and_the_place() -> None:
    mutant = next(mutant for mutant in MUTANTS if mutant.name == "fence_rises")
    marker = BY_NAME["fence_match"]

    with pytest.raises(
        pytest.UsageError, match=rf"fence_rises does not fit .*:{marker.line}: nothing is assigned"
    ):
        edited_tree(mutant, marker)


def test_an_edit_keeps_the_line_numbers() -> None:
    mutant = next(mutant for mutant in MUTANTS if mutant.name == "fence_rises")
    marker = BY_NAME["fence_rises"]

    edited = edited_tree(mutant, marker)
    original = ast.parse(marker.path.read_text("utf-8"))

    assert _lines(edited) == _lines(original)


def _lines(tree: ast.Module) -> list[int]:
    return [node.lineno for node in ast.walk(tree) if isinstance(node, ast.stmt)]
