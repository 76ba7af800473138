"""`errandry queues`, `groups`, `workers`, `events` and `doctor`."""

import os
import socket
import sqlite3
import tempfile
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from errandry.claims.liveness import Liveness
from errandry.core.command import Beat, Claim, ReportTrouble
from tests.cli.conftest import Cli, Shop


class TestQueues:
    def test_queues_are_listed_with_their_jobs(self, cli: Cli, shop: Shop) -> None:
        shop.enqueue(queue="mail")
        shop.enqueue(queue="mail", delay=60)
        shop.enqueue(queue="bulk")
        assert cli("queues", "pause", "bulk", "--by", "ada").code == 0

        title, bulk, mail = cli("queues", "ls").out.splitlines()

        assert title.split() == ["QUEUE", "SCHEDULED", "WAITING", "OLDEST", "PAUSED"]
        assert mail.split()[:3] == ["mail", "1", "1"]
        assert bulk.endswith("by ada")
        assert [line["name"] for line in cli("queues", "ls", "--json").data] == ["bulk", "mail"]

    def test_stats_are_lifetime_totals(self, cli: Cli, shop: Shop) -> None:
        shop.enqueue(id="a")
        shop.call(shop.jobs.cancel, "a")
        shop.call(shop.jobs.remove, "a")

        assert cli("queues", "stats", "--json").data == [
            {"queue": "default", "canceled": 1, "inserted": 1, "removed": 1}
        ]
        assert cli("queues", "stats").out.splitlines()[1].split() == [
            "default",
            "1",
            "0",
            "0",
            "1",
            "0",
            "0",
            "1",
        ]

    def test_queues_and_tasks_are_paused_and_resumed(self, cli: Cli, shop: Shop) -> None:
        shop.enqueue()

        assert cli("queues", "pause", "a", "b", "--task", "send").err == (
            "The queue a is paused.\nThe queue b is paused.\nThe task send is paused.\n"
        )
        assert cli("queues", "pause", "a").err == "The queue a was paused already.\n"
        assert "The task send was paused" in cli("queues", "ls").err
        assert cli("queues", "resume", "a", "--task", "send").err == (
            "The queue a is resumed.\nThe task send is resumed.\n"
        )
        assert cli("queues", "resume", "default").err == "The queue default was not paused.\n"
        assert cli("queues", "pause").code == 2
        assert cli("queues", "pause", "c", "--json").data == [
            {"kind": "queue", "name": "c", "changed": True, "paused": True}
        ]
        assert cli("queues", "pause", "c", "--json").data == [
            {"kind": "queue", "name": "c", "changed": False, "paused": True}
        ]
        assert cli("queues", "resume", "c", "--group", "g", "--json").data == [
            {"kind": "group", "name": "c", "group": "g", "changed": False, "paused": False}
        ]
        assert cli("queues", "resume", "c", "--json").data == [
            {"kind": "queue", "name": "c", "changed": True, "paused": False}
        ]


