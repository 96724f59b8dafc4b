"""Whole models from checkpoints of GPTQ with act-order (desc_act), beside the matrices that the format's formula gives.

Words, groups and scales are random and written straight to the file; the formula reads the same file: with g = g_idx[k],
W[n, k] = s[g, n]·(q[k, n] - z[g, n]) (Frantar et al. 2023; AutoGPTQ's layout). It never sorts inputs, which is what the package does.
"""

import json
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import VOCAB, make_model
from native import NativeDriver
from numpy.typing import NDArray
from quantised_models import MODELS, PARTS
from tiny import Driver, log_softmax

from ridgeline.compute.cpu import ext
from ridgeline.compute.cpu.packing import PackedWeight, pack_weights
from ridgeline.compute.exact import runner as numpy_runner
from ridgeline.compute.exact.threads import Team
from ridgeline.compute.load.weights import map_weights
from ridgeline.compute.quant.weight import DenseWeight
from ridgeline.facts.headers.read import read_model_facts
from ridgeline.facts.model import ModelFacts

Groups = dict[str, NDArray[np.int32]]
PROMPTS = [np.random.default_rng(seed).integers(3, VOCAB, 3).tolist() for seed in range(40)]


@dataclass(frozen=True)
class Case:
    """A model of `quantised_models.MODELS`, its format, and whether matrices that read one value have one order, as real files do."""

    model: str
    bits: int
    group: int
    stored: str
    together: bool

    def config(self) -> dict[str, object]:
        said = {"quant_method": "gptq", "bits": self.bits, "group_size": self.group, "desc_act": True, "checkpoint_format": self.stored}
        return {"quantization_config": said}


CASES = [
    Case("llama", 4, 32, "gptq", False), Case("llama-biases", 8, 32, "gptq", True), Case("qwen2", 4, 128, "gptq_v2", True),
    Case("phi3", 4, 64, "gptq_v2", False),
]  # fmt: skip


