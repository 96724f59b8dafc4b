"""Models with routed experts on a device: values of the numpy runner, bits without company, and no expert read that no token chose."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoints import RECIPES
from quantised_weights import blocks, grouped, scaled
from quantised_weights import dense as placed_numbers
from small import DeviceDriver
from tensors import DEVICE, error, numbers, on_device, poisoned, within
from tiny import dense

from ridgeline.compute.cuda.experts import experts_product
from ridgeline.compute.cuda.integers import IntegerMatrix
from ridgeline.compute.cuda.triton import experts
from ridgeline.compute.cuda.weights import DeviceWeight, FloatMatrix, Fp8Matrix, merged, place_experts
from ridgeline.compute.ops.definition import floats
from ridgeline.compute.ops.experts import PLAIN, chosen_experts, linear_experts
from ridgeline.compute.ops.sorted_experts import FEW, linear_experts_glu, sort_experts, tile_height
from ridgeline.compute.ops.table import OPS
from ridgeline.compute.quant.weight import CodedWeight, DenseWeight, StackedWeight, Weight
from ridgeline.compute.runner import diff
from ridgeline.facts.headers.read import read_model_facts
from ridgeline.facts.headers.rope import select_rope

SPARSE = (
    "qwen3moe", "qwen3moe-some", "gpt_oss", "qwen2moe", "mixtral", "mixtral-window", "olmoe", "granitemoe", "glm4moe", "glm4moe-plain",
    "dots1", "ernie",
)  # fmt: skip
BY_DAY = ("gpt_oss",)
"""Sinks, windows, biases, a clamped unit; samples of `route` have what the routers of the others do."""

EXPERTS, INPUTS, OUTPUTS = 5, 256, 40


def opened(stored: Callable[[str, str], Path], name: str, form: str = "safetensors", **options: Any) -> DeviceDriver:
    facts, _ = select_rope(read_model_facts(stored(name, form)), RECIPES[name].reach)
    return DeviceDriver(facts, dense(facts), **options)


@pytest.mark.filterwarnings("ignore:All-NaN slice")  # tokens of padding, which no expert computes
@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in BY_DAY else pytest.mark.night) for name in SPARSE])
def test_every_value_is_the_numpy_runners(stored: Callable[[str, str], Path], name: str) -> None:
    driver = opened(stored, name)
    ids = np.random.default_rng(1).integers(4, 280, 9).tolist()
    for chunks in ([(0, ids[:4]), (1, ids[4:7])], [(0, ids[7:8]), (1, ids[8:])]):
        inputs = driver.inputs(chunks, select=np.cumsum([len(own) for _, own in chunks]) - 1)
        assert diff(driver.cuda, driver.runner, inputs, driver.cache, driver.kv, tolerance=2e-5) is None


def stack(kind: str, seed: int) -> DeviceWeight:
    """A stack [E · N, K] as a file of this kind gives it: one tensor, or a matrix per expert."""
    if kind == "bf16":
        return place_experts(DenseWeight(floats(seed, EXPERTS, OUTPUTS, INPUTS, size=0.1)), torch.bfloat16, DEVICE)
    own: dict[str, Callable[[int], Weight]] = {
        "fp8": lambda number: scaled(OUTPUTS, INPUTS, (1, INPUTS), number),
        "fp8 block": lambda number: scaled(OUTPUTS, INPUTS, (32, 128), number),
        "int4": lambda number: grouped(4, OUTPUTS, INPUTS, 128, seed=number),
        "int8": lambda number: grouped(8, OUTPUTS, INPUTS, 32, symmetric=True, seed=number),
        "act-order": lambda number: grouped(4, OUTPUTS, INPUTS, 128, ordered=True, seed=number),
    }
    if kind in own:
        return place_experts(StackedWeight(tuple(own[kind](10 * seed + number) for number in range(EXPERTS))), torch.bfloat16, DEVICE)
    rows = blocks(kind, EXPERTS * OUTPUTS, INPUTS, seed)
    return place_experts(CodedWeight(kind, (EXPERTS, OUTPUTS, INPUTS), rows.codes), torch.bfloat16, DEVICE)


def product(x: torch.Tensor, ids: np.ndarray, weight: DeviceWeight, *, gate: str = "", invariant: bool = False) -> torch.Tensor:
    """Results in fp32, so that only sums are rounded."""
    out = within(poisoned(ids.size, OUTPUTS))
    order, tiles = (on_device(each) for each in sort_experts(ids, count=EXPERTS))  # type: ignore[union-attr]
    experts_product(x, order, tiles, EXPERTS, weight, out, gate=gate, invariant=invariant)()
    return out


BY_NIGHT = ("int8", "act-order", "Q5_K", "Q6_K", "Q8_0", "IQ4_XS")
KINDS = (*("bf16", "fp8", "fp8 block", "int4", "Q4_K", "MXFP4"), *(pytest.param(kind, marks=pytest.mark.night) for kind in BY_NIGHT))
FORMS = {"bf16": FloatMatrix, "act-order": FloatMatrix, "fp8": Fp8Matrix, "fp8 block": Fp8Matrix}


@pytest.mark.parametrize("tokens", [7, pytest.param(70, marks=pytest.mark.night)])
@pytest.mark.parametrize("kind", KINDS)
def test_every_format(kind: str, tokens: int) -> None:
    """Alone, and gate and up at once; tiles of few choices and of many."""
    gate, up = stack(kind, 1), stack(kind, 2)
    assert isinstance(gate, FORMS.get(kind, IntegerMatrix))
    dense_gate, dense_up = (placed_numbers(each).reshape(EXPERTS, OUTPUTS, INPUTS).astype(np.float32) for each in (gate, up))
    ids, x = chosen_experts(3, tokens, 2, EXPERTS), within(on_device(floats(4, tokens, INPUTS), torch.bfloat16))
    theirs = linear_experts(numbers(x), ids, dense_gate)
    assert error(product(x, ids, gate), theirs) < OPS["linear"].tolerance["cuda f32"]
    both = merged([gate, up])
    assert both is not None and both.shape == (2 * EXPERTS * OUTPUTS, INPUTS)
    theirs = linear_experts_glu(numbers(x), ids, *sort_experts(ids, count=EXPERTS), dense_gate, dense_up, activation="silu")
    assert error(product(x, ids, both, gate="silu"), theirs) < 2 * OPS["linear"].tolerance["cuda f32"]


@pytest.mark.parametrize("kind", ["bf16", "fp8", "Q4_K", "MXFP4"])
def test_a_token_has_the_bits_that_it_has_alone(kind: str) -> None:
    """In the batch-invariant mode, in tiles of few choices and of many, beside tokens of its experts and of others."""
    weight, tokens = stack(kind, 1), 90
    ids, x = chosen_experts(3, tokens, 1, EXPERTS), on_device(floats(4, tokens, INPUTS), torch.bfloat16)
    assert tile_height(tokens, EXPERTS) > tile_height(1, EXPERTS) == FEW
    together = product(x, ids, weight, invariant=True)
    for token in (0, 41, 89):
        assert torch.equal(product(x[token : token + 1], ids[token : token + 1], weight, invariant=True), together[token : token + 1])


def test_routers_do_not_depend_on_company() -> None:
    x, weight = on_device(floats(1, 40, 640), torch.bfloat16), on_device(floats(2, 9, 640), torch.bfloat16)
    together = routed(x, weight, invariant=True)
    for token in (0, 39):
        alone = routed(x[token : token + 1], weight, invariant=True)
        assert all(torch.equal(mine, all_[token : token + 1]) for mine, all_ in zip(alone, together, strict=True))


def routed(x: torch.Tensor, weight: torch.Tensor, *, invariant: bool = False, k: int = 3, **said: Any) -> tuple[torch.Tensor, torch.Tensor]:
    ids, weights = poisoned(len(x), k, dtype=torch.int32), poisoned(len(x), k)
    scratch = poisoned(experts.route_bytes(len(x), *weight.shape, invariant=invariant), dtype=torch.uint8)
    experts.route(x, weight, None, ids, weights, scratch, invariant=invariant, k=k, **(PLAIN | said))()  # type: ignore[arg-type]
    return ids, weights


@pytest.mark.filterwarnings("ignore:All-NaN slice")
def test_choices_of_ties_and_of_what_is_not_finite() -> None:
    """As the reference has them: of equals the lower, NaN below all; ids are those of experts, whatever a token is."""
    logits = np.tile(floats(4, 6, 4), 2)
    ids, _ = routed(on_device(logits), torch.eye(8, device=DEVICE))
    assert np.array_equal(numbers(ids), OPS["route_logits"](logits, None, **PLAIN, k=3)[0])  # type: ignore[index]
    strange = np.full((2, 8), np.nan, np.float32)
    strange[1] = np.inf
    assert numbers(routed(on_device(strange), torch.eye(8, device=DEVICE))[0]).tolist() == [[0, 1, 2], [0, 1, 2]]


@pytest.mark.parametrize(("tokens", "real"), [(8, 5), (40, 0), (90, 33)])
def test_padding_chooses_no_expert(tokens: int, real: int) -> None:
    ids = chosen_experts(5, tokens, 2, EXPERTS)
    order, tiles = poisoned(ids.size, 1, dtype=torch.int32), poisoned(ids.size, 3, dtype=torch.int32)
    experts.sort_experts(on_device(ids), on_device(np.array([real], np.int32)), order, tiles, EXPERTS)()
    found = numbers(tiles)[numbers(tiles)[:, 0] >= 0]
    assert {int(expert) for expert, _, _ in found} == set(ids[:real].reshape(-1).tolist())
    assert found[:, 2].sum() == 2 * real and sorted(numbers(order)[: 2 * real, 0].tolist()) == list(range(2 * real))
