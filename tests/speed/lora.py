"""Adapters against none, in turn, in one run: `python tests/speed/lora.py [MODEL] [ROUNDS]` (about two minutes on two cores).

16 requests at once: without adapters, and each with its own of 16 (rank 16, bf16, on all linear layers of the attention and the
feed-forward part); then 64 adapters with 8 slots, drawn by Zipf's law, against the same requests without adapters.
"""

import sys
import tempfile
import time
from pathlib import Path
from random import Random

import numpy as np

from ridgeline import LLM, SamplingParams
from ridgeline.config.env import model_stores
from ridgeline.facts.headers.read import read_model_facts
from ridgeline.facts.hub.source import resolve_model
from ridgeline.facts.model import ModelFacts
from ridgeline.models.table import ARCHITECTURES

RANK, OUTPUTS, ZIPF = 16, 48, 1.0


def write(facts: ModelFacts, path: Path, seed: int) -> None:
    """A random adapter as a GGUF file, which any architecture has names for."""
    import gguf

    random = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(path, facts.architecture)
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", 16.0)
    fused = {part for parts in ARCHITECTURES[facts.architecture].fused.values() for part in parts}
    for name, tensor in facts.tensors.items():
        if name.startswith("blk.") and len(tensor.shape) == 2 and name.split(".")[2] not in fused:
            for part, shape in (("a", (RANK, tensor.shape[1])), ("b", (tensor.shape[0], RANK))):
                bits = (random.standard_normal(shape) * 0.02).astype(np.float32).view(np.uint32) >> 16
                writer.add_tensor(f"{name}.lora_{part}", bits.astype(np.uint16), raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def tokens_per_second(llm: LLM, names: list[str | None]) -> float:
    params = SamplingParams(temperature=0, max_tokens=OUTPUTS, ignore_eos=True)
    prompts = [[2, *range(100 + number, 132 + number)] for number in range(len(names))]
    began = time.perf_counter()
    llm.generate(prompts, params, lora=names)
    return OUTPUTS * len(names) / (time.perf_counter() - began)


def compare(llm: LLM, title: str, names: list[str | None], rounds: int) -> None:
    plain: list[float] = []
    own: list[float] = []
    tokens_per_second(llm, names)
    for _ in range(rounds):
        plain.append(tokens_per_second(llm, [None] * len(names)))
        own.append(tokens_per_second(llm, names))
    ratio = sorted(b / a for a, b in zip(plain, own, strict=True))[rounds // 2]
    print(f"{title}: {max(plain):.0f} tokens/s without, {max(own):.0f} with; median ratio {ratio:.2f}", flush=True)


def main(model: str = "demo", rounds: str = "3") -> None:
    facts = read_model_facts(resolve_model(model, model_stores()))
    with tempfile.TemporaryDirectory() as folder:
        paths = {f"a{number}": Path(folder) / f"a{number}.gguf" for number in range(64)}
        for number, path in enumerate(paths.values()):
            write(facts, path, number)
        given = [f"{name}={path}" for name, path in paths.items()]
        for slots, title in ((16, "16 adapters in 16 slots"), (8, "64 adapters in 8 slots, Zipf")):
            with LLM(model, lora=given, max_loras=slots, max_cpu_loras=64, max_num_seqs=16, enable_prefix_caching=False) as llm:
                draw = Random(1)
                weights = [1 / (1 + number) ** ZIPF for number in range(64)]
                names: list[str | None] = list(paths)[:16] if slots == 16 else list(draw.choices(list(paths), weights, k=64))
                compare(llm, title, names, int(rounds))


if __name__ == "__main__":
    main(*sys.argv[1:])
