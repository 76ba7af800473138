-- name: begin
-- The turnstile has let us in, so nobody of ours holds the lock; foreign programs may.
BEGIN IMMEDIATE;

-- name: commit
COMMIT;

-- name: rollback
ROLLBACK;

-- name: head
-- What every pass starts from.
SELECT identity, number, now, folded, row, events, EXISTS (SELECT 1 FROM gates),
       EXISTS (SELECT 1 FROM lanes WHERE ready AND grp <> '')
  FROM store;

-- name: version
-- Changes when another connection has committed, never by what this one does.
PRAGMA data_version;

-- name: leave
-- What the next pass starts from.
-- guard: numbers_on_disk, time_on_disk
UPDATE store SET number = ?1, now = ?2, row = ?3, events = ?4;

-- name: make
-- A job that is new: it has had no attempts, and everything that comes with them is still to come.
INSERT INTO live VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, NULL, NULL, ?8, ?9, ?10, ?11, 0, ?12, 0, 0, ?13, ?14, ?14, ?15, ?16,
                         ?17, 0, NULL, NULL, 0, NULL, ?18, ?19, ?19, NULL, NULL, NULL, NULL, ?20, ?21, NULL, ?22,
                         NULL, NULL, ?23, NULL, ?24);

-- name: insert
-- One that lives again.
INSERT INTO live VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?,
                         ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: finish
INSERT INTO history VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?,
                            ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: finish_live
-- The same for jobs that end alike, from the rows they have in `live`: by their numbers, their results.
INSERT INTO history
SELECT seq, live.id, task, queue, grp, ?3, ordering, ?4, ?5, payload, priority, NULL, run_at, attempts, max_attempts,
       ?6, ?7, max_crashes, open_children, children, parents, timeout, deadline, fence, worker, NULL,
       cancel_requested, one.value, metadata, created_at, ?8, claimed_at, started_at, ?8, ?9, backoff, keep, progress,
       tags, ?2, logs, uniqueness, steps
  FROM json_each(?1) AS one CROSS JOIN live ON seq = CAST(one.key AS INTEGER);

-- name: update
-- Everything that can change while a job is not finished; parameters are the whole row, then its lane.
UPDATE live
   SET queue = ?4, state = ?6, reason = ?8, settled = ?9, payload = ?10, priority = ?11, place = ?12, run_at = ?13,
       attempts = ?14, max_attempts = ?15, releases = ?16, crashes = ?17, open_children = ?19, children = ?20,
       parents = ?21, deadline = ?23, fence = ?24, worker = ?25, lease_until = ?26, cancel_requested = ?27,
       result = ?28, metadata = ?29, updated_at = ?31, claimed_at = ?32, started_at = ?33, progress = ?38, tags = ?39,
       errors = ?40, logs = ?41, steps = ?43, lane = ?44
 WHERE seq = ?1;

-- name: claim
-- From waiting to held; what a claim leaves alone is not written.
UPDATE live
   SET state = ?2, attempts = ?3, fence = ?4, worker = ?5, lease_until = ?6, updated_at = ?7, claimed_at = ?7,
       started_at = ?8, settled = NULL, progress = NULL, place = NULL, lane = NULL
 WHERE seq IN (SELECT value FROM json_each(?1));

-- name: start
UPDATE live SET state = 'running', updated_at = ?2, started_at = ?2 WHERE seq IN (SELECT value FROM json_each(?1));

-- name: renew
UPDATE live SET lease_until = ?2, updated_at = ?3 WHERE seq IN (SELECT value FROM json_each(?1));

-- name: delete_live
DELETE FROM live WHERE seq IN (SELECT value FROM json_each(?1));

-- name: delete_history
DELETE FROM history WHERE id = ?1;

-- name: find_live
SELECT * FROM live WHERE id IN (SELECT value FROM json_each(?1));

-- name: find_history
SELECT * FROM history WHERE id IN (SELECT value FROM json_each(?1));

-- name: ids_live
-- Ids that begin or end with a part of one. Only the index is read, though all of it.
SELECT id FROM live
 WHERE substr(id, 1, length(?1)) = ?1 OR substr(id, -length(?1)) = ?1 ORDER BY id LIMIT ?2;

