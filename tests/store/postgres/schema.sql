TABLE answers WITH {autovacuum_vacuum_scale_factor=0.02,autovacuum_vacuum_cost_delay=0}
    nonce text COLLATE "C" NOT NULL
    at double precision NOT NULL
    answer text NOT NULL
TABLE bind_inbox WITH {toast_tuple_target=8160,autovacuum_vacuum_scale_factor=0.02,autovacuum_vacuum_cost_delay=0}
    n bigint NOT NULL IDENTITY
    at double precision NOT NULL
    count bigint NOT NULL
    entries text STORAGE e NOT NULL
    deltas text NOT NULL
TABLE claims WITH {toast_tuple_target=8160}
    worker text COLLATE "C" NOT NULL
    n bigint NOT NULL
    claimed_at double precision NOT NULL
    refs text STORAGE e NOT NULL
TABLE closing_flows
    parent text COLLATE "C" NOT NULL
    cancel text COLLATE "C"
    expires_at double precision NOT NULL
TABLE edges WITH {fillfactor=80}
    parent text COLLATE "C" NOT NULL
    n bigint NOT NULL
    child text COLLATE "C" NOT NULL
    task text COLLATE "C" NOT NULL
    seq bigint NOT NULL
    policy text COLLATE "C" NOT NULL
    outcome text COLLATE "C"
    result text COLLATE "C"
    feeds text COLLATE "C"
TABLE events WITH {toast_tuple_target=8160}
    n bigint NOT NULL
    at double precision NOT NULL
    count bigint NOT NULL
    total bigint NOT NULL
    entries text STORAGE e NOT NULL
    deltas text NOT NULL
TABLE finished_ids WITH {autovacuum_vacuum_scale_factor=0.05,autovacuum_vacuum_cost_delay=0}
    id text COLLATE "C" NOT NULL
    seq bigint NOT NULL
    day integer NOT NULL
TABLE gates WITH {fillfactor=50,autovacuum_vacuum_scale_factor=0.02,autovacuum_vacuum_cost_delay=0}
    kind text COLLATE "C" NOT NULL
    name text COLLATE "C" NOT NULL
    grp text COLLATE "C" NOT NULL
    paused_at double precision
    paused_by text COLLATE "C"
    rule text COLLATE "C"
    ruled_at double precision
    ruled_by text COLLATE "C"
    rule_fields text COLLATE "C"
    declared text COLLATE "C"
    tat double precision NOT NULL DEFAULT 0
    closed_until double precision NOT NULL DEFAULT 0
TABLE history PARTITION BY LIST (day)
    seq bigint NOT NULL
    id text COLLATE "C" NOT NULL
    task text COLLATE "C" NOT NULL
    queue text COLLATE "C" NOT NULL
    grp text COLLATE "C" NOT NULL
    state text COLLATE "C" NOT NULL
    lifo boolean NOT NULL
    reason text COLLATE "C"
    settled text COLLATE "C"
    payload text COLLATE "C" NOT NULL
    priority bigint NOT NULL
    place bigint
    run_at double precision
    attempts bigint NOT NULL
    max_attempts bigint NOT NULL
    releases bigint NOT NULL
    crashes bigint NOT NULL
    max_crashes bigint NOT NULL
    open_children bigint NOT NULL
    children bigint NOT NULL
    parents bigint NOT NULL
    timeout double precision
    deadline double precision
    fence bigint NOT NULL
    worker text COLLATE "C"
    lease_until double precision
    cancel_requested boolean NOT NULL
    result text COLLATE "C"
    metadata text COLLATE "C"
    created_at double precision NOT NULL
    updated_at double precision NOT NULL
    claimed_at double precision
    started_at double precision
    finished_at double precision NOT NULL
    expires_at double precision NOT NULL
    lost_by text COLLATE "C"
    unhandled_since double precision
    backoff text COLLATE "C"
    keep text COLLATE "C"
    progress text COLLATE "C"
    tags text COLLATE "C"
    errors text COLLATE "C"
    logs text COLLATE "C"
    uniqueness text COLLATE "C"
    steps text COLLATE "C"
    day integer NOT NULL
TABLE job
    seq bigint
    id text COLLATE "C"
    task text COLLATE "C"
    queue text COLLATE "C"
    grp text COLLATE "C"
    state text COLLATE "C"
    lifo boolean
    reason text COLLATE "C"
    settled text COLLATE "C"
    payload text COLLATE "C"
    priority bigint
    place bigint
    run_at double precision
    attempts bigint
    max_attempts bigint
    releases bigint
    crashes bigint
    max_crashes bigint
    open_children bigint
    children bigint
    parents bigint
    timeout double precision
    deadline double precision
    fence bigint
    worker text COLLATE "C"
    lease_until double precision
    cancel_requested boolean
    result text COLLATE "C"
    metadata text COLLATE "C"
    created_at double precision
    updated_at double precision
    claimed_at double precision
    started_at double precision
    finished_at double precision
    expires_at double precision
    lost_by text COLLATE "C"
    unhandled_since double precision
    backoff text COLLATE "C"
    keep text COLLATE "C"
    progress text COLLATE "C"
    tags text COLLATE "C"
    errors text COLLATE "C"
    logs text COLLATE "C"
    uniqueness text COLLATE "C"
    steps text COLLATE "C"
    part text
TABLE keys WITH {autovacuum_vacuum_scale_factor=0.02,autovacuum_vacuum_cost_delay=0}
    key text COLLATE "C" NOT NULL
    job text COLLATE "C" NOT NULL
    expires_at double precision
TABLE lanes WITH {fillfactor=50,autovacuum_vacuum_scale_factor=0.02,autovacuum_vacuum_cost_delay=0}
    lane bigint NOT NULL IDENTITY
    queue text COLLATE "C" NOT NULL
    task text COLLATE "C" NOT NULL
    grp text COLLATE "C" NOT NULL
    ready boolean NOT NULL
    used_at double precision NOT NULL
    virtual_start double precision NOT NULL DEFAULT 0
    open_at double precision NOT NULL DEFAULT 0
    opened bigint NOT NULL DEFAULT 0
