"""The native runner under random company: whatever runs beside a request, it has the bits that it has alone.

Random subsets of requests in random order, chunks, block sizes, depths, threads, with the prefix cache and without.
"""

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from serving import Answer, serve
from tiny import Tiny, write_tiny
from tiny_requests import REQUESTS as SCORED

from ridgeline.compute.cpu import ext
from ridgeline.core.params import Sampling

pytestmark = pytest.mark.skipif(ext.lost() is not None, reason="the native extension is not built")


KINDS = (Sampling(temperature=3.0, top_k=5), Sampling(temperature=2.0, top_k=40, top_p=0.9), Sampling(temperature=0.0))
KEPT = [replace(each, request_id=f"kept {number}", sampling=KINDS[number % 3]) for number, each in enumerate(SCORED[:6])]
REQUESTS = SCORED + KEPT
"""Log-probabilities are of all logits; what is kept of the others are their largest."""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("company") / "tiny.gguf", Tiny(), kind="Q8_0")


@pytest.fixture(scope="module")
def alone(tiny: Path) -> dict[tuple[str, int], Answer]:
    answers: dict[tuple[str, int], Answer] = {}
    for each in REQUESTS:
        answers |= serve(tiny, [[each]], runner="native", kv_dtype="bf16", enable_prefix_caching=False, threads=1, depth=1).answers
    return answers


def company(tiny: Path, seed: int) -> dict[tuple[str, int], Answer]:
    """One random co-load."""
    draw = Random(seed)
    drawn = draw.choice([REQUESTS, REQUESTS, KEPT])
    waves = [draw.sample(drawn, draw.randint(1, len(drawn))) for _ in range(draw.choice([1, 1, 2]))]
    fresh = [[each for each in wave if all(each not in before for before in waves[:number])] for number, wave in enumerate(waves)]
    return serve(
        tiny,
        [wave for wave in fresh if wave],
        runner="native",
        kv_dtype="bf16",
        threads=draw.choice([1, 2, 3]),
        depth=draw.randint(1, 4),
        block_size=draw.choice([1, 4, 16]),
        max_num_batched_tokens=draw.choice([1, 5, 17, 64, 512]),
        max_num_seqs=draw.choice([1, 3, 16]),
        enable_prefix_caching=draw.random() < 0.5,
    ).answers


MANY = pytest.param(range(25, 1000), marks=[pytest.mark.night, pytest.mark.timeout(7200)], id="many")


@pytest.mark.parametrize("seeds", [pytest.param(range(25), id="few"), MANY])
def test_company_changes_no_bit(tiny: Path, alone: dict[tuple[str, int], Answer], seeds: range) -> None:
    for seed in seeds:
        answers = company(tiny, seed)
        assert answers == {key: alone[key] for key in answers}, f"co-load {seed}"
