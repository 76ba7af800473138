"""The apps and the clock that tests of this folder ask for."""

from tests.app_fixtures import clock, jobs, live, shop

__all__ = ["clock", "jobs", "live", "shop"]
