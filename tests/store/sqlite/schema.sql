CREATE TABLE answers (
    nonce  TEXT PRIMARY KEY,
    at     REAL NOT NULL,
    answer TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX answers_age ON answers (at);

CREATE TABLE claims (
    worker     TEXT PRIMARY KEY,
    claimed_at REAL NOT NULL,
    refs       TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE closing_flows (
    parent     TEXT PRIMARY KEY,
    cancel     TEXT,
    expires_at REAL NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX closing_flows_canceling ON closing_flows (parent) WHERE cancel IS NOT NULL;

CREATE INDEX closing_flows_expiry ON closing_flows (expires_at) WHERE cancel IS NULL;

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

CREATE TABLE events (
    n       INTEGER PRIMARY KEY,
    at      REAL    NOT NULL,
    count   INTEGER NOT NULL,
    entries TEXT    NOT NULL,
    deltas  TEXT    NOT NULL
) STRICT;

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

CREATE INDEX history_kept_by_number ON history (task, state, finished_at) WHERE instr(keep, '"last_');

CREATE INDEX history_unsuccessful ON history (seq) WHERE state <> 'completed';

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

CREATE TABLE keys (
    key        TEXT PRIMARY KEY,
    job        TEXT NOT NULL,
    expires_at REAL
) STRICT, WITHOUT ROWID;

CREATE INDEX keys_expiry ON keys (expires_at) WHERE expires_at IS NOT NULL;

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

CREATE INDEX lanes_grouped ON lanes (lane) WHERE ready AND grp <> '';

CREATE INDEX lanes_idle ON lanes (used_at) WHERE NOT ready;

CREATE INDEX lanes_parked ON lanes (open_at) WHERE ready AND open_at > 0;

CREATE INDEX lanes_ready ON lanes (queue, task, open_at, virtual_start, grp) WHERE ready;

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

CREATE INDEX live_canceling ON live (worker) WHERE cancel_requested;

CREATE INDEX live_deadline ON live (deadline)
    WHERE deadline IS NOT NULL AND state IN ('blocked', 'scheduled', 'waiting');

CREATE INDEX live_due ON live (run_at) WHERE state = 'scheduled';

CREATE INDEX live_leased ON live (lease_until, seq, queue, task, grp, state) WHERE state IN ('claimed', 'running');

CREATE INDEX live_lost ON live (lost_by) WHERE lost_by IS NOT NULL;

CREATE UNIQUE INDEX live_ready ON live (lane, priority, place) WHERE state = 'waiting';

CREATE INDEX live_suspects ON live (suspect) WHERE state = 'waiting' AND crashes > 0;

CREATE TABLE migrations (
    number     INTEGER PRIMARY KEY,
    name       TEXT NOT NULL,
    applied_at REAL NOT NULL
) STRICT;

CREATE TABLE schedules (
    name   TEXT PRIMARY KEY,
    due_at REAL,
    record TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX schedules_due ON schedules (due_at) WHERE due_at IS NOT NULL;

CREATE TABLE stats (
    span  INTEGER NOT NULL,
    at    INTEGER NOT NULL,
    queue TEXT    NOT NULL,
    task  TEXT    NOT NULL,
    name  TEXT    NOT NULL,
    value INTEGER NOT NULL,
    PRIMARY KEY (span, at, queue, task, name)
) STRICT, WITHOUT ROWID;

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

CREATE TABLE store (
    only     INTEGER PRIMARY KEY CHECK (only = 1),
    identity TEXT    NOT NULL,
    number   INTEGER NOT NULL DEFAULT 0,
    now      REAL    NOT NULL DEFAULT 0,
    folded   INTEGER NOT NULL DEFAULT 0,
    row      INTEGER NOT NULL DEFAULT 0,
    events   INTEGER NOT NULL DEFAULT 0
) STRICT;

CREATE TABLE totals (
    queue TEXT    NOT NULL,
    task  TEXT    NOT NULL,
    name  TEXT    NOT NULL,
    value INTEGER NOT NULL,
    PRIMARY KEY (queue, task, name)
) STRICT, WITHOUT ROWID;

CREATE TABLE virtual_times (
    queue         TEXT PRIMARY KEY,
    virtual_time  REAL NOT NULL,
    highest_start REAL NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE workers (
    worker  TEXT PRIMARY KEY,
    seen_at REAL NOT NULL,
    beat    TEXT NOT NULL
) STRICT, WITHOUT ROWID;
