"""What every test may use, and one rule: with CI=true a skipped test fails the session and is named.

There, everything that tests need is installed. Triton decides when it is first imported whether kernels run on a GPU or in its interpreter;
other libraries import it too, so that is settled here.
"""

import os
from pathlib import Path

import pytest

from ridgeline.errors import ModelNotFoundError
from ridgeline.facts.gpu import gpu_missing
from ridgeline.facts.source import resolve_model

if gpu_missing() is not None:
    os.environ["TRITON_INTERPRET"] = "1"

SKIPS = pytest.StashKey[list[str]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[SKIPS] = []


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector):
    report = yield
    note_skip(collector.config, report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):
    report = yield
    note_skip(item.config, report)
    return report


def note_skip(config: pytest.Config, report: pytest.TestReport | pytest.CollectReport) -> None:
    if report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        config.stash[SKIPS].append(f"{report.nodeid}: {reason}")


def skips_fail(config: pytest.Config) -> bool:
    return os.environ.get("CI") == "true" and bool(config.stash[SKIPS])


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if skips_fail(session.config) and exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if skips_fail(config):
        terminalreporter.section("skipped tests fail under CI=true")
        for line in config.stash[SKIPS]:
            terminalreporter.line(line)


@pytest.fixture(scope="session")
def demo_file(pytestconfig: pytest.Config) -> Path:
    """The demo model's GGUF file, assembled once under pytest's cache directory."""
    assert pytestconfig.cache is not None
    try:
        return resolve_model("demo", pytestconfig.cache.mkdir("models"))
    except ModelNotFoundError as missing:
        pytest.skip(str(missing))
