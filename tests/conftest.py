"""For all tests: report skipped tests, and give the programs that tests start compiled modules and Ctrl-C.

Skipped tests are listed with their reasons at the end. In CI (`CI=true`, or `ERRANDRY_NO_SKIP=1`)
each of them also fails the run.
"""

import os
import signal
import sys

import pytest
from hypothesis import HealthCheck, settings

# A slow example is no failure: the machine may be busy.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

# Tests start hundreds of programs that import the same modules. Without bytecode, compiling takes half of the
# start.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# A shell starts a background job with SIGINT ignored, and the programs that tests start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# An import of uvloop in one test must not change the event loop of later tests. Tests of uvloop set this
# themselves.
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