TABLE live WITH {fillfactor=70,autovacuum_vacuum_scale_factor=0.02,autovacuum_vacuum_cost_delay=0}
    seq bigint NOT NULL
    id text COLLATE "C" NOT NULL
    task text COLLATE "C" NOT NULL
    queue text COLLATE "C" NOT NULL
    grp text COLLATE "C" NOT NULL
    state text COLLATE "C" NOT NULL
    lifo boolean NOT NULL
    reason text COLLATE "C"
    settled text COLLATE "C"
    payload text COLLATE "C" NOT NULL
    priority bigint NOT NULL
    place bigint
    run_at double precision
    attempts bigint NOT NULL
    max_attempts bigint NOT NULL
    releases bigint NOT NULL
    crashes bigint NOT NULL
    max_crashes bigint NOT NULL
    open_children bigint NOT NULL
    children bigint NOT NULL
    parents bigint NOT NULL
    timeout double precision
    deadline double precision
    fence bigint NOT NULL
    worker text COLLATE "C"
    lease_until double precision
    cancel_requested boolean NOT NULL
    result text COLLATE "C"
    metadata text COLLATE "C"
    created_at double precision NOT NULL
    updated_at double precision NOT NULL
    claimed_at double precision
    started_at double precision
    finished_at double precision
    expires_at double precision
    lost_by text COLLATE "C"
    unhandled_since double precision
    backoff text COLLATE "C"
    keep text COLLATE "C"
    progress text COLLATE "C"
    tags text COLLATE "C"
    errors text COLLATE "C"
    logs text COLLATE "C"
    uniqueness text COLLATE "C"
    steps text COLLATE "C"
    lane bigint
    suspect smallint NOT NULL DEFAULT 
CASE
    WHEN (crashes = 0) THEN 0
    WHEN (((crashes + 1) >= max_crashes) OR ((attempts + 1) >= max_attempts)) THEN 2
    ELSE 1
END
TABLE migrations
    number integer NOT NULL
    name text NOT NULL
    applied_at timestamp with time zone NOT NULL DEFAULT clock_timestamp()
TABLE pending_edges
    parent text COLLATE "C" NOT NULL
    n bigint NOT NULL
TABLE schedules WITH {fillfactor=50,autovacuum_vacuum_scale_factor=0.02,autovacuum_vacuum_cost_delay=0}
    name text COLLATE "C" NOT NULL
    due_at double precision
    record text NOT NULL
TABLE stats
    span integer NOT NULL
    at bigint NOT NULL
    queue text COLLATE "C" NOT NULL
    task text COLLATE "C" NOT NULL
    name text COLLATE "C" NOT NULL
    value bigint NOT NULL
TABLE steps WITH {autovacuum_vacuum_scale_factor=0.02,autovacuum_vacuum_cost_delay=0}
    job text COLLATE "C" NOT NULL
    n bigint NOT NULL
    kind text COLLATE "C" NOT NULL
    name text COLLATE "C" NOT NULL
    result text COLLATE "C"
    at double precision
    until double precision
TABLE store
    one integer NOT NULL
    identity text NOT NULL
    folded bigint NOT NULL DEFAULT 0
    dropped bigint NOT NULL DEFAULT 0
    total bigint NOT NULL DEFAULT 0
    at double precision NOT NULL DEFAULT 0
TABLE totals
    queue text COLLATE "C" NOT NULL
    task text COLLATE "C" NOT NULL
    name text COLLATE "C" NOT NULL
    value bigint NOT NULL
TABLE virtual_times WITH {fillfactor=50,autovacuum_vacuum_scale_factor=0.02,autovacuum_vacuum_cost_delay=0}
    queue text COLLATE "C" NOT NULL
    virtual_time double precision NOT NULL
    highest_start double precision NOT NULL
TABLE workers WITH {fillfactor=50}
    worker text COLLATE "C" NOT NULL
    seen_at double precision NOT NULL
    beat text NOT NULL
CONSTRAINT errandry.answers answers_pkey PRIMARY KEY (nonce)
CONSTRAINT errandry.bind_inbox bind_inbox_pkey PRIMARY KEY (n)
CONSTRAINT errandry.claims claims_pkey PRIMARY KEY (worker, n)
CONSTRAINT errandry.closing_flows closing_flows_pkey PRIMARY KEY (parent)
CONSTRAINT errandry.edges edges_pkey PRIMARY KEY (parent, n)
CONSTRAINT errandry.events events_pkey PRIMARY KEY (n)
CONSTRAINT errandry.finished_ids finished_ids_pkey PRIMARY KEY (id)
CONSTRAINT errandry.gates gates_pkey PRIMARY KEY (kind, name, grp)
CONSTRAINT errandry.history history_pkey PRIMARY KEY (seq, day)
CONSTRAINT errandry.keys keys_pkey PRIMARY KEY (key)
CONSTRAINT errandry.lanes lanes_key UNIQUE (queue, grp, task)
CONSTRAINT errandry.lanes lanes_pkey PRIMARY KEY (lane)
CONSTRAINT errandry.live live_id UNIQUE (id)
CONSTRAINT errandry.live live_pkey PRIMARY KEY (seq)
CONSTRAINT errandry.migrations migrations_pkey PRIMARY KEY (number)
CONSTRAINT errandry.pending_edges pending_edges_pkey PRIMARY KEY (parent, n)
CONSTRAINT errandry.schedules schedules_pkey PRIMARY KEY (name)
CONSTRAINT errandry.stats stats_pkey PRIMARY KEY (span, at, queue, task, name)
CONSTRAINT errandry.steps steps_pkey PRIMARY KEY (job, kind, name)
CONSTRAINT errandry.store store_one_check CHECK ((one = 1))
CONSTRAINT errandry.store store_pkey PRIMARY KEY (one)
CONSTRAINT errandry.totals totals_pkey PRIMARY KEY (queue, task, name)
CONSTRAINT errandry.virtual_times virtual_times_pkey PRIMARY KEY (queue)
CONSTRAINT errandry.workers workers_pkey PRIMARY KEY (worker)
CREATE INDEX answers_age ON errandry.answers USING btree (at)
CREATE UNIQUE INDEX answers_pkey ON errandry.answers USING btree (nonce)
CREATE UNIQUE INDEX bind_inbox_pkey ON errandry.bind_inbox USING btree (n)
CREATE UNIQUE INDEX claims_pkey ON errandry.claims USING btree (worker, n)
CREATE INDEX closing_flows_canceling ON errandry.closing_flows USING btree (parent) WHERE (cancel IS NOT NULL)
CREATE INDEX closing_flows_expiry ON errandry.closing_flows USING btree (expires_at, parent) WHERE (cancel IS NULL)
CREATE UNIQUE INDEX closing_flows_pkey ON errandry.closing_flows USING btree (parent)
CREATE INDEX edges_child ON errandry.edges USING btree (seq)
CREATE UNIQUE INDEX edges_pkey ON errandry.edges USING btree (parent, n)
CREATE UNIQUE INDEX events_pkey ON errandry.events USING btree (n)
CREATE UNIQUE INDEX finished_ids_pkey ON errandry.finished_ids USING btree (id)
CREATE UNIQUE INDEX gates_pkey ON errandry.gates USING btree (kind, name, grp)
CREATE INDEX history_expiry ON ONLY errandry.history USING btree (expires_at)
CREATE INDEX history_kept_by_number ON ONLY errandry.history USING btree (task, state, finished_at, seq) WHERE (strpos(keep, '"last_'::text) > 0)
CREATE UNIQUE INDEX history_pkey ON ONLY errandry.history USING btree (seq, day)
CREATE INDEX history_unsuccessful ON ONLY errandry.history USING btree (seq) WHERE (state <> 'completed'::text)
CREATE INDEX keys_expiry ON errandry.keys USING btree (expires_at) WHERE (expires_at IS NOT NULL)
CREATE UNIQUE INDEX keys_pkey ON errandry.keys USING btree (key)
CREATE INDEX lanes_grouped ON errandry.lanes USING btree (lane) WHERE (ready AND (grp <> ''::text))
CREATE UNIQUE INDEX lanes_key ON errandry.lanes USING btree (queue, grp, task)
CREATE INDEX lanes_parked ON errandry.lanes USING btree (open_at) WHERE (ready AND (open_at > (0)::double precision))
CREATE UNIQUE INDEX lanes_pkey ON errandry.lanes USING btree (lane)
CREATE INDEX lanes_ready ON errandry.lanes USING btree (queue, task, open_at, virtual_start, grp) WHERE ready
CREATE INDEX live_canceling ON errandry.live USING btree (worker) WHERE cancel_requested
CREATE INDEX live_deadline ON errandry.live USING btree (deadline, seq) WHERE ((deadline IS NOT NULL) AND (state = ANY (ARRAY['blocked'::text, 'scheduled'::text, 'waiting'::text])))
CREATE INDEX live_due ON errandry.live USING btree (run_at, seq) WHERE (state = 'scheduled'::text)
CREATE UNIQUE INDEX live_id ON errandry.live USING btree (id)
CREATE INDEX live_leased ON errandry.live USING btree (lease_until, seq) WHERE (state = ANY (ARRAY['claimed'::text, 'running'::text]))
CREATE INDEX live_lost ON errandry.live USING btree (lost_by) WHERE (lost_by IS NOT NULL)
CREATE UNIQUE INDEX live_pkey ON errandry.live USING btree (seq)
CREATE INDEX live_ready ON errandry.live USING btree (lane, priority, place) WHERE (state = 'waiting'::text)
CREATE INDEX live_suspects ON errandry.live USING btree (suspect) WHERE ((state = 'waiting'::text) AND (crashes > 0))
CREATE INDEX live_without_lane ON errandry.live USING btree (seq) WHERE ((state = 'waiting'::text) AND (lane IS NULL))
CREATE UNIQUE INDEX migrations_pkey ON errandry.migrations USING btree (number)
CREATE UNIQUE INDEX pending_edges_pkey ON errandry.pending_edges USING btree (parent, n)
CREATE INDEX schedules_due ON errandry.schedules USING btree (due_at, name) WHERE (due_at IS NOT NULL)
CREATE UNIQUE INDEX schedules_pkey ON errandry.schedules USING btree (name)
CREATE UNIQUE INDEX stats_pkey ON errandry.stats USING btree (span, at, queue, task, name)
CREATE UNIQUE INDEX steps_pkey ON errandry.steps USING btree (job, kind, name)
CREATE UNIQUE INDEX store_pkey ON errandry.store USING btree (one)
CREATE UNIQUE INDEX totals_pkey ON errandry.totals USING btree (queue, task, name)
CREATE UNIQUE INDEX virtual_times_pkey ON errandry.virtual_times USING btree (queue)
CREATE UNIQUE INDEX workers_pkey ON errandry.workers USING btree (worker)
SEQUENCE bind_inbox_n_seq
SEQUENCE job_numbers
SEQUENCE lanes_lane_seq
FUNCTION append_events(at double precision, count bigint, entries text, deltas text, channel text, sender text) RETURNS bigint
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

