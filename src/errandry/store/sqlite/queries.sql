-- name: begin
-- Begin a write transaction. This process holds the turnstile, so only a foreign program can hold the lock.
BEGIN IMMEDIATE;

-- name: commit
-- Commit the pass.
COMMIT;

-- name: rollback
-- Roll the pass back.
ROLLBACK;

-- name: load_state
-- The state that every pass starts from: the row of the store, whether there are gates, and whether a lane that
-- may have waiting jobs has a group.
SELECT identity, number, now, folded, row, events, EXISTS (SELECT 1 FROM gates),
       EXISTS (SELECT 1 FROM lanes WHERE ready AND grp <> '')
  FROM store;

-- name: data_version
-- A number that changes when another connection commits, and never by a commit of this connection.
PRAGMA data_version;

-- name: save_state
-- Write the state that the next pass starts from.
-- guard: numbers_on_disk, time_on_disk
UPDATE store SET number = ?1, now = ?2, row = ?3, events = ?4;

-- name: insert_new
-- Insert a new job. It has had no attempt, so all columns that an attempt sets are empty.
INSERT INTO live VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, NULL, NULL, ?8, ?9, ?10, ?11, 0, ?12, 0, 0, ?13, ?14, ?14, ?15, ?16,
                         ?17, 0, NULL, NULL, 0, NULL, ?18, ?19, ?19, NULL, NULL, NULL, NULL, NULL, NULL, ?20, ?21, NULL,
                         ?22, NULL, NULL, ?23, NULL, ?24);

-- name: insert_from_history
-- Insert the whole row of a job that leaves `history`, for example by a rerun.
INSERT INTO live VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?,
                         ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: finish
-- Insert the whole row of a finished job.
INSERT INTO history VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?,
                            ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: finish_live
-- Copy finished jobs with the same outcome from `live` into `history`. ?1 maps their `seq` to their results.
INSERT INTO history
SELECT seq, live.id, task, queue, grp, ?3, lifo, ?4, ?5, payload, priority, NULL, run_at, attempts, max_attempts,
       ?6, ?7, max_crashes, open_children, children, parents, timeout, deadline, fence, worker, NULL,
       cancel_requested, ended.value, metadata, created_at, ?8, claimed_at, started_at, ?8, ?9, NULL, NULL, backoff, keep,
       progress, tags, ?2, logs, uniqueness, steps
  FROM json_each(?1) AS ended CROSS JOIN live ON seq = CAST(ended.key AS INTEGER);

-- name: update
-- Write all columns that can change while a job is not finished. The parameters are the whole row, then its lane.
UPDATE live
   SET queue = ?4, state = ?6, reason = ?8, settled = ?9, payload = ?10, priority = ?11, place = ?12, run_at = ?13,
       attempts = ?14, max_attempts = ?15, releases = ?16, crashes = ?17, open_children = ?19, children = ?20,
       parents = ?21, deadline = ?23, fence = ?24, worker = ?25, lease_until = ?26, cancel_requested = ?27,
       result = ?28, metadata = ?29, updated_at = ?31, claimed_at = ?32, started_at = ?33, lost_by = ?36,
       unhandled_since = ?37, progress = ?40, tags = ?41, errors = ?42, logs = ?43, steps = ?45, lane = ?46
 WHERE seq = ?1;

-- name: claim
-- Claim waiting jobs. Writes only the columns that a claim changes.
UPDATE live
   SET state = ?2, attempts = ?3, fence = ?4, worker = ?5, lease_until = ?6, updated_at = ?7, claimed_at = ?7,
       started_at = ?8, settled = NULL, progress = NULL, place = NULL, lane = NULL
 WHERE seq IN (SELECT value FROM json_each(?1));

-- name: start
-- Start claimed jobs.
UPDATE live SET state = 'running', updated_at = ?2, started_at = ?2 WHERE seq IN (SELECT value FROM json_each(?1));

-- name: renew
-- Renew the leases of jobs.
UPDATE live SET lease_until = ?2, updated_at = ?3 WHERE seq IN (SELECT value FROM json_each(?1));

-- name: delete_live
-- Delete jobs that are not finished, by `seq`.
DELETE FROM live WHERE seq IN (SELECT value FROM json_each(?1));

-- name: delete_history
-- Delete a finished job.
DELETE FROM history WHERE id = ?1;

-- name: find_live
-- Jobs that are not finished, by id.
SELECT * FROM live WHERE id IN (SELECT value FROM json_each(?1));

-- name: find_history
-- Finished jobs, by id.
SELECT * FROM history WHERE id IN (SELECT value FROM json_each(?1));

-- name: ids_matching_live
-- Ids of unfinished jobs that begin or end with ?1. Scans the whole index on `id`, but no rows.
SELECT id FROM live
 WHERE substr(id, 1, length(?1)) = ?1 OR substr(id, -length(?1)) = ?1 ORDER BY id LIMIT ?2;

-- name: ids_matching_history
-- Ids of finished jobs that begin or end with ?1. Scans the whole index on `id`, but no rows.
SELECT id FROM history
 WHERE substr(id, 1, length(?1)) = ?1 OR substr(id, -length(?1)) = ?1 ORDER BY id LIMIT ?2;

