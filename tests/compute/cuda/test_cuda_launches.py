"""What a decode step of Llama-3-8B's shape costs the host, on a device that does nothing: launches of a layer, seconds of a step."""

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small import device
from tensors import on_device
from test_cuda_experts import INPUTS, OUTPUTS, product, stack
from torch.utils._python_dispatch import TorchDispatchMode

from ridgeline.bench.gpu_part import host, tiny_facts
from ridgeline.compute.cuda.bench.model import RandomModel, Types
from ridgeline.compute.cuda.weights import FloatMatrix
from ridgeline.compute.ops.definition import floats
from ridgeline.facts.headers.checkpoint import read_config_facts
from ridgeline.facts.headers.read import find_config
from ridgeline.models.table import MEASURED, SPARSE

MOST = {"bf16": 8, "fp8": 8}
"""Launches of a layer, of kernels and of torch together."""

MOST_CHANGED = 17
"""The same in bf16 with adapters: two launches for each of four products, and one for the gated unit."""

SECONDS = {32: 0.3e-3, 256: 1.5e-3}
"""Of the host for a step, by rows."""

MOST_SPARSE = 13
"""Of a layer with experts in bf16: attention's and its norms' seven, and scores, choice, order, gate and up, down, weighted sum."""

CONTEXT = 1024


class Launches(TorchDispatchMode):
    """Counts ops of torch that write."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(argument.alias_info is not None and argument.alias_info.is_write for argument in func._schema.arguments):
            self.names.append(func.name())
        return func(*args, **(kwargs or {}))


def launches(
    folder: Path,
    layers: int,
    dtype: str,
    batch: int,
    context: int,
    monkeypatch: pytest.MonkeyPatch,
    adapters: int = 0,
    model: str = MEASURED,
) -> list[str]:
    """Names of what a decode step launches, of a model with the heads and types of a known one, and narrow."""
    from triton.runtime.interpreter import GridExecutor

    given = json.loads(find_config(model).read_text())
    narrow = {"hidden_size": 512, "head_dim": 16, "intermediate_size": 256, "vocab_size": 512, "num_hidden_layers": layers}
    narrow |= {"moe_intermediate_size": 64}
    config = folder / "narrow.json"
    config.write_text(json.dumps(given | narrow))
    sizes = {"tokens": batch, "rows": batch, "positions": context + 1, "adapters": adapters}
    random = RandomModel(read_config_facts(config), Types(dtype, dtype), device(), **sizes)
    counted = Launches()
    monkeypatch.setattr(GridExecutor, "__call__", lambda self, *args, **kwargs: counted.names.append(self.fn.__name__))
    inputs, sampling = random._inputs([1] * batch, [context] * batch)
    random.runner.launch(inputs, sampling)
    counted.names.clear()
    with counted:
        random.runner.replay()
    return counted.names


@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
@pytest.mark.parametrize(("batch", "context"), [(32, CONTEXT), (256, 64)])
def test_launches_of_a_layer(dtype: str, batch: int, context: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, three = (launches(tmp_path, layers, dtype, batch, context, monkeypatch) for layers in (1, 3))
    assert (len(three) - len(one)) / 2 <= MOST[dtype], three


def test_launches_of_a_layer_with_adapters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, three = (launches(tmp_path, layers, "bf16", 32, 64, monkeypatch, adapters=4) for layers in (1, 3))
    assert (len(three) - len(one)) / 2 <= MOST_CHANGED, three


@pytest.mark.parametrize("batch", [1, 32])
def test_launches_of_a_layer_with_experts(batch: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, three = (launches(tmp_path, layers, "bf16", batch, 64, monkeypatch, model=SPARSE) for layers in (1, 3))
    assert (len(three) - len(one)) / 2 <= MOST_SPARSE, three


@pytest.mark.parametrize("kind", ["bf16", "Q4_K"])
def test_no_expert_is_read_that_no_token_chose(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from triton.runtime.interpreter import InterpreterBuilder

    """By the addresses that the interpreter reads."""
    weight = stack(kind, 1)
    ids, x = np.array([[1, 3], [1, 4]], np.int32), on_device(floats(4, 2, INPUTS), torch.bfloat16)
    rows = weight.values if isinstance(weight, FloatMatrix) else weight.scale_words  # type: ignore[union-attr]
    read: set[int] = set()
    load = InterpreterBuilder.create_masked_load

    def spy(self: Any, pointers: Any, mask: Any, *rest: Any) -> Any:
        read.update(np.unique(pointers.data[mask.data]).tolist())
        return load(self, pointers, mask, *rest)

    monkeypatch.setattr(InterpreterBuilder, "create_masked_load", spy)
    product(x, ids, weight)
    axis = 0 if isinstance(weight, FloatMatrix) else 1
    places = {(address - rows.data_ptr()) // rows.element_size() for address in read if 0 <= address - rows.data_ptr() < rows.nbytes}
    per_expert = OUTPUTS * rows.stride(axis)
    found = {place % (rows.shape[1] if axis else rows.numel()) // per_expert for place in places}
    assert found == {1, 3, 4}


@pytest.mark.alone
@pytest.mark.parametrize("batch", SECONDS)
def test_seconds_of_the_host(batch: int) -> None:
    """Scheduling, packing, reading back, commit and frame: processor seconds of one thread."""
    facts, rows = tiny_facts(find_config(MEASURED)), []
    while len(rows) < 20 and (not rows or rows[-1]["host_seconds"] > SECONDS[batch]):  # virtual machines slow down for seconds
        time.sleep(0.5 * bool(rows))
        rows += host(facts, {"batches": [batch], "context": CONTEXT, "steps": 24})
    assert rows[-1]["frames"] and rows[-1]["host_seconds"] <= SECONDS[batch], rows
