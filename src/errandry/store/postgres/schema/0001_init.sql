-- The columns of `live` and `history` follow the fields of the record, core/job.py, one to one.
-- `errandry.` stands for the schema the store was told to use. Text sorts by its bytes, as it does in every store.

-- Numbers for a job's `seq` and for its place in line.
CREATE SEQUENCE errandry.number AS bigint;

-- One row, written only by upkeep: who this store is, the last event row whose deltas are in `totals`, and the last one
-- that was dropped with its time (no pass goes back behind it).
CREATE TABLE errandry.store (
    one      integer PRIMARY KEY CHECK (one = 1),
    identity text             NOT NULL,
    folded   bigint           NOT NULL DEFAULT 0,
    dropped  bigint           NOT NULL DEFAULT 0,
    total    bigint           NOT NULL DEFAULT 0,
    at       double precision NOT NULL DEFAULT 0
);
INSERT INTO errandry.store (one, identity) VALUES (1, substr(replace(gen_random_uuid()::text, '-', ''), 1, 16));

-- Jobs that are not finished. `lane` is set while the job waits in line. Rows change often and do not live long: pages
-- keep room for the next version, and are cleaned early.
CREATE TABLE errandry.live (
    seq              bigint           NOT NULL,
    id               text COLLATE "C" NOT NULL,
    task             text COLLATE "C" NOT NULL,
    queue            text COLLATE "C" NOT NULL,
    grp              text COLLATE "C" NOT NULL,
    state            text COLLATE "C" NOT NULL,
    ordering         text COLLATE "C" NOT NULL,
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
    backoff          text COLLATE "C",
    keep             text COLLATE "C",
    progress         text COLLATE "C",
    tags             text COLLATE "C",
    errors           text COLLATE "C",
    logs             text COLLATE "C",
    uniqueness       text COLLATE "C",
    steps            text COLLATE "C",
    lane             bigint,
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
-- Inserted by others while their lane had no mark: the next pass that claims gives them their lane.
CREATE INDEX live_unlined ON errandry.live (seq) WHERE state = 'waiting' AND lane IS NULL;

-- Finished jobs, until `expires_at`. A partition holds those that expire on one day (UTC, counted from 1970), and goes when
-- that day is over and they have all been removed. Partition 0 holds those that are kept for very long. See make_day.
CREATE TABLE errandry.history (
    seq              bigint           NOT NULL,
    id               text COLLATE "C" NOT NULL,
    task             text COLLATE "C" NOT NULL,
    queue            text COLLATE "C" NOT NULL,
    grp              text COLLATE "C" NOT NULL,
    state            text COLLATE "C" NOT NULL,
    ordering         text COLLATE "C" NOT NULL,
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
CREATE TABLE errandry.history_later PARTITION OF errandry.history FOR VALUES IN (0);
CREATE INDEX history_expiry ON errandry.history (expires_at);
-- Few among many completed ones, and looked for most.
CREATE INDEX history_troubled ON errandry.history (seq) WHERE state <> 'completed';
-- Only of those kept by number (core/job.py, Keep): the others do not pay for it.
CREATE INDEX history_shelves ON errandry.history (task, state, finished_at, seq) WHERE strpos(keep, '"last_') > 0;

-- Where a finished job is, by its id: to ask every day's partition whether an id was ever used would take too long.
CREATE TABLE errandry.ended (
    id  text COLLATE "C" PRIMARY KEY,
    seq bigint           NOT NULL,
    day integer          NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);

-- All jobs. A search can leave out the part it does not want. No part has a condition of its own: each could no longer be
-- read in the order of its index.
CREATE VIEW errandry.job AS
SELECT seq, id, task, queue, grp, state, ordering, reason, settled, payload, priority, place, run_at, attempts,
       max_attempts, releases, crashes, max_crashes, open_children, children, parents, timeout, deadline, fence,
       worker, lease_until, cancel_requested, result, metadata, created_at, updated_at, claimed_at, started_at,
       finished_at, expires_at, backoff, keep, progress, tags, errors, logs, uniqueness, steps, 'live' AS part
  FROM errandry.live
UNION ALL
SELECT seq, id, task, queue, grp, state, ordering, reason, settled, payload, priority, place, run_at, attempts,
       max_attempts, releases, crashes, max_crashes, open_children, children, parents, timeout, deadline, fence,
       worker, lease_until, cancel_requested, result, metadata, created_at, updated_at, claimed_at, started_at,
       finished_at, expires_at, backoff, keep, progress, tags, errors, logs, uniqueness, steps, 'history' AS part
  FROM errandry.history;

-- One row per (queue, task, group) in use. `ready`: it may have waiting jobs; a lane without the mark has none. Whoever
-- puts a job in line holds its lane by a key share lock; only a lane nobody holds loses its mark, or is dropped. `turn`
-- orders the groups of a queue, see core/pick.py. A lane that nothing may be claimed of is laid aside until `open_at`;
-- `opened` counts how often it was opened.
CREATE TABLE errandry.lanes (
    lane    bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    queue   text COLLATE "C" NOT NULL,
    task    text COLLATE "C" NOT NULL,
    grp     text COLLATE "C" NOT NULL,
    ready   boolean          NOT NULL,
    used_at double precision NOT NULL,
    turn    double precision NOT NULL DEFAULT 0,
    open_at double precision NOT NULL DEFAULT 0,
    opened  bigint           NOT NULL DEFAULT 0,
    CONSTRAINT lanes_key UNIQUE (queue, grp, task)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX lanes_ready ON errandry.lanes (queue, task, open_at, turn, grp) WHERE ready;
CREATE INDEX lanes_grouped ON errandry.lanes (lane) WHERE ready AND grp <> '';
CREATE INDEX lanes_parked ON errandry.lanes (open_at) WHERE ready AND open_at > 0;

-- How far each queue is whose groups are served in turn, and how far it would be if all had had theirs.
CREATE TABLE errandry.rounds (
    queue text COLLATE "C" PRIMARY KEY,
    turn  double precision NOT NULL,
    last  double precision NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

-- Queues, tasks, groups (`name` is their queue) and workers that are paused, by whom and since when; that have a rule;
-- whose rate was used (`tat`: when that will be as if it had not been); that are closed until some time.
CREATE TABLE errandry.gates (
    kind         text COLLATE "C" NOT NULL,
    name         text COLLATE "C" NOT NULL,
    grp          text COLLATE "C" NOT NULL,
    paused_at    double precision,
    paused_by    text COLLATE "C",
    rule         text COLLATE "C",
    ruled_at     double precision,
    ruled_by     text COLLATE "C",
    tat          double precision NOT NULL DEFAULT 0,
    closed_until double precision NOT NULL DEFAULT 0,
    PRIMARY KEY (kind, name, grp)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

-- Who holds a unique key, until `expires_at`, whatever becomes of the job; NULL: while the job is alive.
CREATE TABLE errandry.keys (
    key        text COLLATE "C" PRIMARY KEY,
    job        text COLLATE "C" NOT NULL,
    expires_at double precision
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX keys_expiry ON errandry.keys (expires_at) WHERE expires_at IS NOT NULL;

-- Flows: which children a parent waits for, in their order, and how they ended. Kept as long as the parent.
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

-- Edges that others have inserted in transactions of their own to children that were there before: these are to be told.
CREATE TABLE errandry.late (
    parent text COLLATE "C" NOT NULL,
    n      bigint           NOT NULL,
    PRIMARY KEY (parent, n)
);

-- Parents that have ended: why their children are still to be canceled, and when their edges go.
CREATE TABLE errandry.closing (
    parent     text COLLATE "C" PRIMARY KEY,
    cancel     text COLLATE "C",
    expires_at double precision NOT NULL
);
CREATE INDEX closing_canceling ON errandry.closing (parent) WHERE cancel IS NOT NULL;
CREATE INDEX closing_expiry ON errandry.closing (expires_at, parent) WHERE cancel IS NULL;

-- What jobs have done, slept and been told, in the order it began. Kept as long as the job.
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

-- What runs again and again, as JSON; `due_at` is when somebody has to decide about its next tick.
CREATE TABLE errandry.schedules (
    name   text COLLATE "C" PRIMARY KEY,
    due_at double precision,
    record text             NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX schedules_due ON errandry.schedules (due_at, name) WHERE due_at IS NOT NULL;

-- One row per pass: its events, how many there have ever been with them, and by how much the pass changed each counter.
-- Events are ids mostly, here and below: to press them takes longer than to write them, and saves less than half.
CREATE TABLE errandry.events (
    n       bigint           PRIMARY KEY,
    at      double precision NOT NULL,
    count   bigint           NOT NULL,
    total   bigint           NOT NULL,
    entries text             NOT NULL,
    deltas  text             NOT NULL
) WITH (toast_tuple_target = 8160);
ALTER TABLE errandry.events ALTER entries SET STORAGE EXTERNAL;

-- The same of inserts in others' transactions, which must not keep the log locked: the next pass moves it there.
CREATE TABLE errandry.bound (
    n       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at      double precision NOT NULL,
    count   bigint           NOT NULL,
    entries text             NOT NULL,
    deltas  text             NOT NULL
) WITH (toast_tuple_target = 8160, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE errandry.bound ALTER entries SET STORAGE EXTERNAL;

-- Counters up to event row `store.folded`: jobs by state, and lifetime totals (`total.…`).
CREATE TABLE errandry.totals (
    queue text COLLATE "C" NOT NULL,
    task  text COLLATE "C" NOT NULL,
    name  text COLLATE "C" NOT NULL,
    value bigint           NOT NULL,
    PRIMARY KEY (queue, task, name)
);

-- What was counted from `at` on for `span` seconds, up to the same row: by the minute, the hour, the day.
CREATE TABLE errandry.stats (
    span  integer          NOT NULL,
    at    bigint           NOT NULL,
    queue text COLLATE "C" NOT NULL,
    task  text COLLATE "C" NOT NULL,
    name  text COLLATE "C" NOT NULL,
    value bigint           NOT NULL,
    PRIMARY KEY (span, at, queue, task, name)
);

-- A worker's last sign of life, and its last claim, so that the claim can be repeated.
CREATE TABLE errandry.workers (
    worker  text COLLATE "C" PRIMARY KEY,
    seen_at double precision NOT NULL,
    beat    text             NOT NULL
) WITH (fillfactor = 50);
-- Numbered anew with every pass: the last is found first, however many dead ones there are.
CREATE TABLE errandry.claims (
    worker     text COLLATE "C" NOT NULL,
    n          bigint           NOT NULL,
    claimed_at double precision NOT NULL,
    refs       text             NOT NULL,
    PRIMARY KEY (worker, n)
) WITH (toast_tuple_target = 8160);
ALTER TABLE errandry.claims ALTER refs SET STORAGE EXTERNAL;

CREATE TABLE errandry.migrations (
    number     integer PRIMARY KEY,
    name       text        NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- The last statement of a pass: its row in the event log, if it has one, numbered without gaps in the order of commits.
-- So whoever numbers keeps the lock until the commit, which follows at once. What others have inserted in transactions of
-- their own comes first: the pass may have seen it. Others are told; `sender` knows it already.
CREATE FUNCTION errandry.append(
    at double precision, count bigint, entries text, deltas text, channel text, sender text
) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    last record;
BEGIN
    PERFORM set_config('lock_timeout', '10s', true);  -- only who commits just now is waited for
    PERFORM pg_advisory_xact_lock(hashtextextended('append', 'errandry.events'::regclass::oid::bigint));
    SELECT e.n, e.at, e.total INTO last FROM errandry.events AS e ORDER BY e.n DESC LIMIT 1;
    IF NOT FOUND THEN
        SELECT s.dropped AS n, s.at, s.total INTO last FROM errandry.store AS s;
    END IF;
    IF EXISTS (SELECT 1 FROM errandry.bound) THEN
        WITH moved AS (DELETE FROM errandry.bound RETURNING *)
        INSERT INTO errandry.events
        SELECT last.n + row_number() OVER so_far, greatest(last.at, max(m.at) OVER so_far), m.count,
               last.total + sum(m.count) OVER so_far, m.entries, m.deltas
          FROM moved AS m WINDOW so_far AS (ORDER BY m.n);
        SELECT e.n, e.at, e.total INTO last FROM errandry.events AS e ORDER BY e.n DESC LIMIT 1;
    END IF;
    IF append.count > 0 THEN
        INSERT INTO errandry.events
        VALUES (last.n + 1, greatest(append.at, last.at), append.count, last.total + append.count, append.entries,
                append.deltas);
    END IF;
    PERFORM pg_notify(append.channel, append.sender);
    RETURN last.n + 1;
END
$$;

-- For a pass that is sent whole, before anybody has looked: it comes to nothing if something is not as was thought.
CREATE FUNCTION errandry.insist(is_so boolean) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF is_so IS NOT TRUE THEN
        RAISE assert_failure USING MESSAGE = 'something has changed since the last pass';
    END IF;
END
$$;

-- The partition for the jobs that expire on a day, unless it is there. Attached, not made in its place: so others read and
-- write meanwhile. It runs with its owner's rights: who writes jobs need not be able to change tables. Its rows go within
-- that one day, and then it goes itself: to clean it often would be for nothing.
CREATE FUNCTION errandry.make_day(day integer) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    name text := 'history_' || to_char(date '1970-01-01' + make_day.day, 'YYYYMMDD');
BEGIN
    LOCK TABLE errandry.history IN SHARE UPDATE EXCLUSIVE MODE;
    EXECUTE format('CREATE TABLE IF NOT EXISTS errandry.%I (LIKE errandry.history)
                    WITH (autovacuum_vacuum_scale_factor = 0.5)', name);
    IF NOT EXISTS (SELECT 1 FROM pg_inherits WHERE inhrelid = to_regclass(format('errandry.%I', name))) THEN
        EXECUTE format('ALTER TABLE errandry.history ATTACH PARTITION errandry.%I FOR VALUES IN (%s)', name, make_day.day);
    END IF;
END
$$;
REVOKE ALL ON FUNCTION errandry.make_day(integer) FROM PUBLIC;

-- Whether a text holds at least one needle of each list, or none of one list. Only A-Z are folded.
CREATE FUNCTION errandry.has_all(held text, wanted jsonb) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT held IS NOT NULL AND NOT EXISTS (
        SELECT 1 FROM jsonb_array_elements(wanted) AS any_of
         WHERE NOT EXISTS (SELECT 1 FROM jsonb_array_elements_text(any_of) AS needle
                            WHERE strpos(lower(held COLLATE "C"), needle) > 0))
$$;
CREATE FUNCTION errandry.has_none(held text, unwanted jsonb) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT held IS NULL OR NOT EXISTS (
        SELECT 1 FROM jsonb_array_elements_text(unwanted) AS needle
         WHERE strpos(lower(held COLLATE "C"), needle) > 0)
$$;
