"""A test marked `alone` shares its time with no other, though two processes run tests."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

CONFTEST = Path(__file__).resolve().parents[1] / "conftest.py"

TESTS = """
import os
from pathlib import Path
from time import sleep
import pytest

HERE = Path(__file__).parent
MINE = HERE / f"{os.getpid()}.runs"

@pytest.mark.parametrize("number", range(30))
def test_in_company(number):
    MINE.touch()
    sleep(0.01)
    (HERE / f"{os.getpid()}.was").touch()
    MINE.unlink()

@pytest.mark.alone
@pytest.mark.parametrize("number", range(30))
def test_alone(number):
    (HERE / f"{os.getpid()}.was").touch()
    for _ in range(10):
        assert not list(HERE.glob("*.runs"))
        sleep(0.001)
"""


def test_who_is_alone_is_alone(tmp_path: Path) -> None:
    shutil.copy(CONFTEST, tmp_path)
    (tmp_path / "test_some.py").write_text(TESTS)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # others take seconds to import
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "xdist", "-n", "2", str(tmp_path)]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=110)
    assert "60 passed" in done.stdout, done.stdout
    assert len(list(tmp_path.glob("*.was"))) == 2
