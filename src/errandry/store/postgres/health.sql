-- name: server
-- The version of the server, whether it is a standby, its durability settings, and the process id of this session.
SELECT current_setting('server_version'), current_setting('server_version_num')::bigint, pg_is_in_recovery(),
       current_setting('fsync') = 'on', current_setting('full_page_writes') = 'on', current_setting('synchronous_commit'),
       current_setting('synchronous_standby_names') <> '', current_setting('autovacuum') = 'on', pg_backend_pid();

-- name: time
-- The time of the server.
SELECT extract(epoch FROM clock_timestamp())::float8;

-- name: connections
-- The number of open connections, and how many ordinary users may open.
SELECT (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'),
       current_setting('max_connections')::bigint - current_setting('superuser_reserved_connections')::bigint;

-- name: sees_all
-- Whether this user sees the activity of other users.
SELECT pg_has_role('pg_read_all_stats', 'USAGE');

-- name: oldest_transaction
-- The transaction that has been open for longest, in any database. Vacuum keeps the rows that it may still see.
SELECT pid, coalesce(nullif(application_name, ''), usename::text, backend_type), coalesce(state, 'active'),
       extract(epoch FROM clock_timestamp() - xact_start)::float8
  FROM pg_stat_activity
 WHERE xact_start IS NOT NULL AND pid <> pg_backend_pid() AND backend_type <> 'autovacuum worker'
 ORDER BY xact_start LIMIT 1;

-- name: oldest_prepared
-- The oldest prepared transaction. It belongs to no connection.
SELECT gid, extract(epoch FROM clock_timestamp() - prepared)::float8 FROM pg_prepared_xacts ORDER BY prepared LIMIT 1;

-- name: dead_rows
-- The live and dead rows of unfinished jobs, and the seconds since the last vacuum.
SELECT n_live_tup, n_dead_tup, extract(epoch FROM clock_timestamp() - greatest(last_vacuum, last_autovacuum))::float8
  FROM pg_stat_all_tables WHERE relid = 'errandry.live'::regclass;

-- name: partitions
-- Partitions of finished jobs: all; those of days that ended more than two days ago; detached ones that still exist; days
-- with jobs for whose next day there is no partition yet.
WITH days AS (
    SELECT substring(pg_get_expr(relpartbound, pg_class.oid) FROM '\d+')::bigint AS day
      FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid
     WHERE inhparent = 'errandry.history'::regclass AND NOT inhdetachpending),
today AS (SELECT floor(extract(epoch FROM clock_timestamp()) / 86400)::bigint AS day)
SELECT (SELECT count(*) FROM days),
       (SELECT count(*) FROM days, today WHERE days.day BETWEEN 1 AND today.day - 3),
       (SELECT count(*) FROM pg_class LEFT JOIN pg_inherits ON inhrelid = pg_class.oid
         WHERE relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = 'errandry.history'::regclass)
           AND relkind = 'r' AND (NOT relispartition OR inhdetachpending) AND relname ~ '^history_\d{8}$'),
       (SELECT count(*) FROM days, today
         WHERE days.day >= today.day AND days.day + 1 NOT IN (SELECT day FROM days)
           AND EXISTS (SELECT 1 FROM errandry.history WHERE history.day = days.day));

-- name: size
-- The size in bytes of all tables, of the unfinished jobs, and of the event log.
SELECT coalesce(sum(pg_total_relation_size(pg_class.oid)), 0)::bigint,
       pg_total_relation_size('errandry.live'::regclass),
       pg_total_relation_size('errandry.events'::regclass)
  FROM pg_class JOIN pg_namespace AS s ON s.oid = relnamespace
 WHERE relkind = 'r' AND nspname = (SELECT nspname FROM pg_namespace AS own JOIN pg_class AS live
                                        ON own.oid = live.relnamespace WHERE live.oid = 'errandry.live'::regclass);
