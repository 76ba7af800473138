-- The columns of `live` and `history` are the fields of `JobRecord` (core/job.py) in their order.

-- One row: the identity of the store, the last number given to a job, the time of the last pass (the time of the store
-- never goes back), the last event row whose deltas are in `totals`, the last event row ever added, and the number of
-- events in the log.
CREATE TABLE store (
    only     INTEGER PRIMARY KEY CHECK (only = 1),
    identity TEXT    NOT NULL,
    number   INTEGER NOT NULL DEFAULT 0,
    now      REAL    NOT NULL DEFAULT 0,
    folded   INTEGER NOT NULL DEFAULT 0,
    row      INTEGER NOT NULL DEFAULT 0,
    events   INTEGER NOT NULL DEFAULT 0
) STRICT;
INSERT INTO store (only, identity) VALUES (1, lower(hex(randomblob(8))));

-- Jobs that are not finished. `lane` is set while the job is waiting; `suspect` is a `SuspectKind` (core/suspect.py).
CREATE TABLE live (
    seq              INTEGER PRIMARY KEY,
    id               TEXT    NOT NULL UNIQUE,
    task             TEXT    NOT NULL,
    queue            TEXT    NOT NULL,
    grp              TEXT    NOT NULL,
    state            TEXT    NOT NULL,
    lifo             INTEGER NOT NULL,
    reason           TEXT,
    settled          TEXT,
    payload          TEXT    NOT NULL,
    priority         INTEGER NOT NULL,
    place            INTEGER,
    run_at           REAL,
    attempts         INTEGER NOT NULL,
    max_attempts     INTEGER NOT NULL,
    releases         INTEGER NOT NULL,
    crashes          INTEGER NOT NULL,
    max_crashes      INTEGER NOT NULL,
    open_children    INTEGER NOT NULL,
    children         INTEGER NOT NULL,
    parents          INTEGER NOT NULL,
    timeout          REAL,
    deadline         REAL,
    fence            INTEGER NOT NULL,
    worker           TEXT,
    lease_until      REAL,
    cancel_requested INTEGER NOT NULL,
    result           TEXT,
    metadata         TEXT,
    created_at       REAL    NOT NULL,
    updated_at       REAL    NOT NULL,
    claimed_at       REAL,
    started_at       REAL,
    finished_at      REAL,
    expires_at       REAL,
    lost_by          TEXT,
    unhandled_since  REAL,
    backoff          TEXT,
    keep             TEXT,
    progress         TEXT,
    tags             TEXT,
    errors           TEXT,
    logs             TEXT,
    uniqueness       TEXT,
    steps            TEXT,
    lane             INTEGER,
    suspect          INTEGER GENERATED ALWAYS AS (
        CASE WHEN crashes = 0 THEN 0
             WHEN crashes + 1 >= max_crashes OR attempts + 1 >= max_attempts THEN 2 ELSE 1 END) VIRTUAL
) STRICT;
CREATE UNIQUE INDEX live_ready ON live (lane, priority, place) WHERE state = 'waiting';
CREATE INDEX live_due ON live (run_at) WHERE state = 'scheduled';
CREATE INDEX live_leased ON live (lease_until, seq, queue, task, grp, state) WHERE state IN ('claimed', 'running');
CREATE INDEX live_deadline ON live (deadline)
    WHERE deadline IS NOT NULL AND state IN ('blocked', 'scheduled', 'waiting');
CREATE INDEX live_canceling ON live (worker) WHERE cancel_requested;
-- Waiting suspects, and jobs of which a heartbeat of their last worker takes a crash back. Few jobs are in these indexes.
CREATE INDEX live_suspects ON live (suspect) WHERE state = 'waiting' AND crashes > 0;
CREATE INDEX live_lost ON live (lost_by) WHERE lost_by IS NOT NULL;

