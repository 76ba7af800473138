"""The guards, and what the code looks like without each of them.

A mutant is one edit of one file: `old`, which stands there exactly once, becomes `new`. It is never
written to disk; see `plugin`. `store` is where it shows. `words` picks those tests of the conformance suite
that should notice, so as not to run all of it; without words, only the model can notice.
"""

from typing import NamedTuple


class Mutant(NamedTuple):
    name: str
    without: str
    file: str
    old: str
    new: str
    store: str = "memory"
    words: str = ""


MOVE, APPLY, LEDGER = "core/move.py", "store/apply.py", "store/ledger.py"
TABLES, QUERIES = "store/sqlite/tables.py", "store/sqlite/queries.sql"

MUTANTS = [
    Mutant(
        "fence_match",
        "the fence of a claim is not compared",
        MOVE,
        "    if job.fence != ref.fence:\n        return Cause.OTHER_FENCE\n",
        "",
        words="passed_to_another",
    ),
    Mutant(
        "lease_check",
        "a lease that has run out still counts",
        MOVE,
        "    if job.lease_until is None or job.lease_until <= now:\n        return Cause.EXPIRED\n",
        "",
        words="expired_claim",
    ),
    Mutant(
        "lease_boundary",
        "a lease still counts at the moment it ends",
        MOVE,
        "job.lease_until <= now:\n        return Cause.EXPIRED",
        "job.lease_until < now:\n        return Cause.EXPIRED",
        words="lease_has_run_out",
    ),
    Mutant(
        "start_check",
        "a job that has not started can be completed",
        "core/state.py",
        "Move.COMPLETE: Rule(_all(COMPLETED, RUNNING)",
        "Move.COMPLETE: Rule(_all(COMPLETED, CLAIMED, RUNNING)",
        words="not_started",
    ),
    Mutant(
        "attempts_of_retry",
        "a retry is granted when attempts are spent",
        MOVE,
        "case Retry(failure=failure) if job.attempts >= job.max_attempts:",
        "case Retry(failure=failure) if False:",
        words="retry",
    ),
    Mutant(
        "attempts_of_expiry",
        "a lost worker's job goes on when attempts are spent",
        MOVE,
        "if job.attempts >= job.max_attempts or crashes >= job.max_crashes:",
        "if crashes >= job.max_crashes:",
        words="kills or expire",
    ),
    Mutant(
        "crash_cap",
        "a job may kill any number of workers",
        MOVE,
        "if job.attempts >= job.max_attempts or crashes >= job.max_crashes:",
        "if job.attempts >= job.max_attempts:",
        words="kills",
    ),
    Mutant(
        "release_cap",
        "a job may be released for ever",
        MOVE,
        "if releases > RELEASES_MAX:",
        "if False:",
        words="twenty",
    ),
    Mutant(
        "old_place",
        "a job in line again gets the place it was inserted with",
        LEDGER,
        "place(after.order, self.tables.number())",
        "place(after.order, after.seq)",
        words="to_the_back",
    ),
    Mutant(
        "same_place",
        "two jobs get the same place",
        LEDGER,
        "place(after.order, self.tables.number())",
        "place(after.order, 2**40)",
        words="place or to_the_back",
    ),
    Mutant(
        "cancel_wins",
        "an outcome wins over a cancel request",
        MOVE,
        "if job.cancel_requested or isinstance(outcome, GiveUp):",
        "if isinstance(outcome, GiveUp):",
        words="cancel_asked",
    ),
    Mutant(
        "cancel_wins_at_expiry",
        "an expired job goes on although its cancel was asked",
        MOVE,
        "    if job.cancel_requested:\n",
        "    if False:\n",
        words="cancel_was_asked",
    ),
    Mutant(
        "fence_rises",
        "a fence is the time and may repeat",
        MOVE,
        "fence=max(job.fence + 1, int(now * 1_000_000))",
        "fence=int(now * 1_000_000)",
        words="fences",
    ),
    Mutant(
        "nonce_repeat",
        "a claim sent again takes more jobs",
        APPLY,
        "    if refs is not None:\n",
        "    if False:\n",
        words="sent_again",
    ),
    Mutant(
        "settle_repeat",
        "an outcome sent again is refused",
        APPLY,
        "_is_repeat(job, outcome.move):\n        return ALREADY",
        "False:\n        return ALREADY",
        words="sent_again",
    ),
    Mutant(
        "id_idempotence",
        "an id can be inserted again",
        APPLY,
        "if ledger.get(new.id) is None:",
        "if True:",
        words="existed",
    ),
    Mutant(
        "keep_0",
        "a job kept for no time stays",
        LEDGER,
        "if after.expires_at is not None and after.expires_at <= self.now:",
        "if False:",
        words="keep_0",
    ),
    Mutant(
        "keep_0_totals",
        "removed jobs are not counted",
        LEDGER,
        '    Move.REMOVE: "total.removed",\n',
        "",
        words="keep_0",
    ),
    Mutant(
        "finished_totals",
        "jobs that ended are not counted",
        LEDGER,
        "                yield LIFETIME + reached, 1\n",
        "                pass\n",
        words="totals",
    ),
    Mutant(
        "claim_tidies",
        "a claim does not look for expired leases",
        "store/tidy.py",
        "    if marks.lease_until is not None and marks.lease_until <= now:\n",
        "    if False:\n",
        words="without_upkeep",
    ),
    Mutant(
        "history_of_ids",
        "the id of a finished job can be inserted again",
        TABLES,
        '("find_live", "find_history")',
        '("find_live",)',
        store="sqlite",
        words="inserted or existed or repeated",
    ),
    Mutant(
        "numbers_on_disk",
        "the next pass gives numbers out again",
        QUERIES,
        "SET number = ?1, now = ?2;",
        "SET number = max(number, 0 * ?1), now = ?2;",
        store="sqlite",
        words="claim",
    ),
    Mutant(
        "counters_on_disk",
        "what was added to the totals is added again",
        QUERIES,
        "UPDATE store SET folded = ?1;",
        "UPDATE store SET folded = max(folded, 0 * ?1);",
        store="sqlite",
    ),
    Mutant(
        "lapsed_claim",
        "a claim takes a job that lapsed while it was held",
        APPLY,
        "            if job.deadline is not None and job.deadline <= now:\n",
        "            if False:\n",
        words="lapsed",
    ),
    Mutant(
        "lane_mark",
        "a lane that was empty is not looked at again",
        TABLES,
        "            if not ready:\n",
        "            if False:\n",
        store="sqlite",
        words="claim",
    ),
    Mutant(
        "foreign_commits",
        "what another process has written is not noticed",
        TABLES,
        "if version != self.version or len(self._held) > HELD_MAX:",
        "if len(self._held) > HELD_MAX:",
        store="sqlite",
    ),
    Mutant(
        "time_on_disk",
        "a store opened again goes back in time",
        QUERIES,
        "SET number = ?1, now = ?2;",
        "SET number = ?1, now = max(now, 0 * ?2);",
        store="sqlite",
    ),
    Mutant(
        "worker_gate",
        "a paused worker gets jobs all the same",
        QUERIES,
        "   AND NOT EXISTS (SELECT 1 FROM gates WHERE kind = 'worker' AND name = ?5)\n",
        "   AND ?5 IS NOT NULL\n",
        store="sqlite",
        words="paused_worker",
    ),
    Mutant(
        "unique_key",
        "a unique key that is held is taken all the same",
        "store/insert.py",
        "        holder = taken.get(slot) or ledger.holder(slot)\n",
        "        holder = None\n",
        words="keeps_its_key_from_others",
    ),
    Mutant(
        "unique_key_of_a_rerun",
        "a job lives again beside another one that holds its unique key",
        "store/operate.py",
        "        _refuse_if_held(ledger, after)\n",
        "",
        words="beside_a_live_holder",
    ),
    Mutant(
        "unique_key_freed",
        "a job that has ended keeps its unique key",
        LEDGER,
        "        elif before is not None and was_alive and unique.scope is Scope.ALIVE:\n",
        "        elif False:\n",
        words="alive_no_more_is_free",
    ),
    Mutant(
        "open_children",
        "a parent is released by the first child that ends",
        "store/flow.py",
        "if after.open_children:\n            ledger.put(parent, after)",
        "if False:\n            ledger.put(parent, after)",
        words="last_childs_settle",
    ),
    Mutant(
        "counted_once",
        "a child that has ended before counts again",
        "store/flow.py",
        "        if link.outcome is None:\n            closed",
        "        if True:\n            closed",
        words="counts_once",
    ),
]
