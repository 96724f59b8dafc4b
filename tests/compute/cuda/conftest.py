"""Where kernels run: on a GPU if there is one, else in Triton's interpreter on CPU tensors, as tests/conftest.py has chosen."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.append(str(Path(__file__).parent))  # the modules beside this one: `tensors`, `interpreter`

from left_out import STAND_INS

HERE = Path(__file__).parent
REAL = torch.cuda.is_available()
if (os.environ.get("TRITON_INTERPRET") == "1") == REAL:
    raise pytest.UsageError(
        f"torch {'finds' if REAL else 'does not find'} a GPU, and tests/conftest.py, which looks for the driver's devices, says otherwise"
    )
if not REAL:
    import interpreter

    interpreter.install()

collect_ignore = list(STAND_INS) if REAL else []

REAL_SECONDS = 600
"""Of a test on a GPU: its kernels are compiled in it."""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "gpu: says something of a real GPU alone; not collected where there is none")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """On a GPU, libraries of any version may warn."""
    for item in items if REAL else ():
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.filterwarnings("default"), append=False)
            item.add_marker(pytest.mark.timeout(REAL_SECONDS), append=False)
    if not REAL:
        absent = [item for item in items if item.get_closest_marker("gpu")]
        config.hook.pytest_deselected(items=absent)
        items[:] = [item for item in items if not item.get_closest_marker("gpu")]


@pytest.fixture(autouse=True)
def _device_arithmetic() -> Iterator[None]:
    """A GPU gives infinities and NaN without a word; numpy, which the interpreter computes with, would warn."""
    with np.errstate(all="ignore"):
        yield


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of `small.SIZE`."""
    from small import SIZE  # behind the interpreter
    from tiny import write_tiny

    return write_tiny(tmp_path_factory.mktemp("small") / "small.gguf", SIZE)