-- name: ids_history
SELECT id FROM history
 WHERE substr(id, 1, length(?1)) = ?1 OR substr(id, -length(?1)) = ?1 ORDER BY id LIMIT ?2;

-- name: matching
-- One statement for every query: a parameter of NULL says nothing. `part` is a constant in each part of the view, so a
-- part that is not wanted is never read.
SELECT seq, id, task, queue, grp, state, ordering, reason, settled, payload, priority, place, run_at, attempts,
       max_attempts, releases, crashes, max_crashes, open_children, children, parents, timeout, deadline, fence,
       worker, lease_until, cancel_requested, result, metadata, created_at, updated_at, claimed_at, started_at,
       finished_at, expires_at, backoff, keep, progress, tags, errors, logs, uniqueness, steps
  FROM job
 WHERE CASE part WHEN 'live' THEN :live WHEN 'completed' THEN :completed ELSE :troubled END
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
         WHERE NOT EXISTS (SELECT 1 FROM json_each(wanted.value) AS one
                            WHERE one.value IN (SELECT value FROM json_each(tags)))))
   AND (:tags_none IS NULL OR NOT EXISTS (
        SELECT 1 FROM json_each(:tags_none) AS one WHERE one.value IN (SELECT value FROM json_each(tags))))
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

-- name: floor
-- Where a search ends that is to look at only so many jobs.
SELECT seq FROM job
 WHERE CASE part WHEN 'live' THEN :live WHEN 'completed' THEN :completed ELSE :troubled END AND seq < :below
 ORDER BY seq DESC LIMIT 1 OFFSET :jobs;

-- name: keys
SELECT key, job, expires_at FROM keys WHERE key IN (SELECT value FROM json_each(?1));

-- name: free_key
DELETE FROM keys WHERE key = ?1 AND job = ?2;

-- name: take_key
INSERT OR REPLACE INTO keys (key, job, expires_at) VALUES (?1, ?2, ?3);

-- name: drop_keys
DELETE FROM keys WHERE key IN (SELECT key FROM keys WHERE expires_at <= ?1 ORDER BY expires_at LIMIT ?2) RETURNING key;

-- name: lane
SELECT lane, ready FROM lanes WHERE queue = ?1 AND task = ?2 AND grp = ?3;

-- name: make_lane
-- With the turn of its group.
INSERT INTO lanes (queue, task, grp, ready, used_at, turn, open_at)
VALUES (?1, ?2, ?3, 1, ?4, coalesce((SELECT max(turn) FROM lanes WHERE queue = ?1 AND grp = ?3), 0), 0)
RETURNING lane, ready;

-- name: mark_lane
UPDATE lanes SET ready = 1, used_at = ?2 WHERE lane = ?1;

-- name: unmark_lane
UPDATE lanes SET ready = 0 WHERE lane = ?1;

-- name: open_lanes
-- Lanes that may have waiting jobs, of these queues and tasks (NULL: all) and not of those, while none has a group.
-- Each with the priority and place of its first job (NULL: it has none), the most urgent first.
SELECT lanes.lane, lanes.queue, lanes.task, lanes.grp, first.priority, first.place
  FROM lanes
  LEFT JOIN live AS first
         ON first.seq = (SELECT seq FROM live
                          WHERE live.lane = lanes.lane AND live.state = 'waiting' AND (?5 OR live.crashes = 0)
                          ORDER BY live.priority, live.place LIMIT 1)
 WHERE lanes.ready
   AND (?1 IS NULL OR lanes.queue IN (SELECT value FROM json_each(?1)))
   AND (?2 IS NULL OR lanes.task IN (SELECT value FROM json_each(?2)))
   AND (?3 IS NULL OR lanes.task NOT IN (SELECT value FROM json_each(?3)))
   AND (?4 IS NULL OR lanes.queue NOT IN (SELECT value FROM json_each(?4)))
   AND (?5 OR first.seq IS NOT NULL)
 ORDER BY first.priority, first.place;

