-- name: begin
-- Whatever the database has as its default: a pass has to see what others have committed since it began.
BEGIN ISOLATION LEVEL READ COMMITTED;

-- name: begin_read
BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;

-- name: commit
COMMIT;

-- name: rollback
ROLLBACK;

-- name: head
-- What every pass starts from. How long it may wait for locks, and the server for it; plans that hold however many
-- rows there are and values it is given, made once; the claims of one worker one after the other, so that a repeated one finds the first; what others have
-- inserted in transactions of their own; the time.
SELECT set_config('lock_timeout', %s, true), set_config('idle_in_transaction_session_timeout', '10s', true),
       set_config('enable_seqscan', 'off', true), set_config('enable_hashjoin', 'off', true),
       set_config('enable_mergejoin', 'off', true), set_config('jit', 'off', true),
       set_config('plan_cache_mode', 'force_generic_plan', true),
       (SELECT count(pg_advisory_xact_lock(hashtextextended(worker, 'errandry.claims'::regclass::oid::bigint)))
          FROM unnest(%s::text[]) AS worker),
       EXISTS (SELECT 1 FROM errandry.bound),
       EXISTS (SELECT 1 FROM errandry.live WHERE state = 'waiting' AND lane IS NULL),
       EXISTS (SELECT 1 FROM errandry.gates), EXISTS (SELECT 1 FROM errandry.lanes WHERE ready AND grp <> ''),
       identity, folded, greatest(at, (SELECT at FROM errandry.events ORDER BY n DESC LIMIT 1)),
       extract(epoch FROM clock_timestamp())::float8
  FROM errandry.store;

-- name: plan_mode
SELECT set_config('plan_cache_mode', %s, true);

-- name: keep_time
-- Of a pass without events, while the clock goes slowly after it was set back: the next one must not go back behind it.
UPDATE errandry.store SET at = greatest(at, %s) RETURNING pg_current_xact_id()::xid;

-- name: number_of_pass
-- The one that its rows have as their `xmin`.
SELECT pg_current_xact_id()::xid;

-- name: last_event
SELECT coalesce((SELECT n FROM errandry.events ORDER BY n DESC LIMIT 1), 0);

-- name: head_read
SELECT set_config('jit', 'off', true), identity, folded,
       greatest(at, (SELECT at FROM errandry.events ORDER BY n DESC LIMIT 1)),
       extract(epoch FROM clock_timestamp())::float8, EXISTS (SELECT 1 FROM errandry.gates)
  FROM errandry.store;

-- name: numbers
SELECT nextval('errandry.number') FROM generate_series(1, %s::bigint);

-- name: numbers_for_new
-- Nothing unless all jobs with these ids are new; then a list of so many numbers, or where there are gates, which may keep
-- some out, an empty one. Mostly no id at all stands between the least and the most of them, as these were made one after the other just now.
SELECT ARRAY (SELECT nextval('errandry.number') FROM generate_series(1, numbers))
  FROM (SELECT CASE WHEN EXISTS (SELECT 1 FROM errandry.gates) THEN 0 ELSE %(count)s::bigint END AS numbers,
               (NOT EXISTS (SELECT 1 FROM errandry.live WHERE id >= %(least)s::text AND id <= %(most)s::text)
                OR NOT EXISTS (SELECT 1 FROM errandry.live WHERE id = ANY (%(ids)s::text[])))
               AND (NOT EXISTS (SELECT 1 FROM errandry.ended WHERE id >= %(least)s::text AND id <= %(most)s::text)
                    OR NOT EXISTS (SELECT 1 FROM errandry.ended WHERE id = ANY (%(ids)s::text[]))) AS is_new
         OFFSET 0) AS about
 WHERE is_new;

-- name: make
-- A job that is new: it has had no attempts, and everything that comes with them is still to come. Taken apart here and not
-- under FROM, where each array would first be put down as a table: that costs a fifth more.
INSERT INTO errandry.live
SELECT seq, id, task, queue, grp, state, ordering, NULL, NULL, payload, priority, place, run_at, 0, max_attempts, 0, 0,
       max_crashes, children, children, parents, timeout, deadline, 0, NULL, NULL, false, NULL, metadata, created_at,
       created_at, NULL, NULL, NULL, NULL, backoff, keep, NULL, tags, NULL, NULL, uniqueness, NULL, lane
  FROM (SELECT unnest(%s::bigint[]) AS seq, unnest(%s::text[]) AS id, unnest(%s::text[]) AS task,
               unnest(%s::text[]) AS queue, unnest(%s::text[]) AS grp, unnest(%s::text[]) AS state,
               unnest(%s::text[]) AS ordering, unnest(%s::text[]) AS payload, unnest(%s::bigint[]) AS priority,
               unnest(%s::bigint[]) AS place, unnest(%s::float8[]) AS run_at, unnest(%s::bigint[]) AS max_attempts,
               unnest(%s::bigint[]) AS max_crashes, unnest(%s::bigint[]) AS children,
               unnest(%s::bigint[]) AS parents, unnest(%s::float8[]) AS timeout, unnest(%s::float8[]) AS deadline,
               unnest(%s::text[]) AS metadata, unnest(%s::float8[]) AS created_at, unnest(%s::text[]) AS backoff,
               unnest(%s::text[]) AS keep, unnest(%s::text[]) AS tags, unnest(%s::text[]) AS uniqueness,
               unnest(%s::bigint[]) AS lane) AS new;

-- name: settings
-- Those of `head`, for a pass that is sent whole: before its plans are chosen.
SELECT set_config('lock_timeout', %s, true), set_config('idle_in_transaction_session_timeout', '10s', true),
       set_config('enable_seqscan', 'off', true), set_config('enable_hashjoin', 'off', true),
       set_config('enable_mergejoin', 'off', true), set_config('jit', 'off', true),
       set_config('plan_cache_mode', 'force_generic_plan', true);

-- name: wake_lanes
-- Lanes that have lost their mark have it again. They are given, and locked, in the order in which all lock them.
UPDATE errandry.lanes SET ready = true, used_at = coalesce(%(at)s::float8, extract(epoch FROM now())::float8)
  FROM (SELECT tired.spot FROM unnest(%(lanes)s::bigint[]) AS known (lane)
         CROSS JOIN LATERAL (SELECT ctid AS spot FROM errandry.lanes WHERE lanes.lane = known.lane AND NOT ready
                                FOR NO KEY UPDATE) AS tired) AS tired
 WHERE lanes.ctid = tired.spot;

-- name: unseen
-- That all is as it was when new jobs are sent whole. No gate counts them, they are new, their lanes are the ones that are
-- known, marked and held, and the clock has not been set back.
SELECT errandry.insist(
           NOT EXISTS (SELECT 1 FROM errandry.gates)
           AND (NOT EXISTS (SELECT 1 FROM errandry.live WHERE id >= %(least)s::text AND id <= %(most)s::text)
                OR NOT EXISTS (SELECT 1 FROM errandry.live WHERE id = ANY (%(ids)s::text[])))
           AND (NOT EXISTS (SELECT 1 FROM errandry.ended WHERE id >= %(least)s::text AND id <= %(most)s::text)
                OR NOT EXISTS (SELECT 1 FROM errandry.ended WHERE id = ANY (%(ids)s::text[])))
           AND (SELECT count(*) = cardinality(%(lanes)s::bigint[])
                  FROM (SELECT * FROM unnest(%(queues)s::text[], %(tasks)s::text[], %(groups)s::text[], %(lanes)s::bigint[])
                            AS known (queue, task, grp, lane)
                         ORDER BY queue, task, grp) AS known
                 CROSS JOIN LATERAL (SELECT lane, ready FROM errandry.lanes
                                      WHERE lanes.queue = known.queue AND lanes.grp = known.grp AND lanes.task = known.task
                                        FOR KEY SHARE) AS held
                 WHERE held.ready AND held.lane = known.lane)
           AND greatest(at, (SELECT at FROM errandry.events ORDER BY n DESC LIMIT 1))
               <= coalesce(%(at)s::float8, extract(epoch FROM now())::float8))
  FROM errandry.store;

-- name: make_unseen
-- The same as `make` in such a pass, for jobs that are ready at once: they have their numbers, and the time, from here.
INSERT INTO errandry.live
SELECT seq, id, task, queue, grp, 'waiting', ordering, NULL, NULL, payload, priority,
       CASE ordering WHEN 'fifo' THEN seq ELSE -seq END, NULL, 0, max_attempts, 0, 0, max_crashes, 0, 0, 0, timeout, deadline,
       0, NULL, NULL, false, NULL, metadata, moment, moment, NULL, NULL, NULL, NULL, backoff, keep, NULL, tags, NULL, NULL,
       NULL, NULL, lane
  FROM (SELECT nextval('errandry.number') AS seq, coalesce(%s::float8, extract(epoch FROM now())::float8) AS moment, new.*
          FROM (SELECT unnest(%s::text[]) AS id, unnest(%s::text[]) AS task, unnest(%s::text[]) AS queue,
                       unnest(%s::text[]) AS grp, unnest(%s::text[]) AS ordering, unnest(%s::text[]) AS payload,
                       unnest(%s::bigint[]) AS priority, unnest(%s::bigint[]) AS max_attempts,
                       unnest(%s::bigint[]) AS max_crashes, unnest(%s::float8[]) AS timeout,
                       unnest(%s::float8[]) AS deadline, unnest(%s::text[]) AS metadata, unnest(%s::text[]) AS backoff,
                       unnest(%s::text[]) AS keep, unnest(%s::text[]) AS tags, unnest(%s::bigint[]) AS lane) AS new) AS made;