-- Finished jobs. Upkeep deletes them after `expires_at`.
CREATE TABLE history (
    seq              INTEGER PRIMARY KEY,
    id               TEXT    NOT NULL UNIQUE,
    task             TEXT    NOT NULL,
    queue            TEXT    NOT NULL,
    grp              TEXT    NOT NULL,
    state            TEXT    NOT NULL,
    lifo             INTEGER NOT NULL,
    reason           TEXT,
    settled          TEXT,
    payload          TEXT    NOT NULL,
    priority         INTEGER NOT NULL,
    place            INTEGER,
    run_at           REAL,
    attempts         INTEGER NOT NULL,
    max_attempts     INTEGER NOT NULL,
    releases         INTEGER NOT NULL,
    crashes          INTEGER NOT NULL,
    max_crashes      INTEGER NOT NULL,
    open_children    INTEGER NOT NULL,
    children         INTEGER NOT NULL,
    parents          INTEGER NOT NULL,
    timeout          REAL,
    deadline         REAL,
    fence            INTEGER NOT NULL,
    worker           TEXT,
    lease_until      REAL,
    cancel_requested INTEGER NOT NULL,
    result           TEXT,
    metadata         TEXT,
    created_at       REAL    NOT NULL,
    updated_at       REAL    NOT NULL,
    claimed_at       REAL,
    started_at       REAL,
    finished_at      REAL    NOT NULL,
    expires_at       REAL    NOT NULL,
    lost_by          TEXT,
    unhandled_since  REAL,
    backoff          TEXT,
    keep             TEXT,
    progress         TEXT,
    tags             TEXT,
    errors           TEXT,
    logs             TEXT,
    uniqueness       TEXT,
    steps            TEXT
) STRICT;
CREATE INDEX history_expiry ON history (expires_at);
-- Failed and canceled jobs: few among many completed ones, and the usual target of a search.
CREATE INDEX history_unsuccessful ON history (seq) WHERE state <> 'completed';
-- Only jobs that are kept by count (`Keep` in core/job.py), so that the index costs the others nothing.
CREATE INDEX history_kept_by_number ON history (task, state, finished_at) WHERE instr(keep, '"last_');

-- All jobs, in three parts: a search skips the parts that it does not want.
CREATE VIEW job AS
SELECT seq, id, task, queue, grp, state, lifo, reason, settled, payload, priority, place, run_at, attempts,
       max_attempts, releases, crashes, max_crashes, open_children, children, parents, timeout, deadline, fence,
       worker, lease_until, cancel_requested, result, metadata, created_at, updated_at, claimed_at, started_at,
       finished_at, expires_at, lost_by, unhandled_since, backoff, keep, progress, tags, errors, logs, uniqueness,
       steps, 'live' AS part
  FROM live
UNION ALL
SELECT seq, id, task, queue, grp, state, lifo, reason, settled, payload, priority, place, run_at, attempts,
       max_attempts, releases, crashes, max_crashes, open_children, children, parents, timeout, deadline, fence,
       worker, lease_until, cancel_requested, result, metadata, created_at, updated_at, claimed_at, started_at,
       finished_at, expires_at, lost_by, unhandled_since, backoff, keep, progress, tags, errors, logs, uniqueness,
       steps, 'completed' AS part
  FROM history WHERE state = 'completed'
UNION ALL
SELECT seq, id, task, queue, grp, state, lifo, reason, settled, payload, priority, place, run_at, attempts,
       max_attempts, releases, crashes, max_crashes, open_children, children, parents, timeout, deadline, fence,
       worker, lease_until, cancel_requested, result, metadata, created_at, updated_at, claimed_at, started_at,
       finished_at, expires_at, lost_by, unhandled_since, backoff, keep, progress, tags, errors, logs, uniqueness,
       steps, 'unsuccessful' AS part
  FROM history INDEXED BY history_unsuccessful WHERE state <> 'completed';

-- One row per (queue, task, group) in use. `ready` marks a lane that may have waiting jobs; a lane without the mark has
-- none. `virtual_start` orders the groups of a queue (core/fair_queueing.py). A lane from which no job may be claimed
-- now, for example because its queue is paused, is parked until `open_at`.
CREATE TABLE lanes (
    lane    INTEGER PRIMARY KEY,
    queue   TEXT    NOT NULL,
    task    TEXT    NOT NULL,
    grp     TEXT    NOT NULL,
    ready   INTEGER NOT NULL,
    used_at REAL    NOT NULL,
    virtual_start REAL NOT NULL,
    open_at REAL    NOT NULL,
    UNIQUE (queue, grp, task)
) STRICT;
CREATE INDEX lanes_ready ON lanes (queue, task, open_at, virtual_start, grp) WHERE ready;
CREATE INDEX lanes_grouped ON lanes (lane) WHERE ready AND grp <> '';
CREATE INDEX lanes_parked ON lanes (open_at) WHERE ready AND open_at > 0;
CREATE INDEX lanes_idle ON lanes (used_at) WHERE NOT ready;

-- Fair queueing (core/fair_queueing.py) of each queue with groups: its virtual time, and the highest virtual start of
-- its groups.
CREATE TABLE virtual_times (
    queue         TEXT PRIMARY KEY,
    virtual_time  REAL NOT NULL,
    highest_start REAL NOT NULL
) STRICT, WITHOUT ROWID;

