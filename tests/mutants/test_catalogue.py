"""The catalogue fits the code: checked with every change, so that `make prove` finds no surprise in it."""

from pathlib import Path

import pytest

import errandry
from tests.mutants.catalogue import MUTANTS, Mutant

PACKAGE = Path(errandry.__file__).parent


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_what_a_mutant_replaces_stands_there_once(mutant: Mutant) -> None:
    assert (PACKAGE / mutant.file).read_text("utf-8").count(mutant.old) == 1


def test_no_two_mutants_have_one_name() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
