"""Fixtures of the worker's tests: apps, a clock, and a gate for handlers."""

import pytest

from tests.app_fixtures import clock, jobs, live, shop
from tests.worker.gate import Gate

__all__ = ["clock", "jobs", "live", "shop"]


@pytest.fixture
def gate() -> Gate:
    return Gate()
