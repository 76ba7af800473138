"""The mutants: for each guard in the code, the edit that removes it.

The comment `# guard: name` marks the code that the mutant of this name edits; see `markers` and `edits`.
No mutant changes a file on disk; see `plugin`. `without` says how the code behaves without the guard.
`store` is the store on which the tests must notice it.
"""

import ast
from typing import NamedTuple

from tests.mutants.edits import (
    ALWAYS,
    DROP,
    FIRST_TERM,
    NEVER,
    Edit,
    SqlEdit,
    add_argument,
    compare_with,
    instead_of_call,
    keeps_column,
    leave_out,
    otherwise,
    value,
)


class Mutant(NamedTuple):
    name: str
    without: str
    edit: Edit | SqlEdit
    store: str = "memory"
    in_conformance: bool = True  # False: only the model opens a store twice and reopens it
    in_model: bool = True  # False: a history of the model is too short for it


MUTANTS = [
    Mutant("fence_match", "the fence of a claim is not compared", NEVER),
    Mutant("lease_check", "an expired lease still counts", NEVER),
    Mutant("lease_boundary", "a lease still counts at the moment it ends", compare_with(ast.LtE, ast.Lt)),
    Mutant("start_check", "a job can complete without having started", add_argument(1, "CLAIMED")),
    Mutant("attempts_of_retry", "a retry is granted after the last attempt", NEVER),
    Mutant(
        "attempts_of_expiry", "a job whose worker was lost continues after its last attempt", leave_out(0)
    ),
    Mutant("crash_cap", "a job may crash any number of workers", leave_out(1)),
    Mutant("cap_of_crashed_release", "a job may end any number of workers in good order", NEVER),
    Mutant("release_cap", "a job may be released any number of times", NEVER, in_model=False),
    Mutant("handler_began", "a job whose handler has begun still counts as unhandled", NEVER, in_model=False),
    Mutant(
        "unhandled_since",
        "each release of a job that no worker can run starts its time again",
        ALWAYS,
        in_model=False,
    ),
    Mutant("old_place", "a job that waits again gets the place of its insert", ALWAYS),
    Mutant("same_place", "two jobs get the same place", otherwise("2**40")),
    Mutant("cancel_wins", "an outcome wins over a cancel request", NEVER),
    Mutant("cancel_wins_at_expiry", "an expired job continues in spite of a cancel request", NEVER),
    Mutant("fence_rises", "a fence is only the time and may repeat", instead_of_call("{1}")),
    Mutant("nonce_repeat", "a repeated claim takes more jobs", NEVER),
    Mutant("command_repeat", "a command that is sent again is applied again", value("None"), in_model=False),
    Mutant("settle_repeat", "a repeated outcome is refused", NEVER),
    Mutant("id_idempotence", "a second job with the same id is inserted", value("{}")),
    Mutant("keep_0", "a finished job with a retention of 0 stays", NEVER),
    Mutant("keep_0_totals", "removed jobs are not counted", DROP),
    Mutant("finished_totals", "finished jobs are not counted", DROP),
    Mutant("upkeep_before_claim", "a claim does not look for expired leases", NEVER),
    Mutant("history_of_ids", "the id of a finished job can be inserted again", leave_out(1), store="sqlite"),
    Mutant(
        "numbers_on_disk", "the next pass assigns the same numbers again", keeps_column(1), store="sqlite"
    ),
    Mutant(
        "counters_on_disk",
        "counts that are already in the totals are added again",
        keeps_column(1),
        store="sqlite",
        in_conformance=False,
    ),
    Mutant("lapsed_claim", "a claim takes a job whose deadline passed while a worker held it", NEVER),
    Mutant("lane_mark", "a lane that was empty is not read again", NEVER, store="sqlite"),
    Mutant(
        "foreign_commits",
        "the cache keeps jobs that another process has changed",
        leave_out(0),
        store="sqlite",
        in_conformance=False,
    ),
    Mutant(
        "foreign_versions",
        "the cache returns a job that another process has changed",
        leave_out(1),
        store="postgres",
        in_conformance=False,
    ),
    Mutant(
        "time_on_disk",
        "the time of a store goes back when it is opened again",
        keeps_column(2),
        store="sqlite",
        in_conformance=False,
    ),
    Mutant("worker_gate", "a paused worker gets jobs", NEVER),
    Mutant("unique_key", "a job takes a unique key that another job holds", value("None")),
    Mutant("unique_key_of_a_rerun", "a rerun job lives beside another holder of its unique key", DROP),
    Mutant("unique_key_freed", "a finished job keeps its unique key", NEVER),
    Mutant("open_children", "the first child that ends releases its parent", NEVER),
    Mutant("counted_once", "a child that has ended before is counted again", ALWAYS),
    Mutant("limit_of_the_held", "a limit does not count jobs that workers hold already", FIRST_TERM),
    Mutant("limit_of_the_pass", "a limit does not count jobs claimed in the same pass", DROP),
    Mutant("rate_spent", "a rate limits nothing", instead_of_call("{1}")),
    Mutant("rate_changed", "a faster rate waits for the slower one before it", DROP, in_model=False),
    Mutant("group_rate_changed", "a faster rate of groups waits for the slower one", DROP, in_model=False),
    Mutant("closed_gate", "a paused queue, task or group gives out jobs", leave_out(1, 1, 0)),
    Mutant("reopened", "a group or task that a handler has closed cannot be resumed", DROP, in_model=False),
    Mutant("slow_down", "a retry that asks to pause its group does not", NEVER),
    Mutant("virtual_starts", "a group that was served stays the first", instead_of_call("({0}, {1})")),
    Mutant("full_queue", "a queue takes more jobs than its bound", NEVER),
    Mutant("tick_once", "a tick gets a second job", leave_out(1)),
    Mutant("tick_of_others", "a claim does not decide due ticks before it promotes their jobs", NEVER),
    Mutant("overlap", "a tick runs although the last run is still alive", ALWAYS),
    Mutant("queue_of_ticks", "a queued tick does not wait for the last run", value("None")),
    Mutant("after_cancels", "the cancel of a waiting tick cancels the run before it", ALWAYS),
    Mutant("limit_of_runs", "a schedule runs more often than its limit", value("False")),
    Mutant("operators_rule", "a declared rule replaces what an operator has set", value("{}")),
    Mutant("operators_plan", "a declared plan replaces the plan of an operator", NEVER),
    Mutant("missed_ticks_counted", "skipped ticks are not counted", FIRST_TERM),
    Mutant("edited_plan", "an edit undoes the change of another edit", NEVER, in_model=False),
    Mutant("recheck", "an operator command moves jobs that no longer match its query", ALWAYS),
    Mutant("slice_bound", "one slice of an operator command reads all jobs", value("0")),
    Mutant("key_in_another_queue", "a job moves to a queue where another job holds its unique key", DROP),
    Mutant("key_follows_queue", "a moved job leaves its unique key in the old queue", NEVER),
    Mutant("counted_where_it_is", "a moved job is still counted in the old queue", DROP),
    Mutant("kept_by_number", "one more finished job stays than the retention allows", FIRST_TERM, "sqlite"),
    Mutant("pruned_unasked", "upkeep prunes although the command does not ask for it", ALWAYS),
    Mutant("step_fence", "a lost claim can write a step", instead_of_call("{0} or LossCause.NOT_HELD")),
    Mutant("step_once", "a finished step is written again", NEVER),
    Mutant("step_size", "a step may have a result of any size", DROP),
    Mutant("steps_max", "a job may have any number of steps", NEVER, in_model=False),
    Mutant("signal_once", "a second signal of the same name replaces the first", NEVER),
    Mutant("signal_late", "a signal is accepted after the job's wait for it has timed out", NEVER),
    Mutant("signal_wakes", "a signal does not wake the job that waits for it", NEVER),
    Mutant("ageing", "a job never gets precedence for its long wait", DROP),
    Mutant("unpark_group", "claims ignore a group for ever after it was full", DROP),
    Mutant("edge_reopened", "a parent does not wait for a child that is rerun", DROP),
    Mutant("drop_needs_rule", "a full queue drops its oldest jobs although no rule says so", leave_out(0)),
    Mutant(
        "running_parent_keeps_result",
        "a parent that continues loses the outcome of a child that is rerun",
        leave_out(2),
    ),
    Mutant("log_fields", "a log line may have a level that no store can write", DROP, in_model=False),
    Mutant("children_first", "a parent that is rerun before its child does not wait for it", DROP),
]