-- name: never_ended
-- That none of these, which were just made, was made by somebody else and came to its end since it was looked for: from now
-- on nobody else can make it. As above, mostly no id at all stands between the least and the most of them.
SELECT errandry.insist(
           NOT EXISTS (SELECT 1 FROM errandry.ended WHERE id >= %(least)s::text AND id <= %(most)s::text)
           OR NOT EXISTS (SELECT 1 FROM errandry.ended WHERE id = ANY (%(ids)s::text[])));

-- name: insert
-- One that lives again.
INSERT INTO errandry.live
SELECT * FROM unnest(
    %s::bigint[], %s::text[], %s::text[], %s::text[], %s::text[], %s::text[], %s::text[], %s::text[],
    %s::text[], %s::text[], %s::bigint[], %s::bigint[], %s::float8[], %s::bigint[], %s::bigint[], %s::bigint[],
    %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[], %s::float8[], %s::float8[], %s::bigint[],
    %s::text[], %s::float8[], %s::boolean[], %s::text[], %s::text[], %s::float8[], %s::float8[], %s::float8[], %s::float8[],
    %s::float8[], %s::float8[], %s::text[], %s::text[], %s::text[], %s::text[], %s::text[], %s::text[], %s::text[],
    %s::text[], %s::bigint[]);

-- name: insert_jobs
-- On a connection of the caller's, whatever its library: as text in and out.
SELECT CAST(errandry.insert_jobs(
    CAST(CAST(%(jobs)s AS text) AS jsonb), CAST(%(store)s AS text), CAST(%(at)s AS float8),
    CAST(CAST(%(edges)s AS text) AS jsonb)) AS text);

-- name: finish
WITH ended AS (INSERT INTO errandry.history
SELECT * FROM unnest(
    %s::bigint[], %s::text[], %s::text[], %s::text[], %s::text[], %s::text[], %s::text[], %s::text[],
    %s::text[], %s::text[], %s::bigint[], %s::bigint[], %s::float8[], %s::bigint[], %s::bigint[], %s::bigint[],
    %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[], %s::float8[], %s::float8[], %s::bigint[],
    %s::text[], %s::float8[], %s::boolean[], %s::text[], %s::text[], %s::float8[], %s::float8[], %s::float8[], %s::float8[],
    %s::float8[], %s::float8[], %s::text[], %s::text[], %s::text[], %s::text[], %s::text[], %s::text[], %s::text[],
    %s::text[], %s::integer[])
RETURNING id, seq, day)
INSERT INTO errandry.ended SELECT id, seq, day FROM ended;

-- name: update
-- Everything that can change while a job is not finished; parameters are whole rows.
--
-- Here and wherever it is written so: each row is looked up by its number or name, whatever the planner knows of the table.
-- Else it would, when the table was last seen empty or with one lane, compare all its rows with all that are given. So it
-- must not choose: OFFSET 0, a limit or a lock keeps what is in brackets apart. And it must not expect many rows to write:
-- the last condition is always true, but nobody told it.
UPDATE errandry.live
   SET queue = new.queue, state = new.state, reason = new.reason, settled = new.settled, payload = new.payload, priority =
       new.priority, place = new.place, run_at = new.run_at, attempts = new.attempts, max_attempts =
       new.max_attempts, releases = new.releases, crashes = new.crashes, open_children = new.open_children,
       children = new.children, parents = new.parents, deadline = new.deadline, fence = new.fence, worker = new.worker, lease_until = new.lease_until,
       cancel_requested = new.cancel_requested, result = new.result, metadata = new.metadata, updated_at = new.updated_at, claimed_at =
       new.claimed_at, started_at = new.started_at, progress = new.progress, tags = new.tags, errors =
       new.errors, logs = new.logs, steps = new.steps, lane = new.lane
  FROM (SELECT spot.ctid AS spot, given.*
          FROM unnest(
    %s::bigint[], %s::text[], %s::text[], %s::text[], %s::text[], %s::text[], %s::text[], %s::text[],
    %s::text[], %s::text[], %s::bigint[], %s::bigint[], %s::float8[], %s::bigint[], %s::bigint[], %s::bigint[],
    %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[], %s::float8[], %s::float8[], %s::bigint[],
    %s::text[], %s::float8[], %s::boolean[], %s::text[], %s::text[], %s::float8[], %s::float8[], %s::float8[], %s::float8[],
    %s::float8[], %s::float8[], %s::text[], %s::text[], %s::text[], %s::text[], %s::text[], %s::text[], %s::text[],
    %s::text[], %s::bigint[])
            AS given (seq, id, task, queue, grp, state, ordering, reason, settled, payload, priority, place, run_at,
            attempts, max_attempts, releases, crashes, max_crashes, open_children, children, parents, timeout,
            deadline, fence, worker, lease_until, cancel_requested, result, metadata, created_at, updated_at, claimed_at,
            started_at, finished_at, expires_at, backoff, keep, progress, tags, errors, logs, uniqueness,
            steps, lane),
               LATERAL (SELECT ctid FROM errandry.live WHERE live.seq = given.seq OFFSET 0) AS spot
         WHERE given.seq %% 1 = 0 AND -given.seq %% 1 = 0) AS new
 WHERE live.ctid = new.spot;

-- name: finish_live
-- The same for jobs that end alike, from the rows they have in `live`: what an end leaves alone is copied, not sent. Their
-- results and errors are found by the place of their number, as the numbers are in order.
WITH gone AS (
    DELETE FROM errandry.live WHERE seq = ANY (%(seqs)s::bigint[])
    RETURNING live.*, width_bucket(seq, %(seqs)s::bigint[]) AS n),
kept AS (
    INSERT INTO errandry.history
    SELECT seq, id, task, queue, grp, %(state)s::text, ordering, %(reason)s::text, %(settled)s::text, payload, priority, NULL,
           run_at, attempts, max_attempts, %(releases)s::bigint, %(crashes)s::bigint, max_crashes, open_children, children,
           parents, timeout, deadline, fence, worker, NULL, cancel_requested, (%(results)s::text[])[n], metadata, created_at,
           %(at)s::float8, claimed_at, started_at, %(at)s::float8, %(expires_at)s::float8, backoff, keep, progress, tags,
           (%(errors)s::text[])[n], logs, uniqueness, steps, %(day)s::integer
      FROM gone)
INSERT INTO errandry.ended SELECT id, seq, %(day)s::integer FROM gone;

-- name: claim
-- From waiting to held, those that are claimed alike; what a claim leaves alone is not written.
UPDATE errandry.live
   SET state = %(state)s, attempts = %(attempts)s, fence = %(fence)s, worker = %(worker)s, lease_until = %(lease_until)s,
       updated_at = %(at)s, claimed_at = %(at)s, started_at = %(started_at)s, settled = NULL, progress = NULL, place = NULL,
       lane = NULL
 WHERE seq = ANY (%(seqs)s::bigint[]);

-- name: start
UPDATE errandry.live SET state = 'running', updated_at = %(at)s, started_at = %(at)s WHERE seq = ANY (%(seqs)s::bigint[]);

-- name: renew
UPDATE errandry.live SET lease_until = %(lease_until)s, updated_at = %(at)s WHERE seq = ANY (%(seqs)s::bigint[]);

-- name: delete_live
DELETE FROM errandry.live WHERE seq = ANY (%s::bigint[]);

-- name: delete_history
WITH gone AS (DELETE FROM errandry.ended WHERE id = ANY (%s::text[]) RETURNING seq, day)
DELETE FROM errandry.history USING gone WHERE history.seq = gone.seq AND history.day = gone.day;

-- name: find_live
SELECT * FROM errandry.live WHERE id = ANY (%s::text[]);

-- name: find_history
SELECT history.* FROM errandry.ended JOIN errandry.history USING (seq, day) WHERE ended.id = ANY (%s::text[]);

-- name: lock_live
-- Whoever locks several jobs locks them in the order of their ids.
SELECT * FROM errandry.live WHERE id = ANY (%s::text[]) ORDER BY id FOR NO KEY UPDATE;

-- name: lock_known
-- The same where they are known, as the transaction `xmin` has written them.
SELECT id, xmin, updated_at FROM errandry.live WHERE id = ANY (%s::text[]) ORDER BY id FOR NO KEY UPDATE;

-- name: any_ended
-- Asked first: it costs less than to open every partition, and the answer is mostly no.
SELECT 1 FROM errandry.ended WHERE id = ANY (%s::text[]) LIMIT 1;

-- name: lock_history
SELECT history.* FROM errandry.ended JOIN errandry.history USING (seq, day)
 WHERE ended.id = ANY (%s::text[]) ORDER BY ended.id FOR NO KEY UPDATE OF history;

-- name: ids_live
-- Ids that begin or end with a part of one. Only the index is read, though all of it.
SELECT id FROM errandry.live
 WHERE starts_with(id, %(part)s::text) OR right(id, length(%(part)s::text)) = %(part)s::text
 ORDER BY id LIMIT %(limit)s;

-- name: ids_history
SELECT id FROM errandry.ended
 WHERE starts_with(id, %(part)s::text) OR right(id, length(%(part)s::text)) = %(part)s::text
 ORDER BY id LIMIT %(limit)s;

