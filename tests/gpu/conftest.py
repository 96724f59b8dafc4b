"""Where kernels run: on a GPU if there is one, else in Triton's interpreter on CPU tensors.

Triton reads TRITON_INTERPRET when a kernel is defined, so it is set here, before any test imports one.
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.append(str(Path(__file__).parent))  # the modules beside this one: `tensors`, `interpreter`

if not torch.cuda.is_available():
    if "triton" in sys.modules and os.environ.get("TRITON_INTERPRET") != "1":
        raise RuntimeError("triton was imported before tests/gpu could choose its interpreter; run these tests on their own")
    os.environ["TRITON_INTERPRET"] = "1"
    import interpreter

    interpreter.install()


@pytest.fixture(autouse=True)
def _device_arithmetic() -> Iterator[None]:
    """A GPU gives infinities and NaN without a word; numpy, which the interpreter computes with, would warn."""
    with np.errstate(all="ignore"):
        yield
