"""The demo: a small shop, its workers, and a story with failures and a crash that loses no job."""