-- name: matching_jobs
-- Jobs that match a search query, newest first. One statement serves every query: a parameter that is NULL does not
-- filter. `part` is a constant in each part of the view `job`, so SQLite never reads a part that is not wanted.
SELECT seq, id, task, queue, grp, state, lifo, reason, settled, payload, priority, place, run_at, attempts,
       max_attempts, releases, crashes, max_crashes, open_children, children, parents, timeout, deadline, fence,
       worker, lease_until, cancel_requested, result, metadata, created_at, updated_at, claimed_at, started_at,
       finished_at, expires_at, lost_by, unhandled_since, backoff, keep, progress, tags, errors, logs, uniqueness, steps
  FROM job
 WHERE CASE part WHEN 'live' THEN :live WHEN 'completed' THEN :completed ELSE :unsuccessful END
   AND seq < :below AND seq > :above
   AND state IN (SELECT value FROM json_each(:states))
   AND (:id_in IS NULL OR id IN (SELECT value FROM json_each(:id_in)))
   AND (:id_not_in IS NULL OR id NOT IN (SELECT value FROM json_each(:id_not_in)))
   AND (:task_in IS NULL OR task IN (SELECT value FROM json_each(:task_in)))
   AND (:task_not_in IS NULL OR task NOT IN (SELECT value FROM json_each(:task_not_in)))
   AND (:queue_in IS NULL OR queue IN (SELECT value FROM json_each(:queue_in)))
   AND (:queue_not_in IS NULL OR queue NOT IN (SELECT value FROM json_each(:queue_not_in)))
   AND (:group_in IS NULL OR grp IN (SELECT value FROM json_each(:group_in)))
   AND (:group_not_in IS NULL OR grp NOT IN (SELECT value FROM json_each(:group_not_in)))
   AND (:worker_in IS NULL OR worker IN (SELECT value FROM json_each(:worker_in)))
   AND (:worker_not_in IS NULL OR worker IS NULL OR worker NOT IN (SELECT value FROM json_each(:worker_not_in)))
   AND (:state_in IS NULL OR state IN (SELECT value FROM json_each(:state_in)))
   AND (:state_not_in IS NULL OR state NOT IN (SELECT value FROM json_each(:state_not_in)))
   AND (:reason_in IS NULL OR reason IN (SELECT value FROM json_each(:reason_in)))
   AND (:reason_not_in IS NULL OR reason IS NULL OR reason NOT IN (SELECT value FROM json_each(:reason_not_in)))
   AND (:priority_in IS NULL OR priority IN (SELECT value FROM json_each(:priority_in)))
   AND (:priority_not_in IS NULL OR priority NOT IN (SELECT value FROM json_each(:priority_not_in)))
   AND (:attempts_in IS NULL OR attempts IN (SELECT value FROM json_each(:attempts_in)))
   AND (:attempts_not_in IS NULL OR attempts NOT IN (SELECT value FROM json_each(:attempts_not_in)))
   AND (:priority_min IS NULL OR priority >= :priority_min)
   AND (:priority_max IS NULL OR priority <= :priority_max)
   AND (:attempts_min IS NULL OR attempts >= :attempts_min)
   AND (:attempts_max IS NULL OR attempts <= :attempts_max)
   AND (:children_in IS NULL OR children IN (SELECT value FROM json_each(:children_in)))
   AND (:children_not_in IS NULL OR children NOT IN (SELECT value FROM json_each(:children_not_in)))
   AND (:children_min IS NULL OR children >= :children_min)
   AND (:children_max IS NULL OR children <= :children_max)
   AND (:parents_in IS NULL OR parents IN (SELECT value FROM json_each(:parents_in)))
   AND (:parents_not_in IS NULL OR parents NOT IN (SELECT value FROM json_each(:parents_not_in)))
   AND (:parents_min IS NULL OR parents >= :parents_min)
   AND (:parents_max IS NULL OR parents <= :parents_max)
   AND (:created_min IS NULL OR created_at >= :created_min)
   AND (:created_max IS NULL OR created_at <= :created_max)
   AND (:finished_min IS NULL OR finished_at >= :finished_min)
   AND (:finished_max IS NULL OR finished_at <= :finished_max)
   AND (:due_min IS NULL OR run_at >= :due_min)
   AND (:due_max IS NULL OR run_at <= :due_max)
   AND (:expires_min IS NULL OR expires_at >= :expires_min)
   AND (:expires_max IS NULL OR expires_at <= :expires_max)
   AND (:tags_all IS NULL OR NOT EXISTS (
        SELECT 1 FROM json_each(:tags_all) AS wanted
         WHERE NOT EXISTS (SELECT 1 FROM json_each(wanted.value) AS tag
                            WHERE tag.value IN (SELECT value FROM json_each(tags)))))
   AND (:tags_none IS NULL OR NOT EXISTS (
        SELECT 1 FROM json_each(:tags_none) AS tag WHERE tag.value IN (SELECT value FROM json_each(tags))))
   AND (:id_has IS NULL OR has_all(id, :id_has))
   AND (:id_lacks IS NULL OR has_none(id, :id_lacks))
   AND (:task_has IS NULL OR has_all(task, :task_has))
   AND (:task_lacks IS NULL OR has_none(task, :task_lacks))
   AND (:queue_has IS NULL OR has_all(queue, :queue_has))
   AND (:queue_lacks IS NULL OR has_none(queue, :queue_lacks))
   AND (:group_has IS NULL OR has_all(grp, :group_has))
   AND (:group_lacks IS NULL OR has_none(grp, :group_lacks))
   AND (:worker_has IS NULL OR has_all(worker, :worker_has))
   AND (:worker_lacks IS NULL OR has_none(worker, :worker_lacks))
   AND (:payload_has IS NULL OR has_all(payload, :payload_has))
   AND (:payload_lacks IS NULL OR has_none(payload, :payload_lacks))
   AND (:result_has IS NULL OR has_all(result, :result_has))
   AND (:result_lacks IS NULL OR has_none(result, :result_lacks))
   AND (:error_has IS NULL OR NOT EXISTS (
        SELECT 1 FROM json_each(:error_has) AS wanted
         WHERE NOT EXISTS (SELECT 1 FROM json_each(errors) AS error, json_each(wanted.value) AS needle
                            WHERE instr(lower(coalesce(error.value ->> 'type', '') || ': '
                                              || coalesce(error.value ->> 'message', '')), needle.value))))
   AND (:error_lacks IS NULL OR NOT EXISTS (
        SELECT 1 FROM json_each(errors) AS error, json_each(:error_lacks) AS needle
         WHERE instr(lower(coalesce(error.value ->> 'type', '') || ': '
                           || coalesce(error.value ->> 'message', '')), needle.value)))
 ORDER BY seq DESC
 LIMIT :limit;

