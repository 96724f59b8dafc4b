"""Drafts change how many ids come at once and never which: to the bit, with log-probabilities, in company, greedy and sampled."""

from collections.abc import Sequence
from pathlib import Path
from random import Random

import numpy as np
import pytest
from drafting import Hand
from tiny import Tiny, write_tiny

from ridgeline.compute.cpu.cache import NativeKVCache
from ridgeline.compute.runtime import worker
from ridgeline.config.groups import EngineConfig
from ridgeline.core.params import RowParams, Sampling
from ridgeline.core.plan import TokenLogprobs

SIZE = Tiny()
OUTPUTS = 24
KINDS = [("native", "bf16"), ("native", "int8"), ("numpy", "f32")]
PARAMS = [
    RowParams(1, 0, 5, Sampling(temperature=0.0)),
    RowParams(2, 0, 5, Sampling(temperature=3.0, logprobs=2)),
    RowParams(3, 1, 5, Sampling(temperature=2.0, top_k=4), min_tokens=9, banned_until=tuple(range(0, 300, 2))),
    RowParams(4, 0, 5, Sampling(temperature=2.0, repetition_penalty=1.5, presence_penalty=1.0, bad_words=((9,), (12, 4)), logprobs=0)),
    RowParams(5, 0, 5, Sampling(temperature=4.0, top_p=0.8), prompt_logprobs=1),
]


@pytest.fixture(scope="module", params=[*KINDS, ("native", "screened")], ids=" ".join)
def opened(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Hand:
    runner, kind = request.param
    stored = {"kind": "Q8_0"} if kind == "screened" else {}
    path: Path = write_tiny(tmp_path_factory.mktemp("tiny") / "tiny.gguf", SIZE, **stored)
    dtype = "bf16" if kind == "screened" else kind
    config = EngineConfig(
        str(path), runner=runner, kv_dtype=dtype, max_num_seqs=8, max_num_batched_tokens=64, max_model_len=64, block_size=4
    )
    executor = worker.build(config, lambda stage, part: None)
    return Hand(executor, 16)


Answer = tuple[list[int], list[TokenLogprobs]]


def spoil(opened: Hand) -> None:
    """Writes NaN, as fp32, as bf16 and as a scale, wherever a row has no key and value yet: also where drafts were refused."""
    kv = opened.executor.backend._kv  # type: ignore[attr-defined]
    pool, size = kv.pool.view(np.uint8), opened.executor.info.kv.block_tokens
    for row in opened.rows:
        at = np.arange(row.computed, opened.blocks * size)
        for table in opened.tables(row):
            blocks = np.array(table)[at // size]
            if isinstance(kv, NativeKVCache):
                pool[:, :, blocks, :, at % size] = 0xFF
            else:
                pool[:, :, blocks * size + at % size] = 0xFF


def run(opened: Hand, params: Sequence[RowParams], answers: Sequence[Answer] | None, rng: Random) -> list[Answer]:
    """Every row to at least `OUTPUTS` outputs. With `answers` known beforehand, rows draft what will come, right up to a random place."""
    for number, each in enumerate(params):
        opened.admit(each, [number, 5, 6, 7, 8])
    while min(len(row.outputs) for row in opened.rows) < OUTPUTS:
        drafts = {}
        for row in opened.rows:
            done = len(row.outputs)
            if answers is not None and row.computed and done < OUTPUTS + 4:
                count, right = rng.randint(0, 4), rng.randint(0, 4)
                coming = answers[row.row][0][done : done + count]
                drafts[row.row] = [token if place < right else (token + 1) % SIZE.vocab for place, token in enumerate(coming)]
        opened.step(drafts)
        spoil(opened)
    answers = [(row.outputs, row.logprobs) for row in opened.rows]
    opened.clear()
    return answers


@pytest.mark.parametrize("params", [PARAMS[:1], [PARAMS[0]] * 3, PARAMS], ids=["greedy alone", "all greedy", "company"])
def test_drafts_change_no_bit(opened: Hand, params: list[RowParams]) -> None:
    before = opened.number
    alone = run(opened, params, None, Random(0))
    longer = [(ids + [0] * 40, logprobs) for ids, logprobs in alone]
    plain, before = opened.number - before, opened.number
    for seed in range(4):
        found = run(opened, params, longer, Random(seed))
        for (ids, logprobs), (ours, said) in zip(alone, found, strict=True):
            assert ours[:OUTPUTS] == ids[:OUTPUTS]
            assert said[:OUTPUTS] == logprobs[:OUTPUTS]
    assert opened.number - before < 4 * plain * 0.8, "drafts that are right save steps"