FUNCTION assert_true(condition boolean) RETURNS void
BEGIN
    IF condition IS NOT TRUE THEN
        RAISE assert_failure USING MESSAGE = 'the pass was rolled back: a guess from the cache was wrong';
    END IF;
END

FUNCTION contains_all(content text, wanted jsonb) RETURNS boolean IMMUTABLE
    SELECT content IS NOT NULL AND NOT EXISTS (
        SELECT 1 FROM jsonb_array_elements(wanted) AS any_of
         WHERE NOT EXISTS (SELECT 1 FROM jsonb_array_elements_text(any_of) AS needle
                            WHERE strpos(lower(content COLLATE "C"), needle) > 0))

FUNCTION contains_none(content text, unwanted jsonb) RETURNS boolean IMMUTABLE
    SELECT content IS NULL OR NOT EXISTS (
        SELECT 1 FROM jsonb_array_elements_text(unwanted) AS needle
         WHERE strpos(lower(content COLLATE "C"), needle) > 0)

FUNCTION create_history_partition(day integer) RETURNS void SECURITY DEFINER SET {"search_path=pg_catalog, pg_temp"} NOT FOR ALL
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

FUNCTION first_invalid_edge(jobs jsonb, edges jsonb) RETURNS TABLE(id text, why text) IMMUTABLE
#variable_conflict use_column
DECLARE
    places jsonb := (SELECT jsonb_object_agg(job ->> 'id', n)
                       FROM jsonb_array_elements(first_invalid_edge.jobs) WITH ORDINALITY AS given (job, n));
