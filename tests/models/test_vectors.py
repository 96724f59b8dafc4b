"""Vectors of texts against transformers for each kind of pooling, in chunks and in company, on both runners."""

from pathlib import Path

import numpy as np
import pytest
from checkpoints import VOCAB

from ridgeline import LLM, SamplingParams

LENGTHS = (1, 5, 23, 60, 33)
TEXTS = [np.random.default_rng(length).integers(3, VOCAB, length).tolist() for length in LENGTHS]


def pooled(hidden: np.ndarray, kind: str) -> np.ndarray:
    found = {"last": hidden[-1], "cls": hidden[0], "mean": hidden.mean(0)}[kind].astype(np.float64)
    return found / np.linalg.norm(found)


def hidden_of(model, ids: list[int]) -> np.ndarray:
    """Final hidden states [tokens, width], behind the last norm."""
    import torch

    with torch.no_grad():
        return model(torch.tensor([ids]), output_hidden_states=True).hidden_states[-1][0].numpy()


def embed(path: Path, texts: list[list[int]], **settings: object) -> np.ndarray:
    with LLM(path, kv_dtype="f32", **settings) as llm:
        return np.array([each.outputs.embedding for each in llm.embed(texts)])


@pytest.mark.parametrize("kind", ["last", "mean", "cls"])
@pytest.mark.parametrize("runner", ["native", "numpy"])
def test_equals_transformers(checkpoint, stored, kind: str, runner: str) -> None:
    path, model = stored("qwen3", "F32"), checkpoint("qwen3").model
    found = embed(path, TEXTS, pooling=kind, runner=runner)
    expected = np.array([pooled(hidden_of(model, ids), kind) for ids in TEXTS])
    assert (found * expected).sum(1).min() > 0.9999 and np.abs(np.linalg.norm(found, axis=1) - 1).max() < 1e-6
    in_chunks = embed(path, TEXTS, pooling=kind, runner=runner, max_num_batched_tokens=16, max_num_seqs=2)
    assert np.array_equal(found, in_chunks)


def test_a_text_is_the_same_beside_answers_and_behind_a_cached_prefix(stored) -> None:
    with LLM(stored("qwen3", "F32"), kv_dtype="f32", block_size=4) as llm:
        first = llm.embed(TEXTS)
        llm.generate(TEXTS, SamplingParams(max_tokens=5))
        again = llm.embed([*TEXTS, TEXTS[2][:9]])
        assert [each.outputs for each in again[:-1]] == [each.outputs for each in first]
        assert [each.outputs.data for each in llm.encode(TEXTS)] == [each.outputs.embedding for each in first]