-- name: seq_floor
-- The `seq` at which a search stops when it has examined `:jobs` jobs.
SELECT seq FROM job
 WHERE CASE part WHEN 'live' THEN :live WHEN 'completed' THEN :completed ELSE :unsuccessful END AND seq < :below
 ORDER BY seq DESC LIMIT 1 OFFSET :jobs;

-- name: key_holders
-- The holders of unique keys, live or expired.
SELECT key, job, expires_at FROM keys WHERE key IN (SELECT value FROM json_each(?1));

-- name: free_key
-- Free a unique key if this job holds it.
DELETE FROM keys WHERE key = ?1 AND job = ?2;

-- name: take_key
-- Give a unique key to a job, whichever job held it before.
INSERT OR REPLACE INTO keys (key, job, expires_at) VALUES (?1, ?2, ?3);

-- name: drop_expired_keys
-- Delete expired unique keys, and return them.
DELETE FROM keys WHERE key IN (SELECT key FROM keys WHERE expires_at <= ?1 ORDER BY expires_at LIMIT ?2) RETURNING key;

-- name: find_lane
-- The number of a lane, and whether it is marked as one that may have waiting jobs.
SELECT lane, ready FROM lanes WHERE queue = ?1 AND task = ?2 AND grp = ?3;

-- name: insert_lane
-- Insert a lane. Lanes of one group share their virtual start.
INSERT INTO lanes (queue, task, grp, ready, used_at, virtual_start, open_at)
VALUES (?1, ?2, ?3, 1, ?4, coalesce((SELECT max(virtual_start) FROM lanes WHERE queue = ?1 AND grp = ?3), 0), 0)
RETURNING lane, ready;

-- name: mark_lane_ready
-- Mark a lane: it may have waiting jobs.
UPDATE lanes SET ready = 1, used_at = ?2 WHERE lane = ?1;

-- name: mark_lane_empty
-- Remove the mark of a lane that has no waiting jobs.
UPDATE lanes SET ready = 0 WHERE lane = ?1;

-- name: open_lanes
-- Lanes that may have waiting jobs, for a store where no such lane has a group. ?1 and ?2 are the queues and tasks to
-- take (NULL: all), ?3 and ?4 the tasks and queues to leave out. Each lane comes with the priority and place of its
-- first job (NULL: the lane is empty), the most urgent first. ?5 says which suspects count (`SuspectKind`).
SELECT lanes.lane, lanes.queue, lanes.task, lanes.grp, first.priority, first.place
  FROM lanes
  LEFT JOIN live AS first
         ON first.seq = (SELECT seq FROM live
                          WHERE live.lane = lanes.lane AND live.state = 'waiting' AND (live.crashes = 0 OR ?5 IN (live.suspect, 3))
                          ORDER BY live.priority, live.place LIMIT 1)
 WHERE lanes.ready
   AND (?1 IS NULL OR lanes.queue IN (SELECT value FROM json_each(?1)))
   AND (?2 IS NULL OR lanes.task IN (SELECT value FROM json_each(?2)))
   AND (?3 IS NULL OR lanes.task NOT IN (SELECT value FROM json_each(?3)))
   AND (?4 IS NULL OR lanes.queue NOT IN (SELECT value FROM json_each(?4)))
   AND (?5 = 3 OR first.seq IS NOT NULL)
 ORDER BY first.priority, first.place;

-- name: queue_task_virtual_times
-- The queues and tasks of lanes that may have waiting jobs, filtered like `open_lanes`, and the virtual time of each queue.
-- The recursion jumps through the index from one pair to the next, so it does not read the other lanes of a pair.
WITH RECURSIVE pair (lane) AS (
    SELECT (SELECT lane FROM lanes WHERE ready ORDER BY queue, task LIMIT 1)
    UNION ALL
    SELECT coalesce((SELECT next.lane FROM lanes AS next
                      WHERE next.ready AND next.queue = last.queue AND next.task > last.task
                      ORDER BY next.task LIMIT 1),
                    (SELECT next.lane FROM lanes AS next
                      WHERE next.ready AND next.queue > last.queue
                      ORDER BY next.queue, next.task LIMIT 1))
      FROM pair JOIN lanes AS last ON last.lane = pair.lane)