BEGIN
    IF jsonb_typeof(first_invalid_edge.edges) IS DISTINCT FROM 'array'
       OR jsonb_path_exists(first_invalid_edge.edges, 'strict $[*] ? (@.type() != "object")') THEN
        RETURN QUERY SELECT NULL::text, 'edges must be an array of objects, each with parent and child';
        RETURN;
    END IF;
    RETURN QUERY SELECT invalid.id, invalid.why FROM (
        SELECT edge ->> 'child' AS id, n, CASE
            WHEN EXISTS (SELECT 1 FROM jsonb_object_keys(edge) AS key WHERE key <> ALL (ARRAY[
                'parent', 'child', 'policy', 'feeds'])) THEN 'its edge has an unknown field'
            WHEN NOT coalesce(places ? (edge ->> 'parent') AND places ? (edge ->> 'child'), false)
                THEN 'the parent and the child of its edge must be among the jobs inserted with it'
            WHEN (places ->> (edge ->> 'child'))::bigint <= (places ->> (edge ->> 'parent'))::bigint
                THEN 'must come after its parents in the array; a flow must not have a circle'
            WHEN edge ->> 'policy' NOT IN ('fail', 'ignore', 'remove', 'after')
                THEN 'the policy of its edge must be fail, ignore, remove or after'
            WHEN jsonb_typeof(edge -> 'feeds') <> 'array' OR EXISTS (
                SELECT 1 FROM jsonb_array_elements(edge -> 'feeds') AS feed
                 WHERE jsonb_typeof(feed) <> 'string' OR feed #>> '{}' !~ '^[[:alpha:]_][[:alnum:]_]*(\[[0-9]{1,5}\])?$')
                THEN 'feeds of its edge must name arguments of the parent, such as total or parts[2]'
            WHEN count(*) OVER (PARTITION BY edge ->> 'parent', edge ->> 'child') > 1 THEN 'occurs twice under its parent'
            WHEN count(*) OVER (PARTITION BY edge ->> 'parent') > 10000 THEN 'its parent has more than 10,000 children'
        END AS why
          FROM jsonb_array_elements(first_invalid_edge.edges) WITH ORDINALITY AS given (edge, n)) AS invalid
     WHERE invalid.why IS NOT NULL ORDER BY invalid.n LIMIT 1;
END

FUNCTION first_invalid_job(jobs jsonb) RETURNS TABLE(id text, why text) IMMUTABLE
#variable_conflict use_column
DECLARE
    job jsonb;
BEGIN
    IF jsonb_typeof(first_invalid_job.jobs) IS DISTINCT FROM 'array'
       OR jsonb_path_exists(first_invalid_job.jobs, 'strict $[*] ? (@.type() != "object")') THEN
        RETURN QUERY SELECT NULL::text, 'give an array of objects, each with id, task and payload';
        RETURN;
    END IF;
    RETURN QUERY SELECT invalid.id, invalid.why FROM (
        SELECT job ->> 'id' AS id, n, CASE
            WHEN NOT job ?& ARRAY['id', 'task', 'payload'] THEN 'must have id, task and payload'
            WHEN field IS NOT NULL THEN format('has an unknown field: %s', field)
            WHEN NOT coalesce(errandry.is_valid_name(job ->> 'id') AND errandry.is_valid_name(job ->> 'task'), false)
                OR NOT errandry.is_valid_name(job ->> 'queue') OR NOT errandry.is_valid_name(nullif(job ->> 'group', ''))
                THEN 'id, task, queue and group must be names of at most 200 visible characters'
            WHEN jsonb_typeof(job -> 'payload') <> 'string' OR (job ->> 'payload')::jsonb IS NULL
                OR (job ->> 'metadata' IS NOT NULL AND (job ->> 'metadata')::jsonb IS NULL)
                THEN 'payload and metadata must be JSON, as text'
            WHEN jsonb_typeof(job -> 'lifo') NOT IN ('boolean', 'null') THEN 'lifo must be true or false'
            WHEN NOT (job ->> 'priority')::numeric BETWEEN -2147483648 AND 2147483647
                THEN 'priority must be a whole number of 32 bits'
            WHEN NOT (job ->> 'max_attempts')::numeric BETWEEN 1 AND 10000
                OR NOT (job ->> 'max_crashes')::numeric BETWEEN 1 AND 10000
                THEN 'max_attempts and max_crashes must be whole numbers from 1 to 10000'
            WHEN job ->> 'delay' IS NOT NULL AND job ->> 'run_at' IS NOT NULL THEN 'give either run_at or delay'
            WHEN jsonb_path_exists(job, '$.keyvalue() ? (@.key == "run_at" || @.key == "deadline" || @.key == "delay"
                     || @.key == "timeout").value ? (@ != null && (@.type() != "number" || @ < 0 || @ > 100000000000))')
                THEN 'run_at and deadline must be seconds since 1970, delay and timeout seconds'
            WHEN job ->> 'on_conflict' NOT IN ('return', 'raise', 'replace')
                THEN 'on_conflict must be return, raise or replace'
            WHEN jsonb_typeof(job -> 'unique') NOT IN ('object', 'null')
                OR jsonb_typeof(job -> 'unique') = 'object' AND NOT coalesce(errandry.is_valid_name(job -> 'unique' ->> 'key'), false)
                OR job -> 'unique' ->> 'scope' NOT IN ('alive', 'window', 'second', 'minute', 'hour', 'day', 'week', 'month',
                                                       'ever')
                OR jsonb_path_exists(job, '$.unique.keyvalue() ? (
                     (@.key != "key" && @.key != "scope" && @.key != "window" && @.key != "per_queue")
                     || (@.key == "window" && @.value != null && (@.value.type() != "number" || @.value <= 0))
                     || (@.key == "per_queue" && @.value.type() != "boolean"))')
                OR (job -> 'unique' ->> 'scope' IS NOT DISTINCT FROM 'window')
                   IS DISTINCT FROM (job -> 'unique' ->> 'window' IS NOT NULL)
                THEN 'unique must have a key (a name of at most 200 visible characters), a scope, and a window if the scope is window'
            WHEN jsonb_typeof(job -> 'tags') <> 'array' OR jsonb_array_length(job -> 'tags') > 20
                OR jsonb_path_exists(job, '$.tags[*] ? (@.type() != "string")')
                THEN 'tags must be an array of at most 20 strings'
            WHEN jsonb_typeof(job -> 'keep') NOT IN ('object', 'null')
                OR jsonb_path_exists(job, '$.keep.keyvalue() ? (@.value.type() != "number" || @.value < 0
                     || (@.key starts with "last_" && (@.value < 1 || @.value > 10000 || @.value != @.value.floor())))')
                THEN 'keep must have seconds for completed, failed and canceled, and whole numbers from 1 to 10000 for last_…'
            WHEN jsonb_typeof(job -> 'backoff') NOT IN ('object', 'null')
                OR jsonb_path_exists(job, '$.backoff.keyvalue() ? (
                     (@.key == "curve" && @.value != "fixed" && @.value != "linear" && @.value != "exponential")
                     || ((@.key == "start" || @.key == "cap") && (@.value.type() != "number" || @.value < 0))
                     || (@.key == "jitter" && (@.value.type() != "number" || @.value < 0 || @.value > 1))
                     || (@.key == "function" && @.value != null && @.value.type() != "string"))')
                THEN 'backoff must have a curve (fixed, linear or exponential), start and cap in seconds, and a jitter from 0 to 1'
        END AS why
          FROM jsonb_array_elements(first_invalid_job.jobs) WITH ORDINALITY AS given (job, n)
         CROSS JOIN LATERAL (SELECT min(key) AS field FROM jsonb_object_keys(job) AS key WHERE key <> ALL (ARRAY[
                'id', 'task', 'payload', 'queue', 'group', 'priority', 'lifo', 'run_at', 'delay', 'max_attempts',
                'max_crashes', 'timeout', 'deadline', 'backoff', 'keep', 'tags', 'metadata',
                'unique', 'on_conflict'])) AS unknown) AS invalid
     WHERE invalid.why IS NOT NULL ORDER BY invalid.n LIMIT 1;
EXCEPTION WHEN data_exception THEN  -- a value is not JSON or not a number: check the jobs one by one to find it
    IF jsonb_array_length(first_invalid_job.jobs) = 1 THEN
        RETURN QUERY SELECT first_invalid_job.jobs -> 0 ->> 'id', 'payload and metadata must be JSON, as text, and numbers must be numbers';
        RETURN;
    END IF;
    FOR job IN SELECT * FROM jsonb_array_elements(first_invalid_job.jobs) LOOP
        RETURN QUERY SELECT * FROM errandry.first_invalid_job(jsonb_build_array(job));
        IF FOUND THEN
            RETURN;
        END IF;
    END LOOP;
END

FUNCTION insert_edges(edges jsonb, inserted jsonb) RETURNS void SET {"search_path=pg_catalog, pg_temp"}
#variable_conflict use_column
DECLARE
    new_parents text[] := (SELECT array_agg(DISTINCT edge ->> 'parent') FROM jsonb_array_elements(insert_edges.edges) AS edge
                            WHERE inserted ? (edge ->> 'parent'));
BEGIN
    DELETE FROM errandry.edges WHERE parent = ANY (new_parents);
    DELETE FROM errandry.closing_flows WHERE parent = ANY (new_parents);
    WITH inserted_edges AS (
        INSERT INTO errandry.edges (parent, n, child, task, seq, policy, feeds)
        SELECT edge ->> 'parent', row_number() OVER (PARTITION BY edge ->> 'parent' ORDER BY n) - 1, edge ->> 'child',
               job.task, job.seq, edge ->> 'policy', nullif(edge -> 'feeds', 'null')::text
          FROM jsonb_array_elements(insert_edges.edges) WITH ORDINALITY AS given (edge, n)
         CROSS JOIN LATERAL (
               SELECT seq, task FROM errandry.live WHERE id = edge ->> 'child'
               UNION ALL
               SELECT seq, task FROM errandry.finished_ids JOIN errandry.history USING (seq, day) WHERE finished_ids.id = edge ->> 'child'
               LIMIT 1) AS job
         WHERE inserted ? (edge ->> 'parent')
        RETURNING parent, n, child)
    INSERT INTO errandry.pending_edges (parent, n) SELECT parent, n FROM inserted_edges WHERE NOT inserted ? child;
END

FUNCTION insert_jobs(jobs jsonb, store text DEFAULT NULL::text, at double precision DEFAULT NULL::double precision, edges jsonb DEFAULT '[]'::jsonb) RETURNS jsonb SECURITY DEFINER SET {"search_path=pg_catalog, pg_temp",plan_cache_mode=force_generic_plan,enable_seqscan=off,enable_hashjoin=off,enable_mergejoin=off,jit=off} NOT FOR ALL
#variable_conflict use_column
DECLARE
    now_at double precision;
    is_strict boolean := current_setting('transaction_isolation') <> 'read committed';
    inserted_seqs bigint[];
    invalid record;
    unique_keys jsonb;
    existing jsonb;
    new_edges jsonb := '[]';
    children jsonb := '{}';
    parents jsonb := '{}';
    answer jsonb;
BEGIN
    IF insert_jobs.store <> (SELECT identity FROM errandry.store) THEN
        RETURN NULL;
    END IF;
    SELECT * INTO invalid FROM errandry.first_invalid_job(insert_jobs.jobs) AS first (id, why);
    IF invalid.why IS NULL AND insert_jobs.edges <> '[]' THEN
        SELECT * INTO invalid FROM errandry.first_invalid_edge(insert_jobs.jobs, insert_jobs.edges) AS first (id, why);
    END IF;
    IF invalid.why IS NOT NULL THEN
        RAISE invalid_parameter_value USING MESSAGE = format('insert_jobs: job %L: %s', invalid.id, invalid.why);
    END IF;
    now_at := greatest(coalesce(insert_jobs.at, extract(epoch FROM clock_timestamp())::float8),
                       (SELECT at FROM errandry.events ORDER BY n DESC LIMIT 1), (SELECT at FROM errandry.store));
    unique_keys := errandry.take_keys(insert_jobs.jobs, now_at);
    IF unique_keys ? 'duplicate' THEN
        RETURN unique_keys;
    END IF;
    existing := unique_keys -> 'held';
    IF insert_jobs.edges <> '[]' THEN
        new_edges := errandry.resolve_edges(insert_jobs.jobs, insert_jobs.edges, existing);
        existing := existing || (new_edges -> 'existing');
        new_edges := new_edges -> 'edges';
        SELECT coalesce(jsonb_object_agg(parent, jobs), '{}') INTO children
          FROM (SELECT edge ->> 'parent' AS parent, count(*) AS jobs
                  FROM jsonb_array_elements(new_edges) AS edge GROUP BY 1) AS by;
        SELECT coalesce(jsonb_object_agg(child, jobs), '{}') INTO parents
          FROM (SELECT edge ->> 'child' AS child, count(*) AS jobs
                  FROM jsonb_array_elements(new_edges) AS edge GROUP BY 1) AS by;
    END IF;
    IF EXISTS (SELECT 1 FROM errandry.gates WHERE kind = 'queue' AND rule LIKE '%max_size%') THEN
        PERFORM errandry.refuse_if_full(
            (SELECT coalesce(jsonb_agg(job), '[]') FROM jsonb_array_elements(insert_jobs.jobs) AS job
              WHERE NOT existing ? (job ->> 'id') AND NOT children ? (job ->> 'id')), now_at);
    END IF;

    -- Marked lanes get a key share lock, so that they keep their mark. A new or unmarked lane is left to the next pass that
    -- claims: inserting or marking it here would make other transactions wait. At stricter isolation levels no lane is
    -- locked, because a lane that changed since the transaction began would raise a serialization error.
    WITH given_jobs AS (
        SELECT n, id, task, coalesce(queue, 'default') AS queue, coalesce("group", '') AS grp,
               coalesce(lifo, false) AS lifo, payload, coalesce(priority, 0) AS priority,
               coalesce(now_at + delay, run_at) AS run_at, coalesce(max_attempts, 5) AS max_attempts,
               coalesce(max_crashes, 3) AS max_crashes,
               timeout, deadline, metadata, backoff::text, keep::text, nullif(tags, '[]')::text AS tags,
               "unique"::text AS uniqueness
          FROM ROWS FROM (jsonb_to_recordset(insert_jobs.jobs) AS (
               id text, task text, payload text, queue text, "group" text, priority bigint, lifo boolean,
               run_at double precision, delay double precision, max_attempts bigint, max_crashes bigint,
               timeout double precision, deadline double precision, backoff jsonb, keep jsonb, tags jsonb,
               metadata text, "unique" jsonb)) WITH ORDINALITY
            AS given (id, task, payload, queue, "group", priority, lifo, run_at, delay, max_attempts, max_crashes,
                      timeout, deadline, backoff, keep, tags, metadata, "unique", n)
         WHERE NOT existing ? id),
    marked_lanes AS (
        SELECT marked.lane, queue, task, grp
          FROM (SELECT DISTINCT queue, task, grp FROM given_jobs WHERE NOT is_strict ORDER BY queue, task, grp) AS wanted
         CROSS JOIN LATERAL (SELECT lane, ready FROM errandry.lanes
                              WHERE lanes.queue = wanted.queue AND lanes.grp = wanted.grp AND lanes.task = wanted.task
                                FOR KEY SHARE) AS marked
         WHERE marked.ready),
    numbered AS (
        SELECT nextval('errandry.job_numbers') AS seq, ordered.*,
               CASE WHEN children ? id THEN 'blocked' WHEN run_at > now_at THEN 'scheduled' ELSE 'waiting' END AS state
          FROM (SELECT * FROM given_jobs ORDER BY n) AS ordered),
    inserted AS (
        INSERT INTO errandry.live (
               seq, id, task, queue, grp, state, lifo, payload, priority, place, run_at, attempts, max_attempts,
               releases, crashes, max_crashes, open_children, children, parents, timeout, deadline, fence,
               cancel_requested, metadata, created_at, updated_at, backoff, keep, tags, uniqueness, lane)
        SELECT seq, id, task, queue, grp, state, lifo, payload, priority,
               CASE WHEN state = 'waiting' THEN CASE WHEN lifo THEN -seq ELSE seq END END,
               run_at, 0, max_attempts, 0, 0, max_crashes, coalesce((children ->> id)::bigint, 0),
               coalesce((children ->> id)::bigint, 0), coalesce((parents ->> id)::bigint, 0),
               timeout, deadline, 0, false, metadata,
               now_at, now_at, backoff, keep, tags, uniqueness, CASE WHEN state = 'waiting' THEN lane END
          FROM numbered LEFT JOIN marked_lanes USING (queue, task, grp)
         ORDER BY id
            ON CONFLICT (id) DO NOTHING
        RETURNING seq)
    SELECT array_agg(seq) INTO inserted_seqs FROM inserted;

    -- Delete the new jobs whose ids belong to finished jobs. This check comes after the insert, because from then on no other
    -- transaction can insert these ids; before it, a job that finishes meanwhile would be missed. A transaction at a stricter
    -- isolation level cannot see such a job, so it inserts a row of the same id, which raises a serialization error.
    IF is_strict THEN
        INSERT INTO errandry.finished_ids (id, seq, day)
        SELECT id, seq, 0 FROM errandry.live WHERE seq = ANY (inserted_seqs) ORDER BY id ON CONFLICT (id) DO NOTHING;
        DELETE FROM errandry.finished_ids USING errandry.live
         WHERE live.seq = ANY (inserted_seqs) AND finished_ids.id = live.id AND finished_ids.seq = live.seq;
    END IF;
    WITH duplicates AS (
        DELETE FROM errandry.live
         WHERE seq = ANY (inserted_seqs) AND EXISTS (SELECT 1 FROM errandry.finished_ids WHERE finished_ids.id = live.id OFFSET 0)
        RETURNING seq)
    SELECT array_agg(fresh.seq) INTO inserted_seqs
      FROM unnest(inserted_seqs) AS fresh (seq)
     WHERE NOT EXISTS (SELECT 1 FROM duplicates WHERE duplicates.seq = fresh.seq);

    IF inserted_seqs IS NOT NULL THEN
        WITH fresh AS (SELECT seq, id, queue, task, state FROM errandry.live WHERE seq = ANY (inserted_seqs)),
        states AS (SELECT queue, task, state, count(*) AS jobs FROM fresh GROUP BY queue, task, state),
        deltas AS (SELECT queue, task, jsonb_object_agg(state, jobs) || jsonb_build_object('total.inserted', sum(jobs)) AS by
                     FROM states GROUP BY queue, task)
        INSERT INTO errandry.bind_inbox (at, count, entries, deltas)
        SELECT now_at, count(*), json_agg(json_build_array(ARRAY[state], ARRAY[id], queue, task) ORDER BY seq)::text,
               (SELECT json_agg(json_build_array(queue, task, by))::text FROM deltas)
          FROM fresh;
    END IF;
    IF new_edges <> '[]' THEN
        PERFORM errandry.insert_edges(
            new_edges, (SELECT jsonb_object_agg(id, seq) FROM errandry.live WHERE seq = ANY (inserted_seqs)));
    END IF;
    -- Free the unique keys that were taken for jobs whose ids turned out to exist.
    DELETE FROM errandry.keys USING jsonb_each_text(unique_keys -> 'taken') AS taken (slot, id)
     WHERE key = slot AND job = taken.id
       AND NOT EXISTS (SELECT 1 FROM errandry.live WHERE live.id = taken.id AND seq = ANY (inserted_seqs) OFFSET 0);

    WITH given AS (SELECT n, coalesce(unique_keys -> 'held' ->> (job ->> 'id'), job ->> 'id') AS id
                     FROM jsonb_array_elements(insert_jobs.jobs) WITH ORDINALITY AS job (job, n)),
    existed AS (SELECT id FROM given EXCEPT SELECT id FROM errandry.live WHERE seq = ANY (inserted_seqs))
    SELECT jsonb_build_object('ids', (SELECT jsonb_agg(id ORDER BY n) FROM given),
                              'existed', coalesce((SELECT jsonb_agg(id) FROM existed), '[]'),
                              'replaced', errandry.replace_jobs(insert_jobs.jobs, unique_keys -> 'held', now_at))
      INTO answer;
    IF inserted_seqs IS NOT NULL OR answer -> 'replaced' <> '[]' THEN
        PERFORM pg_notify('errandry_' || nspname, '')
           FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
          WHERE pg_class.oid = 'errandry.live'::regclass;
    END IF;
    RETURN answer;
END

FUNCTION is_valid_name(name text) RETURNS boolean IMMUTABLE
    SELECT length(name) BETWEEN 1 AND 200 AND name !~ '[[:cntrl:]]' AND btrim(name) <> ''

FUNCTION refuse_if_full(jobs jsonb, now_at double precision) RETURNS void SET {"search_path=pg_catalog, pg_temp"}
#variable_conflict use_column
DECLARE
    bounded record;
    size    bigint;
BEGIN
    FOR bounded IN
        WITH new_jobs AS (
            SELECT coalesce(job ->> 'queue', 'default') AS queue, coalesce(job ->> 'group', '') AS grp
              FROM jsonb_array_elements(refuse_if_full.jobs) AS job
             WHERE coalesce(now_at + (job ->> 'delay')::float8, (job ->> 'run_at')::float8, 0) <= now_at
               AND NOT EXISTS (SELECT 1 FROM errandry.live WHERE live.id = job ->> 'id' OFFSET 0)
               AND NOT EXISTS (SELECT 1 FROM errandry.finished_ids WHERE finished_ids.id = job ->> 'id' OFFSET 0)),
        limits AS (
            SELECT name AS queue, (rule::jsonb ->> 'max_size')::bigint AS max_size,
                   (rule::jsonb ->> 'group_max_size')::bigint AS group_max_size
              FROM errandry.gates
             WHERE kind = 'queue' AND rule LIKE '%max_size%' AND coalesce(rule::jsonb ->> 'overflow', '') <> 'drop_oldest')
        SELECT queue, NULL AS grp, max_size, count(*) AS jobs FROM new_jobs JOIN limits USING (queue)
         WHERE max_size IS NOT NULL GROUP BY queue, max_size
        UNION ALL
        SELECT queue, grp, group_max_size, count(*) FROM new_jobs JOIN limits USING (queue)
         WHERE group_max_size IS NOT NULL AND grp <> '' GROUP BY queue, grp, group_max_size
         ORDER BY queue, grp
    LOOP
        PERFORM pg_advisory_xact_lock(hashtextextended(bounded.queue, 'errandry.live'::regclass::oid::bigint));
        IF bounded.grp IS NULL THEN
            size := coalesce((SELECT sum(value) FROM errandry.totals WHERE queue = bounded.queue AND name = 'waiting'), 0)
                  + coalesce((SELECT sum((delta -> 2 ->> 'waiting')::bigint)
                                FROM (SELECT deltas FROM errandry.events WHERE n > (SELECT folded FROM errandry.store)
                                      UNION ALL SELECT deltas FROM errandry.bind_inbox) AS uncounted,
                                     jsonb_array_elements(uncounted.deltas::jsonb) AS delta
                               WHERE delta ->> 0 = bounded.queue), 0);
        ELSE
            size := (SELECT coalesce(sum(waiting.jobs), 0) FROM errandry.lanes
                      CROSS JOIN LATERAL (SELECT count(*) AS jobs FROM errandry.live
                                           WHERE live.lane = lanes.lane AND state = 'waiting') AS waiting
                      WHERE lanes.queue = bounded.queue AND lanes.grp = bounded.grp)
                  + (SELECT count(*) FROM errandry.live
                      WHERE state = 'waiting' AND lane IS NULL AND live.queue = bounded.queue AND live.grp = bounded.grp);
        END IF;
        IF size + bounded.jobs > bounded.max_size THEN
            RAISE EXCEPTION USING ERRCODE = 'EQ001', MESSAGE = 'queue full: ' || json_build_array(
                bounded.queue, size, bounded.max_size, coalesce(bounded.grp, ''))::text;
        END IF;
    END LOOP;
END

FUNCTION replace_jobs(jobs jsonb, held jsonb, now_at double precision) RETURNS jsonb
#variable_conflict use_column
DECLARE
    changed jsonb;
BEGIN
    WITH given_jobs AS (
        SELECT DISTINCT ON (holder) holder, job ->> 'payload' AS payload, job ->> 'metadata' AS metadata,
               coalesce(now_at + (job ->> 'delay')::float8, (job ->> 'run_at')::float8) AS run_at
          FROM jsonb_array_elements(replace_jobs.jobs) WITH ORDINALITY AS given (job, n)
         CROSS JOIN LATERAL (SELECT held ->> (job ->> 'id') AS holder) AS holders
         WHERE job ->> 'on_conflict' = 'replace' AND holder IS NOT NULL AND holder <> job ->> 'id'
         ORDER BY holder, n DESC),
    target AS (
        SELECT seq, state AS old_state, given_jobs.payload, given_jobs.metadata, given_jobs.run_at,
               CASE WHEN open_children > 0 THEN 'blocked' WHEN given_jobs.run_at > now_at THEN 'scheduled' ELSE 'waiting' END AS new_state
          FROM given_jobs JOIN errandry.live ON id = holder
         WHERE state IN ('blocked', 'scheduled', 'waiting')
         ORDER BY id FOR NO KEY UPDATE OF live),
    moved AS (
        UPDATE errandry.live
           SET payload = target.payload, metadata = target.metadata, run_at = target.run_at, state = new_state, updated_at = now_at,
               place = CASE WHEN new_state <> 'waiting' THEN NULL WHEN old_state = 'waiting' THEN place
                            WHEN lifo THEN -nextval('errandry.job_numbers')
                            ELSE nextval('errandry.job_numbers') END,
               lane = CASE WHEN new_state = 'waiting' AND old_state = 'waiting' THEN lane END
          FROM target WHERE live.seq = target.seq
        RETURNING live.seq, id, queue, task, attempts, old_state, new_state)
    SELECT jsonb_agg(to_jsonb(moved) ORDER BY seq) INTO changed FROM moved;
    IF changed IS NULL THEN
        RETURN '[]';
    END IF;
    INSERT INTO errandry.bind_inbox (at, count, entries, deltas)
    SELECT now_at, jsonb_array_length(changed),
           (SELECT json_agg(json_build_array(ARRAY['edited'], ARRAY[id], queue, task, attempts) ORDER BY seq)::text
              FROM jsonb_to_recordset(changed) AS (seq bigint, id text, queue text, task text, attempts bigint)),
           coalesce((SELECT json_agg(json_build_array(queue, task, by))::text
              FROM (SELECT queue, task, jsonb_object_agg(state, change) AS by
                      FROM (SELECT queue, task, state, sum(change) AS change
                              FROM jsonb_to_recordset(changed) AS (queue text, task text, old_state text, new_state text)
                             CROSS JOIN LATERAL (VALUES (old_state, -1), (new_state, 1)) AS step (state, change)
                             GROUP BY queue, task, state) AS steps
                     GROUP BY queue, task) AS deltas), '[]');
    RETURN (SELECT jsonb_agg(id) FROM jsonb_to_recordset(changed) AS (id text));
END

FUNCTION resolve_edges(jobs jsonb, edges jsonb, held jsonb) RETURNS jsonb SET {"search_path=pg_catalog, pg_temp"}
#variable_conflict use_column
DECLARE
    places jsonb := (SELECT jsonb_object_agg(job ->> 'id', n)
                       FROM jsonb_array_elements(resolve_edges.jobs) WITH ORDINALITY AS given (job, n)
                      WHERE NOT held ? (job ->> 'id'));
    resolved jsonb;
    invalid record;
BEGIN
    WITH given AS (
        SELECT n, edge ->> 'parent' AS given_parent, coalesce(held ->> (edge ->> 'parent'), edge ->> 'parent') AS parent,
               coalesce(held ->> (edge ->> 'child'), edge ->> 'child') AS child,
               coalesce(edge ->> 'policy', 'fail') AS policy, feed, place
          FROM jsonb_array_elements(resolve_edges.edges) WITH ORDINALITY AS edges (edge, n)
          LEFT JOIN LATERAL jsonb_array_elements(edge -> 'feeds') WITH ORDINALITY AS feeds (feed, place) ON true),
    pairs AS (
        SELECT min(n) AS n, parent, child, (array_agg(policy ORDER BY n DESC))[1] AS policy,
               jsonb_agg(feed ORDER BY n, place) FILTER (WHERE feed IS NOT NULL) AS feeds, bool_or(held ? given_parent) AS is_held
          FROM given GROUP BY parent, child)
    SELECT jsonb_agg(jsonb_build_object(
               'parent', parent, 'child', child, 'policy', policy, 'feeds', feeds,
               'parent_existed', is_held OR EXISTS (SELECT 1 FROM errandry.live WHERE live.id = parent)
                                         OR EXISTS (SELECT 1 FROM errandry.finished_ids WHERE finished_ids.id = parent)) ORDER BY n)
      INTO resolved FROM pairs;
    SELECT edge ->> 'parent' AS parent, edge ->> 'child' AS child INTO invalid
      FROM jsonb_array_elements(resolved) AS edge
     WHERE (edge ->> 'parent_existed')::boolean
       AND NOT EXISTS (SELECT 1 FROM errandry.edges WHERE edges.parent = edge ->> 'parent' AND edges.child = edge ->> 'child')
     LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'EQ002', MESSAGE = 'flow: ' || json_build_array('parent', invalid.parent, format(
            'exists and does not wait for %s: insert a parent together with its children', invalid.child))::text;
    END IF;
    SELECT edge ->> 'child' AS child INTO invalid
      FROM jsonb_array_elements(resolved) AS edge
     WHERE (places ->> (edge ->> 'child'))::bigint <= (places ->> (edge ->> 'parent'))::bigint LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'EQ002', MESSAGE = 'flow: ' || json_build_array('child', invalid.child,
            'is in a circle, because jobs with the same unique key are one job')::text;
    END IF;
    RETURN (SELECT jsonb_build_object(
        'existing', coalesce(jsonb_object_agg(edge ->> 'child', edge ->> 'child') FILTER (WHERE (edge ->> 'parent_existed')::boolean), '{}'),
        'edges', coalesce(jsonb_agg(edge ORDER BY n) FILTER (
            WHERE NOT (edge ->> 'parent_existed')::boolean
              AND (places ? (edge ->> 'child') OR EXISTS (SELECT 1 FROM errandry.live WHERE live.id = edge ->> 'child')
                   OR EXISTS (SELECT 1 FROM errandry.finished_ids WHERE finished_ids.id = edge ->> 'child'))), '[]'))
        FROM jsonb_array_elements(resolved) WITH ORDINALITY AS given (edge, n));
END

FUNCTION take_keys(jobs jsonb, now_at double precision) RETURNS jsonb
#variable_conflict use_column
DECLARE
    ids    text[];
    slots  text[];
    untils double precision[];
    raises boolean[];
    names  text[];
    taken  jsonb := '{}';
    more   jsonb;
    held   jsonb;
    is_free boolean;
    conflict record;
BEGIN
    SELECT array_agg(id ORDER BY n), array_agg(slot ORDER BY n), array_agg(expires_at ORDER BY n),
           array_agg(on_conflict = 'raise' ORDER BY n), array_agg(key ORDER BY n)
      INTO ids, slots, untils, raises, names
      FROM (SELECT n, job ->> 'id' AS id, coalesce(job ->> 'on_conflict', 'return') AS on_conflict, slot, expires_at,
                   job -> 'unique' ->> 'key' AS key
              FROM jsonb_array_elements(take_keys.jobs) WITH ORDINALITY AS given (job, n)
             CROSS JOIN LATERAL errandry.unique_slot(
                   job -> 'unique', coalesce(job ->> 'queue', 'default'),
                   greatest(now_at, coalesce(now_at + (job ->> 'delay')::float8, (job ->> 'run_at')::float8)), now_at)
             WHERE jsonb_typeof(job -> 'unique') = 'object') AS wanted
     WHERE NOT EXISTS (SELECT 1 FROM errandry.live WHERE live.id = wanted.id OFFSET 0)
       AND NOT EXISTS (SELECT 1 FROM errandry.finished_ids WHERE finished_ids.id = wanted.id OFFSET 0);
    IF ids IS NULL THEN
        RETURN '{"taken": {}, "held": {}}';
    END IF;
    DELETE FROM errandry.keys WHERE key = ANY (slots) AND expires_at <= now_at;
    LOOP
        WITH mine AS (
            INSERT INTO errandry.keys (key, job, expires_at)
            SELECT DISTINCT ON (slot) slot, id, until
              FROM unnest(slots, ids, untils) WITH ORDINALITY AS wanted (slot, id, until, n) ORDER BY slot, n
                ON CONFLICT (key) DO NOTHING
            RETURNING key, job)
        SELECT coalesce(jsonb_object_agg(key, job), '{}') INTO more FROM mine;
        taken := taken || more;
        -- One statement reads both: between two, a key could become free, and its job would get neither the key nor a holder.
        SELECT bool_or(job IS NULL), coalesce(jsonb_object_agg(id, job) FILTER (WHERE taken ->> slot IS DISTINCT FROM id), '{}')
          INTO is_free, held
          FROM unnest(slots, ids) AS wanted (slot, id)
          LEFT JOIN LATERAL (SELECT job FROM errandry.keys WHERE key = slot OFFSET 0) AS holder ON true;
        EXIT WHEN NOT is_free;
    END LOOP;
    SELECT name, held ->> id AS job INTO conflict
      FROM unnest(ids, raises, names) WITH ORDINALITY AS wanted (id, raises, name, n)
     WHERE wanted.raises AND held ->> id <> id ORDER BY n LIMIT 1;
    IF FOUND THEN
        DELETE FROM errandry.keys USING jsonb_each_text(taken) AS mine (slot, id) WHERE key = slot AND job = id;
        RETURN jsonb_build_object('duplicate', jsonb_build_object('key', conflict.name, 'job', conflict.job));
    END IF;
    RETURN jsonb_build_object('taken', taken, 'held', held);
END

FUNCTION unique_slot(uniqueness jsonb, queue text, due double precision, now_at double precision, OUT slot text, OUT expires_at double precision) RETURNS record IMMUTABLE
DECLARE
    scope  text := coalesce(uniqueness ->> 'scope', 'alive');
    begins double precision;
    length double precision := CASE scope WHEN 'second' THEN 1 WHEN 'minute' THEN 60 WHEN 'hour' THEN 3600
                                          WHEN 'day' THEN 86400 WHEN 'week' THEN 604800 END;
    origin double precision := CASE scope WHEN 'week' THEN 345600 ELSE 0 END;
BEGIN
    slot := CASE WHEN (uniqueness ->> 'per_queue')::boolean THEN queue || E'\n' ELSE '' END || (uniqueness ->> 'key');
    IF scope IN ('alive', 'window', 'ever') THEN
        expires_at := CASE scope WHEN 'window' THEN now_at + (uniqueness ->> 'window')::float8
                                 WHEN 'ever' THEN now_at + 31536000 END;
        RETURN;
    END IF;
    IF scope = 'month' THEN
        begins := extract(epoch FROM date_trunc('month', to_timestamp(floor(due)), 'UTC'));
        expires_at := extract(epoch FROM (to_timestamp(begins) AT TIME ZONE 'UTC' + interval '1 month') AT TIME ZONE 'UTC');
    ELSE
        begins := floor((due - origin) / length) * length + origin;
        expires_at := begins + length;
    END IF;
    slot := slot || E'\t' || scope || ' ' || begins::bigint;
END

