"""What each kind of edit makes of a marked line, and what it refuses."""

import ast
from pathlib import Path
from textwrap import dedent

import pytest

from tests.mutants import edits
from tests.mutants.edits import Edit, Misfit, SqlEdit
from tests.mutants.markers import marked_node, marked_sql, markers


def applied(edit: Edit, source: str, folder: Path) -> str:
    path = folder / "module.py"
    path.write_text(dedent(source))
    [marker] = markers(folder)
    tree = ast.parse(path.read_text())
    node = marked_node(tree, marker.line)
    return ast.unparse(edits.replaced(tree, node, edit.change(node)))


@pytest.mark.parametrize(
    ("edit", "source", "expected"),
    [
        (edits.DROP, "f()  # guard: x", "pass"),
        (edits.DROP, "f()\n# guard: x\n# why\ng()", "f()\npass"),
        (edits.DROP, "f(\n    1,\n)  # guard: x", "pass"),
        (edits.NEVER, "if a:  # guard: x\n    f(1 if b else 2)", "if False:\n    f(1 if b else 2)"),
        (edits.NEVER, "if a:\n    f()\nelif b:  # guard: x\n    g()", "if a:\n    f()\nelif False:\n    g()"),
        (edits.NEVER, "if (\n    a\n    and b\n):  # guard: x\n    f()", "if False:\n    f()"),
        (edits.ALWAYS, "y = 1 if a else 2  # guard: x", "y = 1 if True else 2"),
        (edits.ALWAYS, "y = [b for b in c if b]  # guard: x", "y = [b for b in c if True]"),
        (edits.leave_out(0), "if a or b:  # guard: x\n    f()", "if b:\n    f()"),
        (edits.leave_out(2), "if a or b or c:  # guard: x\n    f()", "if a or b:\n    f()"),
        (edits.leave_out(1, 0), "if a or (b and c):  # guard: x\n    f()", "if a or c:\n    f()"),
        (
            edits.leave_out(1),
            "y = [\n    b\n    for b in c\n    if b and d  # guard: x\n]",
            "y = [b for b in c if b]",
        ),
        (edits.leave_out(1), "for a in (1, 2):  # guard: x\n    f()", "for a in (1,):\n    f()"),
        (
            edits.compare_with(ast.LtE, ast.Lt),
            "if a is None or a <= 1:  # guard: x\n    f()",
            "if a is None or a < 1:\n    f()",
        ),
        (edits.FIRST_TERM, "y = f(a, b - 1 + c)  # guard: x", "y = f(a, b)"),
        (edits.value("None"), "y = f()  # guard: x", "y = None"),
        (edits.value("0"), "f(\n    a=1,\n    b=2,  # guard: x\n)", "f(a=1, b=0)"),
        (edits.otherwise("3"), "y = 1 if a else 2  # guard: x", "y = 1 if a else 3"),
        (edits.instead_of_call("{0} or b"), "y = f(a, c)  # guard: x", "y = a or b"),
        (edits.add_argument(1, "b"), "f(\n    g(a, c),  # guard: x\n)", "f(g(a, b, c))"),
    ],
)
def test_an_edit_changes_only_the_marked_code(edit: Edit, source: str, expected: str, tmp_path: Path) -> None:
    assert applied(edit, source, tmp_path) == expected


@pytest.mark.parametrize(
    ("edit", "source", "why"),
    [
        (edits.DROP, "f(\n    a=1,  # guard: x\n)", "only a statement can be dropped: a=1"),
        (edits.NEVER, "f()  # guard: x", "0 places, not one, for the edit"),
        (edits.NEVER, "y = 1 if a else 2 if b else 3  # guard: x", "2 places, not one, for the edit"),
        (edits.leave_out(2), "if a or b:  # guard: x\n    f()", "no operand 2 in: a or b"),
        (edits.leave_out(0), "if a:  # guard: x\n    f()", "no operand 0 in: a"),
        (edits.compare_with(ast.LtE, ast.Lt), "if a < b:  # guard: x\n    f()", "comparison with LtE"),
        (edits.FIRST_TERM, "y = a  # guard: x", "calculation"),
        (edits.value("0"), "f()  # guard: x", "nothing is assigned, returned or passed"),
        (edits.instead_of_call("{1}"), "y = f(a)  # guard: x", "too few"),
        (edits.add_argument(1, "b"), "y = a  # guard: x", "not a call"),
    ],
)
def test_an_edit_that_does_not_fit_says_why(edit: Edit, source: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(Misfit, match=why):
        applied(edit, source, tmp_path)


def test_markers_are_comments_and_may_name_several_mutants(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = '# guard: not_this'\ny = 1  # guard: one, two\n")
    (tmp_path / "b.sql").write_text("SELECT 1;\n-- guard: three\nSELECT 2;\n")

    assert [(marker.name, marker.path.name, marker.line) for marker in markers(tmp_path)] == [
        ("one", "a.py", 2),
        ("two", "a.py", 2),
        ("three", "b.sql", 2),
    ]


def test_an_edit_of_sql_matches_once_in_the_marked_statement() -> None:
    text = "UPDATE t SET a = ?1;\n-- guard: x\nUPDATE t SET a = ?1, b = ?2;\nUPDATE t SET a = ?1;\n"
    statement = text[marked_sql(text, 2)]

    assert edits.keeps_column(1).apply(statement) == "UPDATE t SET a = max(a, 0 * ?1), b = ?2;"
    with pytest.raises(Misfit, match="matches 0 times, not once"):
        edits.keeps_column(3).apply(statement)
    with pytest.raises(Misfit, match="matches 2 times, not once"):
        SqlEdit(r"\?\d", "0").apply(statement)


def test_names_in_new_code_are_looked_up_in_the_module() -> None:
    module = {"Path": Path}

    assert edits.value("Path.home or None or max").unknown_names(module) == []
    assert edits.value("Path.away or somewhere").unknown_names(module) == ["somewhere", "Path.away"]
    assert edits.instead_of_call("{0} or nowhere").unknown_names(module) == ["nowhere"]