SELECT lanes.queue, lanes.task, coalesce(virtual_times.virtual_time, 0.0)
  FROM pair
  JOIN lanes ON lanes.lane = pair.lane
  LEFT JOIN virtual_times ON virtual_times.queue = lanes.queue
 WHERE (?1 IS NULL OR lanes.queue IN (SELECT value FROM json_each(?1)))
   AND (?2 IS NULL OR lanes.task IN (SELECT value FROM json_each(?2)))
   AND (?3 IS NULL OR lanes.task NOT IN (SELECT value FROM json_each(?3)))
   AND (?4 IS NULL OR lanes.queue NOT IN (SELECT value FROM json_each(?4)));

-- name: open_lanes_by_virtual_start
-- The open lanes of a queue and a task, those with the lowest virtual start first, for a store with groups. Each lane comes
-- with the priority and place of its first job (NULL: the lane is empty).
SELECT lanes.lane, lanes.grp, lanes.virtual_start, first.priority, first.place
  FROM lanes
  LEFT JOIN live AS first
         ON first.seq = (SELECT seq FROM live
                          WHERE live.lane = lanes.lane AND live.state = 'waiting' AND (live.crashes = 0 OR ?4 IN (live.suspect, 3))
                          ORDER BY live.priority, live.place LIMIT 1)
 WHERE lanes.ready AND lanes.queue = ?1 AND lanes.task = ?2 AND lanes.open_at = 0
   AND (?4 = 3 OR first.seq IS NOT NULL)
 ORDER BY lanes.virtual_start, lanes.grp
 LIMIT ?3;

-- name: raise_virtual_starts
-- Raise virtual starts to the virtual time of the queue. An idle or parked group gets no extra service for that time.
UPDATE lanes SET virtual_start = ?3 WHERE ready AND queue = ?1 AND task = ?2 AND open_at = 0 AND virtual_start < ?3;

-- name: put_virtual_starts
-- Set the virtual start of groups of a queue.
UPDATE lanes SET virtual_start = ?3 WHERE queue = ?2 AND grp IN (SELECT value FROM json_each(?1));

-- name: put_virtual_time
-- Set the virtual time of a queue, and raise its highest virtual start.
INSERT INTO virtual_times (queue, virtual_time, highest_start) VALUES (?1, ?2, ?3)
    ON CONFLICT (queue) DO UPDATE SET virtual_time = ?2, highest_start = max(highest_start, ?3);

-- name: reset_virtual_time
-- Set the virtual time of a queue to its highest virtual start, so that all its groups start equal.
UPDATE virtual_times SET virtual_time = highest_start WHERE queue = ?1;

-- name: reset_idle_virtual_times
-- Set the virtual time to the highest virtual start in all queues that have no waiting jobs.
UPDATE virtual_times SET virtual_time = highest_start
 WHERE virtual_time < highest_start
   AND NOT EXISTS (SELECT 1 FROM lanes
                    WHERE lanes.queue = virtual_times.queue AND ready
                      AND EXISTS (SELECT 1 FROM live WHERE live.lane = lanes.lane AND state = 'waiting'));

-- name: drop_unused_virtual_times
-- Delete the virtual times of queues without lanes. Their groups start at 0 again.
DELETE FROM virtual_times WHERE NOT EXISTS (SELECT 1 FROM lanes WHERE lanes.queue = virtual_times.queue);

-- name: park_lane
-- Park a lane until a time.
UPDATE lanes SET open_at = ?2, used_at = ?3 WHERE lane = ?1;

-- name: unpark_group
-- Unpark the lanes of a group.
UPDATE lanes SET open_at = 0 WHERE queue = ?1 AND grp = ?2 AND open_at > 0;

-- name: unpark_queue
-- Unpark the lanes of a queue.
UPDATE lanes SET open_at = 0 WHERE queue = ?1 AND open_at > 0;

-- name: unpark_due
-- Unpark the lanes whose time has come.
UPDATE lanes SET open_at = 0 WHERE ready AND open_at > 0 AND open_at <= ?1;

-- name: unpark_old
-- Unpark lanes that were parked long ago, in case the event that should have unparked them was missed.
UPDATE lanes SET open_at = 0, used_at = ?2
 WHERE lane IN (SELECT lane FROM lanes WHERE ready AND open_at > 0 AND used_at <= ?1 LIMIT ?3);

-- name: queue_task_pairs
-- The queues and tasks with waiting jobs in lanes that are not parked. Jumps through the index like
-- `queue_task_virtual_times`.
WITH RECURSIVE pair (lane) AS (
    SELECT (SELECT lane FROM lanes WHERE ready ORDER BY queue, task LIMIT 1)
    UNION ALL
    SELECT coalesce((SELECT next.lane FROM lanes AS next
                      WHERE next.ready AND next.queue = last.queue AND next.task > last.task
                      ORDER BY next.task LIMIT 1),
                    (SELECT next.lane FROM lanes AS next
                      WHERE next.ready AND next.queue > last.queue
                      ORDER BY next.queue, next.task LIMIT 1))
      FROM pair JOIN lanes AS last ON last.lane = pair.lane)
SELECT first.queue, first.task
  FROM pair
  JOIN lanes AS first ON first.lane = pair.lane
 WHERE EXISTS (SELECT 1 FROM lanes
                WHERE lanes.ready AND lanes.queue = first.queue AND lanes.task = first.task AND lanes.open_at = 0
                  AND EXISTS (SELECT 1 FROM live WHERE live.lane = lanes.lane AND state = 'waiting'));