-- Gates of queues, tasks, groups (`name` is the queue of a group) and workers: a pause, a rule, the state of a rate limit,
-- a time until which the gate is closed. `rule` has the values in force, `rule_fields` those that an operator has set, with
-- the time and the operator, `declared` the rule that code declares (all JSON). `tat` is the theoretical arrival time of GCRA: from then on
-- the rate limit is fully replenished.
CREATE TABLE gates (
    kind         TEXT NOT NULL,
    name         TEXT NOT NULL,
    grp          TEXT NOT NULL,
    paused_at    REAL,
    paused_by    TEXT,
    rule         TEXT,
    ruled_at     REAL,
    ruled_by     TEXT,
    rule_fields  TEXT,
    declared     TEXT,
    tat          REAL NOT NULL,
    closed_until REAL NOT NULL,
    PRIMARY KEY (kind, name, grp)
) STRICT, WITHOUT ROWID;

-- The job that holds a unique key. It holds the key until `expires_at`, even if it ends or is deleted earlier; with NULL,
-- until it ends.
CREATE TABLE keys (
    key        TEXT PRIMARY KEY,
    job        TEXT NOT NULL,
    expires_at REAL
) STRICT, WITHOUT ROWID;
CREATE INDEX keys_expiry ON keys (expires_at) WHERE expires_at IS NOT NULL;

-- Flows: the children that a parent waits for, in their order, and how each ended. Kept as long as the parent.
CREATE TABLE edges (
    parent  TEXT    NOT NULL,
    n       INTEGER NOT NULL,
    child   TEXT    NOT NULL,
    task    TEXT    NOT NULL,
    seq     INTEGER NOT NULL,
    policy  TEXT    NOT NULL,
    outcome TEXT,
    result  TEXT,
    feeds   TEXT,
    PRIMARY KEY (parent, n)
) STRICT, WITHOUT ROWID;
CREATE INDEX edges_child ON edges (seq);

-- Parents that have ended. `cancel`: the reason with which their children are still to be canceled. After `expires_at`,
-- upkeep deletes their edges.
CREATE TABLE closing_flows (
    parent     TEXT PRIMARY KEY,
    cancel     TEXT,
    expires_at REAL NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX closing_flows_canceling ON closing_flows (parent) WHERE cancel IS NOT NULL;
CREATE INDEX closing_flows_expiry ON closing_flows (expires_at) WHERE cancel IS NULL;

-- The steps, sleeps and signals of jobs, in the order they began. Kept as long as the job.
CREATE TABLE steps (
    job    TEXT    NOT NULL,
    n      INTEGER NOT NULL,
    kind   TEXT    NOT NULL,
    name   TEXT    NOT NULL,
    result TEXT,
    at     REAL,
    until  REAL,
    PRIMARY KEY (job, kind, name)
) STRICT, WITHOUT ROWID;

-- Schedules as JSON. `due_at` is when a pass has to decide about the next tick.
CREATE TABLE schedules (
    name   TEXT PRIMARY KEY,
    due_at REAL,
    record TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX schedules_due ON schedules (due_at) WHERE due_at IS NOT NULL;

-- The event log. One row per pass: its events, and by how much it changed each counter.
CREATE TABLE events (
    n       INTEGER PRIMARY KEY,
    at      REAL    NOT NULL,
    count   INTEGER NOT NULL,
    entries TEXT    NOT NULL,
    deltas  TEXT    NOT NULL
) STRICT;

-- Counters up to event row `store.folded`: jobs by state, and lifetime totals (`total.…`).
CREATE TABLE totals (
    queue TEXT    NOT NULL,
    task  TEXT    NOT NULL,
    name  TEXT    NOT NULL,
    value INTEGER NOT NULL,
    PRIMARY KEY (queue, task, name)
) STRICT, WITHOUT ROWID;

-- Figures of the `span` seconds (a minute, an hour, a day) from `at` on, up to the same event row.
CREATE TABLE stats (
    span  INTEGER NOT NULL,
    at    INTEGER NOT NULL,
    queue TEXT    NOT NULL,
    task  TEXT    NOT NULL,
    name  TEXT    NOT NULL,
    value INTEGER NOT NULL,
    PRIMARY KEY (span, at, queue, task, name)
) STRICT, WITHOUT ROWID;

-- The last beat of each worker.
CREATE TABLE workers (
    worker  TEXT PRIMARY KEY,
    seen_at REAL NOT NULL,
    beat    TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- The claims of each worker's last pass, so that a claim whose reply was lost can be answered again.
CREATE TABLE claims (
    worker     TEXT PRIMARY KEY,
    claimed_at REAL NOT NULL,
    refs       TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- Answers to commands by their nonces, so that a command whose reply was lost can be answered again.
CREATE TABLE answers (
    nonce  TEXT PRIMARY KEY,
    at     REAL NOT NULL,
    answer TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX answers_age ON answers (at);

CREATE TABLE migrations (
    number     INTEGER PRIMARY KEY,
    name       TEXT NOT NULL,
    applied_at REAL NOT NULL
) STRICT;