-- name: pairs
-- The queues and tasks of lanes that may have waiting jobs, filtered in the same way, and how far each queue is. From
-- one to the next in the index: its lanes between them are not read.
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
SELECT lanes.queue, lanes.task, coalesce(rounds.turn, 0.0)
  FROM pair
  JOIN lanes ON lanes.lane = pair.lane
  LEFT JOIN rounds ON rounds.queue = lanes.queue
 WHERE (?1 IS NULL OR lanes.queue IN (SELECT value FROM json_each(?1)))
   AND (?2 IS NULL OR lanes.task IN (SELECT value FROM json_each(?2)))
   AND (?3 IS NULL OR lanes.task NOT IN (SELECT value FROM json_each(?3)))
   AND (?4 IS NULL OR lanes.queue NOT IN (SELECT value FROM json_each(?4)));

-- name: turns
-- The lanes of a queue and a task by their turn, with where their first job stands (NULL: they have none).
SELECT lanes.lane, lanes.grp, lanes.turn, first.priority, first.place
  FROM lanes
  LEFT JOIN live AS first
         ON first.seq = (SELECT seq FROM live
                          WHERE live.lane = lanes.lane AND live.state = 'waiting' AND (?4 OR live.crashes = 0)
                          ORDER BY live.priority, live.place LIMIT 1)
 WHERE lanes.ready AND lanes.queue = ?1 AND lanes.task = ?2 AND lanes.open_at = 0
   AND (?4 OR first.seq IS NOT NULL)
 ORDER BY lanes.turn, lanes.grp
 LIMIT ?3;

-- name: catch_up
-- Nobody is before the round: who was idle or laid aside is not owed what others had meanwhile.
UPDATE lanes SET turn = ?3 WHERE ready AND queue = ?1 AND task = ?2 AND open_at = 0 AND turn < ?3;

-- name: put_turn
UPDATE lanes SET turn = ?3 WHERE queue = ?2 AND grp IN (SELECT value FROM json_each(?1));

-- name: put_round
INSERT INTO rounds (queue, turn, last) VALUES (?1, ?2, ?3)
    ON CONFLICT (queue) DO UPDATE SET turn = ?2, last = max(last, ?3);

-- name: end_round
UPDATE rounds SET turn = last WHERE queue = ?1;

-- name: end_rounds
-- Of queues where nothing waits.
UPDATE rounds SET turn = last
 WHERE turn < last
   AND NOT EXISTS (SELECT 1 FROM lanes
                    WHERE lanes.queue = rounds.queue AND ready
                      AND EXISTS (SELECT 1 FROM live WHERE live.lane = lanes.lane AND state = 'waiting'));

-- name: drop_rounds
-- Of queues that no longer have lanes: their groups begin anew.
DELETE FROM rounds WHERE NOT EXISTS (SELECT 1 FROM lanes WHERE lanes.queue = rounds.queue);

-- name: park
UPDATE lanes SET open_at = ?2, used_at = ?3 WHERE lane = ?1;

-- name: open_group
UPDATE lanes SET open_at = 0 WHERE queue = ?1 AND grp = ?2 AND open_at > 0;

-- name: open_queue
UPDATE lanes SET open_at = 0 WHERE queue = ?1 AND open_at > 0;

-- name: open_due
UPDATE lanes SET open_at = 0 WHERE ready AND open_at > 0 AND open_at <= ?1;

-- name: mend_parked
-- What was laid aside long ago is looked at again, whatever should have opened it.
UPDATE lanes SET open_at = 0, used_at = ?2
 WHERE lane IN (SELECT lane FROM lanes WHERE ready AND open_at > 0 AND used_at <= ?1 LIMIT ?3);

-- name: waiting_pairs
-- Queues and tasks with waiting jobs in lanes that are not laid aside.
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
SELECT one.queue, one.task
  FROM pair
  JOIN lanes AS one ON one.lane = pair.lane
 WHERE EXISTS (SELECT 1 FROM lanes
                WHERE lanes.ready AND lanes.queue = one.queue AND lanes.task = one.task AND lanes.open_at = 0
                  AND EXISTS (SELECT 1 FROM live WHERE live.lane = lanes.lane AND state = 'waiting'));