-- name: matching
-- One statement for every query: a parameter of NULL says nothing. It is planned anew for its values: `part` is a
-- constant in each part of the view, so a part that is not wanted is never read.
SELECT seq, id, task, queue, grp, state, ordering, reason, settled, payload, priority, place, run_at, attempts,
       max_attempts, releases, crashes, max_crashes, open_children, children, parents, timeout, deadline, fence,
       worker, lease_until, cancel_requested, result, metadata, created_at, updated_at, claimed_at, started_at,
       finished_at, expires_at, backoff, keep, progress, tags, errors, logs, uniqueness, steps
  FROM errandry.job
 WHERE part = ANY (%(parts)s::text[])
   AND seq < %(below)s::bigint AND seq > %(above)s::bigint
   AND state = ANY (%(states)s::text[])
   AND (%(id_in)s::text[] IS NULL OR seq = ANY (ARRAY (
        SELECT seq FROM errandry.live WHERE id = ANY (%(id_in)s::text[])
         UNION ALL SELECT seq FROM errandry.ended WHERE id = ANY (%(id_in)s::text[]))))
   AND (%(id_not_in)s::text[] IS NULL OR id <> ALL (%(id_not_in)s::text[]))
   AND (%(task_in)s::text[] IS NULL OR task = ANY (%(task_in)s::text[]))
   AND (%(task_not_in)s::text[] IS NULL OR task <> ALL (%(task_not_in)s::text[]))
   AND (%(queue_in)s::text[] IS NULL OR queue = ANY (%(queue_in)s::text[]))
   AND (%(queue_not_in)s::text[] IS NULL OR queue <> ALL (%(queue_not_in)s::text[]))
   AND (%(group_in)s::text[] IS NULL OR grp = ANY (%(group_in)s::text[]))
   AND (%(group_not_in)s::text[] IS NULL OR grp <> ALL (%(group_not_in)s::text[]))
   AND (%(worker_in)s::text[] IS NULL OR worker = ANY (%(worker_in)s::text[]))
   AND (%(worker_not_in)s::text[] IS NULL OR worker IS NULL OR worker <> ALL (%(worker_not_in)s::text[]))
   AND (%(state_in)s::text[] IS NULL OR state = ANY (%(state_in)s::text[]))
   AND (%(state_not_in)s::text[] IS NULL OR state <> ALL (%(state_not_in)s::text[]))
   AND (%(reason_in)s::text[] IS NULL OR reason = ANY (%(reason_in)s::text[]))
   AND (%(reason_not_in)s::text[] IS NULL OR reason IS NULL OR reason <> ALL (%(reason_not_in)s::text[]))
   AND (%(priority_in)s::bigint[] IS NULL OR priority = ANY (%(priority_in)s::bigint[]))
   AND (%(priority_not_in)s::bigint[] IS NULL OR priority <> ALL (%(priority_not_in)s::bigint[]))
   AND (%(attempts_in)s::bigint[] IS NULL OR attempts = ANY (%(attempts_in)s::bigint[]))
   AND (%(attempts_not_in)s::bigint[] IS NULL OR attempts <> ALL (%(attempts_not_in)s::bigint[]))
   AND (%(priority_min)s::bigint IS NULL OR priority >= %(priority_min)s::bigint)
   AND (%(priority_max)s::bigint IS NULL OR priority <= %(priority_max)s::bigint)
   AND (%(attempts_min)s::bigint IS NULL OR attempts >= %(attempts_min)s::bigint)
   AND (%(attempts_max)s::bigint IS NULL OR attempts <= %(attempts_max)s::bigint)
   AND (%(children_in)s::bigint[] IS NULL OR children = ANY (%(children_in)s::bigint[]))
   AND (%(children_not_in)s::bigint[] IS NULL OR children <> ALL (%(children_not_in)s::bigint[]))
   AND (%(children_min)s::bigint IS NULL OR children >= %(children_min)s::bigint)
   AND (%(children_max)s::bigint IS NULL OR children <= %(children_max)s::bigint)
   AND (%(parents_in)s::bigint[] IS NULL OR parents = ANY (%(parents_in)s::bigint[]))
   AND (%(parents_not_in)s::bigint[] IS NULL OR parents <> ALL (%(parents_not_in)s::bigint[]))
   AND (%(parents_min)s::bigint IS NULL OR parents >= %(parents_min)s::bigint)
   AND (%(parents_max)s::bigint IS NULL OR parents <= %(parents_max)s::bigint)
   AND (%(created_min)s::float8 IS NULL OR created_at >= %(created_min)s::float8)
   AND (%(created_max)s::float8 IS NULL OR created_at <= %(created_max)s::float8)
   AND (%(finished_min)s::float8 IS NULL OR finished_at >= %(finished_min)s::float8)
   AND (%(finished_max)s::float8 IS NULL OR finished_at <= %(finished_max)s::float8)
   AND (%(due_min)s::float8 IS NULL OR run_at >= %(due_min)s::float8)
   AND (%(due_max)s::float8 IS NULL OR run_at <= %(due_max)s::float8)
   AND (%(expires_min)s::float8 IS NULL OR expires_at >= %(expires_min)s::float8)
   AND (%(expires_max)s::float8 IS NULL OR expires_at <= %(expires_max)s::float8)
   AND (%(tags_all)s::jsonb IS NULL OR (tags IS NOT NULL AND NOT EXISTS (
        SELECT 1 FROM jsonb_array_elements(%(tags_all)s::jsonb) AS any_of
         WHERE NOT EXISTS (SELECT 1 FROM jsonb_array_elements_text(any_of) AS one WHERE tags::jsonb ? one))))
   AND (%(tags_none)s::jsonb IS NULL OR tags IS NULL OR NOT EXISTS (
        SELECT 1 FROM jsonb_array_elements_text(%(tags_none)s::jsonb) AS one WHERE tags::jsonb ? one))
   AND (%(id_has)s::jsonb IS NULL OR errandry.has_all(id, %(id_has)s::jsonb))
   AND (%(id_lacks)s::jsonb IS NULL OR errandry.has_none(id, %(id_lacks)s::jsonb))
   AND (%(task_has)s::jsonb IS NULL OR errandry.has_all(task, %(task_has)s::jsonb))
   AND (%(task_lacks)s::jsonb IS NULL OR errandry.has_none(task, %(task_lacks)s::jsonb))
   AND (%(queue_has)s::jsonb IS NULL OR errandry.has_all(queue, %(queue_has)s::jsonb))
   AND (%(queue_lacks)s::jsonb IS NULL OR errandry.has_none(queue, %(queue_lacks)s::jsonb))
   AND (%(group_has)s::jsonb IS NULL OR errandry.has_all(grp, %(group_has)s::jsonb))
   AND (%(group_lacks)s::jsonb IS NULL OR errandry.has_none(grp, %(group_lacks)s::jsonb))
   AND (%(worker_has)s::jsonb IS NULL OR errandry.has_all(worker, %(worker_has)s::jsonb))
   AND (%(worker_lacks)s::jsonb IS NULL OR errandry.has_none(worker, %(worker_lacks)s::jsonb))
   AND (%(payload_has)s::jsonb IS NULL OR errandry.has_all(payload, %(payload_has)s::jsonb))
   AND (%(payload_lacks)s::jsonb IS NULL OR errandry.has_none(payload, %(payload_lacks)s::jsonb))
   AND (%(result_has)s::jsonb IS NULL OR errandry.has_all(result, %(result_has)s::jsonb))
   AND (%(result_lacks)s::jsonb IS NULL OR errandry.has_none(result, %(result_lacks)s::jsonb))
   AND (%(error_has)s::jsonb IS NULL OR NOT EXISTS (
        SELECT 1 FROM jsonb_array_elements(%(error_has)s::jsonb) AS any_of
         WHERE NOT EXISTS (SELECT 1 FROM json_array_elements(errors::json) AS error
                            WHERE errandry.has_all(coalesce(error ->> 'type', '') || ': '
                                                   || coalesce(error ->> 'message', ''), jsonb_build_array(any_of)))))
   AND (%(error_lacks)s::jsonb IS NULL OR NOT EXISTS (
        SELECT 1 FROM json_array_elements(errors::json) AS error
         WHERE errandry.has_all(coalesce(error ->> 'type', '') || ': ' || coalesce(error ->> 'message', ''),
                                jsonb_build_array(%(error_lacks)s::jsonb))))
 ORDER BY seq DESC
 LIMIT %(limit)s;

-- name: floor
-- Where a search ends that is to look at only so many jobs.
SELECT seq FROM errandry.job
 WHERE part = ANY (%(parts)s::text[]) AND seq < %(below)s::bigint AND state = ANY (%(states)s::text[])
 ORDER BY seq DESC OFFSET %(jobs)s LIMIT 1;

-- name: keys
SELECT key, job, expires_at FROM errandry.keys WHERE key = ANY (%s::text[]);

-- name: free_keys
-- As far as these jobs hold them still, now that they are locked.
DELETE FROM errandry.keys
 WHERE key = ANY (ARRAY (
       SELECT freed.key
         FROM (SELECT * FROM unnest(%s::text[], %s::text[]) AS freed (key, job) ORDER BY key) AS freed
        CROSS JOIN LATERAL (SELECT job FROM errandry.keys WHERE keys.key = freed.key FOR UPDATE) AS held
        WHERE held.job = freed.job));

-- name: take_free_keys
-- Those that nobody was seen to hold. Who has taken one meanwhile is in the way: the pass begins anew.
INSERT INTO errandry.keys (key, job, expires_at)
SELECT key, job, expires_at FROM unnest(%s::text[], %s::text[], %s::float8[]) AS new (key, job, expires_at) ORDER BY key;

