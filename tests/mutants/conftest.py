"""Prints a table at the end of the session: the test that noticed each mutant."""

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [*terminalreporter.getreports("passed"), *terminalreporter.getreports("failed")]
    kills = [value for report in reports for name, value in report.user_properties if name == "kill"]
    if kills:
        terminalreporter.section("mutants")
    for name, without, suite, killer, seconds in sorted(kills):
        found = f"{killer} ({seconds} s)" if killer else "SURVIVED"
        terminalreporter.line(f"{name:25} {without:66} {suite:12} {found}")
