-- name: missing_rights
-- The rights that the user lacks on the database, on the schema and on what is in it: kind, name, rights. The last
-- column says whether the user may call `insert_jobs`, by which a program that only enqueues inserts jobs. The tables
-- are selected first: `has_sequence_privilege` fails if it is asked about a table.
WITH schema AS (SELECT oid, nspname FROM pg_namespace WHERE nspname = %(schema)s),
relations AS (SELECT pg_class.oid, relname, relkind FROM pg_class JOIN schema ON relnamespace = schema.oid),
tables AS MATERIALIZED (SELECT oid, relname FROM relations WHERE relkind IN ('r', 'p')),
sequences AS MATERIALIZED (SELECT oid, relname FROM relations WHERE relkind = 'S'),
functions AS (SELECT pg_proc.oid, proname FROM pg_proc JOIN schema ON pronamespace = schema.oid),
rights (kind, name, position, granted_on, is_granted) AS (
    SELECT 'database', current_database()::text, 1, 'CREATE', has_database_privilege(current_database(), 'CREATE')
    UNION ALL
    SELECT 'schema', nspname, position, word, has_schema_privilege(oid, word)
      FROM schema, unnest(ARRAY['USAGE', 'CREATE']) WITH ORDINALITY AS listed (word, position)
    UNION ALL
    SELECT 'table', relname, position, word, has_table_privilege(oid, word)
      FROM tables, unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) WITH ORDINALITY AS listed (word, position)
    UNION ALL
    SELECT 'sequence', relname, 1, 'USAGE', has_sequence_privilege(oid, 'USAGE') FROM sequences
    UNION ALL
    SELECT 'function', proname, 1, 'EXECUTE', has_function_privilege(oid, 'EXECUTE') FROM functions
)
SELECT kind, name, array_agg(granted_on ORDER BY position), current_user::text,
       EXISTS (SELECT 1 FROM functions WHERE proname = 'insert_jobs' AND has_function_privilege(oid, 'EXECUTE'))
  FROM rights WHERE NOT is_granted GROUP BY kind, name ORDER BY kind, name;