def tensors_of(case: Case, module: str, shape: tuple[int, int]) -> dict[str, np.ndarray]:
    """A random matrix [N, K] as AutoGPTQ names its parts."""
    rows, columns = shape
    draw = np.random.default_rng(zlib.crc32(module.encode()))
    group_of = np.arange(columns, dtype=np.int32) // case.group
    order = np.random.default_rng(zlib.crc32(module.rpartition(".")[0].encode())) if case.together else draw
    words = partial(draw.integers, 0, 1 << 32, dtype=np.uint32)
    zeros = words((columns // case.group, rows * case.bits // 32))
    if case.stored == "gptq":  # no field is at its largest: libraries differ in whether a carry leaves a field when one is added
        zeros &= np.uint32(0x77777777 if case.bits == 4 else 0x7F7F7F7F)
    scales = draw.uniform(0.5, 1.5, (columns // case.group, rows)) * columns**-0.5 / (0.4 * 2**case.bits)
    return {
        "qweight": words((columns * case.bits // 32, rows)).view(np.int32), "qzeros": zeros.view(np.int32),
        "scales": scales.astype(np.float16), "g_idx": order.permutation(group_of),
    }  # fmt: skip


def dequantised(parts: dict[str, np.ndarray], bits: int, stored: str) -> np.ndarray:
    """The formula, a field of a word at a time: fp32 [N, K]."""
    count, top = 32 // bits, (1 << bits) - 1
    k, n, group = np.arange(len(parts["g_idx"])), np.arange(parts["qweight"].shape[1]), parts["g_idx"]
    code = (parts["qweight"][k // count].astype(np.int64) >> (k % count * bits)[:, None]) & top
    zero = ((parts["qzeros"][:, n // count].astype(np.int64) >> (n % count * bits)) & top) + (stored == "gptq")
    return ((code - zero[group]) * parts["scales"].astype(np.float32)[group]).astype(np.float32).T


def save(directory: Path, model: Any, tensors: dict[str, Any], **extra: object) -> ModelFacts:
    from safetensors.torch import save_file

    directory.mkdir()
    save_file({key: value.contiguous() for key, value in tensors.items()}, directory / "model.safetensors", metadata={"format": "pt"})
    config = model.config.to_dict() | {"architectures": [type(model).__name__], "dtype": "float16"} | extra
    (directory / "config.json").write_text(json.dumps(config))
    return read_model_facts(directory)


def write_both(directory: Path, case: Case) -> tuple[ModelFacts, ModelFacts, Groups]:
    """(facts of the quantised checkpoint, of the one that the formula makes of its files, the groups of inputs by our names)."""
    import torch
    from safetensors.torch import load_file

    model = make_model(MODELS[case.model])
    modules = [name for name, module in model.named_modules() if type(module).__name__ == "Linear" and name != "lm_head"]
    left = {key: value.half() for key, value in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        del left["lm_head.weight"]
    shapes = {name: tuple(left.pop(f"{name}.weight").shape) for name in modules}
    made = {f"{name}.{last}": values for name in modules for last, values in tensors_of(case, name, shapes[name]).items()}
    packed = save(directory / "packed", model, left | {name: torch.from_numpy(values) for name, values in made.items()}, **case.config())
    read = {name: values.numpy() for name, values in load_file(directory / "packed/model.safetensors").items()}
    groups: Groups = {}
    for name in modules:
        parts = {last: read[f"{name}.{last}"] for last in ("qweight", "qzeros", "scales", "g_idx")}
        left[f"{name}.weight"] = torch.from_numpy(dequantised(parts, case.bits, case.stored).copy())
        number, _, inner = name.split(".layers.")[1].partition(".")
        groups |= {f"blk.{number}.{part}.weight": parts["g_idx"] for part in PARTS[inner]}
    return packed, save(directory / "dense", model, left), groups


@pytest.fixture(scope="module", params=CASES, ids=lambda case: f"{case.model}-{case.bits}-{case.group}-{case.stored}")
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[ModelFacts, ModelFacts, Groups]:
    return write_both(tmp_path_factory.mktemp("act-order"), request.param)


def test_the_numpy_runner_has_the_bits_of_the_formula(both: tuple[ModelFacts, ModelFacts, Groups]) -> None:
    """Prompts in chunks, then tokens one by one, each the first choice."""
    packed, dense = (Driver(facts, map_weights(facts)) for facts in both[:2])
    for number, prompt in enumerate(PROMPTS[:2]):
        ids = prompt
        for _ in range(6):
            ours, theirs = (driver.step((number, ids)) for driver in (packed, dense))
            assert np.array_equal(ours.view(np.uint32), theirs.view(np.uint32))
            ids = [int(ours[-1].argmax())]


@dataclass(frozen=True)
class Rounding(DenseWeight):
    """A matrix whose inputs are rounded to 8 bits as the native runner does it: a span at a time, of one group after the other."""

    group_of: NDArray[np.int32]
    span: int

    def rounded(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        made = np.empty_like(x)
        for group in np.unique(self.group_of):
            for inputs in np.split(np.flatnonzero(self.group_of == group), np.count_nonzero(self.group_of == group) // self.span):
                step = np.abs(x[:, inputs]).max(axis=1, keepdims=True) / np.float32(127)
                made[:, inputs] = np.rint(x[:, inputs] / step) * step
        return made


@pytest.mark.skipif(ext.lost() is not None, reason="the native extension is not built")
def test_the_native_runner_differs_by_its_activations_alone(
    both: tuple[ModelFacts, ModelFacts, Groups], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside the formula's matrices, whose inputs are rounded like the native runner's, log-probabilities are those of the native runner.

    A value in the middle between two codes may go either way, and moves what follows by about 1e-3: hence most positions, not all.
    """
    packed, dense, groups = both
    weights = map_weights(dense)
    stored = pack_weights(packed, 2, lambda stage, fraction: None)
    spans = {name: weight.span for name, weight in stored.items() if isinstance(weight, PackedWeight)}
    weights |= {name: Rounding(weights[name].dense(), group_of, spans[name]) for name, group_of in groups.items()}
    real = numpy_runner.providers

    def providers(team: Team) -> dict[str, Callable[..., Any]]:
        linear = real(team)["linear"]
        return {**real(team), "linear": lambda x, weight: linear(weight.rounded(x) if isinstance(weight, Rounding) else x, weight)}

    monkeypatch.setattr(numpy_runner, "providers", providers)
    reference = Driver(dense, weights)
    native = NativeDriver(packed, stored, threads=2, kv_dtype="f32")
    steps = [log_softmax(driver.step(*enumerate(PROMPTS))) for driver in (reference, native)]
    apart = np.abs(steps[0] - steps[1]).max(axis=1)
    assert np.quantile(apart, 0.75) < 3e-5 and apart.max() < 0.03
