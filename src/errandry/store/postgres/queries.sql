-- name: begin
-- Begin a pass. The isolation level is explicit because the default of the database may be stricter: a pass must see
-- what other transactions commit while it runs.
BEGIN ISOLATION LEVEL READ COMMITTED;

-- name: begin_read
-- Begin a read: all its statements see one snapshot.
BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;

-- name: commit
-- Commit the transaction.
COMMIT;

-- name: rollback
-- Roll the transaction back.
ROLLBACK;

-- name: start_pass
-- The first statement of a pass. It bounds the wait for locks and, should this process hang, the time for which the
-- server keeps the transaction open. It chooses plans that hold for any table size and any parameters, planned once.
-- It takes an advisory lock per worker that claims, until the commit, so that a repeated claim sees the first one. It
-- returns what the pass starts from: whether other transactions inserted jobs through `insert_jobs`, whether there
-- are gates and groups, the last known time of the store, and the time of the server.
SELECT set_config('lock_timeout', %s, true), set_config('idle_in_transaction_session_timeout', '10s', true),
       set_config('enable_seqscan', 'off', true), set_config('enable_hashjoin', 'off', true),
       set_config('enable_mergejoin', 'off', true), set_config('jit', 'off', true),
       set_config('plan_cache_mode', 'force_generic_plan', true),
       (SELECT count(pg_advisory_xact_lock(hashtextextended(worker, 'errandry.claims'::regclass::oid::bigint)))
          FROM unnest(%s::text[]) AS worker),
       EXISTS (SELECT 1 FROM errandry.bind_inbox),
       EXISTS (SELECT 1 FROM errandry.live WHERE state = 'waiting' AND lane IS NULL),
       EXISTS (SELECT 1 FROM errandry.gates), EXISTS (SELECT 1 FROM errandry.lanes WHERE ready AND grp <> ''),
       identity, folded, greatest(at, (SELECT at FROM errandry.events ORDER BY n DESC LIMIT 1)),
       extract(epoch FROM clock_timestamp())::float8
  FROM errandry.store;

-- name: set_plan_mode
-- Choose between one plan for all parameters (`force_generic_plan`) and a new plan for these (`force_custom_plan`),
-- until the end of the transaction.
SELECT set_config('plan_cache_mode', %s, true);

-- name: save_time
-- Save the time of a pass that has no events, while the store's clock is ahead of the server's: the next pass must
-- not go back behind it. Locks the row of the store.
UPDATE errandry.store SET at = greatest(at, %s) RETURNING pg_current_xact_id()::xid;

-- name: transaction_id
-- The id of this transaction, which the rows that it writes carry as `xmin`.
SELECT pg_current_xact_id()::xid;

-- name: last_event
-- The number of the newest row of the event log.
SELECT coalesce((SELECT n FROM errandry.events ORDER BY n DESC LIMIT 1), 0);

-- name: start_read
-- What a read starts from: see `start_pass`. Locks nothing.
SELECT set_config('jit', 'off', true), identity, folded,
       greatest(at, (SELECT at FROM errandry.events ORDER BY n DESC LIMIT 1)),
       extract(epoch FROM clock_timestamp())::float8, EXISTS (SELECT 1 FROM errandry.gates)
  FROM errandry.store;

-- name: next_numbers
-- Take numbers from the sequence.
SELECT nextval('errandry.job_numbers') FROM generate_series(1, %s::bigint);

-- name: numbers_if_new
-- No row unless all jobs with these ids are new. If they are, a list with that many numbers. The list is empty if
-- there are gates, as these may refuse some jobs. The first test is a range scan: client-made ids are mostly
-- consecutive, so usually no id lies between the lowest and the highest.
SELECT ARRAY (SELECT nextval('errandry.job_numbers') FROM generate_series(1, numbers))
  FROM (SELECT CASE WHEN EXISTS (SELECT 1 FROM errandry.gates) THEN 0 ELSE %(count)s::bigint END AS numbers,
               (NOT EXISTS (SELECT 1 FROM errandry.live WHERE id >= %(least)s::text AND id <= %(most)s::text)
                OR NOT EXISTS (SELECT 1 FROM errandry.live WHERE id = ANY (%(ids)s::text[])))
               AND (NOT EXISTS (SELECT 1 FROM errandry.finished_ids WHERE id >= %(least)s::text AND id <= %(most)s::text)
                    OR NOT EXISTS (SELECT 1 FROM errandry.finished_ids WHERE id = ANY (%(ids)s::text[]))) AS is_new
         OFFSET 0) AS about
 WHERE is_new;

-- name: insert_new
-- Insert new jobs. A new job has had no attempt, so all columns that an attempt sets are empty. The arrays are
-- unnested in the target list: under FROM, the server would first materialize each array, which costs a fifth more.
-- Locks no existing row, but waits for a transaction that is inserting one of the ids.
INSERT INTO errandry.live
SELECT seq, id, task, queue, grp, state, lifo, NULL, NULL, payload, priority, place, run_at, 0, max_attempts, 0, 0,
       max_crashes, children, children, parents, timeout, deadline, 0, NULL, NULL, false, NULL, metadata, created_at,
       created_at, NULL, NULL, NULL, NULL, NULL, NULL, backoff, keep, NULL, tags, NULL, NULL, uniqueness, NULL, lane
  FROM (SELECT unnest(%s::bigint[]) AS seq, unnest(%s::text[]) AS id, unnest(%s::text[]) AS task,
               unnest(%s::text[]) AS queue, unnest(%s::text[]) AS grp, unnest(%s::text[]) AS state,
               unnest(%s::boolean[]) AS lifo, unnest(%s::text[]) AS payload, unnest(%s::bigint[]) AS priority,
               unnest(%s::bigint[]) AS place, unnest(%s::float8[]) AS run_at, unnest(%s::bigint[]) AS max_attempts,
               unnest(%s::bigint[]) AS max_crashes, unnest(%s::bigint[]) AS children,
               unnest(%s::bigint[]) AS parents, unnest(%s::float8[]) AS timeout, unnest(%s::float8[]) AS deadline,
               unnest(%s::text[]) AS metadata, unnest(%s::float8[]) AS created_at, unnest(%s::text[]) AS backoff,
               unnest(%s::text[]) AS keep, unnest(%s::text[]) AS tags, unnest(%s::text[]) AS uniqueness,
               unnest(%s::bigint[]) AS lane) AS new;

-- name: pass_settings
-- The settings of `start_pass`, for a pass that is sent in one piece: they must be in force before its statements are
-- planned.
SELECT set_config('lock_timeout', %s, true), set_config('idle_in_transaction_session_timeout', '10s', true),
       set_config('enable_seqscan', 'off', true), set_config('enable_hashjoin', 'off', true),
       set_config('enable_mergejoin', 'off', true), set_config('jit', 'off', true),
       set_config('plan_cache_mode', 'force_generic_plan', true);

-- name: mark_cached_lanes
-- Mark lanes of the lane cache that have lost their mark. Locks them in the given order, in which all passes lock
-- lanes.
UPDATE errandry.lanes SET ready = true, used_at = coalesce(%(at)s::float8, extract(epoch FROM now())::float8)
  FROM (SELECT unmarked.row_address FROM unnest(%(lanes)s::bigint[]) AS cached (lane)
         CROSS JOIN LATERAL (SELECT ctid AS row_address FROM errandry.lanes WHERE lanes.lane = cached.lane AND NOT ready
                                FOR NO KEY UPDATE) AS unmarked) AS unmarked
 WHERE lanes.ctid = unmarked.row_address;

-- name: assert_guess
-- Raise an error unless the guesses of a blind insert hold: there are no gates, the ids are new, the lanes are the
-- cached ones and marked, and the clock has not been set back. Takes a key share lock on each lane, so that it keeps
-- its mark until the commit.
SELECT errandry.assert_true(
           NOT EXISTS (SELECT 1 FROM errandry.gates)
           AND (NOT EXISTS (SELECT 1 FROM errandry.live WHERE id >= %(least)s::text AND id <= %(most)s::text)
                OR NOT EXISTS (SELECT 1 FROM errandry.live WHERE id = ANY (%(ids)s::text[])))
           AND (NOT EXISTS (SELECT 1 FROM errandry.finished_ids WHERE id >= %(least)s::text AND id <= %(most)s::text)
                OR NOT EXISTS (SELECT 1 FROM errandry.finished_ids WHERE id = ANY (%(ids)s::text[])))
           AND (SELECT count(*) = cardinality(%(lanes)s::bigint[])
                  FROM (SELECT * FROM unnest(%(queues)s::text[], %(tasks)s::text[], %(groups)s::text[], %(lanes)s::bigint[])
                            AS cached (queue, task, grp, lane)
                         ORDER BY queue, task, grp) AS cached
                 CROSS JOIN LATERAL (SELECT lane, ready FROM errandry.lanes
                                      WHERE lanes.queue = cached.queue AND lanes.grp = cached.grp AND lanes.task = cached.task
                                        FOR KEY SHARE) AS locked
                 WHERE locked.ready AND locked.lane = cached.lane)
           AND greatest(at, (SELECT at FROM errandry.events ORDER BY n DESC LIMIT 1))
               <= coalesce(%(at)s::float8, extract(epoch FROM now())::float8))
  FROM errandry.store;

-- name: insert_blind
-- Insert new jobs that are ready to run, like `insert_new`, in a blind insert: the server assigns the numbers and the
-- time. Locks no existing row, but waits for a transaction that is inserting one of the ids.
INSERT INTO errandry.live
SELECT seq, id, task, queue, grp, 'waiting', lifo, NULL, NULL, payload, priority,
       CASE WHEN lifo THEN -seq ELSE seq END, NULL, 0, max_attempts, 0, 0, max_crashes, 0, 0, 0, timeout, deadline,
       0, NULL, NULL, false, NULL, metadata, now_at, now_at, NULL, NULL, NULL, NULL, NULL, NULL, backoff, keep, NULL,
       tags, NULL, NULL, NULL, NULL, lane
  FROM (SELECT nextval('errandry.job_numbers') AS seq, coalesce(%s::float8, extract(epoch FROM now())::float8) AS now_at, new.*
          FROM (SELECT unnest(%s::text[]) AS id, unnest(%s::text[]) AS task, unnest(%s::text[]) AS queue,
                       unnest(%s::text[]) AS grp, unnest(%s::boolean[]) AS lifo, unnest(%s::text[]) AS payload,
                       unnest(%s::bigint[]) AS priority, unnest(%s::bigint[]) AS max_attempts,
                       unnest(%s::bigint[]) AS max_crashes, unnest(%s::float8[]) AS timeout,
                       unnest(%s::float8[]) AS deadline, unnest(%s::text[]) AS metadata, unnest(%s::text[]) AS backoff,
                       unnest(%s::text[]) AS keep, unnest(%s::text[]) AS tags, unnest(%s::bigint[]) AS lane) AS new) AS numbered;