class TestRules:
    def test_rules_are_set_changed_shown_and_removed(self, cli: Cli, shop: Shop) -> None:
        shop.enqueue()

        assert cli("queues", "limit", "mail", "20").err == "The queue mail: limit 20.\n"
        assert cli("queues", "rate", "mail", "100/minute", "--burst", "5").err == (
            "The queue mail: limit 20, rate 100/minute (burst 5).\n"
        )
        assert cli("queues", "max-size", "mail", "1_000", "--overflow", "drop-oldest").code == 0
        assert cli("queues", "ageing", "mail", "10m").code == 0
        assert cli("queues", "limit", "mail", "1", "--each-group").code == 0
        assert cli("queues", "on-return", "mail", "hold-group", "--by", "ada").err == (
            "The queue mail: limit 20, rate 100/minute (burst 5), group limit 1, max size 1,000, "
            "overflow drop_oldest, ageing 10m, on return hold_group.\n"
        )
        assert cli("queues", "limit", "mail", "none", "--by", "ada").err.startswith(
            "The queue mail: rate 100/minute"
        )
        assert cli("queues", "limit", "5", "--task", "send").err == "The task send: limit 5.\n"
        assert cli("queues", "weight", "mail", "acme", "2.5").err == (
            "The group acme of queue mail: weight 2.5.\n"
        )

        listed = cli("queues", "rules").out.splitlines()
        assert listed[0].split() == ["KIND", "NAME", "GROUP", "RULE", "SOURCE"]
        assert [" ".join(line.partition("  operator, ")[0].split()) for line in listed[1:]] == [
            "queue mail rate 100/minute (burst 5)",
            "queue mail group limit 1",
            "queue mail max size 1,000",
            "queue mail overflow drop_oldest",
            "queue mail ageing 10m",
            "queue mail on return hold_group",
            "task send limit 5",
            "group mail acme weight 2.5",
        ]
        assert [line.endswith(" by ada") for line in listed[1:7]] == [False] * 5 + [True]
        assert "see errandry queues rules" in cli("queues", "ls").err
        assert cli("queues", "rules", "--json").data[1]["rule"] == {"limit": 5}

    def test_declared_rules_show_their_source_and_are_reset(self, cli: Cli, shop: Shop) -> None:
        shop.jobs.declare_queue("mail", limit=20, max_size=9)
        shop.call(shop.jobs.put_declared)
        cli("queues", "limit", "mail", "50", "--by", "ada")
        cli("queues", "limit", "5", "--task", "send")

        cli("queues", "pause", "mail", "--by", "bob")
        limited, sized, paused, _ = [
            " ".join(line.split()) for line in cli("queues", "rules").out.splitlines()[1:]
        ]
        assert (
            limited.startswith("queue mail limit 50 operator, "),
            limited.endswith("by ada; code: limit 20"),
        ) == (
            True,
            True,
        )
        assert sized == "queue mail max size 9 code"
        assert (paused.startswith("queue mail paused "), paused.endswith(" by bob")) == (True, True)
        mail, send = cli("queues", "rules", "--json").data
        assert mail["sources"] == {"limit": "operator", "max_size": "code"}
        assert mail["declared"] == {"limit": 20, "max_size": 9}
        assert send["sources"] == {"limit": "operator"}

        assert (
            cli("queues", "reset", "mail", "max-size").err
            == "The queue mail: limit 50, max size 9; it stays paused.\n"
        )
        assert (
            cli("queues", "reset", "mail", "limit").err
            == "The queue mail: limit 20, max size 9; it stays paused.\n"
        )
        assert cli("queues", "reset", "--task", "send", "--json").data == [
            {"kind": "task", "name": "send", "rule": {}}
        ]
        assert (
            cli("queues", "reset", "mail", "--declared").err == "The queue mail: no rules; it stays paused.\n"
        )
        cli("queues", "limit", "mail", "1", "--group", "acme")
        assert cli("queues", "reset", "mail", "--group", "acme").err == (
            "The group acme of queue mail: no rules.\n"
        )

    def test_a_reset_says_that_a_pause_stays(self, cli: Cli, shop: Shop) -> None:
        shop.enqueue(queue="mail")
        cli("queues", "limit", "mail", "5")
        cli("queues", "pause", "mail")

        done = cli("queues", "reset", "mail")

        assert (done.code, done.err) == (0, "The queue mail: no rules; it stays paused.\n")

    @pytest.mark.parametrize(
        ("words", "subject"),
        [
            (("nope",), "queue nope"),
            (("--task", "nope"), "task nope"),
            (("mail", "--group", "nope"), "group nope of queue mail"),
        ],
    )
    @pytest.mark.parametrize("verb", ["reset", "resume"])
    def test_an_unknown_name_is_reported(
        self, cli: Cli, shop: Shop, verb: str, words: tuple[str, ...], subject: str
    ) -> None:
        shop.enqueue(queue="mail", group="acme")

        done = cli("queues", verb, *words)

        why = f"Nothing is stored about {subject}: it has no jobs, no rules and no pause.\n"
        assert (done.code, done.out, done.err) == (1, "", why)
        assert cli("queues", verb, *words, "--json").code == 1

    @pytest.mark.parametrize("words", [("mail",), ("--task", "send"), ("mail", "--group", "acme")])
    @pytest.mark.parametrize("verb", ["reset", "resume"])
    def test_a_name_that_has_jobs_is_known(
        self, cli: Cli, shop: Shop, verb: str, words: tuple[str, ...]
    ) -> None:
        shop.enqueue(queue="mail", group="acme")

        assert cli("queues", verb, *words).code == 0

    def test_groups_are_paused_and_resumed(self, cli: Cli, shop: Shop) -> None:
        shop.enqueue(id="a", queue="mail", group="acme")

        done = cli("queues", "pause", "mail", "--group", "acme", "--by", "ada")
        assert done.err == "The group acme of queue mail is paused.\n"
        assert "The group acme of queue mail was paused" in cli("why", "a").out
        assert cli("queues", "resume", "mail", "--group", "acme").err == (
            "The group acme of queue mail is resumed.\n"
        )

    @pytest.mark.parametrize(
        ("words", "code", "why"),
        [
            (("limit", "mail"), 2, "Give a queue and a value"),
            (("limit", "mail", "many"), 2, "'many' is not a whole number"),
            (("limit", "mail", "0"), 2, "limit=0: must be a whole number from 1"),
            (("limit", "mail", "5", "--task", "send"), 2, "With --task, give only the value"),
            (("limit", "5", "--task", "send", "--each-group"), 2, "--each-group is for a queue"),
            (("rate", "mail", "often"), 2, "rate='often': not a rate; write a count"),
            (("rate", "mail", "5/fortnight"), 2, "'fortnight' is not a length of time"),
            (
                ("rate", "mail", "none", "--burst", "3"),
                2,
                "--burst belongs to a rate: leave it out with none",
            ),
            (("weight", "mail", "acme", "heavy"), 2, "'heavy' is not a number"),
            (("weight", "mail", "acme", "0"), 2, "'0' is not a weight: it is from 0.001 to 1,000"),
            (("weight", "mail", "acme", "-1"), 2, "'-1' is not a weight: it is from 0.001 to 1,000"),
            (("weight", "mail", "acme", "nan"), 2, "'nan' is not a weight"),
            (("limit", "mail", "-5"), 2, "limit=-5: must be a whole number from 1"),
            (("limit", "mail", "--each-group", "-5"), 2, "group-limit=-5: must be a whole number from 1"),
            (("limit", "-5", "--task", "send"), 2, "limit=-5: must be a whole number from 1"),
            (("limit", "mail", "-x"), 2, "No such option '-x'"),
            (("limit", "mail", "²"), 2, "'²' is not a whole number"),
            (("limit", "mail", "²5"), 2, "'²5' is not a whole number"),
            (("ageing", "mail", "0"), 2, "ageing='0': must be more than 0 seconds"),
            (("on-return", "mail", "odd"), 2, "'odd' is not one of"),
            (("pause", "--group", "acme"), 2, "--group needs exactly one queue"),
            (("reset",), 2, "Give a queue, or --task"),
            (("reset", "--task", "send", "--group", "acme"), 2, "Give either --task or --group"),
            (
                ("reset", "mail", "colour"),
                2,
                "'colour' is no rule of a queue: it has limit, rate, group-limit,",
            ),
            (("reset", "mail", "burst"), 2, "'burst' belongs to the rate: reset rate."),
            (
                ("reset", "mail", "group-burst"),
                2,
                "'group-burst' belongs to the group rate: reset group-rate.",
            ),
            (("reset", "--task", "send", "weight"), 2, "'weight' is no rule of a task: it has limit, rate."),
            (("pause", ""), 2, "queue='': must be a name, not empty"),
        ],
    )
    def test_invalid_rules_are_refused(
        self, cli: Cli, shop: Shop, words: tuple[str, ...], code: int, why: str
    ) -> None:
        shop.enqueue()

        done = cli("queues", *words)

        assert (done.code, why in done.err) == (code, True), done.err
        assert cli("queues", "rules").err == "There are no rules, and nothing is paused.\n"