-- name: best_jobs
-- The first waiting jobs of a lane in the order of claims. ?3 says which suspects count (`SuspectKind`).
SELECT * FROM live
 WHERE lane = ?1 AND state = 'waiting' AND (crashes = 0 OR ?3 IN (suspect, 3))
 ORDER BY priority, place LIMIT ?2;

-- name: positions
-- Like `best_jobs`, but only the positions of the jobs.
SELECT priority, place, seq FROM live
 WHERE lane = ?1 AND state = 'waiting' AND (crashes = 0 OR ?3 IN (suspect, 3))
 ORDER BY priority, place LIMIT ?2;

-- name: lane_priorities
-- The priorities of the waiting jobs of some lanes. Jumps through the index from one priority to the next.
WITH RECURSIVE level (lane, priority) AS (
    SELECT value, (SELECT min(priority) FROM live WHERE lane = value AND state = 'waiting') FROM json_each(?1)
    UNION ALL
    SELECT lane, (SELECT min(live.priority) FROM live
                   WHERE live.lane = level.lane AND state = 'waiting' AND live.priority > level.priority)
      FROM level WHERE priority IS NOT NULL)
SELECT lane, priority FROM level WHERE priority IS NOT NULL;

-- name: oldest_fifo_jobs
-- The fifo jobs of a lane and a priority that were inserted first, and the time since when each could run.
SELECT priority, place, seq, max(created_at, coalesce(run_at, 0)) FROM live
 WHERE lane = ?1 AND state = 'waiting' AND priority = ?2 AND place > 0 AND (crashes = 0 OR ?4 IN (suspect, 3))
 ORDER BY place LIMIT ?3;

-- name: oldest_lifo_jobs
-- The lifo jobs of a lane and a priority that were inserted first. Their places are negative and fall.
SELECT priority, place, seq, max(created_at, coalesce(run_at, 0)) FROM live
 WHERE lane = ?1 AND state = 'waiting' AND priority = ?2 AND place < 0 AND (crashes = 0 OR ?4 IN (suspect, 3))
 ORDER BY place DESC LIMIT ?3;

-- name: lanes_of
-- The lanes of a queue, or of one of its groups, that may have waiting jobs.
SELECT lane FROM lanes WHERE queue = ?1 AND (?2 IS NULL OR grp = ?2) AND ready;

-- name: group_size
-- The number of waiting jobs of a group.
SELECT count(*) FROM lanes JOIN live ON live.lane = lanes.lane AND live.state = 'waiting'
 WHERE lanes.queue = ?1 AND lanes.grp = ?2 AND lanes.ready;

-- name: jobs_by_seq
-- Unfinished jobs by `seq`.
SELECT * FROM live WHERE seq IN (SELECT value FROM json_each(?1));

-- name: queue_has_waiting
-- A row if the queue has a waiting job.
SELECT 1 FROM lanes
 WHERE queue = ?1 AND ready AND EXISTS (SELECT 1 FROM live WHERE live.lane = lanes.lane AND state = 'waiting')
 LIMIT 1;

-- name: due_times
-- The earliest times at which upkeep has work: a due job, an expired lease, a lapsed deadline, a parked lane with
-- waiting jobs, a tick of a schedule. Each minimum is the first entry of an index. Then, whether suspects of both
-- kinds wait.
SELECT (SELECT min(run_at) FROM live WHERE state = 'scheduled'),
       (SELECT min(lease_until) FROM live WHERE state IN ('claimed', 'running')),
       (SELECT min(deadline) FROM live
         WHERE deadline IS NOT NULL AND state IN ('blocked', 'scheduled', 'waiting')),
       (SELECT open_at FROM lanes
         WHERE ready AND open_at > 0 AND open_at < 1e18
           AND EXISTS (SELECT 1 FROM live WHERE live.lane = lanes.lane AND state = 'waiting')
         ORDER BY open_at LIMIT 1),
       (SELECT min(due_at) FROM schedules WHERE due_at IS NOT NULL),
       EXISTS (SELECT 1 FROM live WHERE state = 'waiting' AND crashes > 0 AND suspect = 1),
       EXISTS (SELECT 1 FROM live WHERE state = 'waiting' AND crashes > 0 AND suspect = 2);

-- name: due_jobs
-- Scheduled jobs whose time has come.
SELECT * FROM live WHERE state = 'scheduled' AND run_at <= ?1 ORDER BY run_at, seq LIMIT ?2;

-- name: expired_jobs
-- Claimed and running jobs whose lease has expired.
SELECT * FROM live WHERE state IN ('claimed', 'running') AND lease_until <= ?1 ORDER BY lease_until, seq LIMIT ?2;

-- name: lapsed_jobs
-- Jobs whose deadline has passed before a worker claimed them.
SELECT * FROM live
 WHERE deadline IS NOT NULL AND state IN ('blocked', 'scheduled', 'waiting') AND deadline <= ?1
 ORDER BY deadline, seq LIMIT ?2;

-- name: prunable_jobs
-- Finished jobs whose retention is over.
SELECT * FROM history WHERE expires_at <= ?1 ORDER BY expires_at, seq LIMIT ?2;