-- name: take_keys
-- Those that are free, whose time is over, or that are still held by who was seen to hold them. Of what another
-- transaction is about to take, its end is waited for.
WITH new AS MATERIALIZED (
    SELECT * FROM unnest(%s::text[], %s::text[], %s::float8[], %s::text[]) AS new (key, job, expires_at, rival)
), got AS (
    INSERT INTO errandry.keys (key, job, expires_at)
    SELECT key, job, expires_at FROM new ORDER BY key
        ON CONFLICT (key) DO UPDATE SET job = excluded.job, expires_at = excluded.expires_at
         WHERE keys.expires_at <= %s::float8 OR keys.job = (SELECT rival FROM new WHERE new.key = excluded.key)
    RETURNING 1
)
SELECT count(*) FROM got;

-- name: drop_keys
-- As an array they are looked for once: what is looked for again for each row has no limit.
DELETE FROM errandry.keys
 WHERE key = ANY (ARRAY (SELECT key FROM errandry.keys WHERE expires_at <= %s
                          ORDER BY expires_at LIMIT %s FOR UPDATE SKIP LOCKED))
RETURNING 1;

-- name: share_lanes
-- The lanes of these jobs that have their mark, held: nobody takes it from them before this pass is over.
SELECT held.lane, wanted.queue, wanted.task, wanted.grp
  FROM (SELECT * FROM unnest(%s::text[], %s::text[], %s::text[]) AS wanted (queue, task, grp)
         ORDER BY queue, task, grp) AS wanted
 CROSS JOIN LATERAL (SELECT lane, ready FROM errandry.lanes
                      WHERE lanes.queue = wanted.queue AND lanes.grp = wanted.grp AND lanes.task = wanted.task
                        FOR KEY SHARE) AS held
 WHERE held.ready;

-- name: mark_lanes
-- The same for those that were without it, or not there.
INSERT INTO errandry.lanes (queue, task, grp, ready, used_at, turn)
SELECT queue, task, grp, true, %s::float8,
       coalesce((SELECT max(turn) FROM errandry.lanes AS own WHERE own.queue = wanted.queue AND own.grp = wanted.grp), 0)
  FROM unnest(%s::text[], %s::text[], %s::text[]) AS wanted (queue, task, grp)
 ORDER BY queue, task, grp
    ON CONFLICT (queue, grp, task) DO UPDATE SET ready = true, used_at = excluded.used_at
RETURNING lane, queue, task, grp;

-- name: unlined
SELECT * FROM errandry.live WHERE state = 'waiting' AND lane IS NULL
 ORDER BY seq LIMIT %s FOR NO KEY UPDATE SKIP LOCKED;

-- name: line_up
UPDATE errandry.live SET lane = new.lane
  FROM (SELECT spot.ctid AS spot, given.*
          FROM unnest(%s::bigint[], %s::bigint[])
            AS given (seq, lane),
               LATERAL (SELECT ctid FROM errandry.live WHERE live.seq = given.seq OFFSET 0) AS spot
         WHERE given.seq %% 1 = 0 AND -given.seq %% 1 = 0) AS new
 WHERE live.ctid = new.spot;

-- name: open_lanes
-- Lanes with waiting jobs, of these queues and tasks (NULL: all) and not of those, while none has a group. The most
-- urgent first; where these are taken, more lanes than jobs are wanted are of no use. Of those that are parted only the
-- parts are looked at, in their order.
SELECT lanes.lane, lanes.queue, lanes.task, lanes.grp, first.priority, first.place
  FROM errandry.lanes
 CROSS JOIN LATERAL (
    SELECT spot.priority, spot.place
      FROM (SELECT * FROM unnest(
                %(lanes)s::bigint[], %(priorities)s::bigint[], %(places)s::bigint[], %(below)s::bigint[])
                AS given (lane, priority, place, below)
             WHERE given.lane = lanes.lane
             UNION ALL
            SELECT lanes.lane, -(1::bigint << 62), 0, 1::bigint << 62 WHERE lanes.lane <> ALL (%(parted)s::bigint[])) AS part
     CROSS JOIN LATERAL (SELECT priority, place FROM errandry.live
                          WHERE live.lane = part.lane AND live.state = 'waiting'
                            AND (%(suspects)s::boolean OR live.crashes = 0)
                            AND (live.priority, live.place) > (part.priority, part.place) AND live.priority < part.below
                          ORDER BY live.priority, live.place LIMIT 1) AS spot
     LIMIT 1) AS first
 WHERE lanes.ready
   AND (%(queues)s::text[] IS NULL OR lanes.queue = ANY (%(queues)s::text[]))
   AND (%(tasks)s::text[] IS NULL OR lanes.task = ANY (%(tasks)s::text[]))
   AND lanes.task <> ALL (%(without)s::text[])
   AND lanes.queue <> ALL (%(closed)s::text[])
 ORDER BY first.priority, first.place
 LIMIT %(limit)s::bigint;

-- name: fronts
-- The lanes where somebody stands in front of these parts, in the same priority: who came last and is served first.
SELECT DISTINCT part.lane
  FROM unnest(%(lanes)s::bigint[], %(priorities)s::bigint[]) AS part (lane, priority)
 CROSS JOIN LATERAL (SELECT 1 FROM errandry.live
                      WHERE live.lane = part.lane AND state = 'waiting' AND live.priority = part.priority
                        AND live.place < 0 LIMIT 1) AS first;

-- name: turns
-- The same where some have groups: of each queue and task the first lanes by their turn, and how far the queue is. From
-- one queue and task to the next in the index: its lanes between them are not read.
WITH RECURSIVE pair AS (
    (SELECT queue, task FROM errandry.lanes WHERE ready ORDER BY queue, task LIMIT 1)
    UNION ALL
    SELECT next.queue, next.task
      FROM pair
     CROSS JOIN LATERAL (SELECT lanes.queue, lanes.task FROM errandry.lanes
                          WHERE ready AND (lanes.queue, lanes.task) > (pair.queue, pair.task)
                          ORDER BY lanes.queue, lanes.task LIMIT 1) AS next)
SELECT open.lane, pair.queue, pair.task, open.grp, open.turn,
       coalesce((SELECT turn FROM errandry.rounds WHERE rounds.queue = pair.queue), 0), open.opened, open.priority, open.place
  FROM pair
 CROSS JOIN LATERAL (
    SELECT lanes.lane, lanes.grp, lanes.turn, lanes.opened, first.priority, first.place
      FROM errandry.lanes
     CROSS JOIN LATERAL (SELECT priority, place FROM errandry.live
                          WHERE live.lane = lanes.lane AND live.state = 'waiting'
                            AND (%(suspects)s::boolean OR live.crashes = 0)
                          ORDER BY live.priority, live.place LIMIT 1) AS first
     WHERE lanes.ready AND lanes.queue = pair.queue AND lanes.task = pair.task AND lanes.open_at = 0
     ORDER BY lanes.turn, lanes.grp LIMIT %(width)s) AS open
 WHERE (%(queues)s::text[] IS NULL OR pair.queue = ANY (%(queues)s::text[]))
   AND (%(tasks)s::text[] IS NULL OR pair.task = ANY (%(tasks)s::text[]))
   AND pair.task <> ALL (%(without)s::text[])
   AND pair.queue <> ALL (%(closed)s::text[]);

-- name: catch_up
-- Nobody is before the round: who was idle or laid aside is not owed what others had meanwhile.
UPDATE errandry.lanes SET turn = (SELECT turn FROM errandry.rounds WHERE rounds.queue = lanes.queue)
 WHERE lane = ANY (ARRAY (
       SELECT late.lane
         FROM unnest(%s::text[]) AS served (queue)
        CROSS JOIN LATERAL (SELECT lane FROM errandry.lanes
                             WHERE lanes.queue = served.queue AND ready AND open_at = 0
                               AND turn < (SELECT turn FROM errandry.rounds WHERE rounds.queue = served.queue)
                               FOR NO KEY UPDATE SKIP LOCKED) AS late))
RETURNING lane;

-- name: spots
-- Where the first jobs of these lanes stand.
SELECT spot.priority, spot.place, spot.seq, open.lane
  FROM unnest(%s::bigint[]) AS open (lane)
 CROSS JOIN LATERAL (SELECT priority, place, seq FROM errandry.live
                      WHERE live.lane = open.lane AND state = 'waiting' AND (%s::boolean OR crashes = 0)
                      ORDER BY priority, place LIMIT %s) AS spot
 ORDER BY spot.priority, spot.place;

-- name: elders
-- Of each of these lanes, each priority in it and both orders, who came first in line, and since when it could have run.
-- From one priority to the next in the index.
WITH RECURSIVE kind AS (
    SELECT lane, (SELECT priority FROM errandry.live WHERE live.lane = wanted.lane AND state = 'waiting'
                   ORDER BY priority LIMIT 1) AS priority
      FROM unnest(%(lanes)s::bigint[]) AS wanted (lane)
    UNION ALL
    SELECT lane, (SELECT live.priority FROM errandry.live
                   WHERE live.lane = kind.lane AND state = 'waiting' AND live.priority > kind.priority
                   ORDER BY live.priority LIMIT 1)
      FROM kind WHERE priority IS NOT NULL)
