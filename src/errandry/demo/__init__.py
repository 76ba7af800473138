"""The demo: a small shop, its workers, and a story in which things go wrong and nothing is lost."""