-- name: assert_not_finished
-- Raise an error if one of the jobs inserted just now had been inserted and finished by another process since this
-- pass looked. From now on no other transaction can insert their ids. The range scan comes first, as in
-- `numbers_if_new`.
SELECT errandry.assert_true(
           NOT EXISTS (SELECT 1 FROM errandry.finished_ids WHERE id >= %(least)s::text AND id <= %(most)s::text)
           OR NOT EXISTS (SELECT 1 FROM errandry.finished_ids WHERE id = ANY (%(ids)s::text[])));

-- name: insert_from_history
-- Insert the whole rows of jobs that leave `history`, for example by a rerun. The pass has locked the jobs.
INSERT INTO errandry.live
SELECT * FROM unnest(
    %s::bigint[], %s::text[], %s::text[], %s::text[], %s::text[], %s::text[], %s::boolean[], %s::text[],
    %s::text[], %s::text[], %s::bigint[], %s::bigint[], %s::float8[], %s::bigint[], %s::bigint[], %s::bigint[],
    %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[], %s::float8[], %s::float8[], %s::bigint[],
    %s::text[], %s::float8[], %s::boolean[], %s::text[], %s::text[], %s::float8[], %s::float8[], %s::float8[], %s::float8[],
    %s::float8[], %s::float8[], %s::text[], %s::float8[], %s::text[], %s::text[], %s::text[], %s::text[], %s::text[],
    %s::text[], %s::text[], %s::text[], %s::bigint[]);

-- name: insert_jobs
-- Insert jobs over a connection of the caller's. Parameters and result are text, so that every library can pass them.
SELECT CAST(errandry.insert_jobs(
    CAST(CAST(%(jobs)s AS text) AS jsonb), CAST(%(store)s AS text), CAST(%(at)s AS float8),
    CAST(CAST(%(edges)s AS text) AS jsonb)) AS text);

-- name: finish
-- Insert the whole rows of finished jobs. The pass has locked the jobs.
WITH finished AS (INSERT INTO errandry.history
SELECT * FROM unnest(
    %s::bigint[], %s::text[], %s::text[], %s::text[], %s::text[], %s::text[], %s::boolean[], %s::text[],
    %s::text[], %s::text[], %s::bigint[], %s::bigint[], %s::float8[], %s::bigint[], %s::bigint[], %s::bigint[],
    %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[], %s::float8[], %s::float8[], %s::bigint[],
    %s::text[], %s::float8[], %s::boolean[], %s::text[], %s::text[], %s::float8[], %s::float8[], %s::float8[], %s::float8[],
    %s::float8[], %s::float8[], %s::text[], %s::float8[], %s::text[], %s::text[], %s::text[], %s::text[], %s::text[],
    %s::text[], %s::text[], %s::text[], %s::integer[])
RETURNING id, seq, day)
INSERT INTO errandry.finished_ids SELECT id, seq, day FROM finished;

-- name: update
-- Write all columns that can change while a job is not finished. The parameters are whole rows.
--
-- This statement and others like it look each row up by its key, whatever the planner knows of the table. If
-- statistics say that a table is empty or has one row, the planner would rather join all its rows with all given
-- ones. Two measures prevent that. OFFSET 0, a LIMIT or a lock keeps the subquery apart. The last condition is always
-- true, but makes the planner expect few rows.
UPDATE errandry.live
   SET queue = new.queue, state = new.state, reason = new.reason, settled = new.settled, payload = new.payload, priority =
       new.priority, place = new.place, run_at = new.run_at, attempts = new.attempts, max_attempts =
       new.max_attempts, releases = new.releases, crashes = new.crashes, open_children = new.open_children,
       children = new.children, parents = new.parents, deadline = new.deadline, fence = new.fence, worker = new.worker, lease_until = new.lease_until,
       cancel_requested = new.cancel_requested, result = new.result, metadata = new.metadata, updated_at = new.updated_at, claimed_at =
       new.claimed_at, started_at = new.started_at, lost_by = new.lost_by, unhandled_since = new.unhandled_since, progress = new.progress, tags = new.tags, errors =
       new.errors, logs = new.logs, steps = new.steps, lane = new.lane
  FROM (SELECT target.ctid AS row_address, given.*
          FROM unnest(
    %s::bigint[], %s::text[], %s::text[], %s::text[], %s::text[], %s::text[], %s::boolean[], %s::text[],
    %s::text[], %s::text[], %s::bigint[], %s::bigint[], %s::float8[], %s::bigint[], %s::bigint[], %s::bigint[],
    %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[], %s::float8[], %s::float8[], %s::bigint[],
    %s::text[], %s::float8[], %s::boolean[], %s::text[], %s::text[], %s::float8[], %s::float8[], %s::float8[], %s::float8[],
    %s::float8[], %s::float8[], %s::text[], %s::float8[], %s::text[], %s::text[], %s::text[], %s::text[], %s::text[],
    %s::text[], %s::text[], %s::text[], %s::bigint[])
            AS given (seq, id, task, queue, grp, state, lifo, reason, settled, payload, priority, place, run_at,
            attempts, max_attempts, releases, crashes, max_crashes, open_children, children, parents, timeout,
            deadline, fence, worker, lease_until, cancel_requested, result, metadata, created_at, updated_at, claimed_at,
            started_at, finished_at, expires_at, lost_by, unhandled_since, backoff, keep, progress, tags, errors, logs, uniqueness,
            steps, lane),
               LATERAL (SELECT ctid FROM errandry.live WHERE live.seq = given.seq OFFSET 0) AS target
         WHERE given.seq %% 1 = 0 AND -given.seq %% 1 = 0) AS new
 WHERE live.ctid = new.row_address;

-- name: finish_live
-- Move jobs that finish with the same outcome from `live` to `history`. The statement copies the columns that do not
-- change, so that the client need not send them. The numbers are sorted; `width_bucket` gives the index of each one,
-- under which its result and its errors are found. The pass has locked the jobs.
WITH deleted AS (
    DELETE FROM errandry.live WHERE seq = ANY (%(seqs)s::bigint[])
    RETURNING live.*, width_bucket(seq, %(seqs)s::bigint[]) AS n),
inserted AS (
    INSERT INTO errandry.history
    SELECT seq, id, task, queue, grp, %(state)s::text, lifo, %(reason)s::text, %(settled)s::text, payload, priority, NULL,
           run_at, attempts, max_attempts, %(releases)s::bigint, %(crashes)s::bigint, max_crashes, open_children, children,
           parents, timeout, deadline, fence, worker, NULL, cancel_requested, (%(results)s::text[])[n], metadata, created_at,
           %(at)s::float8, claimed_at, started_at, %(at)s::float8, %(expires_at)s::float8, NULL, NULL, backoff, keep, progress, tags,
           (%(errors)s::text[])[n], logs, uniqueness, steps, %(day)s::integer
      FROM deleted)
INSERT INTO errandry.finished_ids SELECT id, seq, %(day)s::integer FROM deleted;

-- name: claim
-- Claim waiting jobs. Writes only the columns that a claim changes. The pass has locked the jobs.
UPDATE errandry.live
   SET state = %(state)s, attempts = %(attempts)s, fence = %(fence)s, worker = %(worker)s, lease_until = %(lease_until)s,
       updated_at = %(at)s, claimed_at = %(at)s, started_at = %(started_at)s, settled = NULL, progress = NULL, place = NULL,
       lane = NULL
 WHERE seq = ANY (%(seqs)s::bigint[]);

-- name: start
-- Start claimed jobs. The pass has locked the jobs.
UPDATE errandry.live SET state = 'running', updated_at = %(at)s, started_at = %(at)s WHERE seq = ANY (%(seqs)s::bigint[]);

-- name: renew
-- Renew the leases of jobs. The pass has locked the jobs.
UPDATE errandry.live SET lease_until = %(lease_until)s, updated_at = %(at)s WHERE seq = ANY (%(seqs)s::bigint[]);

-- name: delete_live
-- Delete jobs that are not finished, by `seq`. The pass has locked the jobs.
DELETE FROM errandry.live WHERE seq = ANY (%s::bigint[]);

-- name: delete_history
-- Delete finished jobs, by id. The pass has locked the jobs. Locks their rows in `finished_ids` too.
WITH deleted AS (DELETE FROM errandry.finished_ids WHERE id = ANY (%s::text[]) RETURNING seq, day)
DELETE FROM errandry.history USING deleted WHERE history.seq = deleted.seq AND history.day = deleted.day;

-- name: find_live
-- Jobs that are not finished, by id. Locks nothing.
SELECT * FROM errandry.live WHERE id = ANY (%s::text[]);

-- name: find_history
-- Finished jobs, by id. Locks nothing.
SELECT history.* FROM errandry.finished_ids JOIN errandry.history USING (seq, day) WHERE finished_ids.id = ANY (%s::text[]);

-- name: lock_live
-- Jobs that are not finished, by id. Locks them in the order of their ids, in which all passes lock jobs.
SELECT * FROM errandry.live WHERE id = ANY (%s::text[]) ORDER BY id FOR NO KEY UPDATE;

-- name: lock_cached
-- Lock jobs like `lock_live`, and return only what the row cache compares: `xmin` is the transaction that wrote the
-- row.
SELECT id, xmin, updated_at FROM errandry.live WHERE id = ANY (%s::text[]) ORDER BY id FOR NO KEY UPDATE;

-- name: any_finished
-- A row if one of these ids belongs to a finished job. Asked before `lock_history`, because it costs less than to
-- open every partition, and the answer is mostly no.
SELECT 1 FROM errandry.finished_ids WHERE id = ANY (%s::text[]) LIMIT 1;

-- name: lock_history
-- Finished jobs, by id. Locks their rows in `history` in the order of their ids.
SELECT history.* FROM errandry.finished_ids JOIN errandry.history USING (seq, day)
 WHERE finished_ids.id = ANY (%s::text[]) ORDER BY finished_ids.id FOR NO KEY UPDATE OF history;

