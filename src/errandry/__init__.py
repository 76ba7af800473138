"""Errandry keeps background jobs through crashes, runs them on workers, and shows what happened.

It starts embedded, with one SQLite file and no server, and grows to other stores with the same
behaviour. This module holds the public names; anything not in `__all__` may change.
"""

__version__ = "0.1.0"

__all__ = ["__version__"]
