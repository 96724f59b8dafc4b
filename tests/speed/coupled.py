"""How many drafts of a sampled drafter are accepted under coupled noise, against what rejection sampling would accept.

    python tests/speed/coupled.py [--model demo] [--draft-model FILE] [--text docs/physics.md] [--positions 48] [--draws 64]

The target is a model behind a text. The drafter is the draft model behind the same ids, through a map where vocabularies differ, as the
engine has it; or, without one, the same model that sees the last 8, 32 and 128 tokens alone: real distributions, near and far. At each
position the overlap Σ min(p, q) = 1 − TV is computed, which is what rejection accepts, and both draw with the same noise: the share of
equal ids is what coupled drafts have accepted. Asked: ≥ 0.90 of the overlap. Beside it what endless draws would give, the bound
(1 − TV) / (1 + TV) of Daliri, Musco and Suresh (2024), and what greedy drafts would have. Under a minute with the demo on two quiet cores.
"""

import argparse
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "helpers"))
from native import NativeDriver
from tiny import log_softmax

from ridgeline.compute.cpu.packing import pack_weights
from ridgeline.compute.decoding.grammar import Vocabulary
from ridgeline.compute.decoding.rng import gumbel
from ridgeline.config.env import model_stores
from ridgeline.engine.token_map import map_tokens
from ridgeline.facts.headers.read import read_model_facts
from ridgeline.facts.hub.source import resolve_model
from ridgeline.facts.model import ModelFacts
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


def expected(p: np.ndarray, q: np.ndarray) -> float:
    """The share of endless draws: Σ 1 / Σ max(p_j / p_i, q_j / q_i), over i and j. Moulton and Jiang 2018, "Maximally Consistent Sampling
    and the Jaccard Index of Probability Distributions": no sampling of common noise has more for one pair of distributions without having
    less for a more alike one."""
    ids = np.flatnonzero((p > RARE) & (q > RARE))
    ids = ids[np.argsort(p[ids] / q[ids])]
    mine, other = p[ids], q[ids]
    smaller = q.sum() - other.sum() + np.cumsum(other) - other  # of q, where p / q is smaller than here; what p lacks is
    larger = p.sum() - mine.sum() + np.cumsum(mine[::-1])[::-1]
    return float((1 / (larger / mine + smaller / other)).sum())


def driver_of(facts: ModelFacts) -> NativeDriver:
    return NativeDriver(facts, pack_weights(facts, THREADS, lambda stage, fraction: None), blocks=BLOCKS, threads=THREADS, tokens=512)


def windows_of(driver: NativeDriver, ids: list[int], places: range) -> dict[str, np.ndarray]:
    """Logits [places, vocab] of the same model by what it sees."""
    found = {}
    for number, window in enumerate(WINDOWS):
        base = 1 + number * len(ids)
        seen = [(base + place, [ids[0], *ids[place + 1 - window : place + 1]]) for place in places]
        found[f"{window} tokens"] = np.concatenate([driver.step(each, select=[window]).copy() for each in seen])
    return found


def vocabulary(path: Path, size: int) -> Vocabulary:
    tokenizer = load_tokenizer(path)
    return Vocabulary([tokenizer.piece(token) for token in range(size)], [token for token in tokenizer.control if token < size], [])


def drafts_of(model: Path, draft: Path, ids: list[int], places: range) -> dict[str, np.ndarray]:
    """Logits [places, target's ids] of a draft model; of what has no counterpart minus infinity."""
    facts = {path: read_model_facts(path) for path in (model, draft)}
    found = map_tokens(vocabulary(model, facts[model].vocab), vocabulary(draft, facts[draft].vocab), draft.name)
    inputs, logits = found or (range(facts[model].vocab),) * 2
    driver = driver_of(facts[draft])
    own = driver.step((0, [inputs[token] for token in ids]), select=places)
    driver.runner.close()
    counterparts = np.array(logits)
    return {draft.name: np.where(counterparts >= 0, own[:, counterparts], np.float32(-np.inf))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--draft-model")
    parser.add_argument("--text", type=Path, default=ROOT / "docs" / "physics.md")
    parser.add_argument("--positions", type=int, default=48)
    parser.add_argument("--draws", type=int, default=64)
    asked = parser.parse_args()
    path = resolve_model(asked.model, model_stores())
    facts, first = read_model_facts(path), max(WINDOWS) + 1
    ids = load_tokenizer(path).encode(asked.text.read_text(), add_bos=True)[: 2 * first + asked.positions]
    places = range(2 * first, len(ids))
    driver = driver_of(facts)
    target = driver.step((0, ids), select=places).copy()
    if asked.draft_model is None:
        scores = windows_of(driver, ids, places)
    else:
        scores = drafts_of(path, resolve_model(asked.draft_model, model_stores()), ids, places)
    driver.runner.close()
    print(f"{asked.model}, {len(places)} positions of {asked.text.name}, {asked.draws} draws each\n")
    print("| drafter | temperature | 1 − TV | coupled | of it | endless draws, of it | (1 − TV) / (1 + TV) | greedy drafts |")
    print("|---|---|---|---|---|---|---|---|")
    for temperature in TEMPERATURES:
        p, *others = (np.exp(log_softmax(each / temperature).astype(np.float64)) for each in (target, *scores.values()))
        for name, q in zip(scores, others, strict=True):
            overlap = np.minimum(p, q).sum(1)
            found = float(np.mean([accepted(p[place], q[place], place, asked.draws) for place in range(len(p))]))
            endless = float(np.mean([expected(p[place], q[place]) for place in range(len(p))]))
            greedy, bound = p[np.arange(len(p)), q.argmax(1)].mean(), (overlap / (2 - overlap)).mean()
            share = overlap.mean()
            shares = (share, found, found / share, endless / share, bound, greedy)
            print(f"| {name} | {temperature} | {' | '.join(f'{each:.3f}' for each in shares)} |", flush=True)


if __name__ == "__main__":
    main()