-- name: line
-- The waiting jobs of a lane in order, with suspects or without.
SELECT * FROM live
 WHERE lane = ?1 AND state = 'waiting' AND (?3 OR crashes = 0)
 ORDER BY priority, place LIMIT ?2;

-- name: places
-- The same, only where they stand.
SELECT priority, place, seq FROM live
 WHERE lane = ?1 AND state = 'waiting' AND (?3 OR crashes = 0)
 ORDER BY priority, place LIMIT ?2;

-- name: priorities
-- The lanes and the priorities of their waiting jobs, from one to the next in the index.
WITH RECURSIVE kind (lane, priority) AS (
    SELECT value, (SELECT min(priority) FROM live WHERE lane = value AND state = 'waiting') FROM json_each(?1)
    UNION ALL
    SELECT lane, (SELECT min(live.priority) FROM live
                   WHERE live.lane = kind.lane AND state = 'waiting' AND live.priority > kind.priority)
      FROM kind WHERE priority IS NOT NULL)
SELECT lane, priority FROM kind WHERE priority IS NOT NULL;

-- name: eldest_fifo
-- Who came first in line of a lane and a priority, and since when it could have run.
SELECT priority, place, seq, max(created_at, coalesce(run_at, 0)) FROM live
 WHERE lane = ?1 AND state = 'waiting' AND priority = ?2 AND place > 0 AND (?4 OR crashes = 0)
 ORDER BY place LIMIT ?3;

-- name: eldest_lifo
SELECT priority, place, seq, max(created_at, coalesce(run_at, 0)) FROM live
 WHERE lane = ?1 AND state = 'waiting' AND priority = ?2 AND place < 0 AND (?4 OR crashes = 0)
 ORDER BY place DESC LIMIT ?3;

-- name: lanes_of
SELECT lane FROM lanes WHERE queue = ?1 AND (?2 IS NULL OR grp = ?2) AND ready;

-- name: group_size
SELECT count(*) FROM lanes JOIN live ON live.lane = lanes.lane AND live.state = 'waiting'
 WHERE lanes.queue = ?1 AND lanes.grp = ?2 AND lanes.ready;

-- name: numbered
SELECT * FROM live WHERE seq IN (SELECT value FROM json_each(?1));

-- name: queue_has_waiting
SELECT 1 FROM lanes
 WHERE queue = ?1 AND ready AND EXISTS (SELECT 1 FROM live WHERE live.lane = lanes.lane AND state = 'waiting')
 LIMIT 1;

-- name: marks
SELECT (SELECT min(run_at) FROM live WHERE state = 'scheduled'),
       (SELECT min(lease_until) FROM live WHERE state IN ('claimed', 'running')),
       (SELECT min(deadline) FROM live
         WHERE deadline IS NOT NULL AND state IN ('blocked', 'scheduled', 'waiting')),
       (SELECT open_at FROM lanes
         WHERE ready AND open_at > 0 AND open_at < 1e18
           AND EXISTS (SELECT 1 FROM live WHERE live.lane = lanes.lane AND state = 'waiting')
         ORDER BY open_at LIMIT 1),
       (SELECT min(due_at) FROM schedules WHERE due_at IS NOT NULL);

-- name: due
SELECT * FROM live WHERE state = 'scheduled' AND run_at <= ?1 ORDER BY run_at, seq LIMIT ?2;

-- name: expired
SELECT * FROM live WHERE state IN ('claimed', 'running') AND lease_until <= ?1 ORDER BY lease_until, seq LIMIT ?2;

-- name: lapsed
SELECT * FROM live
 WHERE deadline IS NOT NULL AND state IN ('blocked', 'scheduled', 'waiting') AND deadline <= ?1
 ORDER BY deadline, seq LIMIT ?2;

-- name: outlived
SELECT * FROM history WHERE expires_at <= ?1 ORDER BY expires_at, seq LIMIT ?2;

