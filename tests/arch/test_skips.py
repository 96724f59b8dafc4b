"""Under CI=true a skipped test fails the session and is named; elsewhere it does not."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).resolve().parents[1] / "conftest.py"

TESTS = """
import pytest

def test_skipped():
    pytest.skip("needs a unicorn")

@pytest.mark.xfail
def test_expected_to_fail():
    assert False

def test_passes():
    pass
"""


def session(folder: Path, processes: int, **variables: str) -> subprocess.CompletedProcess[str]:
    shutil.copy(CONFTEST, folder)
    (folder / "test_some.py").write_text(TESTS)
    (folder / "test_absent.py").write_text('import pytest\npytest.importorskip("no_such_module")\n')
    environment = {name: value for name, value in os.environ.items() if name != "CI"}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # others take seconds to import
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "xdist", "-n", str(processes), str(folder)]
    return subprocess.run(command, env={**environment, **variables}, cwd=folder, capture_output=True, text=True, timeout=110)


@pytest.mark.parametrize("processes", [0, 2])
def test_skips_fail_continuous_integration(tmp_path: Path, processes: int) -> None:
    done = session(tmp_path, processes, CI="true")
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout
    assert "test_some.py::test_skipped: Skipped: needs a unicorn" in done.stdout
    assert "no_such_module" in done.stdout
    assert "test_expected_to_fail:" not in done.stdout


def test_skips_are_fine_elsewhere(tmp_path: Path) -> None:
    done = session(tmp_path, 0)
    assert done.returncode == pytest.ExitCode.OK, done.stdout
    assert "2 skipped" in done.stdout