SELECT elder.priority, elder.place, elder.seq, kind.lane, elder.since
  FROM kind
 CROSS JOIN LATERAL (
    (SELECT priority, place, seq, greatest(created_at, coalesce(run_at, 0)) AS since FROM errandry.live
      WHERE live.lane = kind.lane AND state = 'waiting' AND live.priority = kind.priority AND place > 0
        AND (%(suspects)s::boolean OR crashes = 0)
      ORDER BY live.priority, place LIMIT %(each)s)
    UNION ALL
    (SELECT priority, place, seq, greatest(created_at, coalesce(run_at, 0)) FROM errandry.live
      WHERE live.lane = kind.lane AND state = 'waiting' AND live.priority = kind.priority AND place < 0
        AND (%(suspects)s::boolean OR crashes = 0)
      ORDER BY live.priority DESC, place DESC LIMIT %(each)s)) AS elder
 WHERE kind.priority IS NOT NULL;

-- name: numbered
-- The state is looked at only in rows that are found by their number, not by an index of all that wait.
SELECT * FROM errandry.live WHERE seq = ANY (%s::bigint[]) AND state || '' = 'waiting' ORDER BY seq
   FOR NO KEY UPDATE SKIP LOCKED;

-- name: lanes_of
SELECT lane FROM errandry.lanes
 WHERE queue = %(queue)s AND (%(group)s::text IS NULL OR grp = %(group)s::text) AND ready;

-- name: lock_sizes
-- Who inserts into a queue that may be full does so after the other; claims do not mind.
SELECT count(pg_advisory_xact_lock(hashtextextended(queue, 'errandry.live'::regclass::oid::bigint)))
  FROM (SELECT queue FROM unnest(%s::text[]) AS queue ORDER BY queue) AS bounded;

-- name: group_size
SELECT (SELECT coalesce(sum(line.jobs), 0)::bigint
          FROM errandry.lanes
         CROSS JOIN LATERAL (SELECT count(*) AS jobs FROM errandry.live
                              WHERE live.lane = lanes.lane AND state = 'waiting') AS line
         WHERE lanes.queue = %(queue)s AND lanes.grp = %(group)s)
       + (SELECT count(*) FROM errandry.live
           WHERE state = 'waiting' AND lane IS NULL AND live.queue = %(queue)s AND live.grp = %(group)s);

-- name: shares
-- So many jobs of each of these lanes, in order; what another pass is about to move is left to it.
SELECT share.lane, job.*
  FROM unnest(%s::bigint[], %s::bigint[]) AS share (lane, jobs)
 CROSS JOIN LATERAL (SELECT * FROM errandry.live
                      WHERE live.lane = share.lane AND state = 'waiting' AND (%s::boolean OR crashes = 0)
                      ORDER BY priority, place LIMIT share.jobs
                        FOR NO KEY UPDATE SKIP LOCKED) AS job
 ORDER BY job.priority, job.place;

-- name: put_turns
-- Of lanes that nobody else moves: a turn more or less is nothing to wait for.
UPDATE errandry.lanes SET turn = new.turn
  FROM (SELECT held.ctid AS spot, served.turn
          FROM unnest(%s::text[], %s::float8[]) AS served (grp, turn)
         CROSS JOIN LATERAL (SELECT ctid FROM errandry.lanes WHERE lanes.queue = %s AND lanes.grp = served.grp
                                FOR NO KEY UPDATE SKIP LOCKED) AS held
         WHERE length(served.grp) %% 1 = 0 AND -length(served.grp) %% 1 = 0) AS new
 WHERE lanes.ctid = new.spot;

-- name: put_round
WITH moved AS (
    UPDATE errandry.rounds SET turn = %(turn)s, last = greatest(last, %(last)s)
     WHERE queue = ANY (ARRAY (SELECT queue FROM errandry.rounds WHERE queue = %(queue)s FOR NO KEY UPDATE SKIP LOCKED)))
INSERT INTO errandry.rounds (queue, turn, last) VALUES (%(queue)s, %(turn)s, %(last)s) ON CONFLICT (queue) DO NOTHING;

-- name: end_round
UPDATE errandry.rounds SET turn = last WHERE queue = %s;

-- name: end_rounds
-- Of queues where nothing waits.
UPDATE errandry.rounds SET turn = last
 WHERE turn < last
   AND NOT EXISTS (SELECT 1 FROM errandry.lanes
                    WHERE lanes.queue = rounds.queue AND ready
                      AND EXISTS (SELECT 1 FROM errandry.live
                                   WHERE live.lane = lanes.lane AND state = 'waiting' OFFSET 0) OFFSET 0);

-- name: drop_rounds
-- Of queues that no longer have lanes: their groups begin anew.
DELETE FROM errandry.rounds
 WHERE NOT EXISTS (SELECT 1 FROM errandry.lanes WHERE lanes.queue = rounds.queue OFFSET 0);

-- name: park
-- Unless somebody has opened it since it was looked at, or is about to.
UPDATE errandry.lanes SET open_at = new.open_at, used_at = %(now)s
  FROM (SELECT held.ctid AS spot, given.open_at
          FROM unnest(%(lanes)s::bigint[], %(opened)s::bigint[], %(until)s::float8[]) AS given (lane, opened, open_at)
         CROSS JOIN LATERAL (SELECT ctid, opened FROM errandry.lanes WHERE lanes.lane = given.lane
                                FOR NO KEY UPDATE SKIP LOCKED) AS held
         WHERE held.opened = given.opened AND given.lane %% 1 = 0 AND -given.lane %% 1 = 0) AS new
 WHERE lanes.ctid = new.spot
RETURNING lanes.lane;

-- name: open_groups
-- Counted, so that who has found the group full before this pass does not lay it aside after it.
UPDATE errandry.lanes SET open_at = 0, opened = opened + 1
 WHERE lane = ANY (ARRAY (
       SELECT lane FROM errandry.lanes
        WHERE lane = ANY (ARRAY (
              SELECT own.lane
                FROM unnest(%s::text[], %s::text[]) AS left_ (queue, grp)
               CROSS JOIN LATERAL (SELECT lane FROM errandry.lanes
                                    WHERE lanes.queue = left_.queue AND lanes.grp = left_.grp OFFSET 0) AS own))
        ORDER BY lane FOR NO KEY UPDATE));

-- name: open_queue
UPDATE errandry.lanes SET open_at = 0, opened = opened + 1 WHERE queue = %s AND open_at > 0;

-- name: open_due
UPDATE errandry.lanes SET open_at = 0
 WHERE lane = ANY (ARRAY (SELECT lane FROM errandry.lanes WHERE ready AND open_at > 0 AND open_at <= %s
                             FOR NO KEY UPDATE SKIP LOCKED));

-- name: mend_parked
-- What was laid aside long ago is looked at again, whatever should have opened it.
UPDATE errandry.lanes SET open_at = 0, used_at = %s
 WHERE lane = ANY (ARRAY (SELECT lane FROM errandry.lanes WHERE ready AND open_at > 0 AND used_at <= %s
                           LIMIT %s FOR NO KEY UPDATE SKIP LOCKED));

-- name: waiting_pairs
-- Queues and tasks with waiting jobs in lanes that are not laid aside.
WITH RECURSIVE pair AS (
    (SELECT queue, task FROM errandry.lanes WHERE ready ORDER BY queue, task LIMIT 1)
    UNION ALL
    SELECT next.queue, next.task
      FROM pair
     CROSS JOIN LATERAL (SELECT lanes.queue, lanes.task FROM errandry.lanes
                          WHERE ready AND (lanes.queue, lanes.task) > (pair.queue, pair.task)
                          ORDER BY lanes.queue, lanes.task LIMIT 1) AS next)
SELECT queue, task
  FROM pair
 WHERE EXISTS (SELECT 1 FROM errandry.lanes
                WHERE lanes.ready AND lanes.queue = pair.queue AND lanes.task = pair.task AND lanes.open_at = 0
                  AND EXISTS (SELECT 1 FROM errandry.live
                               WHERE live.lane = lanes.lane AND state = 'waiting' OFFSET 0) OFFSET 0);

-- name: line
-- The waiting jobs of a lane in order, as far as they stand in one of these parts of it, with suspects or without; what
-- another pass is about to move is left to it.
SELECT job.*
  FROM unnest(%(lanes)s::bigint[], %(priorities)s::bigint[], %(places)s::bigint[], %(below)s::bigint[])
    AS part (lane, priority, place, below)
 CROSS JOIN LATERAL (SELECT * FROM errandry.live
                      WHERE live.lane = part.lane AND state = 'waiting' AND (%(suspects)s::boolean OR crashes = 0)
                        AND (live.priority, live.place) > (part.priority, part.place) AND live.priority < part.below
                      ORDER BY priority, place LIMIT %(limit)s
                        FOR NO KEY UPDATE SKIP LOCKED) AS job
 LIMIT %(limit)s;

-- name: lines
-- The first jobs of several lanes taken together. How many each part of a lane gives is counted first, so that no more
-- are locked than taken.
WITH best AS (
    SELECT part.*
      FROM unnest(%(lanes)s::bigint[], %(priorities)s::bigint[], %(places)s::bigint[], %(below)s::bigint[])
        AS part (lane, priority, place, below)
     CROSS JOIN LATERAL (SELECT live.priority, live.place FROM errandry.live
                          WHERE live.lane = part.lane AND state = 'waiting'
                            AND (%(suspects)s::boolean OR crashes = 0)
                            AND (live.priority, live.place) > (part.priority, part.place) AND live.priority < part.below
                          ORDER BY priority, place LIMIT %(limit)s) AS spot
     ORDER BY spot.priority, spot.place LIMIT %(limit)s),