class TestGroups:
    def test_groups_are_listed_with_their_limits(self, cli: Cli, shop: Shop) -> None:
        assert cli("groups", "ls").code == 1  # there is no store yet
        shop.enqueue()
        assert cli("groups", "ls").err == "There are no groups: no waiting or running job has one.\n"
        for number in range(3):
            shop.enqueue(queue="mail", group=f"g{number}")
        shop.enqueue(queue="mail", group="g0")
        cli("queues", "limit", "mail", "2", "--each-group")
        cli("queues", "rate", "mail", "9/s", "--group", "g1")
        cli("queues", "pause", "mail", "--group", "g2", "--by", "ada")

        title, *lines = cli("groups", "ls", "--queue", "mail").out.splitlines()

        assert title.split() == ["QUEUE", "GROUP", "WAITING", "RUNNING", "RATE", "WEIGHT", "PAUSED"]
        assert [line.split()[:6] for line in lines[:2]] == [
            ["mail", "g0", "2", "0", "of", "2"],
            ["mail", "g1", "1", "0", "of", "2"],
        ]
        assert "9/second" in lines[1]
        assert lines[2].endswith("by ada")
        assert "There are more" in cli("groups", "ls", "--limit", "2").err
        assert [group["group"] for group in cli("groups", "ls", "--json").data] == ["g0", "g1", "g2"]