-- name: ids_matching_live
-- Ids of unfinished jobs that begin or end with `part`. Scans the whole index on `id`, but no rows.
SELECT id FROM errandry.live
 WHERE starts_with(id, %(part)s::text) OR right(id, length(%(part)s::text)) = %(part)s::text
 ORDER BY id LIMIT %(limit)s;

-- name: ids_matching_history
-- Ids of finished jobs that begin or end with `part`. Scans the whole index on `id`, but no rows.
SELECT id FROM errandry.finished_ids
 WHERE starts_with(id, %(part)s::text) OR right(id, length(%(part)s::text)) = %(part)s::text
 ORDER BY id LIMIT %(limit)s;

-- name: matching_jobs
-- Jobs that match a search query, newest first. One statement serves every query: a parameter that is NULL does not
-- filter. It is planned for its parameters: `part` is a constant in each part of the view `job`, so the server never
-- reads a part that is not wanted. Locks nothing.
SELECT seq, id, task, queue, grp, state, lifo, reason, settled, payload, priority, place, run_at, attempts,
       max_attempts, releases, crashes, max_crashes, open_children, children, parents, timeout, deadline, fence,
       worker, lease_until, cancel_requested, result, metadata, created_at, updated_at, claimed_at, started_at,
       finished_at, expires_at, lost_by, unhandled_since, backoff, keep, progress, tags, errors, logs, uniqueness, steps
  FROM errandry.job
 WHERE part = ANY (%(parts)s::text[])
   AND seq < %(below)s::bigint AND seq > %(above)s::bigint
   AND state = ANY (%(states)s::text[])
   AND (%(id_in)s::text[] IS NULL OR seq = ANY (ARRAY (
        SELECT seq FROM errandry.live WHERE id = ANY (%(id_in)s::text[])
         UNION ALL SELECT seq FROM errandry.finished_ids WHERE id = ANY (%(id_in)s::text[]))))
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
         WHERE NOT EXISTS (SELECT 1 FROM jsonb_array_elements_text(any_of) AS tag WHERE tags::jsonb ? tag))))
   AND (%(tags_none)s::jsonb IS NULL OR tags IS NULL OR NOT EXISTS (
        SELECT 1 FROM jsonb_array_elements_text(%(tags_none)s::jsonb) AS tag WHERE tags::jsonb ? tag))
   AND (%(id_has)s::jsonb IS NULL OR errandry.contains_all(id, %(id_has)s::jsonb))
   AND (%(id_lacks)s::jsonb IS NULL OR errandry.contains_none(id, %(id_lacks)s::jsonb))
   AND (%(task_has)s::jsonb IS NULL OR errandry.contains_all(task, %(task_has)s::jsonb))
   AND (%(task_lacks)s::jsonb IS NULL OR errandry.contains_none(task, %(task_lacks)s::jsonb))
   AND (%(queue_has)s::jsonb IS NULL OR errandry.contains_all(queue, %(queue_has)s::jsonb))
   AND (%(queue_lacks)s::jsonb IS NULL OR errandry.contains_none(queue, %(queue_lacks)s::jsonb))
   AND (%(group_has)s::jsonb IS NULL OR errandry.contains_all(grp, %(group_has)s::jsonb))
   AND (%(group_lacks)s::jsonb IS NULL OR errandry.contains_none(grp, %(group_lacks)s::jsonb))
   AND (%(worker_has)s::jsonb IS NULL OR errandry.contains_all(worker, %(worker_has)s::jsonb))
   AND (%(worker_lacks)s::jsonb IS NULL OR errandry.contains_none(worker, %(worker_lacks)s::jsonb))
   AND (%(payload_has)s::jsonb IS NULL OR errandry.contains_all(payload, %(payload_has)s::jsonb))
   AND (%(payload_lacks)s::jsonb IS NULL OR errandry.contains_none(payload, %(payload_lacks)s::jsonb))
   AND (%(result_has)s::jsonb IS NULL OR errandry.contains_all(result, %(result_has)s::jsonb))
   AND (%(result_lacks)s::jsonb IS NULL OR errandry.contains_none(result, %(result_lacks)s::jsonb))
   AND (%(error_has)s::jsonb IS NULL OR NOT EXISTS (
        SELECT 1 FROM jsonb_array_elements(%(error_has)s::jsonb) AS any_of
         WHERE NOT EXISTS (SELECT 1 FROM json_array_elements(errors::json) AS error
                            WHERE errandry.contains_all(coalesce(error ->> 'type', '') || ': '
                                                   || coalesce(error ->> 'message', ''), jsonb_build_array(any_of)))))
   AND (%(error_lacks)s::jsonb IS NULL OR NOT EXISTS (
        SELECT 1 FROM json_array_elements(errors::json) AS error
         WHERE errandry.contains_all(coalesce(error ->> 'type', '') || ': ' || coalesce(error ->> 'message', ''),
                                jsonb_build_array(%(error_lacks)s::jsonb))))
 ORDER BY seq DESC
 LIMIT %(limit)s;

-- name: seq_floor
-- The `seq` at which a search stops that may examine only `jobs` jobs.
SELECT seq FROM errandry.job
 WHERE part = ANY (%(parts)s::text[]) AND seq < %(below)s::bigint AND state = ANY (%(states)s::text[])
 ORDER BY seq DESC OFFSET %(jobs)s LIMIT 1;

-- name: key_holders
-- The holders of unique keys, live or expired. Locks nothing.
SELECT key, job, expires_at FROM errandry.keys WHERE key = ANY (%s::text[]);

-- name: free_keys
-- Free unique keys that these jobs hold. Locks the keys first, then deletes those that still belong to the given job.
DELETE FROM errandry.keys
 WHERE key = ANY (ARRAY (
       SELECT freed.key
         FROM (SELECT * FROM unnest(%s::text[], %s::text[]) AS freed (key, job) ORDER BY key) AS freed
        CROSS JOIN LATERAL (SELECT job FROM errandry.keys WHERE keys.key = freed.key FOR UPDATE) AS locked
        WHERE locked.job = freed.job));

-- name: take_free_keys
-- Take unique keys that no job was seen to hold. If another transaction has taken one since, the insert fails with a
-- unique violation and the pass is tried again. Locks no existing row, but waits for a transaction that is taking one
-- of the keys.
INSERT INTO errandry.keys (key, job, expires_at)
SELECT key, job, expires_at FROM unnest(%s::text[], %s::text[], %s::float8[]) AS new (key, job, expires_at) ORDER BY key;

-- name: take_keys
-- Take unique keys that are free, expired, or still held by the job that was seen to hold them (`rival`). Returns the
-- number of keys taken. Waits for transactions that are taking one of the keys, and locks the keys it takes.
WITH new AS MATERIALIZED (
    SELECT * FROM unnest(%s::text[], %s::text[], %s::float8[], %s::text[]) AS new (key, job, expires_at, rival)
), taken AS (
    INSERT INTO errandry.keys (key, job, expires_at)
    SELECT key, job, expires_at FROM new ORDER BY key
        ON CONFLICT (key) DO UPDATE SET job = excluded.job, expires_at = excluded.expires_at
         WHERE keys.expires_at <= %s::float8 OR keys.job = (SELECT rival FROM new WHERE new.key = excluded.key)
    RETURNING 1
)
SELECT count(*) FROM taken;

-- name: drop_expired_keys
-- Delete expired unique keys, and return a row for each. Skips keys that another transaction has locked. The keys are
-- collected in an array because a subquery that runs again for each row would not keep its limit.
DELETE FROM errandry.keys
 WHERE key = ANY (ARRAY (SELECT key FROM errandry.keys WHERE expires_at <= %s
                          ORDER BY expires_at LIMIT %s FOR UPDATE SKIP LOCKED))
RETURNING 1;

-- name: lock_marked_lanes
-- The marked lanes of these jobs. Takes a key share lock on each in the order of queue, task and group: no
-- transaction can remove the mark until this pass commits.
SELECT locked.lane, wanted.queue, wanted.task, wanted.grp
  FROM (SELECT * FROM unnest(%s::text[], %s::text[], %s::text[]) AS wanted (queue, task, grp)
         ORDER BY queue, task, grp) AS wanted
 CROSS JOIN LATERAL (SELECT lane, ready FROM errandry.lanes
                      WHERE lanes.queue = wanted.queue AND lanes.grp = wanted.grp AND lanes.task = wanted.task
                        FOR KEY SHARE) AS locked
 WHERE locked.ready;

-- name: insert_lanes
-- Insert or mark the lanes that `lock_marked_lanes` did not return. Locks them. A new lane gets the virtual start of its
-- group.
INSERT INTO errandry.lanes (queue, task, grp, ready, used_at, virtual_start)
SELECT queue, task, grp, true, %s::float8,
       coalesce((SELECT max(virtual_start) FROM errandry.lanes AS own WHERE own.queue = wanted.queue AND own.grp = wanted.grp), 0)
  FROM unnest(%s::text[], %s::text[], %s::text[]) AS wanted (queue, task, grp)
 ORDER BY queue, task, grp
    ON CONFLICT (queue, grp, task) DO UPDATE SET ready = true, used_at = excluded.used_at
RETURNING lane, queue, task, grp;

-- name: jobs_without_lane
-- Waiting jobs without a lane. Locks them, and skips those that another transaction has locked.
SELECT * FROM errandry.live WHERE state = 'waiting' AND lane IS NULL
 ORDER BY seq LIMIT %s FOR NO KEY UPDATE SKIP LOCKED;

-- name: queue_has_jobs_without_lane
-- A row if a job without a lane waits in the queue. Locks nothing.
SELECT 1 FROM errandry.live WHERE state = 'waiting' AND lane IS NULL AND queue = %s LIMIT 1;

-- name: set_lanes
-- Set the lanes of waiting jobs. The pass has locked the jobs.
UPDATE errandry.live SET lane = new.lane
  FROM (SELECT target.ctid AS row_address, given.*
          FROM unnest(%s::bigint[], %s::bigint[])
            AS given (seq, lane),
               LATERAL (SELECT ctid FROM errandry.live WHERE live.seq = given.seq OFFSET 0) AS target
         WHERE given.seq %% 1 = 0 AND -given.seq %% 1 = 0) AS new
 WHERE live.ctid = new.row_address;

