"""`errandry schedules`."""

from datetime import UTC, datetime

import msgspec
from msgspec.structs import replace

from errandry.core.job import NewJob
from errandry.core.schedule import SYSTEM_PREFIX
from errandry.store.sqlite.driver import SqliteStore
from tests.cli.conftest import Cli, Shop

MARCH = ("--start", "2030-03-30T12:00Z")


class TestAdding:
    def test_a_schedule_is_added_and_shown(self, cli: Cli, shop: Shop) -> None:
        added = cli("schedules", "add", "nightly", "30 2 * * *", "send", "--args", '{"to": "ada"}', *MARCH)
        assert added.code == 0
        assert "The schedule nightly runs send 30 2 * * *: next in " in added.err

        title, line = cli("schedules", "ls").out.splitlines()
        assert title.split() == ["NAME", "WHEN", "TASK", "NEXT", "LAST", "RUNS", "MISSED"]
        assert line.split()[:7] == ["nightly", "30", "2", "*", "*", "*", "send"]

        [job] = shop.call(shop.jobs.list, "state:scheduled").jobs
        assert job.id == "nightly@2030-03-31T02:30:00Z"

    def test_ticks_are_shown_in_the_time_zone_and_in_utc(self, cli: Cli) -> None:
        cli("schedules", "add", "nightly", "30 2 * * *", "send", "--timezone", "Europe/Vienna", *MARCH)

        shown = cli("schedules", "show", "nightly").out

        assert "30 2 * * * (Europe/Vienna)" in shown
        assert "Sun 2030-03-31 03:00:00 CEST  Sun 2030-03-31 01:00:00 UTC" in shown
        assert "Mon 2030-04-01 02:30:00 CEST  Mon 2030-04-01 00:30:00 UTC" in shown
        [data] = cli("schedules", "show", "nightly", "--json").data
        assert (data["next_job"], len(data["ticks"])) == ("nightly@2030-03-31T01:00:00Z", 5)

    def test_every_option_is_stored(self, cli: Cli) -> None:
        options = ["--timezone", "Asia/Tokyo", "--end", "2040-01-01", "--limit", "9", "--jitter", "5s"]
        options += ["--overlap", "skip", "--catch-up", "all", "--queue", "slow", "--priority", "7"]
        options += ["--max-attempts", "2", "--timeout", "1m", "--by", "ada"]
        [data] = cli("--json", "schedules", "add", "poll", "every 5 minutes", "send", *options).data

        assert (data["when"], data["timezone"], data["end"]) == (
            "every 5m",
            "Asia/Tokyo",
            "2040-01-01T00:00:00Z",
        )
        assert (data["limit"], data["jitter"]) == (9, 5.0)
        assert (data["overlap"], data["catch_up"], data["by"]) == ("skip", "all", "ada")
        assert (data["queue"], data["priority"], data["max_attempts"], data["timeout"]) == (
            "slow",
            7,
            2,
            60.0,
        )

    def test_an_edit_takes_effect_at_once_and_keeps_the_rest(self, cli: Cli, shop: Shop) -> None:
        cli("schedules", "add", "nightly", "30 2 * * *", "send", "--args", '{"to": "ada"}', *MARCH)

        [data] = cli("--json", "schedules", "edit", "nightly", "--when", "0 4 * * *").data

        assert (data["when"], data["arguments"]) == ("0 4 * * *", {"to": "ada"})
        [data] = cli("schedules", "edit", "nightly", "--args", '{"to": "bob"}', "--queue", "q", "--json").data
        assert (data["arguments"], data["queue"]) == ({"to": "bob"}, "q")
        [job] = shop.call(shop.jobs.list, "state:scheduled").jobs
        assert (job.id, job.arguments) == ("nightly@2030-03-31T04:00:00Z", {"to": "bob"})
        assert cli("schedules", "edit", "nightly").code == 2

    def test_invalid_values_are_refused(self, cli: Cli) -> None:
        assert "cron='* *': " in cli("schedules", "add", "x", "* *", "send").err
        assert "unknown time zone" in cli("schedules", "add", "x", "@daily", "send", "--timezone", "Mars").err
        cli("schedules", "add", "p", "@daily", "send")
        for words, why in (
            (("add", "p", "evry 5 minutes", "send"), "cron='evry 5 minutes': "),
            (("edit", "p", "--when", "foo"), "--when foo: "),
            (("edit", "p", "--max-attempts", "0"), "--max-attempts 0: must be a whole number"),
            (("edit", "p", "--timeout", "0"), "--timeout 0: must be more than 0 seconds, or None"),
            (("edit", "p", "--queue", ""), "--queue '': must be a name"),
            (
                ("backfill", "p", "--since", "2026-01-02", "--until", "2026-01-01"),
                "--until 2026-01-01: is before since, 2026-01-02T00:00:00Z",
            ),
        ):
            refused = cli("schedules", *words)
            assert (refused.code, why in refused.err) == (2, True), refused
        refused = cli("--app", "shop:jobs", "schedules", "add", "x", "@daily", "sent")
        assert (refused.code, "sent" in refused.err) == (1, True)


