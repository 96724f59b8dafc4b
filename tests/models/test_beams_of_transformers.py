"""Beams of the whole engine against those of transformers; what of their tokens is computed."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from transformers import GenerationConfig

from ridgeline import LLM, BeamSearchParams


def test_the_engine_finds_the_beams_of_transformers(checkpoint: Any, stored: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a Llama in fp32; and a step of a beam computes what its blocks lack alone: they are shared with those that it came from."""
    made, width, steps = checkpoint("llama3"), 4, 24
    prompt = list(made.prompts()[0][:21])
    asked = GenerationConfig(
        num_beams=width, num_return_sequences=width, max_new_tokens=steps, do_sample=False, length_penalty=0.0, pad_token_id=0,
        return_dict_in_generate=True, output_scores=True,
    )  # fmt: skip
    theirs = made.model.generate(torch.tensor([prompt]), generation_config=asked, attention_mask=torch.ones(1, len(prompt)))
    computed: list[int] = []
    with LLM(stored("llama3", "F32"), max_model_len=64, max_num_seqs=8, block_size=8, kv_cache_dtype="f32") as llm:
        run = llm.run

        def watched(requests: Any) -> Iterator[Any]:
            for each in run(requests):
                computed.append(each.choices[0].end.usage.prompt_tokens - each.choices[0].end.usage.cached_tokens)
                yield each

        monkeypatch.setattr(llm, "run", watched)
        (found,) = llm.beam_search([prompt], BeamSearchParams(width, steps, ignore_eos=True, length_penalty=0.0))
    assert [list(each.tokens) for each in found.sequences] == theirs.sequences.tolist()
    assert [each.cum_logprob for each in found.sequences] == pytest.approx(theirs.sequences_scores.tolist(), abs=1e-3)
    assert len(computed) == 1 + width * (steps - 1) and computed[0] == len(prompt) and max(computed[1:]) <= 8