-- name: open_lanes
-- Lanes with waiting jobs, for a store where no lane has a group. `queues` and `tasks` say which to take (NULL: all),
-- `closed` and `without` which queues and tasks to leave out. Each lane comes with the priority and place of its
-- first job, the most urgent first. The limit is the limit of the claim: more lanes than jobs are of no use. Of lanes
-- in `parted`, the statement reads only the given parts, in their order. Locks nothing.
SELECT lanes.lane, lanes.queue, lanes.task, lanes.grp, first.priority, first.place
  FROM errandry.lanes
 CROSS JOIN LATERAL (
    SELECT job.priority, job.place
      FROM (SELECT * FROM unnest(
                %(lanes)s::bigint[], %(priorities)s::bigint[], %(places)s::bigint[], %(below)s::bigint[])
                AS given (lane, priority, place, below)
             WHERE given.lane = lanes.lane
             UNION ALL
            SELECT lanes.lane, -(1::bigint << 62), 0, 1::bigint << 62 WHERE lanes.lane <> ALL (%(parted)s::bigint[])) AS part
     CROSS JOIN LATERAL (SELECT priority, place FROM errandry.live
                          WHERE live.lane = part.lane AND live.state = 'waiting'
                            AND (live.crashes = 0 OR %(suspects)s::smallint IN (live.suspect, 3))
                            AND (live.priority, live.place) > (part.priority, part.place) AND live.priority < part.below
                          ORDER BY live.priority, live.place LIMIT 1) AS job
     LIMIT 1) AS first
 WHERE lanes.ready
   AND (%(queues)s::text[] IS NULL OR lanes.queue = ANY (%(queues)s::text[]))
   AND (%(tasks)s::text[] IS NULL OR lanes.task = ANY (%(tasks)s::text[]))
   AND lanes.task <> ALL (%(without)s::text[])
   AND lanes.queue <> ALL (%(closed)s::text[])
 ORDER BY first.priority, first.place
 LIMIT %(limit)s::bigint;

-- name: lanes_with_lifo_jobs
-- Of the given lanes, those with a waiting lifo job in one of the given priorities. Lifo jobs have negative places, so
-- they come before the part of the lane that the scan position covers.
SELECT DISTINCT part.lane
  FROM unnest(%(lanes)s::bigint[], %(priorities)s::bigint[]) AS part (lane, priority)
 CROSS JOIN LATERAL (SELECT 1 FROM errandry.live
                      WHERE live.lane = part.lane AND state = 'waiting' AND live.priority = part.priority
                        AND live.place < 0 LIMIT 1) AS first;

-- name: open_group_lanes
-- Like `open_lanes`, for a store with groups: of each queue and task the `width` lanes with the lowest virtual starts, and
-- the virtual time of the queue. The recursion jumps through the index from one queue and task to the next, so it does not
-- read the lanes between them. Locks nothing.
WITH RECURSIVE pair AS (
    (SELECT queue, task FROM errandry.lanes WHERE ready ORDER BY queue, task LIMIT 1)
    UNION ALL
    SELECT next.queue, next.task
      FROM pair
     CROSS JOIN LATERAL (SELECT lanes.queue, lanes.task FROM errandry.lanes
                          WHERE ready AND (lanes.queue, lanes.task) > (pair.queue, pair.task)
                          ORDER BY lanes.queue, lanes.task LIMIT 1) AS next)
SELECT open.lane, pair.queue, pair.task, open.grp, open.virtual_start,
       coalesce((SELECT virtual_time FROM errandry.virtual_times WHERE virtual_times.queue = pair.queue), 0), open.opened, open.priority, open.place
  FROM pair
 CROSS JOIN LATERAL (
    SELECT lanes.lane, lanes.grp, lanes.virtual_start, lanes.opened, first.priority, first.place
      FROM errandry.lanes
     CROSS JOIN LATERAL (SELECT priority, place FROM errandry.live
                          WHERE live.lane = lanes.lane AND live.state = 'waiting'
                            AND (live.crashes = 0 OR %(suspects)s::smallint IN (live.suspect, 3))
                          ORDER BY live.priority, live.place LIMIT 1) AS first
     WHERE lanes.ready AND lanes.queue = pair.queue AND lanes.task = pair.task AND lanes.open_at = 0
     ORDER BY lanes.virtual_start, lanes.grp LIMIT %(width)s) AS open
 WHERE (%(queues)s::text[] IS NULL OR pair.queue = ANY (%(queues)s::text[]))
   AND (%(tasks)s::text[] IS NULL OR pair.task = ANY (%(tasks)s::text[]))
   AND pair.task <> ALL (%(without)s::text[])
   AND pair.queue <> ALL (%(closed)s::text[]);

-- name: raise_virtual_starts
-- Raise virtual starts to the virtual time of the queue. An idle or parked group gets no extra service for that time.
-- Locks the lanes it changes, and skips those that another transaction has locked.
UPDATE errandry.lanes
   SET virtual_start = (SELECT virtual_time FROM errandry.virtual_times WHERE virtual_times.queue = lanes.queue)
 WHERE lane = ANY (ARRAY (
       SELECT behind.lane
         FROM unnest(%s::text[]) AS served (queue)
        CROSS JOIN LATERAL (SELECT lane FROM errandry.lanes
                             WHERE lanes.queue = served.queue AND ready AND open_at = 0
                               AND virtual_start < (SELECT virtual_time FROM errandry.virtual_times WHERE virtual_times.queue = served.queue)
                               FOR NO KEY UPDATE SKIP LOCKED) AS behind))
RETURNING lane;

-- name: positions
-- The positions of the first jobs of some lanes. Locks nothing.
SELECT job.priority, job.place, job.seq, open.lane
  FROM unnest(%s::bigint[]) AS open (lane)
 CROSS JOIN LATERAL (SELECT priority, place, seq FROM errandry.live
                      WHERE live.lane = open.lane AND state = 'waiting' AND (crashes = 0 OR %s::smallint IN (suspect, 3))
                      ORDER BY priority, place LIMIT %s) AS job
 ORDER BY job.priority, job.place;

-- name: oldest_jobs
-- Of each lane and priority, separately for lifo jobs, the jobs that were inserted first, and the time since when each could run. The
-- recursion jumps through the index from one priority to the next. Locks nothing.
WITH RECURSIVE level AS (
    SELECT lane, (SELECT priority FROM errandry.live WHERE live.lane = wanted.lane AND state = 'waiting'
                   ORDER BY priority LIMIT 1) AS priority
      FROM unnest(%(lanes)s::bigint[]) AS wanted (lane)
    UNION ALL
    SELECT lane, (SELECT live.priority FROM errandry.live
                   WHERE live.lane = level.lane AND state = 'waiting' AND live.priority > level.priority
                   ORDER BY live.priority LIMIT 1)
      FROM level WHERE priority IS NOT NULL)
SELECT oldest.priority, oldest.place, oldest.seq, level.lane, oldest.since
  FROM level
 CROSS JOIN LATERAL (
    (SELECT priority, place, seq, greatest(created_at, coalesce(run_at, 0)) AS since FROM errandry.live
      WHERE live.lane = level.lane AND state = 'waiting' AND live.priority = level.priority AND place > 0
        AND (crashes = 0 OR %(suspects)s::smallint IN (suspect, 3))
      ORDER BY live.priority, place LIMIT %(each)s)
    UNION ALL
    (SELECT priority, place, seq, greatest(created_at, coalesce(run_at, 0)) FROM errandry.live
      WHERE live.lane = level.lane AND state = 'waiting' AND live.priority = level.priority AND place < 0
        AND (crashes = 0 OR %(suspects)s::smallint IN (suspect, 3))
      ORDER BY live.priority DESC, place DESC LIMIT %(each)s)) AS oldest
 WHERE level.priority IS NOT NULL;

-- name: jobs_by_seq
-- Waiting jobs by `seq`. Locks them, and skips those that another transaction has locked. `state || ''` keeps the
-- planner from scanning the index of all waiting jobs: it finds the rows by `seq`, then checks the state.
SELECT * FROM errandry.live WHERE seq = ANY (%s::bigint[]) AND state || '' = 'waiting' ORDER BY seq
   FOR NO KEY UPDATE SKIP LOCKED;

-- name: lanes_of
-- The lanes of a queue, or of one of its groups, that may have waiting jobs.
SELECT lane FROM errandry.lanes
 WHERE queue = %(queue)s AND (%(group)s::text IS NULL OR grp = %(group)s::text) AND ready;

-- name: lock_queue_sizes
-- Take an advisory lock on queues with a maximum size, until the commit. Passes that insert into such a queue run one
-- after the other. Claims do not take this lock.
SELECT count(pg_advisory_xact_lock(hashtextextended(queue, 'errandry.live'::regclass::oid::bigint)))
  FROM (SELECT queue FROM unnest(%s::text[]) AS queue ORDER BY queue) AS sorted;

-- name: group_size
-- The number of waiting jobs of a group, with those that have no lane yet.
SELECT (SELECT coalesce(sum(waiting.jobs), 0)::bigint
          FROM errandry.lanes
         CROSS JOIN LATERAL (SELECT count(*) AS jobs FROM errandry.live
                              WHERE live.lane = lanes.lane AND state = 'waiting') AS waiting
         WHERE lanes.queue = %(queue)s AND lanes.grp = %(group)s)
       + (SELECT count(*) FROM errandry.live
           WHERE state = 'waiting' AND lane IS NULL AND live.queue = %(queue)s AND live.grp = %(group)s);

-- name: jobs_at
-- The given number of jobs from each of these lanes, in the order of claims. Locks them, and skips those that another
-- transaction has locked.
SELECT wanted.lane, job.*
  FROM unnest(%s::bigint[], %s::bigint[]) AS wanted (lane, jobs)
 CROSS JOIN LATERAL (SELECT * FROM errandry.live
                      WHERE live.lane = wanted.lane AND state = 'waiting' AND (crashes = 0 OR %s::smallint IN (suspect, 3))
                      ORDER BY priority, place LIMIT wanted.jobs
                        FOR NO KEY UPDATE SKIP LOCKED) AS job
 ORDER BY job.priority, job.place;

-- name: put_virtual_starts
-- Set the virtual start of groups of a queue. Locks their lanes, and skips those that another transaction has locked:
-- waiting would cost more than a group that once is served too early.
UPDATE errandry.lanes SET virtual_start = new.virtual_start
  FROM (SELECT locked.ctid AS row_address, served.virtual_start
          FROM unnest(%s::text[], %s::float8[]) AS served (grp, virtual_start)
         CROSS JOIN LATERAL (SELECT ctid FROM errandry.lanes WHERE lanes.queue = %s AND lanes.grp = served.grp
                                FOR NO KEY UPDATE SKIP LOCKED) AS locked
         WHERE length(served.grp) %% 1 = 0 AND -length(served.grp) %% 1 = 0) AS new
 WHERE lanes.ctid = new.row_address;

