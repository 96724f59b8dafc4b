"""Adapters against PEFT on tiny checkpoints, at every position, by both runners; and tokens in company of other adapters and of none."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import RECIPES, logits_of
from convert import dequantised
from lora_files import peft_model, write_lora_gguf
from native import NativeDriver
from tiny import Driver, dense, log_softmax

from ridgeline.compute.adapters.merge import merge
from ridgeline.compute.adapters.store import read_pairs
from ridgeline.compute.cpu import ext
from ridgeline.compute.cpu.cache import allocate_native_kv
from ridgeline.compute.cpu.packing import pack_weights
from ridgeline.compute.cpu.runner import NativeRunner
from ridgeline.compute.exact.runner import NumpyRunner
from ridgeline.compute.load.record import record
from ridgeline.core.params import Adapter
from ridgeline.facts.headers.adapter import digest_of, file_contents, read_adapter
from ridgeline.facts.headers.read import read_model_facts
from ridgeline.facts.headers.rope import select_rope
from ridgeline.facts.model import ModelFacts

SLOTS = 4
BY_DAY = ("llama3", "phi3-long")
FAMILIES = [name if name in BY_DAY else pytest.param(name, marks=pytest.mark.night) for name, recipe in RECIPES.items() if recipe.exact]

LATENT = ["q_proj", "q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "o_proj"]
"""Matrices of latent attention, but for `kv_b_proj`, which cannot be changed."""

ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
"""Where layers have experts, whose stacks PEFT's "all-linear" would take too."""

SETTINGS: dict[str, Any] = {
    "qwen2": {"use_rslora": True}, "qwen3": {"alpha_pattern": {"k_proj": 3}},
    "qwen3moe": {"target_modules": ATTENTION}, "qwen2moe": {"target_modules": [*ATTENTION, "shared_expert.down_proj"]},
    "glm4moe": {"target_modules": ATTENTION}, "qwen3next": {"target_modules": [*ATTENTION, "out_proj", "in_proj_ba"]},
    "deepseek2": {"target_modules": LATENT}, "deepseek3": {"target_modules": LATENT},
}  # fmt: skip
"""Settings of PEFT by family."""


class LoraDriver(Driver):
    """A driver whose sequences have adapters: `slot_of` says which slot."""

    def open(self) -> None:
        super().open()
        self.slot_of: dict[int, int] = {}
        self.runner = NumpyRunner(record(self.facts)["step"], self.weights, self.shape, slots=SLOTS)

    def step(self, *chunks: tuple[int, Sequence[int]], select: Sequence[int] | None = None) -> np.ndarray:
        inputs = self.inputs(chunks, select)
        slots = np.array([self.slot_of.get(number, -1) for number, _ in chunks], np.int32)
        own = slots[inputs.row_of_token] if (slots >= 0).any() else None
        return self.runner.run(replace(inputs, adapter=own), self.kv)["logits"].copy()


class NativeLoraDriver(LoraDriver, NativeDriver):
    """The same on the native runner, with a cache of fp32."""

    def open(self) -> None:
        self.slot_of = {}
        self.runner = NativeRunner(  # type: ignore[assignment]
            record(self.facts)["step"], self.weights, self.shape, tokens=64, selected=64, vocab=self.facts.tokens, threads=2, slots=SLOTS
        )
        self.kv = allocate_native_kv(self.shape, self.facts.cached, "f32", self.states())


def settled(path: Path, name: str) -> ModelFacts:
    return select_rope(read_model_facts(path), RECIPES[name].reach)[0]


def drivers(facts: ModelFacts) -> list[LoraDriver]:
    found = [LoraDriver(facts, dense(facts))]
    return found if ext.lost() else [*found, NativeLoraDriver(facts, pack_weights(facts, 1, lambda stage, fraction: None))]


def fill(driver: LoraDriver, slot: int, path: Path) -> None:
    found = read_adapter(path, driver.facts)
    adapter = Adapter("one", digest_of(file_contents(found)), str(path))
    slots = driver.runner.adapters
    assert slots is not None
    slots.fill(slot, slots.pack(read_pairs(adapter, driver.facts, 256)))


def same(ours: np.ndarray, theirs: np.ndarray) -> None:
    assert np.abs(log_softmax(ours) - log_softmax(theirs)).max() < 1e-4


@pytest.mark.parametrize("name", FAMILIES)
def test_equals_peft(checkpoint: Any, stored: Any, tmp_path: Path, name: str) -> None:
    """Safetensors and, where files of the family are GGUF, a GGUF model with a GGUF adapter."""
    made = checkpoint(name)
    model = peft_model(made, tmp_path / "own", **SETTINGS.get(name, {}))
    ids = made.prompts()[0]
    theirs, plain = logits_of(model, ids), made.logits(ids)
    assert np.abs(theirs - plain).max() > 0.1
    forms = [("safetensors", tmp_path / "own")]
    if made.recipe.gguf not in ("phi3", "gpt2") and name not in ("qwen2", "qwen3"):  # the GGUF format has one alpha and no rsLoRA
        forms.append(("F32", write_lora_gguf(tmp_path / "own.gguf", made, tmp_path / "own")))
    for form, path in forms:
        for driver in drivers(settled(stored(name, form), name)):
            fill(driver, 1, path)
            driver.slot_of[0] = 1
            same(driver.step((0, ids)), theirs)
            same(driver.step((1, ids)), plain)