shares AS (SELECT best.*, count(*) AS jobs FROM best GROUP BY lane, priority, place, below)
SELECT job.*
  FROM shares
 CROSS JOIN LATERAL (SELECT * FROM errandry.live
                      WHERE live.lane = shares.lane AND state = 'waiting'
                        AND (%(suspects)s::boolean OR crashes = 0)
                        AND (live.priority, live.place) > (shares.priority, shares.place) AND live.priority < shares.below
                      ORDER BY priority, place LIMIT shares.jobs
                        FOR NO KEY UPDATE SKIP LOCKED) AS job
 ORDER BY job.priority, job.place;

-- name: backlog
-- How many wait in a queue, counted up to a bound and from the end of each line: at its head are those that have just been
-- claimed.
SELECT count(*)
  FROM (SELECT 1
          FROM errandry.lanes
         CROSS JOIN LATERAL (
            SELECT * FROM unnest(
                %(lanes)s::bigint[], %(priorities)s::bigint[], %(places)s::bigint[], %(below)s::bigint[])
                AS given (lane, priority, place, below)
             WHERE given.lane = lanes.lane
             UNION ALL
            SELECT lanes.lane, -(1::bigint << 62), 0, 1::bigint << 62 WHERE lanes.lane <> ALL (%(parted)s::bigint[])) AS part
         CROSS JOIN LATERAL (SELECT 1 FROM errandry.live
                              WHERE live.lane = part.lane AND state = 'waiting'
                                AND (live.priority, live.place) > (part.priority, part.place) AND live.priority < part.below
                              ORDER BY priority DESC, place DESC LIMIT %(bound)s::bigint) AS one
         WHERE lanes.queue = %(queue)s AND lanes.ready
         LIMIT %(bound)s::bigint) AS counted;

-- name: entries
-- How many entries of the indexes that claims read were read so far; more than once in a pass.
SELECT %s::bigint, pg_stat_get_xact_tuples_returned('errandry.live_ready'::regclass)
       + pg_stat_get_xact_tuples_returned('errandry.live_leased'::regclass)
       + pg_stat_get_xact_tuples_returned('errandry.live_due'::regclass)
       + pg_stat_get_xact_tuples_returned('errandry.live_deadline'::regclass);

-- name: marks
-- The first of an index, not the least of a column: that might be looked for in all rows. Leases and deadlines matter
-- only when they are over.
SELECT (SELECT run_at FROM errandry.live WHERE state = 'scheduled' AND run_at >= %(run_at)s::float8 ORDER BY run_at LIMIT 1),
       (SELECT lease_until FROM errandry.live
         WHERE state IN ('claimed', 'running') AND lease_until >= %(lease_until)s::float8 AND lease_until <= %(until)s::float8
         ORDER BY lease_until LIMIT 1),
       (SELECT deadline FROM errandry.live
         WHERE deadline IS NOT NULL AND state IN ('blocked', 'scheduled', 'waiting')
           AND deadline >= %(deadline)s::float8 AND deadline <= %(until)s::float8
         ORDER BY deadline LIMIT 1),
       (SELECT open_at FROM errandry.lanes
         WHERE ready AND open_at > 0 AND open_at < 1e18
           AND EXISTS (SELECT 1 FROM errandry.live WHERE live.lane = lanes.lane AND state = 'waiting' OFFSET 0)
         ORDER BY open_at LIMIT 1),
       (SELECT due_at FROM errandry.schedules WHERE due_at IS NOT NULL ORDER BY due_at LIMIT 1);

-- name: due
SELECT * FROM errandry.live WHERE state = 'scheduled' AND run_at >= %s::float8 AND run_at <= %s
 ORDER BY run_at, seq LIMIT %s FOR NO KEY UPDATE SKIP LOCKED;

-- name: expired
SELECT * FROM errandry.live
 WHERE state IN ('claimed', 'running') AND lease_until >= %s::float8 AND lease_until <= %s
 ORDER BY lease_until, seq LIMIT %s FOR NO KEY UPDATE SKIP LOCKED;

-- name: held
SELECT * FROM errandry.live WHERE state IN ('claimed', 'running') AND lease_until <= %s
 ORDER BY lease_until, seq LIMIT %s;

-- name: lapsed
SELECT * FROM errandry.live
 WHERE deadline IS NOT NULL AND state IN ('blocked', 'scheduled', 'waiting')
   AND deadline >= %s::float8 AND deadline <= %s
 ORDER BY deadline, seq LIMIT %s FOR NO KEY UPDATE SKIP LOCKED;

-- name: outlived
SELECT * FROM errandry.history WHERE expires_at <= %s ORDER BY expires_at, seq LIMIT %s FOR NO KEY UPDATE SKIP LOCKED;

-- name: seen_outlived
-- The same for who only looks.
SELECT * FROM errandry.history WHERE expires_at <= %s ORDER BY expires_at, seq LIMIT %s;

-- name: shelves
-- Tasks and states with finished jobs that are kept by number, from one to the next in the index; what the newest says.
WITH RECURSIVE shelf AS (
    (SELECT task, state FROM errandry.history WHERE strpos(keep, '"last_') > 0 ORDER BY task, state LIMIT 1)
    UNION ALL
    SELECT next.task, next.state
      FROM shelf, LATERAL (SELECT history.task, history.state FROM errandry.history
                            WHERE strpos(history.keep, '"last_') > 0
                              AND (history.task, history.state) > (shelf.task, shelf.state)
                            ORDER BY history.task, history.state LIMIT 1) AS next)
SELECT shelf.task, shelf.state, newest.keep
  FROM shelf, LATERAL (SELECT history.keep FROM errandry.history
                        WHERE strpos(history.keep, '"last_') > 0
                          AND history.task = shelf.task AND history.state = shelf.state
                        ORDER BY history.finished_at DESC, history.seq DESC LIMIT 1) AS newest
 ORDER BY shelf.task, shelf.state;

-- name: surplus
-- What is older than the oldest that stays.
SELECT * FROM errandry.history
 WHERE strpos(keep, '"last_') > 0 AND task = %(task)s AND state = %(state)s
   AND (finished_at, seq) < (SELECT kept.finished_at, kept.seq FROM errandry.history AS kept
                              WHERE strpos(kept.keep, '"last_') > 0 AND kept.task = %(task)s AND kept.state = %(state)s
                              ORDER BY kept.finished_at DESC, kept.seq DESC OFFSET %(last)s LIMIT 1)
 ORDER BY finished_at, seq LIMIT %(limit)s FOR NO KEY UPDATE SKIP LOCKED;

-- name: seen_surplus
SELECT * FROM errandry.history
 WHERE strpos(keep, '"last_') > 0 AND task = %(task)s AND state = %(state)s
   AND (finished_at, seq) < (SELECT kept.finished_at, kept.seq FROM errandry.history AS kept
                              WHERE strpos(kept.keep, '"last_') > 0 AND kept.task = %(task)s AND kept.state = %(state)s
                              ORDER BY kept.finished_at DESC, kept.seq DESC OFFSET %(last)s LIMIT 1)
 ORDER BY finished_at, seq LIMIT %(limit)s;

-- name: days
-- The days finished jobs have partitions for.
SELECT substring(pg_get_expr(relpartbound, pg_class.oid) FROM '\d+')::bigint, relname::text, inhdetachpending
  FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid
 WHERE inhparent = 'errandry.history'::regclass
 ORDER BY relname;

-- name: make_day
SELECT errandry.make_day(%s::integer);

-- name: day_has_jobs
SELECT 1 FROM errandry.history WHERE day = %s::integer LIMIT 1;

-- name: left_days
-- Partitions no more, but not dropped yet.
SELECT relname::text FROM pg_class
 WHERE relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = 'errandry.history'::regclass)
   AND relkind = 'r' AND NOT relispartition AND relname ~ '^history_\d{8}$'
 ORDER BY relname;

-- name: may_remove_days
SELECT pg_has_role(relowner, 'USAGE'), pg_backend_pid() FROM pg_class WHERE oid = 'errandry.history'::regclass;

-- name: hold_days
SELECT pg_try_advisory_lock(hashtextextended('days', 'errandry.history'::regclass::oid::bigint));

-- name: release_days
SELECT pg_advisory_unlock(hashtextextended('days', 'errandry.history'::regclass::oid::bigint));

-- name: wait_little
SELECT set_config('lock_timeout', %s, true);

-- name: wait_little_always
SELECT set_config('lock_timeout', %s, false);

-- name: wait_as_before
SELECT set_config('lock_timeout', reset_val, false) FROM pg_settings WHERE name = 'lock_timeout';

-- name: detach_day
-- It waits until nobody reads there any more, and nobody waits for it.
ALTER TABLE errandry.history DETACH PARTITION errandry.history_day CONCURRENTLY;

-- name: finish_detaching
ALTER TABLE errandry.history DETACH PARTITION errandry.history_day FINALIZE;

-- name: left_day_has_jobs
SELECT 1 FROM errandry.history_day LIMIT 1;

-- name: drop_day
DROP TABLE errandry.history_day;

-- name: held_by
SELECT * FROM errandry.live
 WHERE state IN ('claimed', 'running') AND worker = ANY (%s::text[])
 ORDER BY lease_until, seq LIMIT %s FOR NO KEY UPDATE SKIP LOCKED;

-- name: cancels
SELECT id, fence FROM errandry.live
 WHERE cancel_requested AND worker = %s AND state = 'running' ORDER BY seq;

-- name: clear_edges
DELETE FROM errandry.edges WHERE parent = ANY (%s::text[]);

