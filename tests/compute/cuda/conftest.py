"""Where kernels run: on a GPU if there is one, else in Triton's interpreter on CPU tensors, as tests/conftest.py has chosen."""

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.append(str(Path(__file__).parent))  # the modules beside this one: `tensors`, `interpreter`

if not torch.cuda.is_available():
    import interpreter

    interpreter.install()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "gpu: says something of a real GPU alone; not collected where there is none")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not torch.cuda.is_available():
        absent = [item for item in items if item.get_closest_marker("gpu")]
        config.hook.pytest_deselected(items=absent)
        items[:] = [item for item in items if not item.get_closest_marker("gpu")]


@pytest.fixture(autouse=True)
def _device_arithmetic() -> Iterator[None]:
    """A GPU gives infinities and NaN without a word; numpy, which the interpreter computes with, would warn."""
    with np.errstate(all="ignore"):
        yield