-- name: keep_last_tasks
-- Tasks and states with finished jobs that are kept by count (`last_…` of `Keep`), and the `keep` of the newest job of
-- each. Jumps through the index from one task and state to the next.
WITH RECURSIVE pair (seq) AS (
    SELECT (SELECT seq FROM history WHERE instr(keep, '"last_') ORDER BY task, state LIMIT 1)
    UNION ALL
    SELECT (SELECT next.seq FROM history AS next
             WHERE instr(next.keep, '"last_') AND (next.task, next.state) > (last.task, last.state)
             ORDER BY next.task, next.state LIMIT 1)
      FROM pair JOIN history AS last ON last.seq = pair.seq)
SELECT first.task, first.state,
       (SELECT newest.keep FROM history AS newest
         WHERE instr(newest.keep, '"last_') AND newest.task = first.task AND newest.state = first.state
         ORDER BY newest.finished_at DESC, newest.seq DESC LIMIT 1)
  FROM pair JOIN history AS first ON first.seq = pair.seq;

-- name: excess_jobs
-- Finished jobs of a task and a state that are older than the oldest one to keep. ?3 is the number to keep, less one.
SELECT * FROM history
 WHERE instr(keep, '"last_') AND task = ?1 AND state = ?2
   AND (finished_at, seq) < (SELECT kept.finished_at, kept.seq FROM history AS kept
                              WHERE instr(kept.keep, '"last_') AND kept.task = ?1 AND kept.state = ?2
                              ORDER BY kept.finished_at DESC, kept.seq DESC LIMIT 1 OFFSET ?3)
 ORDER BY finished_at, seq LIMIT ?4;

-- name: jobs_held_by
-- Jobs that some workers hold.
SELECT * FROM live
 WHERE state IN ('claimed', 'running') AND worker IN (SELECT value FROM json_each(?1))
 ORDER BY lease_until, seq LIMIT ?2;

-- name: jobs_lost_by
-- Unfinished jobs whose last loss is by some workers, as long as it is not final.
SELECT * FROM live WHERE lost_by IN (SELECT value FROM json_each(?1)) LIMIT ?2;

-- name: cancel_requests
-- Running jobs of a worker that an operator wants to cancel.
SELECT id, fence FROM live WHERE cancel_requested AND worker = ?1 AND state = 'running' ORDER BY seq;

-- name: clear_edges
-- Delete the edges of earlier jobs with these ids to their children.
DELETE FROM edges WHERE parent IN (SELECT value FROM json_each(?1));

-- name: clear_closing_flows
-- Forget that earlier jobs with these ids were parents that had ended.
DELETE FROM closing_flows WHERE parent IN (SELECT value FROM json_each(?1));

-- name: add_edges
-- Add an edge from a parent to a child.
INSERT INTO edges (parent, n, child, task, seq, policy, outcome, result, feeds) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: update_edges
-- Write how the child of an edge ended (NULL: it lives).
UPDATE edges SET outcome = ?3, result = ?4 WHERE parent = ?1 AND n = ?2;

-- name: parent_edges
-- The edges from children to their parents.
SELECT parent, n, child, task, seq, policy, outcome, result, feeds FROM edges
 WHERE seq IN (SELECT value FROM json_each(?1));

-- name: child_edges
-- The edges from a parent to its children, in their order.
SELECT parent, n, child, task, seq, policy, outcome, result, feeds FROM edges WHERE parent = ?1 ORDER BY n;

-- name: open_child_count
-- The number of children of a parent that have not ended.
SELECT count(*) FROM edges WHERE parent = ?1 AND outcome IS NULL;

-- name: reopened_edges
-- The edges from a parent to children that had ended and live again.
SELECT edges.parent, n, child, edges.task, edges.seq, policy, outcome, edges.result, feeds
  FROM edges JOIN live ON live.seq = edges.seq
 WHERE edges.parent = ?1 AND outcome IS NOT NULL ORDER BY n;

-- name: fatal_edge
-- The first child that did not complete although its parent needs it.
SELECT parent, n, child, task, seq, policy, outcome, result, feeds FROM edges
 WHERE parent = ?1 AND outcome <> 'completed' AND policy IN ('fail', 'remove') ORDER BY n LIMIT 1;

-- name: open_children
-- Children in some states that have no cancel request and for which no other live parent waits.
SELECT live.* FROM edges JOIN live ON live.seq = edges.seq
 WHERE edges.parent = ?1 AND edges.outcome IS NULL AND edges.policy <> 'after'
   AND live.state IN (SELECT value FROM json_each(?2)) AND NOT live.cancel_requested
   AND (live.parents = 1 OR NOT EXISTS (
        SELECT 1 FROM edges AS other JOIN live AS parent ON parent.id = other.parent
         WHERE other.seq = edges.seq AND other.parent <> edges.parent))
 ORDER BY edges.n LIMIT ?3;

-- name: close_flow
-- List a parent that has ended: why its children are to be canceled (NULL: they are not), and when its edges expire.
INSERT INTO closing_flows (parent, cancel, expires_at) VALUES (?1, ?2, ?3)
    ON CONFLICT (parent) DO UPDATE SET cancel = ?2, expires_at = ?3;

-- name: end_flow_cancel
-- Note that the children of a listed parent are canceled. Its edges expire at the time that was listed.
UPDATE closing_flows SET cancel = NULL WHERE parent = ?1;

-- name: reopen_flow
-- Take a parent off the list.
DELETE FROM closing_flows WHERE parent = ?1;