-- name: clear_closing
DELETE FROM errandry.closing WHERE parent = ANY (%s::text[]);

-- name: tie
INSERT INTO errandry.edges (parent, n, child, task, seq, policy, outcome, result, feeds)
SELECT * FROM unnest(
    %s::text[], %s::bigint[], %s::text[], %s::text[], %s::bigint[], %s::text[], %s::text[], %s::text[], %s::text[]);

-- name: mark
-- Whoever writes how a child ended has its parent locked.
UPDATE errandry.edges SET outcome = new.outcome, result = new.result
  FROM (SELECT spot.ctid AS spot, given.*
          FROM unnest(%s::text[], %s::bigint[], %s::text[], %s::text[]) AS given (parent, n, outcome, result),
               LATERAL (SELECT ctid FROM errandry.edges
                         WHERE edges.parent = given.parent AND edges.n = given.n OFFSET 0) AS spot
         WHERE given.n %% 1 = 0 AND -given.n %% 1 = 0) AS new
 WHERE edges.ctid = new.spot;

-- name: over
SELECT parent, n, child, task, seq, policy, outcome, result, feeds FROM errandry.edges
 WHERE seq = ANY (%s::bigint[]);

-- name: under
SELECT parent, n, child, task, seq, policy, outcome, result, feeds FROM errandry.edges WHERE parent = %s ORDER BY n;

-- name: late
-- Edges whose children are told of them now.
WITH late AS (
    DELETE FROM errandry.late
     WHERE ctid = ANY (ARRAY (SELECT ctid FROM errandry.late ORDER BY parent, n LIMIT %s FOR UPDATE SKIP LOCKED))
    RETURNING parent, n)
SELECT edge.*
  FROM late
 CROSS JOIN LATERAL (SELECT parent, n, child, task, seq, policy, outcome, result, feeds FROM errandry.edges
                      WHERE edges.parent = late.parent AND edges.n = late.n OFFSET 0) AS edge
 ORDER BY edge.parent, edge.n;

-- name: open_links
SELECT count(*) FROM errandry.edges WHERE parent = %s AND outcome IS NULL;

-- name: again
SELECT parent, n, child, task, seq, policy, outcome, result, feeds
  FROM (SELECT * FROM errandry.edges WHERE parent = %s AND outcome IS NOT NULL ORDER BY n) AS ended
 WHERE EXISTS (SELECT 1 FROM errandry.live WHERE live.seq = ended.seq OFFSET 0)
 ORDER BY n;

-- name: fatal
SELECT parent, n, child, task, seq, policy, outcome, result, feeds FROM errandry.edges
 WHERE parent = %s AND outcome <> 'completed' AND policy IN ('fail', 'remove') ORDER BY n LIMIT 1;

-- name: unended
-- Children in one of these states that nobody has asked to stop and that no other parent waits for; what another pass has
-- is left to it.
SELECT live.* FROM errandry.edges JOIN errandry.live ON live.seq = edges.seq
 WHERE edges.parent = %s AND edges.outcome IS NULL AND edges.policy <> 'after'
   AND live.state = ANY (%s::text[]) AND NOT live.cancel_requested
   AND (live.parents = 1 OR NOT EXISTS (
        SELECT 1 FROM errandry.edges AS other
         WHERE other.seq = edges.seq AND other.parent <> edges.parent
           AND EXISTS (SELECT 1 FROM errandry.live AS parent WHERE parent.id = other.parent OFFSET 0) OFFSET 0))
 ORDER BY edges.n LIMIT %s
   FOR NO KEY UPDATE OF live SKIP LOCKED;

-- name: has_unended
SELECT 1
  FROM (SELECT * FROM errandry.edges WHERE parent = %s AND outcome IS NULL AND policy <> 'after' ORDER BY n) AS edges
 CROSS JOIN LATERAL (SELECT state, parents, cancel_requested FROM errandry.live WHERE live.seq = edges.seq OFFSET 0) AS job
 WHERE job.state = ANY (%s::text[]) AND NOT job.cancel_requested
   AND (job.parents = 1 OR NOT EXISTS (
        SELECT 1 FROM errandry.edges AS other
         WHERE other.seq = edges.seq AND other.parent <> edges.parent
           AND EXISTS (SELECT 1 FROM errandry.live AS parent WHERE parent.id = other.parent OFFSET 0) OFFSET 0))
 LIMIT 1;

-- name: close_flow
INSERT INTO errandry.closing (parent, cancel, expires_at) VALUES (%s, %s, %s)
    ON CONFLICT (parent) DO UPDATE SET cancel = excluded.cancel, expires_at = excluded.expires_at;

-- name: canceled_flow
UPDATE errandry.closing SET cancel = NULL WHERE parent = %s;

-- name: forget_flow
DELETE FROM errandry.closing WHERE parent = %s;

-- name: canceling
SELECT parent, cancel FROM errandry.closing WHERE cancel IS NOT NULL
 ORDER BY parent LIMIT %s FOR NO KEY UPDATE SKIP LOCKED;

-- name: outlived_flows
SELECT parent FROM errandry.closing WHERE cancel IS NULL AND expires_at <= %s
 ORDER BY expires_at, parent LIMIT %s FOR NO KEY UPDATE SKIP LOCKED;

-- name: untie
DELETE FROM errandry.edges
 WHERE parent = %(parent)s AND n = ANY (ARRAY (
       SELECT n FROM errandry.edges WHERE parent = %(parent)s ORDER BY n LIMIT %(limit)s))
RETURNING n;

-- name: remember
WITH before AS (DELETE FROM errandry.claims WHERE worker = %(worker)s AND n = %(last)s)
INSERT INTO errandry.claims (worker, n, claimed_at, refs) VALUES (%(worker)s, %(last)s + 1, %(now)s, %(refs)s)
    ON CONFLICT (worker, n) DO UPDATE SET claimed_at = excluded.claimed_at, refs = excluded.refs;

-- name: recall
SELECT n, refs FROM errandry.claims WHERE worker = %s ORDER BY n DESC LIMIT 1;

-- name: make_gate
-- A gate as it is, or as one that says nothing; nobody else changes it before this pass is over.
INSERT INTO errandry.gates (kind, name, grp) VALUES (%s, %s, %s)
    ON CONFLICT (kind, name, grp) DO UPDATE SET tat = gates.tat
RETURNING *;

-- name: lock_gates
SELECT held.*
  FROM (SELECT * FROM unnest(%s::text[], %s::text[], %s::text[]) AS wanted (kind, name, grp)
         ORDER BY kind, name, grp) AS wanted
 CROSS JOIN LATERAL (SELECT * FROM errandry.gates
                      WHERE gates.kind = wanted.kind AND gates.name = wanted.name AND gates.grp = wanted.grp
                        FOR NO KEY UPDATE) AS held;

-- name: lock_groups
-- The last column says whether nobody else counts it just now.
SELECT (coalesce(mine.gate, seen.gate)).*, mine.gate IS DISTINCT FROM NULL
  FROM unnest(%(queues)s::text[], %(groups)s::text[]) AS wanted (name, grp)
 CROSS JOIN LATERAL (SELECT gates AS gate FROM errandry.gates
                      WHERE kind = 'group' AND gates.name = wanted.name AND gates.grp = wanted.grp OFFSET 0) AS seen
  LEFT JOIN LATERAL (SELECT gates AS gate FROM errandry.gates
                      WHERE kind = 'group' AND gates.name = wanted.name AND gates.grp = wanted.grp
                        FOR NO KEY UPDATE SKIP LOCKED) AS mine ON true;

-- name: shut
INSERT INTO errandry.gates (kind, name, grp, closed_until)
SELECT * FROM unnest(%s::text[], %s::text[], %s::text[], %s::float8[]) AS new (kind, name, grp, at) ORDER BY 1, 2, 3
    ON CONFLICT (kind, name, grp) DO UPDATE
   SET closed_until = CASE excluded.closed_until WHEN 0 THEN 0 ELSE greatest(gates.closed_until, excluded.closed_until) END;

-- name: spend
INSERT INTO errandry.gates (kind, name, grp, tat)
SELECT * FROM unnest(%s::text[], %s::text[], %s::text[], %s::float8[]) AS new (kind, name, grp, tat) ORDER BY 1, 2, 3
    ON CONFLICT (kind, name, grp) DO UPDATE SET tat = excluded.tat;

-- name: put_gates
INSERT INTO errandry.gates
SELECT * FROM unnest(%s::text[], %s::text[], %s::text[], %s::float8[], %s::text[], %s::text[], %s::float8[], %s::text[],
                     %s::float8[], %s::float8[])
    AS new (kind, name, grp, paused_at, paused_by, rule, ruled_at, ruled_by, tat, closed_until)
 ORDER BY kind, name, grp
    ON CONFLICT (kind, name, grp) DO UPDATE
   SET paused_at = excluded.paused_at, paused_by = excluded.paused_by, rule = excluded.rule,
       ruled_at = excluded.ruled_at, ruled_by = excluded.ruled_by, tat = excluded.tat,
       closed_until = excluded.closed_until;

-- name: drop_gate
DELETE FROM errandry.gates
 WHERE ctid = ANY (ARRAY (
       SELECT spot.ctid
         FROM unnest(%s::text[], %s::text[], %s::text[]) AS gone (kind, name, grp)
        CROSS JOIN LATERAL (SELECT ctid FROM errandry.gates
                             WHERE gates.kind = gone.kind AND gates.name = gone.name AND gates.grp = gone.grp
                            OFFSET 0) AS spot));