-- name: shelves
-- Tasks and states with finished jobs that are kept by number, from one to the next in the index; what the newest says.
WITH RECURSIVE shelf (seq) AS (
    SELECT (SELECT seq FROM history WHERE instr(keep, '"last_') ORDER BY task, state LIMIT 1)
    UNION ALL
    SELECT (SELECT next.seq FROM history AS next
             WHERE instr(next.keep, '"last_') AND (next.task, next.state) > (last.task, last.state)
             ORDER BY next.task, next.state LIMIT 1)
      FROM shelf JOIN history AS last ON last.seq = shelf.seq)
SELECT one.task, one.state,
       (SELECT newest.keep FROM history AS newest
         WHERE instr(newest.keep, '"last_') AND newest.task = one.task AND newest.state = one.state
         ORDER BY newest.finished_at DESC, newest.seq DESC LIMIT 1)
  FROM shelf JOIN history AS one ON one.seq = shelf.seq;

-- name: surplus
-- What is older than the oldest that stays.
SELECT * FROM history
 WHERE instr(keep, '"last_') AND task = ?1 AND state = ?2
   AND (finished_at, seq) < (SELECT kept.finished_at, kept.seq FROM history AS kept
                              WHERE instr(kept.keep, '"last_') AND kept.task = ?1 AND kept.state = ?2
                              ORDER BY kept.finished_at DESC, kept.seq DESC LIMIT 1 OFFSET ?3)
 ORDER BY finished_at, seq LIMIT ?4;

-- name: held_by
SELECT * FROM live
 WHERE state IN ('claimed', 'running') AND worker IN (SELECT value FROM json_each(?1))
 ORDER BY lease_until, seq LIMIT ?2;

-- name: cancels
SELECT id, fence FROM live WHERE cancel_requested AND worker = ?1 AND state = 'running' ORDER BY seq;

-- name: clear_edges
DELETE FROM edges WHERE parent IN (SELECT value FROM json_each(?1));

-- name: clear_closing
DELETE FROM closing WHERE parent IN (SELECT value FROM json_each(?1));

-- name: tie
INSERT INTO edges (parent, n, child, task, seq, policy, outcome, result, feeds) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: mark
UPDATE edges SET outcome = ?3, result = ?4 WHERE parent = ?1 AND n = ?2;

-- name: over
SELECT parent, n, child, task, seq, policy, outcome, result, feeds FROM edges
 WHERE seq IN (SELECT value FROM json_each(?1));

-- name: under
SELECT parent, n, child, task, seq, policy, outcome, result, feeds FROM edges WHERE parent = ?1 ORDER BY n;

-- name: open_links
SELECT count(*) FROM edges WHERE parent = ?1 AND outcome IS NULL;

-- name: again
SELECT edges.parent, n, child, edges.task, edges.seq, policy, outcome, edges.result, feeds
  FROM edges JOIN live ON live.seq = edges.seq
 WHERE edges.parent = ?1 AND outcome IS NOT NULL ORDER BY n;

-- name: fatal
SELECT parent, n, child, task, seq, policy, outcome, result, feeds FROM edges
 WHERE parent = ?1 AND outcome <> 'completed' AND policy IN ('fail', 'remove') ORDER BY n LIMIT 1;

-- name: unended
-- Children in one of these states that nobody has asked to stop and that no other parent waits for.
SELECT live.* FROM edges JOIN live ON live.seq = edges.seq
 WHERE edges.parent = ?1 AND edges.outcome IS NULL AND edges.policy <> 'after'
   AND live.state IN (SELECT value FROM json_each(?2)) AND NOT live.cancel_requested
   AND (live.parents = 1 OR NOT EXISTS (
        SELECT 1 FROM edges AS other JOIN live AS parent ON parent.id = other.parent
         WHERE other.seq = edges.seq AND other.parent <> edges.parent))
 ORDER BY edges.n LIMIT ?3;

-- name: close_flow
INSERT INTO closing (parent, cancel, expires_at) VALUES (?1, ?2, ?3)
    ON CONFLICT (parent) DO UPDATE SET cancel = ?2, expires_at = ?3;

-- name: canceled_flow
UPDATE closing SET cancel = NULL WHERE parent = ?1;

-- name: forget_flow
DELETE FROM closing WHERE parent = ?1;

