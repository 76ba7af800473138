"""`errandry flows`."""

from errandry.core.command import Insert
from errandry.core.flow import Edge
from errandry.core.job import NewJob
from tests.cli.conftest import Cli, Place


def _insert(place: Place, edges: list[tuple[str, str]]) -> None:
    names = dict.fromkeys(name for edge in edges for name in edge)
    jobs = tuple(NewJob(id=name, task="send", payload="{}") for name in names)
    place.ask(place.jobs.engine.submit, Insert(jobs, tuple(Edge(*edge) for edge in edges)))


def test_a_flow_is_shown_as_a_tree(cli: Cli, place: Place) -> None:
    _insert(place, [("root", "left"), ("root", "right"), ("left", "leaf")])
    place.ask(place.jobs.resolve, "leaf")

    assert [line.rstrip() for line in cli("flows", "show", "root").out.splitlines()] == [
        "blocked  send  root  (0 of 2 ended)",
        "  waiting  send  left  (1 of 1 ended)",
        "    completed  send  leaf",
        "  waiting  send  right",
    ]
    assert [
        (line["id"], line["parent"], line["children"]) for line in cli("flows", "show", "root", "--json").data
    ] == [
        ("root", None, {"open": 2}),
        ("left", "root", {"completed": 1}),
        ("leaf", "left", {}),
        ("right", "root", {}),
    ]


def test_of_many_children_some_are_shown(cli: Cli, place: Place) -> None:
    _insert(place, [("root", f"child-{number}") for number in range(30)])

    lines = cli("flows", "show", "root", "--limit", "2").out.splitlines()

    assert len(lines) == 4
    assert lines[-1].strip() == "… 28 more children: --limit"


def test_why_names_the_children(cli: Cli, place: Place) -> None:
    _insert(place, [("root", "one"), ("root", "two")])

    assert "2 children to end: one, two" in cli("why", "root").out