-- name: put_virtual_time
-- Set the virtual time of a queue, and raise its highest virtual start. Locks the row, or leaves it as it is if another
-- transaction has locked it.
WITH moved AS (
    UPDATE errandry.virtual_times
       SET virtual_time = %(virtual_time)s, highest_start = greatest(highest_start, %(highest_start)s)
     WHERE queue = ANY (ARRAY (SELECT queue FROM errandry.virtual_times WHERE queue = %(queue)s FOR NO KEY UPDATE SKIP LOCKED)))
INSERT INTO errandry.virtual_times (queue, virtual_time, highest_start)
VALUES (%(queue)s, %(virtual_time)s, %(highest_start)s) ON CONFLICT (queue) DO NOTHING;

-- name: reset_virtual_time
-- Set the virtual time of a queue to its highest virtual start, so that all its groups start equal. Locks the row of
-- the queue.
UPDATE errandry.virtual_times SET virtual_time = highest_start WHERE queue = %s;

-- name: reset_idle_virtual_times
-- Set the virtual time to the highest virtual start in all queues that have no waiting jobs. Locks the rows it changes.
UPDATE errandry.virtual_times SET virtual_time = highest_start
 WHERE virtual_time < highest_start
   AND NOT EXISTS (SELECT 1 FROM errandry.lanes
                    WHERE lanes.queue = virtual_times.queue AND ready
                      AND EXISTS (SELECT 1 FROM errandry.live
                                   WHERE live.lane = lanes.lane AND state = 'waiting' OFFSET 0) OFFSET 0);

-- name: drop_unused_virtual_times
-- Delete the virtual times of queues without lanes. Their groups start at 0 again. Locks the rows it deletes.
DELETE FROM errandry.virtual_times
 WHERE NOT EXISTS (SELECT 1 FROM errandry.lanes WHERE lanes.queue = virtual_times.queue OFFSET 0);

-- name: park_lanes
-- Park lanes until a time. Skips a lane that was unparked since this pass read it (`opened`), and one that another
-- transaction has locked, as that transaction may be about to unpark it. Locks the others.
UPDATE errandry.lanes SET open_at = new.open_at, used_at = %(now)s
  FROM (SELECT locked.ctid AS row_address, given.open_at
          FROM unnest(%(lanes)s::bigint[], %(opened)s::bigint[], %(until)s::float8[]) AS given (lane, opened, open_at)
         CROSS JOIN LATERAL (SELECT ctid, opened FROM errandry.lanes WHERE lanes.lane = given.lane
                                FOR NO KEY UPDATE SKIP LOCKED) AS locked
         WHERE locked.opened = given.opened AND given.lane %% 1 = 0 AND -given.lane %% 1 = 0) AS new
 WHERE lanes.ctid = new.row_address
RETURNING lanes.lane;

-- name: unpark_groups
-- Unpark the lanes of groups. Locks them in the order of their numbers. `opened` is counted up so that a pass which
-- saw the group full before this commit does not park it afterwards.
UPDATE errandry.lanes SET open_at = 0, opened = opened + 1
 WHERE lane = ANY (ARRAY (
       SELECT lane FROM errandry.lanes
        WHERE lane = ANY (ARRAY (
              SELECT own.lane
                FROM unnest(%s::text[], %s::text[]) AS wanted (queue, grp)
               CROSS JOIN LATERAL (SELECT lane FROM errandry.lanes
                                    WHERE lanes.queue = wanted.queue AND lanes.grp = wanted.grp OFFSET 0) AS own))
        ORDER BY lane FOR NO KEY UPDATE));

-- name: unpark_queue
-- Unpark the lanes of a queue. Locks them.
UPDATE errandry.lanes SET open_at = 0, opened = opened + 1 WHERE queue = %s AND open_at > 0;

-- name: unpark_due
-- Unpark the lanes whose time has come. Locks them, and skips those that another transaction has locked.
UPDATE errandry.lanes SET open_at = 0
 WHERE lane = ANY (ARRAY (SELECT lane FROM errandry.lanes WHERE ready AND open_at > 0 AND open_at <= %s
                             FOR NO KEY UPDATE SKIP LOCKED));

-- name: unpark_old
-- Unpark lanes that were parked long ago, in case the event that should have unparked them was missed. Locks them,
-- and skips those that another transaction has locked.
UPDATE errandry.lanes SET open_at = 0, used_at = %s
 WHERE lane = ANY (ARRAY (SELECT lane FROM errandry.lanes WHERE ready AND open_at > 0 AND used_at <= %s
                           LIMIT %s FOR NO KEY UPDATE SKIP LOCKED));

-- name: queue_task_pairs
-- The queues and tasks with waiting jobs in lanes that are not parked. Jumps through the index like
-- `open_group_lanes`.
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

-- name: best_jobs_of_lane
-- The first waiting jobs of one lane in the order of claims, from the given parts of the lane. Locks them, and skips
-- those that another transaction has locked.
SELECT job.*
  FROM unnest(%(lanes)s::bigint[], %(priorities)s::bigint[], %(places)s::bigint[], %(below)s::bigint[])
    AS part (lane, priority, place, below)
 CROSS JOIN LATERAL (SELECT * FROM errandry.live
                      WHERE live.lane = part.lane AND state = 'waiting' AND (crashes = 0 OR %(suspects)s::smallint IN (suspect, 3))
                        AND (live.priority, live.place) > (part.priority, part.place) AND live.priority < part.below
                      ORDER BY priority, place LIMIT %(limit)s
                        FOR NO KEY UPDATE SKIP LOCKED) AS job
 LIMIT %(limit)s;

-- name: best_jobs
-- The first waiting jobs of several lanes taken together, from the given parts of each lane. It first counts how many
-- jobs each part contributes, so that it locks no more jobs than it returns. Skips jobs that another transaction has
-- locked. The last column is the number of jobs, locked or not.
WITH best AS (
    SELECT part.*
      FROM unnest(%(lanes)s::bigint[], %(priorities)s::bigint[], %(places)s::bigint[], %(below)s::bigint[])
        AS part (lane, priority, place, below)
     CROSS JOIN LATERAL (SELECT live.priority, live.place FROM errandry.live
                          WHERE live.lane = part.lane AND state = 'waiting'
                            AND (crashes = 0 OR %(suspects)s::smallint IN (suspect, 3))
                            AND (live.priority, live.place) > (part.priority, part.place) AND live.priority < part.below
                          ORDER BY priority, place LIMIT %(limit)s) AS job
     ORDER BY job.priority, job.place LIMIT %(limit)s),
shares AS (SELECT best.*, count(*) AS jobs FROM best GROUP BY lane, priority, place, below)
SELECT job.*, (SELECT count(*) FROM best)
  FROM shares
 CROSS JOIN LATERAL (SELECT * FROM errandry.live
                      WHERE live.lane = shares.lane AND state = 'waiting'
                        AND (crashes = 0 OR %(suspects)s::smallint IN (suspect, 3))
                        AND (live.priority, live.place) > (shares.priority, shares.place) AND live.priority < shares.below
                      ORDER BY priority, place LIMIT shares.jobs
                        FOR NO KEY UPDATE SKIP LOCKED) AS job
 ORDER BY job.priority, job.place;

-- name: count_waiting
-- The number of waiting jobs of a queue, counted up to `bound`. Each lane is read from its end: at its head are the
-- dead index entries of the jobs claimed last. Locks nothing.
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
                              ORDER BY priority DESC, place DESC LIMIT %(bound)s::bigint) AS job
         WHERE lanes.queue = %(queue)s AND lanes.ready
         LIMIT %(bound)s::bigint) AS counted;

-- name: index_entries_read
-- The number of entries that this transaction has read from the indexes of claims. The first column tells apart two
-- calls in one pass.
SELECT %s::bigint, pg_stat_get_xact_tuples_returned('errandry.live_ready'::regclass)
       + pg_stat_get_xact_tuples_returned('errandry.live_leased'::regclass)
       + pg_stat_get_xact_tuples_returned('errandry.live_due'::regclass)
       + pg_stat_get_xact_tuples_returned('errandry.live_deadline'::regclass);

-- name: due_times
-- The earliest times at which upkeep has work: a due job, an expired lease, a lapsed deadline, a parked lane with
-- waiting jobs, a tick of a schedule. Each is the first entry of an index; `min` could scan all rows. Leases and
-- deadlines count only up to `until`. Then, whether suspects of both kinds wait. Locks nothing.
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
       (SELECT due_at FROM errandry.schedules WHERE due_at IS NOT NULL ORDER BY due_at LIMIT 1),
       EXISTS (SELECT 1 FROM errandry.live WHERE state = 'waiting' AND crashes > 0 AND suspect = 1),
       EXISTS (SELECT 1 FROM errandry.live WHERE state = 'waiting' AND crashes > 0 AND suspect = 2);

-- name: due_jobs
-- Scheduled jobs whose time has come. Locks them, and skips those that another transaction has locked.
SELECT * FROM errandry.live WHERE state = 'scheduled' AND run_at >= %s::float8 AND run_at <= %s
 ORDER BY run_at, seq LIMIT %s FOR NO KEY UPDATE SKIP LOCKED;

-- name: expired_jobs
-- Claimed and running jobs whose lease has expired. Locks them, and skips those that another transaction has locked.
SELECT * FROM errandry.live
 WHERE state IN ('claimed', 'running') AND lease_until >= %s::float8 AND lease_until <= %s
 ORDER BY lease_until, seq LIMIT %s FOR NO KEY UPDATE SKIP LOCKED;

-- name: read_expired_jobs
-- The same jobs as `expired_jobs` for a read, without locks.
SELECT * FROM errandry.live WHERE state IN ('claimed', 'running') AND lease_until <= %s
 ORDER BY lease_until, seq LIMIT %s;

-- name: lapsed_jobs
-- Jobs whose deadline has passed before a worker claimed them. Locks them, and skips those that another transaction
-- has locked.
SELECT * FROM errandry.live
 WHERE deadline IS NOT NULL AND state IN ('blocked', 'scheduled', 'waiting')
   AND deadline >= %s::float8 AND deadline <= %s
 ORDER BY deadline, seq LIMIT %s FOR NO KEY UPDATE SKIP LOCKED;

