"""The apps and the clock for tests of this folder."""

from tests.app_fixtures import clock, jobs, live, shop

__all__ = ["clock", "jobs", "live", "shop"]