class TestOperating:
    def test_a_schedule_is_paused_resumed_and_removed(self, cli: Cli) -> None:
        cli("schedules", "add", "a", "@daily", "send")

        assert cli("schedules", "pause", "a", "--by", "ada").err == "The schedule a is paused.\n"
        assert cli("schedules", "pause", "a").err == "The schedule a was paused already.\n"
        assert "by ada" in cli("schedules", "ls").out
        assert cli("schedules", "resume", "a").err == "The schedule a is resumed.\n"
        assert cli("schedules", "resume", "a", "--json").data == [
            {"schedule": "a", "changed": False, "paused": False}
        ]
        assert cli("schedules", "pause", "a", "--json").data == [
            {"schedule": "a", "changed": True, "paused": True}
        ]
        assert cli("schedules", "rm", "a", "--json").data == [
            {"schedule": "a", "changed": True, "removed": True}
        ]
        assert cli("schedules", "rm", "a", "--json").data == [
            {"schedule": "a", "changed": False, "removed": False}
        ]
        assert cli("schedules", "rm", "a").code == 1
        assert cli("schedules", "pause", "a").err == "Error: there is no schedule 'a'\n"
        assert "There are no schedules" in cli("schedules", "ls").err

    def test_a_schedule_is_run_now(self, cli: Cli, shop: Shop) -> None:
        cli("schedules", "add", "a", "@daily", "send", "--args", '{"to": "ada"}')

        job_id = cli("schedules", "run", "a").out.strip()
        shop.work()

        assert shop.call(shop.jobs.get, job_id).state == "completed"

    def test_past_ticks_are_backfilled(self, cli: Cli, shop: Shop) -> None:
        cli("schedules", "add", "a", "@daily", "send", "--args", '{"to": "ada"}')
        year = datetime.now(UTC).year - 1

        done = cli("schedules", "backfill", "a", "--since", f"{year}-01-01", "--until", f"{year}-01-03")

        assert done.out.split() == [f"a@{year}-01-0{day}T00:00:00Z" for day in (1, 2, 3)]
        assert done.err == "Enqueued 3 jobs for past ticks of a.\n"
        again = cli("schedules", "backfill", "a", "--since", f"{year}-01-02", "--until", f"{year}-01-03")
        assert again.out == ""
        shop.work()
        assert len(shop.call(shop.jobs.list, "state:completed").jobs) == 3


class TestDoctor:
    def test_late_and_broken_schedules_are_found(self, cli: Cli, shop: Shop) -> None:
        cli("schedules", "add", "fine", "@daily", "send")
        assert "1 schedule on time" in cli("doctor").out

        async def break_it() -> None:
            schedule = await shop.jobs.client.schedule("fine")
            late = replace(schedule, due_at=schedule.created_at - 100)
            store = shop.jobs.store
            assert isinstance(store, SqliteStore)
            store.writer.execute("UPDATE schedules SET record = ?", (msgspec.json.encode(late).decode(),))
            await shop.jobs.schedules.put("gone", NewJob(id="-", task="t", payload="{}"), "@daily")
            await shop.jobs.schedules.pause("gone", by=f"{SYSTEM_PREFIX}timezone='Mars': there is none")

        shop.call(break_it)
        found = cli("doctor")
        assert found.code == 1
        assert "1 schedule over a minute late: fine" in found.out
        assert "gone paused itself: timezone='Mars': there is none" in found.out


class TestDeclared:
    def test_the_source_of_a_plan_is_shown_and_the_declared_plan_is_reset(self, cli: Cli, shop: Shop) -> None:
        @shop.jobs.task
        async def report(of: str) -> None: ...

        shop.jobs.schedule("nightly", report.new("all"), "30 2 * * *")
        shop.call(shop.jobs.put_declared)
        assert _source_line(cli) == "code"

        edit = "schedules", "edit", "nightly", "--when", "0 4 * * *", "--queue", "slow"
        assert cli("--json", *edit).data[0]["source"] == "operator"

        assert _source_line(cli) == "operator; the code declares when 30 2 * * *, queue default"
        [data] = cli("schedules", "show", "nightly", "--json").data
        assert (data["source"], data["owners"], data["when"]) == ("operator", ["app"], "0 4 * * *")
        assert data["declared"] == {"when": "30 2 * * *", "queue": "default"}

        assert "nightly runs report 30 2 * * *" in cli("schedules", "reset", "nightly").err
        assert cli("schedules", "reset", "nightly").err == "The schedule nightly has no change to reset.\n"
        assert cli("schedules", "reset", "nightly", "--json").data == [
            {"schedule": "nightly", "changed": False}
        ]
        assert cli("schedules", "reset", "none").code == 1
        assert _source_line(cli) == "code"


def _source_line(cli: Cli) -> str:
    """The source that `schedules show` prints for the schedule nightly."""
    shown = cli("schedules", "show", "nightly").out
    [line] = [line.split(maxsplit=1)[1] for line in shown.splitlines() if line.startswith("  source")]
    return line
