"""Shared by all tests: no test is skipped in silence, and nothing is compiled twice.

Skipped tests are listed with their reasons at the end. In CI (`CI=true`, or `ERRANDRY_NO_SKIP=1`)
each of them also fails the run.
"""

import os
import sys

import pytest
from hypothesis import HealthCheck, settings

# What is slow may be the machine.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

# Hundreds of programs that tests start import the same modules: compiling them is half of such a start.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# A test that imports uvloop must not give another loop to those after it. What is about uvloop says so.
os.environ["ERRANDRY_LOOP"] = "asyncio"


def pytest_sessionfinish(session: pytest.Session) -> None:
    if skips_fail() and skipped(session.config) and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    reasons = skipped(config)
    if reasons:
        terminalreporter.section(
            "skipped, which fails this run" if skips_fail() else "skipped", red=skips_fail()
        )
        for reason in reasons:
            terminalreporter.line(reason)


def skips_fail() -> bool:
    return os.environ.get("CI") == "true" or os.environ.get("ERRANDRY_NO_SKIP") == "1"


def skipped(config: pytest.Config) -> list[str]:
    """One line per skipped test or module; empty in the worker processes of xdist."""
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    reports = terminal.stats.get("skipped", []) if terminal else []
    return sorted(f"{report.nodeid}: {_reason(report)}" for report in reports)


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    where_and_why = report.longrepr
    return where_and_why[2] if isinstance(where_and_why, tuple) else str(where_and_why)