-- name: flows_to_cancel
-- Listed parents whose children are still to be canceled.
SELECT parent, cancel FROM closing_flows WHERE cancel IS NOT NULL ORDER BY parent LIMIT ?1;

-- name: prunable_flows
-- Listed parents whose edges have expired.
SELECT parent FROM closing_flows WHERE cancel IS NULL AND expires_at <= ?1 ORDER BY expires_at, parent LIMIT ?2;

-- name: drop_edges
-- Delete some edges of a parent, and return them.
DELETE FROM edges
 WHERE parent = ?1 AND n IN (SELECT n FROM edges WHERE parent = ?1 ORDER BY n LIMIT ?2) RETURNING n;

-- name: save_claims
-- Save the claims of a worker's last pass, so that they can be answered again.
INSERT INTO claims (worker, claimed_at, refs) VALUES (?1, ?2, ?3)
    ON CONFLICT (worker) DO UPDATE SET claimed_at = ?2, refs = ?3;

-- name: load_claims
-- The claims of a worker's last pass.
SELECT refs FROM claims WHERE worker = ?1;

-- name: save_answer
-- Save the answer to a command, so that it can be answered again.
INSERT INTO answers (nonce, at, answer) VALUES (?1, ?2, ?3);

-- name: load_answers
-- The saved answers under some nonces (JSON).
SELECT nonce, answer FROM answers WHERE nonce IN (SELECT value FROM json_each(?1));

-- name: gate
-- A gate by its key.
SELECT * FROM gates WHERE kind = ?1 AND name = ?2 AND grp = ?3;

-- name: lock_gates
-- Gates by their keys.
SELECT gates.*
  FROM json_each(?1) AS key
 CROSS JOIN gates ON gates.kind = key.value ->> 0 AND gates.name = key.value ->> 1 AND gates.grp = key.value ->> 2;

-- name: put_gates
-- Write a gate.
INSERT OR REPLACE INTO gates VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: close_gates
-- Close a gate until a time, never earlier than it was to open; 0 opens it.
INSERT INTO gates (kind, name, grp, tat, closed_until) VALUES (?1, ?2, ?3, 0, ?4)
    ON CONFLICT (kind, name, grp) DO UPDATE SET closed_until = CASE WHEN ?4 = 0 THEN 0 ELSE max(closed_until, ?4) END;

-- name: put_rate_state
-- Write the rate state (`tat`) of a gate.
INSERT INTO gates (kind, name, grp, tat, closed_until) VALUES (?1, ?2, ?3, ?4, 0)
    ON CONFLICT (kind, name, grp) DO UPDATE SET tat = ?4;

-- name: drop_gate
-- Delete a gate.
DELETE FROM gates WHERE kind = ?1 AND name = ?2 AND grp = ?3;

-- name: group_sizes
-- Groups with waiting jobs and their sizes. Counts at most ?3 jobs of each lane.
SELECT queue, grp, sum(waiting)
  FROM (SELECT queue, grp, (SELECT count(*) FROM (SELECT 1 FROM live
                                                   WHERE live.lane = lanes.lane AND state = 'waiting' LIMIT ?3)) AS waiting
          FROM lanes WHERE ready AND grp <> '' AND (?1 IS NULL OR queue = ?1))
 WHERE waiting > 0
 GROUP BY queue, grp ORDER BY queue, grp LIMIT ?2;

-- name: held_counts
-- The number of jobs that workers hold, by queue, task and group. Reads only the index, one entry per held job.
SELECT queue, task, grp, count(*) FROM live WHERE state IN ('claimed', 'running') GROUP BY queue, task, grp;

-- name: gates
-- All gates of some kinds.
SELECT * FROM gates WHERE kind IN (SELECT value FROM json_each(?1)) ORDER BY kind, name, grp;

-- name: drop_empty_gates
-- Delete gates without a pause, a rule, a used rate and a closing time.
DELETE FROM gates
 WHERE (kind, name, grp) IN (SELECT kind, name, grp FROM gates
                              WHERE paused_at IS NULL AND rule IS NULL AND tat <= ?1 AND closed_until <= ?1 LIMIT ?2);

-- name: save_beat
-- Write a worker's beat.
INSERT INTO workers (worker, seen_at, beat) VALUES (?1, ?2, ?3)
    ON CONFLICT (worker) DO UPDATE SET seen_at = ?2, beat = ?3;

-- name: delete_worker
-- Delete a worker that has stopped.
DELETE FROM workers WHERE worker = ?1;

-- name: workers
-- All workers with their last beats.
SELECT beat, seen_at FROM workers ORDER BY worker;

-- name: append_events
-- Add a row to the event log.
INSERT INTO events VALUES (?, ?, ?, ?, ?);

-- name: read_events
-- The rows of the event log from ?1 on.
SELECT n, at, entries FROM events WHERE n >= ?1 ORDER BY n;

-- name: event_log_span
-- The number of the oldest row in the event log, and of the last row that was ever added.
SELECT (SELECT min(n) FROM events), (SELECT row FROM store);

-- name: totals
-- Counters by queue, without the event rows that are not folded in yet.
SELECT queue, name, sum(value) FROM totals GROUP BY queue, name;

-- name: unfolded_deltas
-- The counter changes of event rows that are not folded into `totals` and `stats` yet.
SELECT n, at, deltas FROM events WHERE n > (SELECT folded FROM store) ORDER BY n;