class TestWorkers:
    @pytest.fixture
    def two(self, shop: Shop) -> None:
        for worker in ("host-1-aaaa", "host-2-bbbb"):
            beat = Beat(worker=worker, tasks=("send",), concurrency=10, running=3, started_at=1.0)
            shop.call(shop.jobs.engine.submit, beat)

    def test_workers_are_listed(self, cli: Cli, two: None) -> None:
        title, first, _ = cli("workers", "ls").out.splitlines()

        assert title.split() == ["WORKER", "STATUS", "BUSY", "QUEUES", "TASKS", "STARTED", "SEEN"]
        assert first.split()[:5] == ["host-1-aaaa", "working", "3/10", "all", "send"]
        assert cli("workers", "ls").err == "BUSY is as of the last heartbeat, the time under SEEN.\n"
        assert len(cli("workers", "ls", "--json").data) == 2

    def test_a_draining_worker_is_shown_as_draining(self, cli: Cli, shop: Shop) -> None:
        shop.call(shop.jobs.engine.submit, Beat(worker="mine", concurrency=1, draining=True))
        shop.enqueue()

        assert "mine    draining" in cli("workers", "ls").out
        assert [worker["draining"] for worker in cli("workers", "ls", "--json").data] == [True]
        assert "no worker is running, 1 draining, and 1 job waits" in cli("doctor").out

    def test_a_dead_worker_of_this_host_is_detected(
        self, cli: Cli, shop: Shop, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        alive = Liveness()
        host = socket.gethostname()
        shop.call(shop.jobs.engine.submit, Beat(worker="mine", host=host, alive=alive.path, concurrency=1))
        job = shop.enqueue()
        shop.call(shop.jobs.engine.submit, Claim(worker="mine", nonce="n"))
        assert "mine    working" in cli("workers", "ls").out
        assert "is dead" not in cli("why", job.id).out

        os.close(alive._lock)  # as the kernel does when a process dies

        assert "mine    dead" in cli("workers", "ls").out
        assert "1 worker died or sent no heartbeat: mine" in cli("doctor").out
        assert "That worker is dead" in cli("why", job.id).out

    def test_a_blocked_worker_is_listed_with_what_blocks_it(self, cli: Cli, shop: Shop) -> None:
        beat = Beat(worker="mine", concurrency=1, blocked_by="task report (job 7)")
        shop.call(shop.jobs.engine.submit, beat)

        listed = cli("workers", "ls")

        assert "mine    blocked" in listed.out
        assert "The event loop of mine is blocked by task report (job 7)." in listed.err
        assert cli("workers", "ls", "--json").data[0]["blocked_by"] == "task report (job 7)"
        doctor = cli("doctor")
        assert "mine claims nothing while its event loop is blocked by task report (job 7)" in doctor.out
        assert doctor.code == 1

    def test_an_empty_list_prints_a_message(self, cli: Cli, shop: Shop) -> None:
        shop.call(shop.jobs.open)

        assert cli("workers", "ls").err == "No worker is running.\n"

    def test_pausing_all_workers_without_any_prints_a_message(self, cli: Cli, shop: Shop) -> None:
        shop.call(shop.jobs.open)

        for command in ("pause", "resume"):
            done = cli("workers", command, "--all")
            assert (done.code, done.out, done.err) == (0, "", "No worker is running.\n")

    def test_a_worker_is_paused_by_part_of_its_id(self, cli: Cli, two: None) -> None:
        assert cli("workers", "pause", "bbbb", "--by", "ada").err == "The worker host-2-bbbb is paused.\n"
        assert "host-2-bbbb  paused" in cli("workers", "ls").out
        assert cli("workers", "pause", "bbbb").err == "The worker host-2-bbbb was paused already.\n"
        assert cli("workers", "pause", "bbbb", "--json").data == [
            {"kind": "worker", "name": "host-2-bbbb", "changed": False, "paused": True}
        ]
        assert cli("workers", "resume", "--all").err == (
            "The worker host-1-aaaa was not paused.\nThe worker host-2-bbbb is resumed.\n"
        )

    @pytest.mark.parametrize(
        ("args", "code", "message"),
        [
            (["host"], 1, "worker 'host' matches several workers: host-1-aaaa, host-2-bbbb"),
            (["cccc"], 1, "worker 'cccc' does not exist; known workers: host-1-aaaa, host-2-bbbb"),
            ([], 2, "No workers given"),
        ],
    )
    def test_an_ambiguous_or_unknown_worker_is_refused(
        self, cli: Cli, two: None, args: list[str], code: int, message: str
    ) -> None:
        done = cli("workers", "pause", *args)

        assert done.code == code
        assert message in done.err


class TestEvents:
    def test_the_latest_events_are_printed(self, cli: Cli, shop: Shop) -> None:
        for number in range(30):
            shop.enqueue(id=f"job-{number}", queue="mail")
        shop.call(shop.jobs.cancel, "job-3")

        lines = cli("events", "--limit", "2").out.splitlines()

        assert [line.split()[2:] for line in lines] == [
            ["waiting", "job-29", "send", "in", "mail"],
            ["canceled", "job-3", "send", "in", "mail"],
        ]
        assert len(cli("events").out.splitlines()) == 31

    def test_events_of_all_kinds_are_aligned(self, cli: Cli, shop: Shop) -> None:
        shop.enqueue(id="a-job")
        cli("queues", "limit", "mail", "5")
        cli("schedules", "add", "nightly", "@daily", "send")

        printed = cli("events").out.splitlines()

        assert {line.split()[2] for line in printed} == {
            "waiting",
            "scheduled",
            "rule_changed",
            "schedule_changed",
        }
        assert {len(line) - len(line[20:].split(maxsplit=1)[1]) for line in printed} == {38}

    def test_events_can_be_filtered(self, cli: Cli, shop: Shop) -> None:
        for number in range(30):
            shop.enqueue(id=f"job-{number}", queue="mail" if number == 3 else "bulk")
        shop.call(shop.jobs.cancel, "job-3")

        assert len(cli("events", "--queue", "mail", "--limit", "4").out.splitlines()) == 3
        assert len(cli("events", "--kind", "canceled").out.splitlines()) == 1
        assert len(cli("events", "--job", "job-3", "--task", "send").out.splitlines()) == 2
        assert cli("events", "--task", "other").out == ""
        assert cli("events", "--kind", "cancelled").code == 2

    def test_trouble_of_workers_is_printed(self, cli: Cli, shop: Shop) -> None:
        shop.enqueue()
        shop.call(shop.jobs.engine.submit, ReportTrouble("mail-1", ("upkeep failed: OSError: no\nspace",)))

        [line] = cli("events", "--kind", "error").out.splitlines()
        [event] = cli("events", "--kind", "error", "--json").data

        assert line.split(maxsplit=3)[2:] == ["error", "worker mail-1: upkeep failed: OSError: no\\nspace"]
        assert event["text"] == "worker mail-1: upkeep failed: OSError: no\nspace"

    def test_a_cursor_continues_after_its_event(self, cli: Cli, shop: Shop) -> None:
        for number in range(3):
            shop.enqueue(id=f"job-{number}")
        first, *rest = cli("events", "--json").data

        assert cli("events", "--json", "--after", first["cursor"]).data == rest
        assert (first["kind"], first["job"]) == ("waiting", "job-0")

    def test_a_wrong_cursor_is_an_error(self, cli: Cli, shop: Shop) -> None:
        shop.enqueue()

        assert cli("events", "--after", "nonsense").code == 1


class TestDoctor:
    def test_a_sound_store_has_no_wrong_finding(self, cli: Cli, shop: Shop) -> None:
        shop.call(shop.jobs.open)

        done = cli("doctor")

        assert done.code == 0, done.out
        for topic in (
            "errandry",
            "sqlite",
            "durability",
            "clock",
            "disk",
            "mode",
            "log",
            "size",
            "integrity",
        ):
            assert f"\ngood   {topic}" in f"\n{done.out}" or f"\nnote   {topic}" in f"\n{done.out}", done.out
        assert "survive a power cut" in done.out

    def test_prometheus_can_parse_the_metrics(self, cli: Cli, shop: Shop) -> None:
        shop.enqueue()
        shop.call(shop.jobs.queue('a "quoted" queue').pause)

        done = cli("doctor", "--metrics")
        found = {
            (sample.name, *sample.labels.values()): sample.value
            for family in text_string_to_metric_families(done.out)
            for sample in family.samples
        }

        assert done.code == 0
        assert found["errandry_jobs", "default", "waiting"] == 1
        assert found["errandry_jobs_ever_total", "default", "inserted"] == 1
        assert found["errandry_queue_paused", 'a "quoted" queue'] == 1
        assert found["errandry_queue_lag_seconds", "default"] >= 0
        assert (found["errandry_workers",], found["errandry_slots",]) == (0, 0)

    def test_a_weaker_durability_is_reported(self, cli: Cli, shop: Shop) -> None:
        shop.call(shop.jobs.open)

        done = cli("doctor", "--url", "sqlite:///errandry.db?durability=process")

        assert "a power cut may take back the last passes" in done.out

    def test_waiting_jobs_without_a_worker_are_wrong(self, cli: Cli, shop: Shop) -> None:
        shop.enqueue()

        done = cli("doctor")

        assert done.code == 1
        assert "wrong  workers     no worker is running, and 1 job waits" in done.out
        assert "→ start one: errandry worker MODULE:NAME" in done.out

    def test_a_file_that_other_users_can_read_is_noted(self, cli: Cli, shop: Shop, folder: Path) -> None:
        shop.call(shop.jobs.open)
        os.chmod(folder / "errandry.db", 0o644)

        done = cli("doctor")

        assert (done.code, "others may open the file (644)" in done.out) == (0, True)

    def test_a_clock_that_was_set_back_is_wrong(self, cli: Cli, shop: Shop, folder: Path) -> None:
        shop.call(shop.jobs.open)
        shop.jobs.sync.close()
        with sqlite3.connect(folder / "errandry.db") as db:
            db.execute("UPDATE store SET now = now + 4e9")
        db.close()

        done = cli("doctor", "--json")

        [clock] = [finding for finding in done.data if finding["topic"] == "clock"]
        assert (done.code, clock["grade"]) == (1, "wrong")

    def test_a_damaged_file_is_wrong(self, cli: Cli, shop: Shop, folder: Path) -> None:
        for _ in range(20):
            shop.enqueue()
        shop.jobs.sync.close()
        with (folder / "errandry.db").open("r+b") as file:
            file.seek(4096 * 2 + 100)
            file.write(b"\xff" * 3_000)

        done = cli("doctor")

        assert done.code == 1
        assert "damaged" in done.out or "not a sound database" in done.out

    def test_a_file_that_is_no_store_is_wrong(self, cli: Cli, folder: Path) -> None:
        (folder / "errandry.db").write_text("not a database, by any means" * 100)

        done = cli("doctor")

        assert (done.code, "wrong  store" in done.out) == (1, True)