-- name: canceling
SELECT parent, cancel FROM closing WHERE cancel IS NOT NULL ORDER BY parent LIMIT ?1;

-- name: outlived_flows
SELECT parent FROM closing WHERE cancel IS NULL AND expires_at <= ?1 ORDER BY expires_at, parent LIMIT ?2;

-- name: untie
DELETE FROM edges
 WHERE parent = ?1 AND n IN (SELECT n FROM edges WHERE parent = ?1 ORDER BY n LIMIT ?2) RETURNING n;

-- name: remember
INSERT INTO claims (worker, claimed_at, refs) VALUES (?1, ?2, ?3)
    ON CONFLICT (worker) DO UPDATE SET claimed_at = ?2, refs = ?3;

-- name: recall
SELECT refs FROM claims WHERE worker = ?1;

-- name: gate
SELECT * FROM gates WHERE kind = ?1 AND name = ?2 AND grp = ?3;

-- name: named_gates
SELECT gates.*
  FROM json_each(?1) AS key
 CROSS JOIN gates ON gates.kind = key.value ->> 0 AND gates.name = key.value ->> 1 AND gates.grp = key.value ->> 2;

-- name: put_gate
INSERT OR REPLACE INTO gates VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: shut
INSERT INTO gates (kind, name, grp, tat, closed_until) VALUES (?1, ?2, ?3, 0, ?4)
    ON CONFLICT (kind, name, grp) DO UPDATE SET closed_until = CASE WHEN ?4 = 0 THEN 0 ELSE max(closed_until, ?4) END;

-- name: spend
INSERT INTO gates (kind, name, grp, tat, closed_until) VALUES (?1, ?2, ?3, ?4, 0)
    ON CONFLICT (kind, name, grp) DO UPDATE SET tat = ?4;

-- name: drop_gate
DELETE FROM gates WHERE kind = ?1 AND name = ?2 AND grp = ?3;

-- name: crowds
-- Groups with waiting jobs, and how many; of each lane no more are counted than the bound.
SELECT queue, grp, sum(waiting)
  FROM (SELECT queue, grp, (SELECT count(*) FROM (SELECT 1 FROM live
                                                   WHERE live.lane = lanes.lane AND state = 'waiting' LIMIT ?3)) AS waiting
          FROM lanes WHERE ready AND grp <> '' AND (?1 IS NULL OR queue = ?1))
 WHERE waiting > 0
 GROUP BY queue, grp ORDER BY queue, grp LIMIT ?2;

-- name: holding
-- Only the index is read, and only as many rows of it as workers have jobs.
SELECT queue, task, grp, count(*) FROM live WHERE state IN ('claimed', 'running') GROUP BY queue, task, grp;

-- name: gates
SELECT * FROM gates WHERE kind IN (SELECT value FROM json_each(?1)) ORDER BY kind, name, grp;

-- name: drop_gates
-- Those that say nothing any more.
DELETE FROM gates
 WHERE (kind, name, grp) IN (SELECT kind, name, grp FROM gates
                              WHERE paused_at IS NULL AND rule IS NULL AND tat <= ?1 AND closed_until <= ?1 LIMIT ?2);

-- name: beat
INSERT INTO workers (worker, seen_at, beat) VALUES (?1, ?2, ?3)
    ON CONFLICT (worker) DO UPDATE SET seen_at = ?2, beat = ?3;

-- name: forget_worker
DELETE FROM workers WHERE worker = ?1;

-- name: workers
SELECT beat, seen_at FROM workers ORDER BY worker;

-- name: append
INSERT INTO events VALUES (?, ?, ?, ?, ?);

-- name: events
SELECT n, at, entries FROM events WHERE n >= ?1 ORDER BY n;

-- name: log_span
SELECT (SELECT min(n) FROM events), (SELECT row FROM store);

-- name: totals
SELECT queue, name, sum(value) FROM totals GROUP BY queue, name;

-- name: unfolded
SELECT n, at, deltas FROM events WHERE n > (SELECT folded FROM store) ORDER BY n;