def test_rows_in_the_order_of_pairwise_rope(checkpoint: Any, stored: Any, tmp_path: Path) -> None:
    """A checkpoint that declares its Q and K so: PEFT's B has that order too, beside the model and merged into it."""
    made = checkpoint("ernie")
    model = peft_model(made, tmp_path / "own", target_modules=["q_proj", "k_proj"])
    ids = made.prompts()[0]
    theirs = logits_of(model, ids)
    assert np.abs(theirs - made.logits(ids)).max() > 0.1
    facts = settled(stored("ernie", "safetensors"), "ernie")
    driver = LoraDriver(facts, dense(facts))
    fill(driver, 1, tmp_path / "own")
    driver.slot_of[0] = 1
    same(driver.step((0, ids)), theirs)
    merge(made.directory, tmp_path / "own", tmp_path / "out")
    facts = settled(tmp_path / "out", "ernie")
    same(Driver(facts, dense(facts)).step((0, ids)), theirs)


def test_one_matrix_of_a_recurrent_layer(checkpoint: Any, stored: Any, tmp_path: Path) -> None:
    """A checkpoint's queries, keys, values and gates are one matrix, and change as one."""
    made = checkpoint("qwen3next")
    model = peft_model(made, tmp_path / "own", target_modules=["in_proj_qkvz"])
    ids = made.prompts()[0]
    theirs = logits_of(model, ids)
    assert np.abs(theirs - made.logits(ids)).max() > 0.1
    for driver in drivers(settled(stored("qwen3next", "safetensors"), "qwen3next")):
        fill(driver, 1, tmp_path / "own")
        driver.slot_of[0] = 1
        same(driver.step((0, ids)), theirs)


@pytest.mark.parametrize("rank", [4, 16])
def test_quantised_base(checkpoint: Any, stored: Any, tmp_path: Path, rank: int) -> None:
    """The change is added to the product with quantised matrices; native slots hold one of more than eight ranks in codes of 8 bits."""
    made = checkpoint("llama3")
    path = stored("llama3", "Q8_0")
    made.model, kept = dequantised(made.model, "llama", "Q8_0"), made.model
    try:
        model = peft_model(made, tmp_path / "own", kind="bfloat16", rank=rank)
    finally:
        made.model = kept
    ids = made.prompts()[0]
    theirs, plain = logits_of(model, ids), logits_of(dequantised(made.model, "llama", "Q8_0"), ids)
    for number, driver in enumerate(drivers(settled(path, "llama3"))):
        fill(driver, 0, tmp_path / "own")
        driver.slot_of[0] = 0
        apart = np.abs(log_softmax(driver.step((0, ids))) - log_softmax(theirs))
        if number == 0:
            assert apart.max() < 1e-4
        else:  # activations of native products with integers are int8
            kinds = {ext.values("Format")[int(record["format"][0])] for record in driver.runner.adapters.records.values()}
            assert kinds == {"BF16" if rank == 4 else "INT8"}
            assert apart.mean() < np.abs(log_softmax(plain) - log_softmax(theirs)).mean() / 10


def test_alone_and_in_company(checkpoint: Any, stored: Any, tmp_path: Path) -> None:
    """Rows of three ranks and types, and one without an adapter, whole and in chunks: bit for bit as alone."""
    made = checkpoint("gemma3")
    paths = [tmp_path / str(rank) for rank in (1, 7, 16)]
    for rank, kind, path in zip((1, 7, 16), ("float32", "bfloat16", "float16"), paths, strict=True):
        peft_model(made, path, rank=rank, seed=rank, kind=kind)
    ids = made.prompts()[3]
    for driver in drivers(settled(stored("gemma3", "F32"), "gemma3")):
        for slot, path in enumerate(paths):
            fill(driver, slot, path)
        driver.slot_of = {**{number: number % 4 - 1 for number in range(8)}}
        alone = [driver.step((number, ids)) for number in range(4)]
        assert len({each.tobytes() for each in alone}) == 4
        first = driver.step(*((4 + number, ids[:9]) for number in range(4)))
        rest = [driver.step(*((4 + number, [token]) for number in (2, 0, 3, 1))) for token in ids[9:]]
        for number in range(4):
            place = (2, 0, 3, 1).index(number)
            together = np.concatenate([first[9 * number : 9 * number + 9], *(each[[place]] for each in rest)])
            assert together.tobytes() == alone[number].tobytes()


def test_early_selection(checkpoint: Any, stored: Any, tmp_path: Path) -> None:
    """The last layer of selected positions alone has their own rows' adapters."""
    if ext.lost():
        pytest.skip("the native extension is not built")
    made = checkpoint("llama3")
    peft_model(made, tmp_path / "own")
    _, driver = drivers(settled(stored("llama3", "safetensors"), "llama3"))
    fill(driver, 2, tmp_path / "own")
    driver.slot_of = {0: 2, 2: 2}
    ids = made.prompts()[0][:12]
    whole = [driver.step((number, ids))[-1] for number in (0, 1)]
    chosen = driver.step((2, ids), (3, ids), select=[11, 23])
    assert chosen[0].tobytes() == whole[0].tobytes() and chosen[1].tobytes() == whole[1].tobytes()
