"""How far the native runner's answers are from the exact runner's, over a text.

    python tests/speed/perplexity.py [--model demo] [--text docs/physics.md] [--tokens 900] [--parts]

Prints the perplexity of both runners, the mean Kullback-Leibler divergence of the native one's next tokens from the exact one's, and how
often both have the same first choice. With --parts also the same of the exact runner with the activations that one kind of matrix reads
rounded as the native one rounds them, in groups of 256, 128, 64 and 32: what each kind costs, and what a narrower group would save.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "helpers"))
from native import NativeDriver
from tiny import Driver, log_softmax

from ridgeline.compute.cpu.packing import pack_weights
from ridgeline.compute.load.weights import load_weights
from ridgeline.compute.ops.quantised import SCALE_CODES, quantise
from ridgeline.config.env import model_stores
from ridgeline.facts.headers.read import read_model_facts
from ridgeline.facts.hub.source import resolve_model
from ridgeline.text.files import load_tokenizer

ROOT = Path(__file__).resolve().parents[2]
WIDTHS = (256, 128, 64, 32)
CHUNK, THREADS, BLOCKS = 64, 2, 2_048


@dataclass
class RoundingDriver(Driver):
    """The exact runner with the activations that some matrices read rounded to codes. groups: part of a layer → codes of a scale."""

    groups: Mapping[str, int] = field(default_factory=dict)

    def open(self) -> None:
        super().open()
        self.runner._steps = [
            replace(step, compute=partial(with_rounded_input, step.compute, group))
            if step.op.name == "linear" and (group := self.groups.get(part_of(step.op.weights[0].name)))
            else step
            for step in self.runner._steps
        ]


def part_of(weight: str) -> str:
    """`blk.3.ffn_down.weight` → `ffn_down`."""
    return weight.removesuffix(".weight").rpartition(".")[2]


def with_rounded_input(compute: Callable[..., Any], group: int, x: np.ndarray, *rest: Any) -> Any:
    """The product of what the codes of x stand for."""
    while x.shape[1] % group:
        group //= 2
    codes, scales, _ = quantise(x, group=group)
    return compute((codes.reshape(len(x), -1, SCALE_CODES) * scales[..., None]).reshape(x.shape).astype(np.float32), *rest)


@dataclass(frozen=True)
class Text:
    """What is scored, and what the exact runner says of it."""

    ids: list[int]
    exact: list[np.ndarray]

    def against(self, driver: Driver) -> tuple[float, float, float]:
        """(perplexity, KL divergence in nats from the exact runner, share of equal first choices) of a runner."""
        nats, apart, same = 0.0, 0.0, 0
        for at, found, exact in zip(range(0, len(self.ids), CHUNK), scores(driver, self.ids), self.exact, strict=True):
            following = self.ids[at + 1 : at + 1 + len(found)]
            nats -= sum(float(found[place, token]) for place, token in enumerate(following))
            apart += float((np.exp(exact) * (exact - found)).sum())
            same += int((found.argmax(1) == exact.argmax(1)).sum())
        return float(np.exp(nats / (len(self.ids) - 1))), apart / len(self.ids), same / len(self.ids)


def scores(driver: Driver, ids: list[int]) -> Iterator[np.ndarray]:
    """Log-probabilities [tokens, vocabulary] behind each token, some tokens at a time."""
    for at in range(0, len(ids), CHUNK):
        yield log_softmax(driver.step((0, ids[at : at + CHUNK])))


def line(name: str, found: tuple[float, float, float], base: float) -> str:
    perplexity, apart, same = found
    return f"| {name} | {perplexity:.3f} | {perplexity / base - 1:+.2%} | {apart:.5f} | {same:.2%} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--text", type=Path, default=ROOT / "docs" / "physics.md")
    parser.add_argument("--tokens", type=int, default=900)
    parser.add_argument("--parts", action="store_true")
    asked = parser.parse_args()
    path = resolve_model(asked.model, model_stores())
    facts = read_model_facts(path)
    ids = load_tokenizer(path).encode(asked.text.read_text(), add_bos=True)[: asked.tokens]
    weights = load_weights(facts, 8 << 30, THREADS, lambda stage, fraction: None)
    exact = Driver(facts, weights, blocks=BLOCKS, threads=THREADS)
    text = Text(ids, list(scores(exact, ids)))
    own = text.against(Driver(facts, weights, blocks=BLOCKS, threads=THREADS))
    print(f"{asked.model}, {len(ids)} tokens of {asked.text.name}\n")
    print("| runner | perplexity | | KL divergence, nats | same first choice |\n|---|---|---|---|---|")
    print(line("numpy", own, own[0]))
    packed = pack_weights(facts, THREADS, lambda stage, fraction: None)
    for kv_dtype in ("bf16", "f32"):
        native = NativeDriver(facts, packed, blocks=BLOCKS, threads=THREADS, kv_dtype=kv_dtype, tokens=CHUNK)
        print(line(f"native, KV {kv_dtype}", text.against(native), own[0]), flush=True)
        native.runner.close()
    if asked.parts:
        read = {part_of(step.op.weights[0].name) for step in exact.runner._steps if step.op.name == "linear"}
        for part in (*sorted(read), "all"):
            for width in WIDTHS:
                groups = dict.fromkeys(read if part == "all" else (part,), width)
                rounding = RoundingDriver(facts, weights, blocks=BLOCKS, threads=THREADS, groups=groups)
                print(line(f"numpy, {part} rounded in groups of {width}", text.against(rounding), own[0]), flush=True)


if __name__ == "__main__":
    main()