-- name: fold_totals
-- Add a change to a counter.
INSERT INTO totals (queue, task, name, value) VALUES (?1, ?2, ?3, ?4)
    ON CONFLICT (queue, task, name) DO UPDATE SET value = value + ?4;

-- name: fold_stats
-- Add a change to a figure.
INSERT INTO stats (span, at, queue, task, name, value) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
    ON CONFLICT (span, at, queue, task, name) DO UPDATE SET value = value + ?6;

-- name: stats
-- The figures that overlap a time span.
SELECT span, at, queue, task, name, value FROM stats
 WHERE span IN (60, 3600, 86400) AND at > ?1 - span AND at < ?2;

-- name: oldest_stats
-- The time of the oldest figures of a span.
SELECT min(at) FROM stats WHERE span = ?1;

-- name: roll_stats
-- Add figures of one span to those of the next longer one: minutes to hours, hours to days.
INSERT INTO stats (span, at, queue, task, name, value)
SELECT ?4, at / ?4 * ?4, queue, task, name, sum(value) FROM stats
 WHERE span = ?1 AND at >= ?2 AND at < ?3 GROUP BY 2, 3, 4, 5
    ON CONFLICT (span, at, queue, task, name) DO UPDATE SET value = value + excluded.value;

-- name: drop_stats
-- Delete old figures of a span.
DELETE FROM stats WHERE span = ?1 AND at < ?2;

-- name: save_folded
-- Note the last event row whose changes are folded in.
-- guard: counters_on_disk
UPDATE store SET folded = ?1;

-- name: ready_since
-- For each queue with waiting jobs: the earliest time since which the first job of one of its lanes could have run.
SELECT lanes.queue, min(since)
  FROM (SELECT queue, (SELECT max(created_at, coalesce(run_at, 0)) FROM live
                        WHERE live.lane = lanes.lane AND state = 'waiting'
                        ORDER BY priority, place LIMIT 1) AS since
          FROM lanes WHERE ready) AS lanes
 WHERE since IS NOT NULL
 GROUP BY lanes.queue;

-- name: old_events
-- The oldest rows of the event log.
SELECT n, count, at FROM events ORDER BY n LIMIT ?1;

-- name: drop_events
-- Delete the event rows up to a number.
DELETE FROM events WHERE n <= ?1;

-- name: drop_old_workers
-- Delete workers that have sent no beat for long, and return them.
DELETE FROM workers WHERE seen_at <= ?1 RETURNING worker;

-- name: drop_old_claims
-- Delete saved claims that are too old to be repeated.
DELETE FROM claims WHERE claimed_at <= ?1;

-- name: drop_old_answers
-- Delete saved answers to commands that are not sent again any more.
DELETE FROM answers WHERE nonce IN (SELECT nonce FROM answers WHERE at <= ?1 ORDER BY at LIMIT ?2);

-- name: drop_idle_lanes
-- Delete idle lanes: the next job of the lane inserts it again. A lane whose virtual start is ahead of its queue stays, so that
-- its group keeps it. A lane with waiting jobs stays too, although it should be marked: see `repair_lane_marks`.
DELETE FROM lanes
 WHERE lane IN (SELECT lane FROM lanes WHERE NOT ready AND used_at <= ?1 ORDER BY used_at LIMIT ?2)
   AND virtual_start <= coalesce((SELECT virtual_times.virtual_time FROM virtual_times WHERE virtual_times.queue = lanes.queue), virtual_start)
   AND NOT EXISTS (SELECT 1 FROM live WHERE live.lane = lanes.lane AND state = 'waiting');

-- name: repair_lane_marks
-- Mark lanes that have waiting jobs but lost their mark.
UPDATE lanes SET ready = 1
 WHERE lane IN (SELECT lane FROM lanes WHERE NOT ready AND used_at <= ?1 ORDER BY used_at LIMIT ?2)
   AND EXISTS (SELECT 1 FROM live WHERE live.lane = lanes.lane AND state = 'waiting');

-- name: steps
-- The steps of a job in their order.
SELECT job, n, kind, name, result, at, until FROM steps WHERE job = ?1 ORDER BY n;

-- name: step
-- One step of a job.
SELECT job, n, kind, name, result, at, until FROM steps WHERE job = ?1 AND kind = ?2 AND name = ?3;

-- name: put_step
-- Write a step.
INSERT OR REPLACE INTO steps VALUES (?, ?, ?, ?, ?, ?, ?);

-- name: drop_steps
-- Delete the steps of jobs.
DELETE FROM steps WHERE job IN (SELECT value FROM json_each(?1));

-- name: schedules
-- Schedules by name.
SELECT record FROM schedules WHERE name IN (SELECT value FROM json_each(?1)) ORDER BY name;

-- name: schedules_after
-- All schedules after a name, in the order of their names.
SELECT record FROM schedules WHERE name > ?1 ORDER BY name LIMIT ?2;

-- name: due_schedules
-- Schedules with a due tick, the earliest first.
SELECT record FROM schedules WHERE due_at IS NOT NULL AND due_at <= ?1 ORDER BY due_at, name LIMIT ?2;

-- name: put_schedules
-- Write a schedule.
INSERT INTO schedules VALUES (?1, ?2, ?3)
    ON CONFLICT (name) DO UPDATE SET due_at = excluded.due_at, record = excluded.record;

-- name: drop_schedule
-- Delete a schedule.
DELETE FROM schedules WHERE name = ?1;