-- name: fold
INSERT INTO totals (queue, task, name, value) VALUES (?1, ?2, ?3, ?4)
    ON CONFLICT (queue, task, name) DO UPDATE SET value = value + ?4;

-- name: fold_stats
INSERT INTO stats (span, at, queue, task, name, value) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
    ON CONFLICT (span, at, queue, task, name) DO UPDATE SET value = value + ?6;

-- name: stats
SELECT span, at, queue, task, name, value FROM stats
 WHERE span IN (60, 3600, 86400) AND at > ?1 - span AND at < ?2;

-- name: oldest_stats
SELECT min(at) FROM stats WHERE span = ?1;

-- name: roll_stats
INSERT INTO stats (span, at, queue, task, name, value)
SELECT ?4, at / ?4 * ?4, queue, task, name, sum(value) FROM stats
 WHERE span = ?1 AND at >= ?2 AND at < ?3 GROUP BY 2, 3, 4, 5
    ON CONFLICT (span, at, queue, task, name) DO UPDATE SET value = value + excluded.value;

-- name: drop_stats
DELETE FROM stats WHERE span = ?1 AND at < ?2;

-- name: folded
-- guard: counters_on_disk
UPDATE store SET folded = ?1;

-- name: ready_since
-- For each queue with waiting jobs: since when the job next in one of its lines could have run.
SELECT lanes.queue, min(since)
  FROM (SELECT queue, (SELECT max(created_at, coalesce(run_at, 0)) FROM live
                        WHERE live.lane = lanes.lane AND state = 'waiting'
                        ORDER BY priority, place LIMIT 1) AS since
          FROM lanes WHERE ready) AS lanes
 WHERE since IS NOT NULL
 GROUP BY lanes.queue;

-- name: old_events
SELECT n, count, at FROM events ORDER BY n LIMIT ?1;

-- name: drop_events
DELETE FROM events WHERE n <= ?1;

-- name: drop_workers
DELETE FROM workers WHERE seen_at <= ?1 RETURNING worker;

-- name: drop_claims
DELETE FROM claims WHERE claimed_at <= ?1;

-- name: drop_lanes
-- Idle lanes come back with the next job. One with waiting jobs should have its mark: see `mend_lanes`.
DELETE FROM lanes
 WHERE lane IN (SELECT lane FROM lanes WHERE NOT ready AND used_at <= ?1 ORDER BY used_at LIMIT ?2)
   AND turn <= coalesce((SELECT rounds.turn FROM rounds WHERE rounds.queue = lanes.queue), turn)
   AND NOT EXISTS (SELECT 1 FROM live WHERE live.lane = lanes.lane AND state = 'waiting');

-- name: mend_lanes
UPDATE lanes SET ready = 1
 WHERE lane IN (SELECT lane FROM lanes WHERE NOT ready AND used_at <= ?1 ORDER BY used_at LIMIT ?2)
   AND EXISTS (SELECT 1 FROM live WHERE live.lane = lanes.lane AND state = 'waiting');

-- name: steps
SELECT job, n, kind, name, result, at, until FROM steps WHERE job = ?1 ORDER BY n;

-- name: step
SELECT job, n, kind, name, result, at, until FROM steps WHERE job = ?1 AND kind = ?2 AND name = ?3;

-- name: put_step
INSERT OR REPLACE INTO steps VALUES (?, ?, ?, ?, ?, ?, ?);

-- name: drop_steps
DELETE FROM steps WHERE job IN (SELECT value FROM json_each(?1));

-- name: schedules
SELECT record FROM schedules WHERE name IN (SELECT value FROM json_each(?1)) ORDER BY name;

-- name: timetable
SELECT record FROM schedules WHERE name > ?1 ORDER BY name LIMIT ?2;

-- name: ticking
SELECT record FROM schedules WHERE due_at IS NOT NULL AND due_at <= ?1 ORDER BY due_at, name LIMIT ?2;

-- name: put_schedule
INSERT INTO schedules VALUES (?1, ?2, ?3)
    ON CONFLICT (name) DO UPDATE SET due_at = excluded.due_at, record = excluded.record;

-- name: drop_schedule
DELETE FROM schedules WHERE name = ?1;
