"""`LLM` with parameters of whole answers: prompt log-probabilities, `best_of`, beam search, bad words, defaults."""

import itertools
from collections.abc import Iterator
from dataclasses import replace

import pytest

from ridgeline import LLM, BeamSearchParams, SamplingParams
from ridgeline.errors import ConfigError, RequestError

PARAMS = SamplingParams(max_tokens=12, seed=3)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM('fake:{"rows": 8, "blocks": 512}', depth=2, seed=1) as made:
        yield made


def test_prompt_logprobs_begin_with_none(llm: LLM) -> None:
    (output,) = llm.generate("Hello", replace(PARAMS, prompt_logprobs=2))
    assert output.prompt_logprobs is not None and output.prompt_logprobs[0] is None
    assert len(output.prompt_logprobs) == len(output.prompt_token_ids) == 6
    for token, ranked in zip(output.prompt_token_ids[1:], output.prompt_logprobs[1:], strict=True):
        assert ranked is not None and ranked[token].logprob <= 0 and 2 <= len(ranked) <= 3
    (alone,) = llm.generate("Hello", replace(PARAMS, prompt_logprobs=0))
    assert alone.prompt_logprobs is not None
    assert [set(ranked or {}) for ranked in alone.prompt_logprobs] == [set(), *({token} for token in output.prompt_token_ids[1:])]
    assert llm.generate("Hello", PARAMS)[0].prompt_logprobs is None


def test_no_output_but_the_prompts_scores(llm: LLM) -> None:
    (output,) = llm.generate("Hello", replace(PARAMS, max_tokens=0, prompt_logprobs=1))
    assert (output.outputs[0].text, output.outputs[0].token_ids, output.outputs[0].finish_reason) == ("", (), "length")
    assert output.prompt_logprobs == llm.generate("Hello", replace(PARAMS, prompt_logprobs=1))[0].prompt_logprobs


def test_the_best_come_first(llm: LLM) -> None:
    (every,) = llm.generate("Hello", replace(PARAMS, n=6, logprobs=0))
    (best,) = llm.generate("Hello", replace(PARAMS, n=2, best_of=6))
    ranked = sorted(every.outputs, key=lambda choice: -(choice.cumulative_logprob or 0))
    assert [choice.text for choice in best.outputs] == [choice.text for choice in ranked[:2]]
    assert [choice.index for choice in best.outputs] == [0, 1]
    assert best.outputs[0].logprobs is None and best.outputs[0].cumulative_logprob is None


def test_bad_words_and_special_tokens_reach_the_door(llm: LLM) -> None:
    with pytest.raises(RequestError, match="bad_words"):
        llm.generate("Hello", replace(PARAMS, bad_words=("",)))
    assert llm.prepare("Hello", replace(PARAMS, bad_words=("ab",))).request.sampling.bad_words


def test_beams_are_the_likeliest_of_all_continuations(llm: LLM) -> None:
    """With a width that forgets nothing that matters the search finds what trying everything finds."""
    width, steps = 4, 2
    (found,) = llm.beam_search("Hello", BeamSearchParams(beam_width=width, max_tokens=steps, ignore_eos=True))
    assert len(found.sequences) == width
    first = llm.generate("Hello", replace(PARAMS, max_tokens=1, temperature=0, logprobs=2 * width))[0].outputs[0].logprobs
    assert first is not None
    live = sorted(((each.logprob, token) for token, each in first[0].items()), key=lambda pair: (-pair[0], pair[1]))[:width]
    prompt = [256, *b"Hello"]
    every = []
    for logprob, token in live:
        (output,) = llm.generate([[*prompt, token]], replace(PARAMS, max_tokens=1, temperature=0, logprobs=2 * width))
        assert output.outputs[0].logprobs is not None
        every += [(logprob + each.logprob, (token, other)) for other, each in output.outputs[0].logprobs[0].items()]
    every.sort(key=lambda pair: (-pair[0], pair[1]))
    assert [each.tokens[len(prompt) :] for each in found.sequences] == [ids for _, ids in every[:width]]
    assert [each.cum_logprob for each in found.sequences] == pytest.approx([logprob for logprob, _ in every[:width]])
    assert all(each.text.startswith("Hello") and each.finish_reason == "length" for each in found.sequences)


def test_beams_of_several_prompts_are_those_of_each(llm: LLM) -> None:
    params = BeamSearchParams(beam_width=2, max_tokens=5)
    together = llm.beam_search(["one", "two", "three"], params)
    assert together == list(itertools.chain.from_iterable(llm.beam_search(each, params) for each in ("one", "two", "three")))
    for wrong in ({"beam_width": 0}, {"beam_width": 11}, {"max_tokens": 0}, {"max_tokens": 10**6}, {"length_penalty": float("nan")}):
        with pytest.raises(RequestError, match=next(iter(wrong))):
            llm.beam_search("one", replace(params, **wrong))  # type: ignore[arg-type]


def test_defaults_without_a_recommendation_are_ours(llm: LLM) -> None:
    assert llm.get_default_sampling_params() == SamplingParams()
    with pytest.raises(ConfigError, match="generation_config"):
        LLM("fake:{}", generation_config="best")