-- name: prunable_jobs
-- Finished jobs whose retention is over. Locks them, and skips those that another transaction has locked.
SELECT * FROM errandry.history WHERE expires_at <= %s ORDER BY expires_at, seq LIMIT %s FOR NO KEY UPDATE SKIP LOCKED;

-- name: read_prunable_jobs
-- The same jobs as `prunable_jobs` for a read, without locks.
SELECT * FROM errandry.history WHERE expires_at <= %s ORDER BY expires_at, seq LIMIT %s;

-- name: keep_last_tasks
-- Tasks and states with finished jobs that are kept by count (`keep.last`), and the rule of the newest job of each.
-- Jumps through the index from one task and state to the next. Locks nothing.
WITH RECURSIVE pair AS (
    (SELECT task, state FROM errandry.history WHERE strpos(keep, '"last_') > 0 ORDER BY task, state LIMIT 1)
    UNION ALL
    SELECT next.task, next.state
      FROM pair, LATERAL (SELECT history.task, history.state FROM errandry.history
                            WHERE strpos(history.keep, '"last_') > 0
                              AND (history.task, history.state) > (pair.task, pair.state)
                            ORDER BY history.task, history.state LIMIT 1) AS next)
SELECT pair.task, pair.state, newest.keep
  FROM pair, LATERAL (SELECT history.keep FROM errandry.history
                        WHERE strpos(history.keep, '"last_') > 0
                          AND history.task = pair.task AND history.state = pair.state
                        ORDER BY history.finished_at DESC, history.seq DESC LIMIT 1) AS newest
 ORDER BY pair.task, pair.state;

-- name: excess_jobs
-- Finished jobs of a task and a state that are older than the oldest one to keep. `last` is the number to keep, less
-- one. Locks them, and skips those that another transaction has locked.
SELECT * FROM errandry.history
 WHERE strpos(keep, '"last_') > 0 AND task = %(task)s AND state = %(state)s
   AND (finished_at, seq) < (SELECT oldest_kept.finished_at, oldest_kept.seq FROM errandry.history AS oldest_kept
                              WHERE strpos(oldest_kept.keep, '"last_') > 0 AND oldest_kept.task = %(task)s AND oldest_kept.state = %(state)s
                              ORDER BY oldest_kept.finished_at DESC, oldest_kept.seq DESC OFFSET %(last)s LIMIT 1)
 ORDER BY finished_at, seq LIMIT %(limit)s FOR NO KEY UPDATE SKIP LOCKED;

-- name: read_excess_jobs
-- The same jobs as `excess_jobs` for a read, without locks.
SELECT * FROM errandry.history
 WHERE strpos(keep, '"last_') > 0 AND task = %(task)s AND state = %(state)s
   AND (finished_at, seq) < (SELECT oldest_kept.finished_at, oldest_kept.seq FROM errandry.history AS oldest_kept
                              WHERE strpos(oldest_kept.keep, '"last_') > 0 AND oldest_kept.task = %(task)s AND oldest_kept.state = %(state)s
                              ORDER BY oldest_kept.finished_at DESC, oldest_kept.seq DESC OFFSET %(last)s LIMIT 1)
 ORDER BY finished_at, seq LIMIT %(limit)s;

-- name: partitions
-- The partitions of `history`, by name, and whether each is being detached.
SELECT substring(pg_get_expr(relpartbound, pg_class.oid) FROM '\d+')::bigint, relname::text, inhdetachpending
  FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid
 WHERE inhparent = 'errandry.history'::regclass
 ORDER BY relname;

-- name: create_partition
-- Create the partition of a day, unless it exists.
SELECT errandry.create_history_partition(%s::integer);

-- name: partition_has_jobs
-- A row if finished jobs expire on this day.
SELECT 1 FROM errandry.history WHERE day = %s::integer LIMIT 1;

-- name: detached_partitions
-- Tables that were partitions and have not been dropped yet.
SELECT relname::text FROM pg_class
 WHERE relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = 'errandry.history'::regclass)
   AND relkind = 'r' AND NOT relispartition AND relname ~ '^history_\d{8}$'
 ORDER BY relname;

-- name: may_drop_partitions
-- Whether this user owns `history`, and the process id of the server's end of the connection.
SELECT pg_has_role(relowner, 'USAGE'), pg_backend_pid() FROM pg_class WHERE oid = 'errandry.history'::regclass;

-- name: lock_partitions
-- Try to take the advisory lock of partition maintenance for this session. One process at a time drops partitions.
SELECT pg_try_advisory_lock(hashtextextended('days', 'errandry.history'::regclass::oid::bigint));

-- name: unlock_partitions
-- Release the advisory lock of partition maintenance.
SELECT pg_advisory_unlock(hashtextextended('days', 'errandry.history'::regclass::oid::bigint));

-- name: set_lock_timeout
-- Limit how long this transaction waits for a lock.
SELECT set_config('lock_timeout', %s, true);

-- name: set_session_lock_timeout
-- Limit how long this session waits for a lock.
SELECT set_config('lock_timeout', %s, false);

-- name: reset_session_lock_timeout
-- Set the lock timeout of this session back to its default.
SELECT set_config('lock_timeout', reset_val, false) FROM pg_settings WHERE name = 'lock_timeout';

-- name: detach_partition
-- Detach a partition. CONCURRENTLY waits until no transaction reads the partition, and blocks none.
ALTER TABLE errandry.history DETACH PARTITION errandry.history_partition CONCURRENTLY;

-- name: finish_detach
-- Finish a detach that was interrupted.
ALTER TABLE errandry.history DETACH PARTITION errandry.history_partition FINALIZE;

-- name: detached_has_jobs
-- A row if a detached partition has jobs.
SELECT 1 FROM errandry.history_partition LIMIT 1;

-- name: drop_partition
-- Drop a detached partition.
DROP TABLE errandry.history_partition;

-- name: jobs_held_by
-- Jobs that some workers hold. Locks them, and skips those that another transaction has locked.
SELECT * FROM errandry.live
 WHERE state IN ('claimed', 'running') AND worker = ANY (%s::text[])
 ORDER BY lease_until, seq LIMIT %s FOR NO KEY UPDATE SKIP LOCKED;

-- name: jobs_lost_by
-- Unfinished jobs whose last loss is by some workers, as long as it is not final. Locks them, and skips those that
-- another transaction has locked.
SELECT * FROM errandry.live WHERE lost_by = ANY (%s::text[]) LIMIT %s FOR NO KEY UPDATE SKIP LOCKED;

-- name: cancel_requests
-- Running jobs of a worker whose cancel was requested.
SELECT id, fence FROM errandry.live
 WHERE cancel_requested AND worker = %s AND state = 'running' ORDER BY seq;

-- name: clear_edges
-- Delete the edges of earlier jobs with these ids to their children. Locks the edges it deletes.
DELETE FROM errandry.edges WHERE parent = ANY (%s::text[]);

-- name: clear_closing_flows
-- Forget that earlier jobs with these ids were parents that had ended. Locks the list entries it deletes.
DELETE FROM errandry.closing_flows WHERE parent = ANY (%s::text[]);

-- name: add_edges
-- Add edges from parents to children. Locks no existing row.
INSERT INTO errandry.edges (parent, n, child, task, seq, policy, outcome, result, feeds)
SELECT * FROM unnest(
    %s::text[], %s::bigint[], %s::text[], %s::text[], %s::bigint[], %s::text[], %s::text[], %s::text[], %s::text[]);

-- name: update_edges
-- Write how the children of edges ended (NULL: they live). The pass has locked their parents.
UPDATE errandry.edges SET outcome = new.outcome, result = new.result
  FROM (SELECT target.ctid AS row_address, given.*
          FROM unnest(%s::text[], %s::bigint[], %s::text[], %s::text[]) AS given (parent, n, outcome, result),
               LATERAL (SELECT ctid FROM errandry.edges
                         WHERE edges.parent = given.parent AND edges.n = given.n OFFSET 0) AS target
         WHERE given.n %% 1 = 0 AND -given.n %% 1 = 0) AS new
 WHERE edges.ctid = new.row_address;

-- name: parent_edges
-- The edges from children to their parents.
SELECT parent, n, child, task, seq, policy, outcome, result, feeds FROM errandry.edges
 WHERE seq = ANY (%s::bigint[]);

-- name: child_edges
-- The edges from a parent to its children, in their order.
SELECT parent, n, child, task, seq, policy, outcome, result, feeds FROM errandry.edges WHERE parent = %s ORDER BY n;

-- name: take_pending_edges
-- Take edges off the list of edges whose children existed before them, and return them. Locks the list entries, and
-- skips those that another transaction has locked.
WITH taken AS (
    DELETE FROM errandry.pending_edges
     WHERE ctid = ANY (ARRAY (SELECT ctid FROM errandry.pending_edges ORDER BY parent, n LIMIT %s FOR UPDATE SKIP LOCKED))
    RETURNING parent, n)
SELECT edge.*
  FROM taken
 CROSS JOIN LATERAL (SELECT parent, n, child, task, seq, policy, outcome, result, feeds FROM errandry.edges
                      WHERE edges.parent = taken.parent AND edges.n = taken.n OFFSET 0) AS edge
 ORDER BY edge.parent, edge.n;

-- name: open_child_count
-- The number of children of a parent that have not ended.
SELECT count(*) FROM errandry.edges WHERE parent = %s AND outcome IS NULL;

-- name: reopened_edges
-- The edges from a parent to children that had ended and live again.
SELECT parent, n, child, task, seq, policy, outcome, result, feeds
  FROM (SELECT * FROM errandry.edges WHERE parent = %s AND outcome IS NOT NULL ORDER BY n) AS closed
 WHERE EXISTS (SELECT 1 FROM errandry.live WHERE live.seq = closed.seq OFFSET 0)
 ORDER BY n;

-- name: fatal_edge
-- The first child that did not complete although its parent needs it.
SELECT parent, n, child, task, seq, policy, outcome, result, feeds FROM errandry.edges
 WHERE parent = %s AND outcome <> 'completed' AND policy IN ('fail', 'remove') ORDER BY n LIMIT 1;

