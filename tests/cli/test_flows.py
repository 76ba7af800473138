"""`errandry flows`."""

from errandry.core.command import Insert
from errandry.core.flow import Edge, Policy
from errandry.core.job import NewJob
from tests.cli.conftest import Cli, Shop


def _insert(shop: Shop, edges: list[tuple[str, str]]) -> None:
    names = dict.fromkeys(name for edge in edges for name in edge)
    jobs = tuple(NewJob(id=name, task="send", payload="{}") for name in names)
    shop.call(shop.jobs.engine.submit, Insert(jobs, tuple(Edge(*edge) for edge in edges)))


def test_a_flow_is_shown_as_a_tree(cli: Cli, shop: Shop) -> None:
    _insert(shop, [("root", "left"), ("root", "right"), ("left", "leaf")])
    shop.call(shop.jobs.resolve, "leaf")

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


def test_the_policy_of_a_child_is_shown_unless_it_is_the_default(cli: Cli, shop: Shop) -> None:
    jobs = tuple(NewJob(id=name, task="send", payload="{}") for name in ("root", "must", "may"))
    edges = Edge("root", "must"), Edge("root", "may", Policy.IGNORE)
    shop.call(shop.jobs.engine.submit, Insert(jobs, edges))

    assert [line.rstrip() for line in cli("flows", "show", "root").out.splitlines()] == [
        "blocked  send  root  (0 of 2 ended)",
        "  waiting  send  must",
        "  waiting  send  may  (policy ignore)",
    ]
    assert [line["policy"] for line in cli("flows", "show", "root", "--json").data] == [
        None,
        "fail",
        "ignore",
    ]


def test_the_number_of_children_shown_is_limited(cli: Cli, shop: Shop) -> None:
    _insert(shop, [("root", f"child-{number}") for number in range(30)])

    lines = cli("flows", "show", "root", "--limit", "2").out.splitlines()

    assert len(lines) == 4
    assert lines[-1].strip() == "… 28 more children: --limit"


def test_flows_are_listed_by_their_last_job(cli: Cli, shop: Shop) -> None:
    shop.enqueue()
    assert cli("flows", "ls").err == "There are no flows.\n"
    _insert(shop, [("root", "left"), ("root", "right"), ("left", "leaf")])
    _insert(shop, [("other", "child")])
    shop.call(shop.jobs.resolve, "left")

    title, other, root = cli("flows", "ls").out.splitlines()

    assert title.split() == ["FLOW", "STATE", "TASK", "ENDED", "CREATED"]
    assert root.split()[:6] == ["root", "blocked", "send", "1", "of", "2"]
    assert other.split()[:6] == ["other", "blocked", "send", "0", "of", "1"]
    assert [(line["id"], line["ended"]) for line in cli("flows", "ls", "id:root", "--json").data] == [
        ("root", 1)
    ]
    assert cli("flows", "ls", "state:failed").err == "No flow matches.\n"
    assert "for more, use --limit" in cli("flows", "ls", "--limit", "1").err


def test_a_whole_flow_is_canceled_rerun_and_removed(cli: Cli, shop: Shop) -> None:
    _insert(shop, [("root", "left"), ("root", "right"), ("left", "leaf")])

    assert "4 jobs will be canceled." in cli("jobs", "cancel", "root", "--flow").err
    assert cli("jobs", "cancel", "left", "--flow", "--dry-run").out.split() == ["left", "leaf"]
    assert cli("jobs", "cancel", "root", "--flow", "--yes").code == 0
    assert shop.call(shop.jobs.counts) == {"default": {"canceled": 4}}
    assert cli("jobs", "rerun", "root", "--flow", "--yes").out == "4 jobs enqueued again.\n"
    assert shop.call(shop.jobs.counts) == {"default": {"blocked": 2, "waiting": 2}}
    assert cli("jobs", "rm", "root", "--flow", "--yes").out == "4 jobs removed.\n"
    assert cli("jobs", "rm", "state:failed", "--flow").code == 2


def test_why_names_the_children(cli: Cli, shop: Shop) -> None:
    _insert(shop, [("root", "one"), ("root", "two")])

    assert "2 children to end: one, two" in cli("why", "root").out


def test_a_cancel_can_leave_the_children_alone(cli: Cli, shop: Shop) -> None:
    _insert(shop, [("one", "first"), ("other", "second")])

    assert cli("jobs", "cancel", "one", "--no-children").code == 0
    assert cli("jobs", "cancel", "other").code == 0
    refused = cli("jobs", "cancel", "one", "--no-children", "--flow")

    assert (refused.code, "flow cancels the children too" in refused.err) == (2, True)
    jobs = cli("jobs", "ls", "--json").data
    assert {job["id"]: job["state"] for job in jobs} == {
        "one": "canceled",
        "first": "waiting",
        "other": "canceled",
        "second": "canceled",
    }
