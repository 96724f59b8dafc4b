"""Lets pytest print a row for every test that did not pass, and one for all of a file."""

import json
from collections import Counter

import pytest

LONGEST = 3000


class Rows:
    """What a terminal shows, as rows."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.outcomes: Counter[str] = Counter()

    def print(self, row: dict[str, object]) -> None:
        """A line of its own."""
        self.config.pluginmanager.get_plugin("terminalreporter").write_line(json.dumps(row))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or not report.passed:
            self.outcomes[report.outcome] += 1
        if report.failed:
            self.print({"test": report.nodeid, "outcome": report.outcome, "says": str(report.longrepr)[-LONGEST:]})

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.outcomes["error"] += 1
            self.print({"test": report.nodeid, "outcome": "error", "says": str(report.longrepr)[-LONGEST:]})

    def pytest_sessionfinish(self) -> None:
        self.print({"tests": dict(self.outcomes)})


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Rows(config))
