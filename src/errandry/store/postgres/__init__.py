"""The PostgreSQL store: the same passes on a database server."""
