"""A whole model of two layers on a device, in the types that are served, beside the numpy runner in fp32."""

from pathlib import Path

import numpy as np
import pytest
from small import ARCHITECTURES, DeviceDriver, small

from ridgeline.compute.runner import relative_error

TOLERANCE = {"bf16": 2e-2, "fp8": 0.2}
"""Of logits, in units of the largest: some thirty results, each rounded to the type, behind weights that are rounded too."""

PROMPT = np.random.default_rng(7).integers(4, 300, 6).tolist()


@pytest.mark.filterwarnings("ignore:All-NaN slice")  # tokens of padding, which no attention writes
@pytest.mark.parametrize(("architecture", "dtype"), [*((each, "bf16") for each in ARCHITECTURES), ("llama", "fp8")])
def test_a_step_of_prompts_and_one_of_single_tokens(architecture: str, dtype: str, tmp_path: Path) -> None:
    driver = DeviceDriver(*small(tmp_path, architecture), kv="bf16" if dtype == "fp8" else dtype, dtype=dtype)
    for chunks in ([(0, PROMPT[:4]), (1, PROMPT[4:5])], [(0, PROMPT[4:5]), (1, PROMPT[5:])]):
        inputs = driver.inputs(chunks, select=np.cumsum([len(ids) for _, ids in chunks]) - 1)
        theirs = driver.runner.run(inputs, driver.kv)["logits"]
        assert relative_error(driver.cuda.run(inputs, driver.cache)["logits"], theirs) <= TOLERANCE[dtype]
