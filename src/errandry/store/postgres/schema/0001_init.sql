-- The columns of `live` and `history` are the fields of `JobRecord` (core/job.py) in their order.
-- The store replaces `errandry.` by its own schema. Text sorts by its bytes, as it does in every store.

-- Numbers for the `seq` of a job and for its place in its lane.
CREATE SEQUENCE errandry.job_numbers AS bigint;

-- One row: the identity of the store, the last event row whose deltas are in `totals`, the last event row that was
-- deleted, the number of events up to it, and a time: the time of the store never goes back behind it.
CREATE TABLE errandry.store (
    one      integer PRIMARY KEY CHECK (one = 1),
    identity text             NOT NULL,
    folded   bigint           NOT NULL DEFAULT 0,
    dropped  bigint           NOT NULL DEFAULT 0,
    total    bigint           NOT NULL DEFAULT 0,
    at       double precision NOT NULL DEFAULT 0
);
INSERT INTO errandry.store (one, identity) VALUES (1, substr(replace(gen_random_uuid()::text, '-', ''), 1, 16));

-- Jobs that are not finished. `lane` is set while the job is waiting; `suspect` is a `SuspectKind` (core/suspect.py).
-- Rows change often and do not live long, so pages keep room for the next version of a row, and autovacuum starts
-- early.
CREATE TABLE errandry.live (
    seq              bigint           NOT NULL,
    id               text COLLATE "C" NOT NULL,
    task             text COLLATE "C" NOT NULL,
    queue            text COLLATE "C" NOT NULL,
    grp              text COLLATE "C" NOT NULL,
    state            text COLLATE "C" NOT NULL,
    lifo             boolean          NOT NULL,
    reason           text COLLATE "C",
    settled          text COLLATE "C",
    payload          text COLLATE "C" NOT NULL,
    priority         bigint           NOT NULL,
    place            bigint,
    run_at           double precision,
    attempts         bigint           NOT NULL,
    max_attempts     bigint           NOT NULL,
    releases         bigint           NOT NULL,
    crashes          bigint           NOT NULL,
    max_crashes      bigint           NOT NULL,
    open_children    bigint           NOT NULL,
    children         bigint           NOT NULL,
    parents          bigint           NOT NULL,
    timeout          double precision,
    deadline         double precision,
    fence            bigint           NOT NULL,
    worker           text COLLATE "C",
    lease_until      double precision,
    cancel_requested boolean          NOT NULL,
    result           text COLLATE "C",
    metadata         text COLLATE "C",
    created_at       double precision NOT NULL,
    updated_at       double precision NOT NULL,
    claimed_at       double precision,
    started_at       double precision,
    finished_at      double precision,
    expires_at       double precision,
    lost_by          text COLLATE "C",
    unhandled_since  double precision,
    backoff          text COLLATE "C",
    keep             text COLLATE "C",
    progress         text COLLATE "C",
    tags             text COLLATE "C",
    errors           text COLLATE "C",
    logs             text COLLATE "C",
    uniqueness       text COLLATE "C",
    steps            text COLLATE "C",
    lane             bigint,
    suspect          smallint         NOT NULL GENERATED ALWAYS AS (
        CASE WHEN crashes = 0 THEN 0
             WHEN crashes + 1 >= max_crashes OR attempts + 1 >= max_attempts THEN 2 ELSE 1 END) STORED,
    CONSTRAINT live_pkey PRIMARY KEY (seq),
    CONSTRAINT live_id UNIQUE (id)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX live_ready ON errandry.live (lane, priority, place) WHERE state = 'waiting';
CREATE INDEX live_due ON errandry.live (run_at, seq) WHERE state = 'scheduled';
CREATE INDEX live_leased ON errandry.live (lease_until, seq)
    WHERE state IN ('claimed', 'running');
CREATE INDEX live_deadline ON errandry.live (deadline, seq)
    WHERE deadline IS NOT NULL AND state IN ('blocked', 'scheduled', 'waiting');
CREATE INDEX live_canceling ON errandry.live (worker) WHERE cancel_requested;
-- Waiting suspects, and jobs of which a heartbeat of their last worker takes a crash back. Few jobs are in these indexes.
CREATE INDEX live_suspects ON errandry.live (suspect) WHERE state = 'waiting' AND crashes > 0;
CREATE INDEX live_lost ON errandry.live (lost_by) WHERE lost_by IS NOT NULL;
-- Waiting jobs without a lane. `insert_jobs` inserts them if their lane is not marked. The next pass that claims sets
-- their lane.
CREATE INDEX live_without_lane ON errandry.live (seq) WHERE state = 'waiting' AND lane IS NULL;

-- Finished jobs. Upkeep deletes them after `expires_at`. A partition holds the jobs that expire on one day (UTC, days
-- since 1970). Upkeep drops it when the day is over and the partition is empty. Partition 0 holds jobs that are kept for
-- more than 60 days. See `create_history_partition`.
CREATE TABLE errandry.history (
    seq              bigint           NOT NULL,
    id               text COLLATE "C" NOT NULL,
    task             text COLLATE "C" NOT NULL,
    queue            text COLLATE "C" NOT NULL,
    grp              text COLLATE "C" NOT NULL,
    state            text COLLATE "C" NOT NULL,
    lifo             boolean          NOT NULL,
    reason           text COLLATE "C",
    settled          text COLLATE "C",
    payload          text COLLATE "C" NOT NULL,
    priority         bigint           NOT NULL,
    place            bigint,
    run_at           double precision,
    attempts         bigint           NOT NULL,
    max_attempts     bigint           NOT NULL,
    releases         bigint           NOT NULL,
    crashes          bigint           NOT NULL,
    max_crashes      bigint           NOT NULL,
    open_children    bigint           NOT NULL,
    children         bigint           NOT NULL,
    parents          bigint           NOT NULL,
    timeout          double precision,
    deadline         double precision,
    fence            bigint           NOT NULL,
    worker           text COLLATE "C",
    lease_until      double precision,
    cancel_requested boolean          NOT NULL,
    result           text COLLATE "C",
    metadata         text COLLATE "C",
    created_at       double precision NOT NULL,
    updated_at       double precision NOT NULL,
    claimed_at       double precision,
    started_at       double precision,
    finished_at      double precision NOT NULL,
    expires_at       double precision NOT NULL,
    lost_by          text COLLATE "C",
    unhandled_since  double precision,
    backoff          text COLLATE "C",
    keep             text COLLATE "C",
    progress         text COLLATE "C",
    tags             text COLLATE "C",
    errors           text COLLATE "C",
    logs             text COLLATE "C",
    uniqueness       text COLLATE "C",
    steps            text COLLATE "C",
    day              integer          NOT NULL,
    CONSTRAINT history_pkey PRIMARY KEY (seq, day)
) PARTITION BY LIST (day);
CREATE TABLE errandry.history_long_term PARTITION OF errandry.history FOR VALUES IN (0);
CREATE INDEX history_expiry ON errandry.history (expires_at);
-- Failed and canceled jobs: few among many completed ones, and the usual target of a search.
CREATE INDEX history_unsuccessful ON errandry.history (seq) WHERE state <> 'completed';
-- Only jobs that are kept by count (`Keep` in core/job.py), so that the index costs the others nothing.
CREATE INDEX history_kept_by_number ON errandry.history (task, state, finished_at, seq) WHERE strpos(keep, '"last_') > 0;

-- The `seq` and the partition of each finished job, by id. Without this table, the check whether an id is in use would
-- have to search every partition.
CREATE TABLE errandry.finished_ids (
    id  text COLLATE "C" PRIMARY KEY,
    seq bigint           NOT NULL,
    day integer          NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);

-- All jobs, in two parts: a search skips the part that it does not want. The parts have no conditions, because the
-- planner could then not read each part in the order of its index.
CREATE VIEW errandry.job AS
SELECT seq, id, task, queue, grp, state, lifo, reason, settled, payload, priority, place, run_at, attempts,
       max_attempts, releases, crashes, max_crashes, open_children, children, parents, timeout, deadline, fence,
       worker, lease_until, cancel_requested, result, metadata, created_at, updated_at, claimed_at, started_at,
       finished_at, expires_at, lost_by, unhandled_since, backoff, keep, progress, tags, errors, logs, uniqueness,
       steps, 'live' AS part
  FROM errandry.live
UNION ALL
SELECT seq, id, task, queue, grp, state, lifo, reason, settled, payload, priority, place, run_at, attempts,
       max_attempts, releases, crashes, max_crashes, open_children, children, parents, timeout, deadline, fence,
       worker, lease_until, cancel_requested, result, metadata, created_at, updated_at, claimed_at, started_at,
       finished_at, expires_at, lost_by, unhandled_since, backoff, keep, progress, tags, errors, logs, uniqueness,
       steps, 'history' AS part
  FROM errandry.history;

-- One row per (queue, task, group) in use. `ready` marks a lane that may have waiting jobs; a lane without the mark has
-- none. A transaction that inserts a waiting job takes a key share lock on the lane. Upkeep unmarks or deletes only lanes
-- that no transaction has locked. `virtual_start` orders the groups of a queue (core/fair_queueing.py). A lane from
-- which no job may be claimed now, for example because its queue is paused, is parked until `open_at`; `opened` counts
-- how often it was unparked.
CREATE TABLE errandry.lanes (
    lane    bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    queue   text COLLATE "C" NOT NULL,
    task    text COLLATE "C" NOT NULL,
    grp     text COLLATE "C" NOT NULL,
    ready   boolean          NOT NULL,
    used_at double precision NOT NULL,
    virtual_start double precision NOT NULL DEFAULT 0,
    open_at double precision NOT NULL DEFAULT 0,
    opened  bigint           NOT NULL DEFAULT 0,
    CONSTRAINT lanes_key UNIQUE (queue, grp, task)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX lanes_ready ON errandry.lanes (queue, task, open_at, virtual_start, grp) WHERE ready;
CREATE INDEX lanes_grouped ON errandry.lanes (lane) WHERE ready AND grp <> '';
CREATE INDEX lanes_parked ON errandry.lanes (open_at) WHERE ready AND open_at > 0;

-- Fair queueing (core/fair_queueing.py) of each queue with groups: its virtual time, and the highest virtual start of
-- its groups.
CREATE TABLE errandry.virtual_times (
    queue         text COLLATE "C" PRIMARY KEY,
    virtual_time  double precision NOT NULL,
    highest_start double precision NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

-- Gates of queues, tasks, groups (`name` is the queue of a group) and workers: a pause, a rule, the state of a rate limit,
-- a time until which the gate is closed. `rule` has the values in force, `rule_fields` those that an operator has set, with
-- the time and the operator, `declared` the rule that code declares (all JSON). `tat` is the theoretical arrival time of GCRA: from then on
-- the rate limit is fully replenished.
CREATE TABLE errandry.gates (
    kind         text COLLATE "C" NOT NULL,
    name         text COLLATE "C" NOT NULL,
    grp          text COLLATE "C" NOT NULL,
    paused_at    double precision,
    paused_by    text COLLATE "C",
    rule         text COLLATE "C",
    ruled_at     double precision,
    ruled_by     text COLLATE "C",
    rule_fields  text COLLATE "C",
    declared     text COLLATE "C",
    tat          double precision NOT NULL DEFAULT 0,
    closed_until double precision NOT NULL DEFAULT 0,
    PRIMARY KEY (kind, name, grp)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

-- The job that holds a unique key. It holds the key until `expires_at`, even if it ends or is deleted earlier; with NULL,
-- until it ends.
CREATE TABLE errandry.keys (
    key        text COLLATE "C" PRIMARY KEY,
    job        text COLLATE "C" NOT NULL,
    expires_at double precision
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX keys_expiry ON errandry.keys (expires_at) WHERE expires_at IS NOT NULL;

-- Flows: the children that a parent waits for, in their order, and how each ended. Kept as long as the parent.
CREATE TABLE errandry.edges (
    parent  text COLLATE "C" NOT NULL,
    n       bigint           NOT NULL,
    child   text COLLATE "C" NOT NULL,
    task    text COLLATE "C" NOT NULL,
    seq     bigint           NOT NULL,
    policy  text COLLATE "C" NOT NULL,
    outcome text COLLATE "C",
    result  text COLLATE "C",
    feeds   text COLLATE "C",
    PRIMARY KEY (parent, n)
) WITH (fillfactor = 80);
CREATE INDEX edges_child ON errandry.edges (seq);

-- Edges that `insert_jobs` has added to children that existed before. Upkeep adds the parent to each such child:
-- `insert_jobs` must not lock the child.
CREATE TABLE errandry.pending_edges (
    parent text COLLATE "C" NOT NULL,
    n      bigint           NOT NULL,
    PRIMARY KEY (parent, n)
);

-- Parents that have ended. `cancel`: the reason with which their children are still to be canceled. After `expires_at`,
-- upkeep deletes their edges.
CREATE TABLE errandry.closing_flows (
    parent     text COLLATE "C" PRIMARY KEY,
    cancel     text COLLATE "C",
    expires_at double precision NOT NULL
);
CREATE INDEX closing_flows_canceling ON errandry.closing_flows (parent) WHERE cancel IS NOT NULL;
CREATE INDEX closing_flows_expiry ON errandry.closing_flows (expires_at, parent) WHERE cancel IS NULL;

-- The steps, sleeps and signals of jobs, in the order they began. Kept as long as the job.
CREATE TABLE errandry.steps (
    job    text COLLATE "C" NOT NULL,
    n      bigint           NOT NULL,
    kind   text COLLATE "C" NOT NULL,
    name   text COLLATE "C" NOT NULL,
    result text COLLATE "C",
    at     double precision,
    until  double precision,
    PRIMARY KEY (job, kind, name)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

-- Schedules as JSON. `due_at` is when a pass has to decide about the next tick.
CREATE TABLE errandry.schedules (
    name   text COLLATE "C" PRIMARY KEY,
    due_at double precision,
    record text             NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX schedules_due ON errandry.schedules (due_at, name) WHERE due_at IS NOT NULL;

-- The event log. One row per pass: its events, the number of all events so far (`total`), and by how much the pass changed
-- each counter. Events consist mostly of ids, so they are stored without compression, which would take longer than the
-- write and save less than half. The same holds for `bind_inbox`.
CREATE TABLE errandry.events (
    n       bigint           PRIMARY KEY,
    at      double precision NOT NULL,
    count   bigint           NOT NULL,
    total   bigint           NOT NULL,
    entries text             NOT NULL,
    deltas  text             NOT NULL
) WITH (toast_tuple_target = 8160);
ALTER TABLE errandry.events ALTER entries SET STORAGE EXTERNAL;

-- Event rows of `insert_jobs`. The caller's transaction may stay open for long and must not lock the event log, so the
-- next pass moves these rows there.
CREATE TABLE errandry.bind_inbox (
    n       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at      double precision NOT NULL,
    count   bigint           NOT NULL,
    entries text             NOT NULL,
    deltas  text             NOT NULL
) WITH (toast_tuple_target = 8160, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE errandry.bind_inbox ALTER entries SET STORAGE EXTERNAL;

-- Counters up to event row `store.folded`: jobs by state, and lifetime totals (`total.…`).
CREATE TABLE errandry.totals (
    queue text COLLATE "C" NOT NULL,
    task  text COLLATE "C" NOT NULL,
    name  text COLLATE "C" NOT NULL,
    value bigint           NOT NULL,
    PRIMARY KEY (queue, task, name)
);

-- Figures of the `span` seconds (a minute, an hour, a day) from `at` on, up to the same event row.
CREATE TABLE errandry.stats (
    span  integer          NOT NULL,
    at    bigint           NOT NULL,
    queue text COLLATE "C" NOT NULL,
    task  text COLLATE "C" NOT NULL,
    name  text COLLATE "C" NOT NULL,
    value bigint           NOT NULL,
    PRIMARY KEY (span, at, queue, task, name)
);

-- The last beat of each worker.
CREATE TABLE errandry.workers (
    worker  text COLLATE "C" PRIMARY KEY,
    seen_at double precision NOT NULL,
    beat    text             NOT NULL
) WITH (fillfactor = 50);

-- The claims of each worker's last pass, so that a claim whose reply was lost can be answered again. Each pass writes a
-- new number, so that a scan from the highest number finds the live row without reading dead ones.
CREATE TABLE errandry.claims (
    worker     text COLLATE "C" NOT NULL,
    n          bigint           NOT NULL,
    claimed_at double precision NOT NULL,
    refs       text             NOT NULL,
    PRIMARY KEY (worker, n)
) WITH (toast_tuple_target = 8160);
ALTER TABLE errandry.claims ALTER refs SET STORAGE EXTERNAL;

-- Answers to commands by their nonces, so that a command whose reply was lost can be answered again.
CREATE TABLE errandry.answers (
    nonce  text COLLATE "C" PRIMARY KEY,
    at     double precision NOT NULL,
    answer text             NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX answers_age ON errandry.answers (at);

CREATE TABLE errandry.migrations (
    number     integer PRIMARY KEY,
    name       text        NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- Adds the row of a pass to the event log, if the pass has events (`count`), and notifies other processes. Rows are numbered
-- without gaps in the order of commits. So this is the last statement of a pass: it takes an advisory lock that is held
-- until the commit, which follows at once. It first moves the rows of `bind_inbox` to the log, as the pass may have seen
-- their jobs. `sender` is the store that sends the notification, which ignores its own.
CREATE FUNCTION errandry.append_events(
    at double precision, count bigint, entries text, deltas text, channel text, sender text
) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    last record;
BEGIN
    PERFORM set_config('lock_timeout', '10s', true);  -- a pass that is committing holds the lock only briefly
    PERFORM pg_advisory_xact_lock(hashtextextended('append', 'errandry.events'::regclass::oid::bigint));
    SELECT e.n, e.at, e.total INTO last FROM errandry.events AS e ORDER BY e.n DESC LIMIT 1;
    IF NOT FOUND THEN
        SELECT s.dropped AS n, s.at, s.total INTO last FROM errandry.store AS s;
    END IF;
    IF EXISTS (SELECT 1 FROM errandry.bind_inbox) THEN
        WITH moved AS (DELETE FROM errandry.bind_inbox RETURNING *)
        INSERT INTO errandry.events
        SELECT last.n + row_number() OVER so_far, greatest(last.at, max(m.at) OVER so_far), m.count,
               last.total + sum(m.count) OVER so_far, m.entries, m.deltas
          FROM moved AS m WINDOW so_far AS (ORDER BY m.n);
        SELECT e.n, e.at, e.total INTO last FROM errandry.events AS e ORDER BY e.n DESC LIMIT 1;
    END IF;
    IF append_events.count > 0 THEN
        INSERT INTO errandry.events
        VALUES (last.n + 1, greatest(append_events.at, last.at), append_events.count, last.total + append_events.count, append_events.entries,
                append_events.deltas);
    END IF;
    PERFORM pg_notify(append_events.channel, append_events.sender);
    RETURN last.n + 1;
END
$$;

-- Raises an error unless the condition is true. A pass that is sent in one piece checks its guesses with it: the error rolls
-- the pass back.
CREATE FUNCTION errandry.assert_true(condition boolean) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF condition IS NOT TRUE THEN
        RAISE assert_failure USING MESSAGE = 'the pass was rolled back: a guess from the cache was wrong';
    END IF;
END
$$;

-- Creates the partition for the jobs that expire on a day, unless it exists. The table is created first and then attached,
-- so that other transactions can read and write `history` meanwhile. The function runs with its owner's rights, so that the
-- role of a worker need not be allowed to change tables. Autovacuum runs rarely on a partition: all its rows are deleted
-- within one day, then the partition is dropped.
CREATE FUNCTION errandry.create_history_partition(day integer) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    name text := 'history_' || to_char(date '1970-01-01' + create_history_partition.day, 'YYYYMMDD');
BEGIN
    LOCK TABLE errandry.history IN SHARE UPDATE EXCLUSIVE MODE;
    EXECUTE format('CREATE TABLE IF NOT EXISTS errandry.%I (LIKE errandry.history)
                    WITH (autovacuum_vacuum_scale_factor = 0.5)', name);
    IF NOT EXISTS (SELECT 1 FROM pg_inherits WHERE inhrelid = to_regclass(format('errandry.%I', name))) THEN
        EXECUTE format('ALTER TABLE errandry.history ATTACH PARTITION errandry.%I FOR VALUES IN (%s)', name, create_history_partition.day);
    END IF;
END
$$;
REVOKE ALL ON FUNCTION errandry.create_history_partition(integer) FROM PUBLIC;

-- `contains_all`: whether a text contains at least one needle of each list. `contains_none`: whether it contains no needle
-- of one list. Only A-Z are folded to lower case.
CREATE FUNCTION errandry.contains_all(content text, wanted jsonb) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT content IS NOT NULL AND NOT EXISTS (
        SELECT 1 FROM jsonb_array_elements(wanted) AS any_of
         WHERE NOT EXISTS (SELECT 1 FROM jsonb_array_elements_text(any_of) AS needle
                            WHERE strpos(lower(content COLLATE "C"), needle) > 0))
$$;
CREATE FUNCTION errandry.contains_none(content text, unwanted jsonb) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT content IS NULL OR NOT EXISTS (
        SELECT 1 FROM jsonb_array_elements_text(unwanted) AS needle
         WHERE strpos(lower(content COLLATE "C"), needle) > 0)
$$;
