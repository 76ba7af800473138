"""The check of the project's prose reports what it should, and nothing else."""

from pathlib import Path

import pytest

from tools import words


@pytest.mark.parametrize(
    ("name", "text", "reported"),
    [
        ("a.py", '"""Locks for who waits."""\n', [(1, "who")]),
        ("a.py", '"""Plain.\n\nWhoever waits is next.\n"""\n', [(3, "Whoever")]),
        ("a.py", "x = 1  # somebody wants it\n", [(1, "somebody")]),
        ("a.py", "def test_nobody_waits():\n    pass\n", [(1, "nobody")]),
        ("a.py", 'log.info("so many jobs, written anew")\n', [(1, "so many"), (1, "anew")]),
        ("a.py", '"""A user who waits; as long as it runs, whose lock it is."""\n', []),
        ("a.sql", "SELECT 1; -- for so long\n", [(1, "so long")]),
        ("a.md", "Plain.\n\n```text\nwho\n```\n\nIt is for who comes. `who` is a program.\n", [(7, "who")]),
        ("a.md", "> who is quoted\n", []),
    ],
)
def test_marker_patterns_are_reported(
    tmp_path: Path, name: str, text: str, reported: list[tuple[int, str]]
) -> None:
    path = tmp_path / name
    path.write_text(text)

    assert [(line, found) for line, found, _ in words.problems(path)] == reported


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ('"""Fetch jobs in job_id query."""\n', [(1, "job_id")]),
        ('x = 1\n"""Plain.\n\nFor per_lane lane, at run_at.\n"""\n', [(4, "per_lane"), (4, "run_at")]),
        ('class A:\n    """Plain.\n\n        ctx.step(charge_card, 1)\n    """\n', []),
        ('"""Plain.\n\nrun_at   when\nopen_at  like run_at\n"""\n', [(4, "run_at")]),
        ('"""Of `run_at`, "run_at", \'run_at\', run_at=1, run_at(), _run_at and job.run_at."""\n', []),
        ('x = "in job_id query"  # in job_id query\n', []),
    ],
)
def test_names_without_backticks_in_docstrings_are_reported(
    tmp_path: Path, text: str, reported: list[tuple[int, str]]
) -> None:
    path = tmp_path / "a.py"
    path.write_text(text)

    assert [(line, found) for line, found, _ in words.bare_names(path)] == reported


def test_the_tree_has_no_marker_patterns(capsys: pytest.CaptureFixture[str]) -> None:
    assert words.main([]) == 0, capsys.readouterr().out
