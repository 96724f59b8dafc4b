"""How many drafts of a sampled drafter are accepted under coupled noise, against what rejection sampling would accept.

    python tests/speed/coupled.py [--model demo] [--text docs/physics.md] [--positions 48] [--draws 64]

The target is a model behind a text; the drafters are the same model that sees the last 8, 32 and 128 tokens alone: real distributions, near
and far. At each position the overlap Σ min(p, q) = 1 − TV is computed, which is what rejection accepts, and both draw with the same noise:
the share of equal ids is what coupled drafts have accepted. Asked: ≥ 0.90 of the overlap. Beside it the bound (1 − TV) / (1 + TV) of
Daliri, Musco and Suresh (2024), and what greedy drafts would have. Under a minute with the demo on two quiet cores.
"""

import argparse
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "helpers"))
from native import NativeDriver
from tiny import log_softmax

from ridgeline.compute.cpu.packing import pack_weights
from ridgeline.compute.decoding.rng import gumbel
from ridgeline.config.env import model_stores
from ridgeline.facts.headers.read import read_model_facts
from ridgeline.facts.hub.source import resolve_model
from ridgeline.text.files import load_tokenizer

ROOT = Path(__file__).resolve().parents[2]
WINDOWS, TEMPERATURES = (8, 32, 128), (0.7, 1.0)
RARE, BLOCKS, THREADS = 1e-8, 4_096, 2


def accepted(p: np.ndarray, q: np.ndarray, position: int, draws: int) -> float:
    """The share of equal draws of two distributions under the same noise; ids that are rare in both are never drawn."""
    ids = np.flatnonzero((p > RARE) | (q > RARE))
    with np.errstate(divide="ignore"):
        both = np.log(np.stack([p[ids], q[ids]]))
    return float(np.mean([np.ptp((both + gumbel(seed, 0, position, ids)).argmax(1)) == 0 for seed in range(draws)]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--text", type=Path, default=ROOT / "docs" / "physics.md")
    parser.add_argument("--positions", type=int, default=48)
    parser.add_argument("--draws", type=int, default=64)
    asked = parser.parse_args()
    path = resolve_model(asked.model, model_stores())
    facts, first = read_model_facts(path), max(WINDOWS) + 1
    ids = load_tokenizer(path).encode(asked.text.read_text(), add_bos=True)[: 2 * first + asked.positions]
    places = range(2 * first, len(ids))
    driver = NativeDriver(facts, pack_weights(facts, THREADS, lambda stage, fraction: None), blocks=BLOCKS, threads=THREADS, tokens=512)
    scores = {0: driver.step((0, ids), select=places).copy()}
    for number, window in enumerate(WINDOWS):
        base = 1 + number * len(ids)
        seen = [(base + place, [ids[0], *ids[place + 1 - window : place + 1]]) for place in places]
        scores[window] = np.concatenate([driver.step(each, select=[window]).copy() for each in seen])
    driver.runner.close()
    print(f"{asked.model}, {len(places)} positions of {asked.text.name}, {asked.draws} draws each\n")
    print("| drafter sees | temperature | 1 − TV | coupled | of it | (1 − TV) / (1 + TV) | greedy drafts |\n|---|---|---|---|---|---|---|")
    for temperature in TEMPERATURES:
        p, *others = (np.exp(log_softmax(scores[each] / temperature).astype(np.float64)) for each in (0, *WINDOWS))
        for window, q in zip(WINDOWS, others, strict=True):
            overlap = np.minimum(p, q).sum(1)
            found = float(np.mean([accepted(p[place], q[place], place, asked.draws) for place in range(len(p))]))
            greedy, bound = p[np.arange(len(p)), q.argmax(1)].mean(), (overlap / (2 - overlap)).mean()
            print(
                f"| {window} tokens | {temperature} | {overlap.mean():.3f} | {found:.3f} | {found / overlap.mean():.3f} | {bound:.3f} "
                f"| {greedy:.3f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