-- name: gate
SELECT * FROM errandry.gates WHERE kind = %s AND name = %s AND grp = %s;

-- name: crowds
-- Groups with waiting jobs, and how many; of each lane no more are counted than the bound.
SELECT queue, grp, sum(counted.waiting)::bigint
  FROM errandry.lanes,
       LATERAL (SELECT count(*) AS waiting
                  FROM (SELECT 1 FROM errandry.live
                         WHERE live.lane = lanes.lane AND state = 'waiting' LIMIT %(bound)s) AS one) AS counted
 WHERE ready AND grp <> '' AND (%(queue)s::text IS NULL OR queue = %(queue)s) AND counted.waiting > 0
 GROUP BY queue, grp ORDER BY queue, grp LIMIT %(limit)s;

-- name: holding
-- Only as many rows are read as workers have jobs.
SELECT queue, task, grp, count(*) FROM errandry.live WHERE state IN ('claimed', 'running') GROUP BY queue, task, grp;

-- name: gates
SELECT * FROM errandry.gates WHERE kind = ANY (%s::text[]) ORDER BY name, grp;

-- name: drop_gates
-- Those that say nothing any more.
DELETE FROM errandry.gates
 WHERE ctid = ANY (ARRAY (SELECT ctid FROM errandry.gates
                           WHERE paused_at IS NULL AND rule IS NULL
                             AND tat <= %s AND closed_until <= %s LIMIT %s FOR UPDATE SKIP LOCKED));

-- name: beat
INSERT INTO errandry.workers (worker, seen_at, beat) VALUES (%s, %s, %s)
    ON CONFLICT (worker) DO UPDATE SET seen_at = excluded.seen_at, beat = excluded.beat;

-- name: forget_worker
DELETE FROM errandry.workers WHERE worker = %s;

-- name: workers
SELECT beat, seen_at FROM errandry.workers ORDER BY worker;

-- name: append
SELECT pg_current_xact_id()::xid
  FROM errandry.append(coalesce(%s::float8, extract(epoch FROM now())::float8), %s::bigint, %s::text, %s::text, %s::text, %s::text);

-- name: events
SELECT n, at, entries FROM errandry.events WHERE n >= %s ORDER BY n LIMIT %s;

-- name: log_span
SELECT (SELECT n FROM errandry.events ORDER BY n LIMIT 1),
       coalesce((SELECT n FROM errandry.events ORDER BY n DESC LIMIT 1), dropped)
  FROM errandry.store;

-- name: totals
-- With the event rows that are not in them yet, and those without a number, in one look: between two, upkeep might add up.
SELECT queue, name, sum(value)::bigint, NULL::bigint AS n, NULL::float8 AS at, NULL::text AS deltas
  FROM errandry.totals GROUP BY queue, name
 UNION ALL
SELECT NULL, NULL, NULL, n, at, deltas FROM errandry.events WHERE n > (SELECT folded FROM errandry.store)
 UNION ALL
SELECT NULL, NULL, NULL, 0, at, deltas FROM errandry.bound;

-- name: unnumbered
SELECT at, deltas FROM errandry.bound;

-- name: unfolded
SELECT n, at, deltas FROM errandry.events WHERE n > (SELECT folded FROM errandry.store) ORDER BY n LIMIT %s;

-- name: fold
INSERT INTO errandry.totals (queue, task, name, value)
SELECT * FROM unnest(%s::text[], %s::text[], %s::text[], %s::bigint[]) AS new (queue, task, name, value)
 ORDER BY queue, task, name
    ON CONFLICT (queue, task, name) DO UPDATE SET value = totals.value + excluded.value;

-- name: fold_stats
INSERT INTO errandry.stats (span, at, queue, task, name, value)
SELECT * FROM unnest(%s::integer[], %s::bigint[], %s::text[], %s::text[], %s::text[], %s::bigint[])
           AS new (span, at, queue, task, name, value)
 ORDER BY span, at, queue, task, name
    ON CONFLICT (span, at, queue, task, name) DO UPDATE SET value = stats.value + excluded.value;

-- name: stats
SELECT span, at, queue, task, name, value FROM errandry.stats
 WHERE span IN (60, 3600, 86400) AND at > %s::double precision - span AND at < %s::double precision;

-- name: oldest_stats
SELECT (SELECT at FROM errandry.stats WHERE span = %s ORDER BY at LIMIT 1);

-- name: roll_stats
INSERT INTO errandry.stats (span, at, queue, task, name, value)
SELECT %s::integer, at / %s::bigint * %s::bigint AS hour, queue, task, name, sum(value)::bigint FROM errandry.stats
 WHERE span = %s AND at >= %s AND at < %s GROUP BY hour, queue, task, name
 ORDER BY hour, queue, task, name
    ON CONFLICT (span, at, queue, task, name) DO UPDATE SET value = stats.value + excluded.value;

-- name: drop_stats
DELETE FROM errandry.stats WHERE span = %s AND at < %s;

-- name: folded
UPDATE errandry.store SET folded = %s;

-- name: ready_since
-- For each queue with waiting jobs: since when the job next in one of its lines could have run.
SELECT queue, min(since)
  FROM errandry.lanes
 CROSS JOIN LATERAL (SELECT greatest(created_at, coalesce(run_at, 0)) AS since FROM errandry.live
                      WHERE live.lane = lanes.lane AND state = 'waiting'
                      ORDER BY priority, place LIMIT 1) AS first
 WHERE ready
 GROUP BY queue;

-- name: may_trim
-- One at a time is enough.
SELECT pg_try_advisory_xact_lock(hashtextextended('trim', 'errandry.store'::regclass::oid::bigint));

-- name: held_events
SELECT coalesce((SELECT total FROM errandry.events ORDER BY n DESC LIMIT 1)
                - (SELECT total - count FROM errandry.events ORDER BY n LIMIT 1), 0);

-- name: old_events
-- Those whose deltas are in the totals.
SELECT n, count, total, at FROM errandry.events
 WHERE n <= (SELECT folded FROM errandry.store) ORDER BY n LIMIT %s;

-- name: drop_events
DELETE FROM errandry.events WHERE n <= %s;

-- name: dropped
UPDATE errandry.store SET dropped = %s, total = %s, at = greatest(at, %s);

-- name: drop_workers
DELETE FROM errandry.workers WHERE seen_at <= %s RETURNING worker;

-- name: drop_claims
DELETE FROM errandry.claims WHERE claimed_at <= %s;

-- name: idle_lanes
-- Lanes that seem to have no waiting jobs, as far as nobody holds them, and whether they have the mark. Now nobody can put a
-- job there. A waiting one is looked for from the end: at its head are those that have just been claimed.
SELECT lane, ready FROM errandry.lanes
 WHERE (ready OR used_at <= %s)
   AND NOT EXISTS (SELECT 1 FROM errandry.live WHERE live.lane = lanes.lane AND state = 'waiting'
                    ORDER BY priority DESC, place DESC OFFSET 0)
 ORDER BY lane LIMIT %s
   FOR UPDATE SKIP LOCKED;

-- name: rest_lanes
UPDATE errandry.lanes SET ready = false
 WHERE lane = ANY (%s::bigint[])
   AND NOT EXISTS (SELECT 1 FROM errandry.live WHERE live.lane = lanes.lane AND state = 'waiting' OFFSET 0);

-- name: drop_lanes
-- They come back with the next job.
DELETE FROM errandry.lanes
 WHERE lane = ANY (%s::bigint[]) AND NOT ready AND used_at <= %s
   AND turn <= coalesce((SELECT rounds.turn FROM errandry.rounds WHERE rounds.queue = lanes.queue), turn)
   AND NOT EXISTS (SELECT 1 FROM errandry.live WHERE live.lane = lanes.lane AND state = 'waiting' OFFSET 0);

-- name: steps
SELECT job, n, kind, name, result, at, until FROM errandry.steps WHERE job = %s ORDER BY n;

-- name: step
SELECT job, n, kind, name, result, at, until FROM errandry.steps WHERE job = %s AND kind = %s AND name = %s;

-- name: put_step
INSERT INTO errandry.steps (job, n, kind, name, result, at, until) VALUES (%s, %s, %s, %s, %s, %s, %s)
    ON CONFLICT (job, kind, name) DO UPDATE SET result = excluded.result, at = excluded.at;

-- name: drop_steps
DELETE FROM errandry.steps WHERE job = ANY (%s::text[]);

-- name: schedules
SELECT record FROM errandry.schedules WHERE name = ANY (%s::text[]) ORDER BY name;

-- name: lock_schedule
SELECT record FROM errandry.schedules WHERE name = ANY (%s::text[]) FOR NO KEY UPDATE;

-- name: timetable
SELECT record FROM errandry.schedules WHERE name > %s ORDER BY name LIMIT %s;

-- name: ticking
-- What another pass decides about just now is left to it.
SELECT record FROM errandry.schedules WHERE due_at IS NOT NULL AND due_at >= %s::float8 AND due_at <= %s
 ORDER BY due_at, name LIMIT %s FOR NO KEY UPDATE SKIP LOCKED;

-- name: put_schedules
INSERT INTO errandry.schedules
SELECT * FROM unnest(%s::text[], %s::float8[], %s::text[]) AS new (name, due_at, record) ORDER BY name
    ON CONFLICT (name) DO UPDATE SET due_at = excluded.due_at, record = excluded.record;

-- name: drop_schedule
DELETE FROM errandry.schedules WHERE name = %s;