-- name: open_children
-- Children in some states that have no cancel request and for which no other live parent waits. Locks them, and skips
-- those that another transaction has locked.
SELECT live.* FROM errandry.edges JOIN errandry.live ON live.seq = edges.seq
 WHERE edges.parent = %s AND edges.outcome IS NULL AND edges.policy <> 'after'
   AND live.state = ANY (%s::text[]) AND NOT live.cancel_requested
   AND (live.parents = 1 OR NOT EXISTS (
        SELECT 1 FROM errandry.edges AS other
         WHERE other.seq = edges.seq AND other.parent <> edges.parent
           AND EXISTS (SELECT 1 FROM errandry.live AS parent WHERE parent.id = other.parent OFFSET 0) OFFSET 0))
 ORDER BY edges.n LIMIT %s
   FOR NO KEY UPDATE OF live SKIP LOCKED;

-- name: has_open_children
-- A row if `open_children` has a child to return, locked by another transaction or not. Locks nothing.
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
-- List a parent that has ended: why its children are to be canceled (NULL: they are not), and when its edges expire.
-- The pass has locked the parent. Locks its list entry.
INSERT INTO errandry.closing_flows (parent, cancel, expires_at) VALUES (%s, %s, %s)
    ON CONFLICT (parent) DO UPDATE SET cancel = excluded.cancel, expires_at = excluded.expires_at;

-- name: end_flow_cancel
-- Note that the children of a listed parent are canceled. Its edges expire at the time that was listed. The pass has
-- locked the list entry.
UPDATE errandry.closing_flows SET cancel = NULL WHERE parent = %s;

-- name: reopen_flow
-- Take a parent off the list. Locks the list entry.
DELETE FROM errandry.closing_flows WHERE parent = %s;

-- name: flows_to_cancel
-- Listed parents whose children are still to be canceled. Locks the list entries, and skips those that another
-- transaction has locked.
SELECT parent, cancel FROM errandry.closing_flows WHERE cancel IS NOT NULL
 ORDER BY parent LIMIT %s FOR NO KEY UPDATE SKIP LOCKED;

-- name: prunable_flows
-- Listed parents whose edges have expired. Locks the list entries, and skips those that another transaction has
-- locked.
SELECT parent FROM errandry.closing_flows WHERE cancel IS NULL AND expires_at <= %s
 ORDER BY expires_at, parent LIMIT %s FOR NO KEY UPDATE SKIP LOCKED;

-- name: drop_edges
-- Delete some edges of a parent, and return them. The pass has locked the list entry of the parent. Locks the edges
-- it deletes.
DELETE FROM errandry.edges
 WHERE parent = %(parent)s AND n = ANY (ARRAY (
       SELECT n FROM errandry.edges WHERE parent = %(parent)s ORDER BY n LIMIT %(limit)s))
RETURNING n;

-- name: save_claims
-- Save the claims of a worker's last pass, so that they can be answered again. Replaces those of the pass before.
-- Locks these rows. The pass holds the advisory lock of the worker, so no other pass writes them.
WITH before AS (DELETE FROM errandry.claims WHERE worker = %(worker)s AND n = %(last)s)
INSERT INTO errandry.claims (worker, n, claimed_at, refs) VALUES (%(worker)s, %(last)s + 1, %(now)s, %(refs)s)
    ON CONFLICT (worker, n) DO UPDATE SET claimed_at = excluded.claimed_at, refs = excluded.refs;

-- name: load_claims
-- The claims of a worker's last pass, and its number.
SELECT n, refs FROM errandry.claims WHERE worker = %s ORDER BY n DESC LIMIT 1;

-- name: save_answers
-- Save the answers to commands, so that they can be answered again. Waits for a transaction that is saving an answer to
-- the same command, and fails if that commits: then the command is applied already.
INSERT INTO errandry.answers (nonce, at, answer)
SELECT nonce, %s::float8, answer FROM unnest(%s::text[], %s::text[]) AS new (nonce, answer) ORDER BY nonce COLLATE "C";

-- name: load_answers
-- The saved answers under some nonces. Locks nothing.
SELECT nonce, answer FROM errandry.answers WHERE nonce = ANY (%s::text[]);

-- name: create_gates
-- Gates by their keys. Inserts those that do not exist and are to be created, without a rule. Locks all of them in the
-- order of their keys until the commit.
INSERT INTO errandry.gates (kind, name, grp)
SELECT kind, name, grp
  FROM unnest(%s::text[], %s::text[], %s::text[], %s::boolean[]) AS wanted (kind, name, grp, is_created)
 WHERE is_created
    OR EXISTS (SELECT 1 FROM errandry.gates
                WHERE gates.kind = wanted.kind AND gates.name = wanted.name AND gates.grp = wanted.grp)
 ORDER BY kind COLLATE "C", name COLLATE "C", grp COLLATE "C"
    ON CONFLICT (kind, name, grp) DO UPDATE SET tat = gates.tat
RETURNING *;

-- name: lock_gates
-- Gates by their keys. Locks them in the order of their keys until the commit.
SELECT locked.*
  FROM (SELECT * FROM unnest(%s::text[], %s::text[], %s::text[]) AS wanted (kind, name, grp)
         ORDER BY kind COLLATE "C", name COLLATE "C", grp COLLATE "C") AS wanted
 CROSS JOIN LATERAL (SELECT * FROM errandry.gates
                      WHERE gates.kind = wanted.kind AND gates.name = wanted.name AND gates.grp = wanted.grp
                        FOR NO KEY UPDATE) AS locked;

-- name: group_gates
-- The gates of groups. Locks each gate that no other transaction has locked; the last column says whether it did.
SELECT (coalesce(locked.gate, seen.gate)).*, locked.gate IS DISTINCT FROM NULL
  FROM unnest(%(queues)s::text[], %(groups)s::text[]) AS wanted (name, grp)
 CROSS JOIN LATERAL (SELECT gates AS gate FROM errandry.gates
                      WHERE kind = 'group' AND gates.name = wanted.name AND gates.grp = wanted.grp OFFSET 0) AS seen
  LEFT JOIN LATERAL (SELECT gates AS gate FROM errandry.gates
                      WHERE kind = 'group' AND gates.name = wanted.name AND gates.grp = wanted.grp
                        FOR NO KEY UPDATE SKIP LOCKED) AS locked ON true;

-- name: close_gates
-- Close gates until a time, never earlier than they were to open; 0 opens them. Locks them.
INSERT INTO errandry.gates (kind, name, grp, closed_until)
SELECT * FROM unnest(%s::text[], %s::text[], %s::text[], %s::float8[]) AS new (kind, name, grp, at)
 ORDER BY kind COLLATE "C", name COLLATE "C", grp COLLATE "C"
    ON CONFLICT (kind, name, grp) DO UPDATE
   SET closed_until = CASE excluded.closed_until WHEN 0 THEN 0 ELSE greatest(gates.closed_until, excluded.closed_until) END;

-- name: put_rate_state
-- Write the rate state (`tat`) of gates. Locks them.
INSERT INTO errandry.gates (kind, name, grp, tat)
SELECT * FROM unnest(%s::text[], %s::text[], %s::text[], %s::float8[]) AS new (kind, name, grp, tat)
 ORDER BY kind COLLATE "C", name COLLATE "C", grp COLLATE "C"
    ON CONFLICT (kind, name, grp) DO UPDATE SET tat = excluded.tat;

-- name: put_gates
-- Write gates. Locks them.
INSERT INTO errandry.gates
SELECT * FROM unnest(%s::text[], %s::text[], %s::text[], %s::float8[], %s::text[], %s::text[], %s::float8[], %s::text[],
                     %s::text[], %s::text[], %s::float8[], %s::float8[])
    AS new (kind, name, grp, paused_at, paused_by, rule, ruled_at, ruled_by, rule_fields, declared, tat, closed_until)
 ORDER BY kind COLLATE "C", name COLLATE "C", grp COLLATE "C"
    ON CONFLICT (kind, name, grp) DO UPDATE
   SET paused_at = excluded.paused_at, paused_by = excluded.paused_by, rule = excluded.rule,
       ruled_at = excluded.ruled_at, ruled_by = excluded.ruled_by, rule_fields = excluded.rule_fields,
       declared = excluded.declared, tat = excluded.tat, closed_until = excluded.closed_until;

-- name: drop_gates
-- Delete gates by their keys. Locks the gates it deletes.
DELETE FROM errandry.gates
 WHERE ctid = ANY (ARRAY (
       SELECT target.ctid
         FROM unnest(%s::text[], %s::text[], %s::text[]) AS given (kind, name, grp)
        CROSS JOIN LATERAL (SELECT ctid FROM errandry.gates
                             WHERE gates.kind = given.kind AND gates.name = given.name AND gates.grp = given.grp
                            OFFSET 0) AS target));

-- name: gate
-- A gate by its key. Locks nothing.
SELECT * FROM errandry.gates WHERE kind = %s AND name = %s AND grp = %s;

-- name: group_sizes
-- Groups with waiting jobs and their sizes. Counts at most `bound` jobs of each lane. Locks nothing.
SELECT queue, grp, sum(counted.waiting)::bigint
  FROM errandry.lanes,
       LATERAL (SELECT count(*) AS waiting
                  FROM (SELECT 1 FROM errandry.live
                         WHERE live.lane = lanes.lane AND state = 'waiting' LIMIT %(bound)s) AS job) AS counted
 WHERE ready AND grp <> '' AND (%(queue)s::text IS NULL OR queue = %(queue)s) AND counted.waiting > 0
 GROUP BY queue, grp ORDER BY queue, grp LIMIT %(limit)s;

-- name: held_counts
-- The number of jobs that workers hold, by queue, task and group. Reads only rows of held jobs.
SELECT queue, task, grp, count(*) FROM errandry.live WHERE state IN ('claimed', 'running') GROUP BY queue, task, grp;

-- name: gates
-- All gates of some kinds. Locks nothing.
SELECT * FROM errandry.gates WHERE kind = ANY (%s::text[]) ORDER BY name, grp;

-- name: drop_empty_gates
-- Delete gates without a pause, a rule, a used rate and a closing time. Skips gates that another transaction has
-- locked.
DELETE FROM errandry.gates
 WHERE ctid = ANY (ARRAY (SELECT ctid FROM errandry.gates
                           WHERE paused_at IS NULL AND rule IS NULL
                             AND tat <= %s AND closed_until <= %s LIMIT %s FOR UPDATE SKIP LOCKED));

-- name: save_beat
-- Write a worker's beat. Locks the row of the worker.
INSERT INTO errandry.workers (worker, seen_at, beat) VALUES (%s, %s, %s)
    ON CONFLICT (worker) DO UPDATE SET seen_at = excluded.seen_at, beat = excluded.beat;

-- name: delete_worker
-- Delete a worker that has stopped. Locks the row of the worker.
DELETE FROM errandry.workers WHERE worker = %s;

-- name: workers
-- All workers with their last beats.
SELECT beat, seen_at FROM errandry.workers ORDER BY worker;

-- name: append_events
-- Add a row to the event log as the last statement of a pass; see the function `append_events`. Returns the id of
-- this transaction.
SELECT pg_current_xact_id()::xid
  FROM errandry.append_events(coalesce(%s::float8, extract(epoch FROM now())::float8), %s::bigint, %s::text, %s::text, %s::text, %s::text);

-- name: read_events
-- The rows of the event log from a number on.
SELECT n, at, entries FROM errandry.events WHERE n >= %s ORDER BY n LIMIT %s;

-- name: event_log_span
-- The number of the oldest row in the event log, and of the last row that was ever added.
SELECT (SELECT n FROM errandry.events ORDER BY n LIMIT 1),
       coalesce((SELECT n FROM errandry.events ORDER BY n DESC LIMIT 1), dropped)
  FROM errandry.store;

-- name: totals
-- Counters by queue; then, in other columns, the event rows that are not folded in yet, and those of the inbox, which
-- have no number. One statement, so that upkeep cannot fold rows in between two reads.
SELECT queue, name, sum(value)::bigint, NULL::bigint AS n, NULL::float8 AS at, NULL::text AS deltas
  FROM errandry.totals GROUP BY queue, name
 UNION ALL
SELECT NULL, NULL, NULL, n, at, deltas FROM errandry.events WHERE n > (SELECT folded FROM errandry.store)
 UNION ALL
SELECT NULL, NULL, NULL, 0, at, deltas FROM errandry.bind_inbox;

-- name: bind_inbox_deltas
-- The counter changes of inserts that have no row in the event log yet.
SELECT at, deltas FROM errandry.bind_inbox;

-- name: unfolded_deltas
-- The counter changes of event rows that are not folded into `totals` and `stats` yet.
SELECT n, at, deltas FROM errandry.events WHERE n > (SELECT folded FROM errandry.store) ORDER BY n LIMIT %s;

-- name: fold_totals
-- Add changes to counters. Locks the rows in the order of their keys.
INSERT INTO errandry.totals (queue, task, name, value)
SELECT * FROM unnest(%s::text[], %s::text[], %s::text[], %s::bigint[]) AS new (queue, task, name, value)
 ORDER BY queue, task, name
    ON CONFLICT (queue, task, name) DO UPDATE SET value = totals.value + excluded.value;

-- name: fold_stats
-- Add changes to figures. Locks the rows in the order of their keys.
INSERT INTO errandry.stats (span, at, queue, task, name, value)
SELECT * FROM unnest(%s::integer[], %s::bigint[], %s::text[], %s::text[], %s::text[], %s::bigint[])
           AS new (span, at, queue, task, name, value)
 ORDER BY span, at, queue, task, name
    ON CONFLICT (span, at, queue, task, name) DO UPDATE SET value = stats.value + excluded.value;

-- name: stats
-- The figures that overlap a time span.
SELECT span, at, queue, task, name, value FROM errandry.stats
 WHERE span IN (60, 3600, 86400) AND at > %s::double precision - span AND at < %s::double precision;

-- name: oldest_stats
-- The time of the oldest figures of a span.
SELECT (SELECT at FROM errandry.stats WHERE span = %s ORDER BY at LIMIT 1);

-- name: roll_stats
-- Add figures of one span to those of the next longer one: minutes to hours, hours to days. Locks the rows of the
-- longer span in the order of their keys.
INSERT INTO errandry.stats (span, at, queue, task, name, value)
SELECT %s::integer, at / %s::bigint * %s::bigint AS hour, queue, task, name, sum(value)::bigint FROM errandry.stats
 WHERE span = %s AND at >= %s AND at < %s GROUP BY hour, queue, task, name
 ORDER BY hour, queue, task, name
    ON CONFLICT (span, at, queue, task, name) DO UPDATE SET value = stats.value + excluded.value;

-- name: drop_stats
-- Delete old figures of a span. Locks the rows it deletes.
DELETE FROM errandry.stats WHERE span = %s AND at < %s;

-- name: save_folded
-- Note the last event row whose changes are folded in. Locks the row of the store.
UPDATE errandry.store SET folded = %s;

-- name: ready_since
-- For each queue with waiting jobs: the earliest time since which the first job of one of its lanes could have run.
SELECT queue, min(since)
  FROM errandry.lanes
 CROSS JOIN LATERAL (SELECT greatest(created_at, coalesce(run_at, 0)) AS since FROM errandry.live
                      WHERE live.lane = lanes.lane AND state = 'waiting'
                      ORDER BY priority, place LIMIT 1) AS first
 WHERE ready
 GROUP BY queue;

-- name: lock_trim
-- Try to take the advisory lock of trimming, until the commit. One pass at a time trims.
SELECT pg_try_advisory_xact_lock(hashtextextended('trim', 'errandry.store'::regclass::oid::bigint));

-- name: event_count
-- The number of events in the log.
SELECT coalesce((SELECT total FROM errandry.events ORDER BY n DESC LIMIT 1)
                - (SELECT total - count FROM errandry.events ORDER BY n LIMIT 1), 0);

-- name: old_events
-- The oldest rows of the event log that are folded in.
SELECT n, count, total, at FROM errandry.events
 WHERE n <= (SELECT folded FROM errandry.store) ORDER BY n LIMIT %s;

-- name: drop_events
-- Delete the event rows up to a number. Locks the rows it deletes.
DELETE FROM errandry.events WHERE n <= %s;

-- name: save_dropped
-- Note the last event row that was deleted, the number of events up to it, and its time. Locks the row of the store.
UPDATE errandry.store SET dropped = %s, total = %s, at = greatest(at, %s);

-- name: drop_old_workers
-- Delete workers that have sent no beat for long, and return them. Locks the rows it deletes.
DELETE FROM errandry.workers WHERE seen_at <= %s RETURNING worker;

-- name: drop_old_claims
-- Delete saved claims that are too old to be repeated. Locks the rows it deletes.
DELETE FROM errandry.claims WHERE claimed_at <= %s;

-- name: drop_old_answers
-- Delete saved answers to commands that are not sent again any more. Locks the rows it deletes.
DELETE FROM errandry.answers
 WHERE nonce = ANY (ARRAY (SELECT nonce FROM errandry.answers WHERE at <= %s ORDER BY at LIMIT %s));

-- name: idle_lanes
-- Lanes that seem to have no waiting jobs, and whether each is marked. Locks them, so that no transaction puts a job
-- there, and skips those that another transaction has locked. Each lane is read from its end: at its head are the
-- dead index entries of the jobs claimed last.
SELECT lane, ready FROM errandry.lanes
 WHERE (ready OR used_at <= %s)
   AND NOT EXISTS (SELECT 1 FROM errandry.live WHERE live.lane = lanes.lane AND state = 'waiting'
                    ORDER BY priority DESC, place DESC OFFSET 0)
 ORDER BY lane LIMIT %s
   FOR UPDATE SKIP LOCKED;

-- name: unmark_lanes
-- Remove the mark of lanes that still have no waiting jobs, now that they are locked.
UPDATE errandry.lanes SET ready = false
 WHERE lane = ANY (%s::bigint[])
   AND NOT EXISTS (SELECT 1 FROM errandry.live WHERE live.lane = lanes.lane AND state = 'waiting' OFFSET 0);

-- name: drop_lanes
-- Delete idle lanes: the next job of the lane inserts it again. A lane whose virtual start is ahead of its queue stays, so
-- that its group does not get extra service. The pass has locked the lanes.
DELETE FROM errandry.lanes
 WHERE lane = ANY (%s::bigint[]) AND NOT ready AND used_at <= %s
   AND virtual_start <= coalesce((SELECT virtual_times.virtual_time FROM errandry.virtual_times WHERE virtual_times.queue = lanes.queue), virtual_start)
   AND NOT EXISTS (SELECT 1 FROM errandry.live WHERE live.lane = lanes.lane AND state = 'waiting' OFFSET 0);

-- name: steps
-- The steps of a job in the order they began.
SELECT job, n, kind, name, result, at, until FROM errandry.steps WHERE job = %s ORDER BY n;

-- name: step
-- A step by its kind and name.
SELECT job, n, kind, name, result, at, until FROM errandry.steps WHERE job = %s AND kind = %s AND name = %s;

-- name: put_step
-- Add a step, or write its result. The pass has locked the job.
INSERT INTO errandry.steps (job, n, kind, name, result, at, until) VALUES (%s, %s, %s, %s, %s, %s, %s)
    ON CONFLICT (job, kind, name) DO UPDATE SET result = excluded.result, at = excluded.at;

-- name: drop_steps
-- Delete the steps of jobs. The pass has locked the jobs.
DELETE FROM errandry.steps WHERE job = ANY (%s::text[]);

-- name: schedules
-- Schedules by name. Locks nothing.
SELECT record FROM errandry.schedules WHERE name = ANY (%s::text[]) ORDER BY name;

-- name: lock_schedule
-- A schedule by name. Locks it until the commit.
SELECT record FROM errandry.schedules WHERE name = ANY (%s::text[]) FOR NO KEY UPDATE;

-- name: lock_new_schedule
-- Take an advisory lock on the name of a schedule that does not exist, until the commit: it has no row to lock, and
-- another pass may be creating it.
SELECT count(pg_advisory_xact_lock(hashtextextended(%s::text, 'errandry.schedules'::regclass::oid::bigint)));

-- name: schedules_after
-- Schedules after a name, by name.
SELECT record FROM errandry.schedules WHERE name > %s ORDER BY name LIMIT %s;

-- name: due_schedules
-- Schedules with a tick that is due. Locks them, and skips those that another transaction has locked.
SELECT record FROM errandry.schedules WHERE due_at IS NOT NULL AND due_at >= %s::float8 AND due_at <= %s
 ORDER BY due_at, name LIMIT %s FOR NO KEY UPDATE SKIP LOCKED;

-- name: put_schedules
-- Write schedules. Locks them.
INSERT INTO errandry.schedules
SELECT * FROM unnest(%s::text[], %s::float8[], %s::text[]) AS new (name, due_at, record) ORDER BY name
    ON CONFLICT (name) DO UPDATE SET due_at = excluded.due_at, record = excluded.record;

-- name: drop_schedule
-- Delete a schedule. The pass has locked it.
DELETE FROM errandry.schedules WHERE name = %s;
