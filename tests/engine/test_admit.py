"""Admission: every bound from both sides, every wrong type, and the admitted request."""

import math
from dataclasses import replace
from typing import Any

import pytest

from ridgeline.core.params import Admitted, SamplingParams
from ridgeline.core.plan import KVGroup, KVShape
from ridgeline.engine.admit import BOUNDS, FLAGS, OPTIONAL, ModelLimits, admit, make_seed_source, tenant_domain
from ridgeline.errors import RequestError

FULL = KVShape((KVGroup("full", (0,)),), block_tokens=16, blocks=64, fingerprint=b"")
LIMITS = ModelLimits(vocab=512, max_model_len=1024, eos_ids=frozenset({1, 106}), kv=FULL)
PARAMS = SamplingParams(max_tokens=8)
HOSTILE = [math.nan, math.inf, -math.inf, float("1e400"), 2**63, -(2**63) - 1, 2**9000, True, False, "1", b"1", [1], {}, 1.5j]


def door(prompt: Any = (5, 6, 7), limits: ModelLimits = LIMITS, priority: Any = 0, words: Any = (), **fields: Any) -> Admitted:
    return admit(
        prompt, replace(PARAMS, **fields), limits,
        request_id="r", draw_seed=lambda: 42, bad_words=words, domain=b"d", priority=priority,
    )  # fmt: skip


def refused(**fields: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        door(**fields)
    assert caught.value.status == 400 and caught.value.param
    assert len(caught.value.message) < 300
    return caught.value


def bounds(name: str) -> tuple[Any, Any, Any]:
    """The least allowed value, the greatest, and a small step. Some fields have a tighter bound in a context of 1,024."""
    bound = BOUNDS[name]
    step = 1 if bound.whole else 1e-9
    low = bound.low + step if bound.above else bound.low
    high = {"max_tokens": 1021, "min_tokens": 8}.get(name, bound.high)
    return low, high, step


@pytest.mark.parametrize("name", BOUNDS)
def test_numbers_at_their_bounds(name: str) -> None:
    low, high, step = bounds(name)
    for value in (low, high):
        door(**{name: value})
    for value in (low - step, high + max(step, high * 1e-15) if not BOUNDS[name].whole else high + 1):
        error = refused(**{name: value})
        assert error.param == name and str(value) in error.message


@pytest.mark.parametrize("name", BOUNDS)
@pytest.mark.parametrize("value", HOSTILE, ids=[type(value).__name__ + str(index) for index, value in enumerate(HOSTILE)])
def test_numbers_of_no_use(name: str, value: Any) -> None:
    assert refused(**{name: value}).param == name


@pytest.mark.parametrize("name", [name for name in BOUNDS if BOUNDS[name].whole])
def test_whole_numbers_are_not_floats(name: str) -> None:
    assert refused(**{name: 1.0}).code == "invalid_type"


@pytest.mark.parametrize("name", sorted(set(BOUNDS) - OPTIONAL))
def test_none_only_where_it_means_something(name: str) -> None:
    assert refused(**{name: None}).param == name
    for optional in OPTIONAL:
        door(**{optional: None})


@pytest.mark.parametrize("name", FLAGS)
@pytest.mark.parametrize("value", [0, 1, "true", None])
def test_flags_are_booleans(name: str, value: Any) -> None:
    assert refused(**{name: value}).param == name


@pytest.mark.parametrize("stop", ["x", None, 1, (1,), (b"x",), ("",), ("x" * 65,), ("a",) * 65, {"a": 1}])
def test_stop_strings(stop: Any) -> None:
    assert refused(stop=stop).param == "stop"
    assert door(stop=("x" * 64,) * 4).two_phase
    assert not door(stop=()).two_phase


@pytest.mark.parametrize("ids", [5, None, "5", (-1,), (512,), (2**63,), (-(2**9000),), (1.0,), (True,), (3,) * 65])
def test_stop_ids(ids: Any) -> None:
    assert refused(stop_token_ids=ids).param == "stop_token_ids"
    assert door(stop_token_ids=(0, 511)).stop_ids == {0, 511, 1, 106}
    assert len(door(stop_token_ids=[3] * 64).stop_ids) == 3


@pytest.mark.parametrize(
    "biases",
    [
        None, 5, {"5": 1.0}, (5,), ((5,),), ((5, 1.0, 2),), (("5", 1.0),), ((5.0, 1.0),), ((True, 1.0),), ((-1, 1.0),), ((512, 1.0),),
        ((5, 100.5),), ((5, -101),), ((5, math.nan),), ((5, math.inf),), ((5, True),), ((5, "1"),), ((5, None),), ((5, 1.0), (5, 2.0)),
        tuple((token, 1.0) for token in range(301)),
    ],
)  # fmt: skip
def test_biases(biases: Any) -> None:
    assert refused(logit_bias=biases).param == "logit_bias"
    assert door(logit_bias=[(9, 100), (3, -100)]).sampling.logit_bias == ((3, -100.0), (9, 100.0))
    assert len(door(logit_bias=tuple((token, 0.5) for token in range(300))).sampling.logit_bias) == 300


@pytest.mark.parametrize("ids", [(), [], 5, "5", (-1,), (512,), (1.0,), (True,), (None,), (5,) * 1025])
def test_allowed_ids(ids: Any) -> None:
    assert refused(allowed_token_ids=ids).param == "allowed_token_ids"
    assert door(allowed_token_ids=[9, 3, 9]).sampling.allowed_ids == (3, 9)
    assert door(allowed_token_ids=tuple(range(512)) * 2).sampling.allowed_ids == tuple(range(512))
    assert door(allowed_token_ids=None).sampling.allowed_ids is None


@pytest.mark.parametrize("texts", [None, "ab", (1,), (b"a",), ("",), ("a" * 65,), ("a",) * 65])
def test_bad_words_as_texts(texts: Any) -> None:
    assert refused(bad_words=texts, words=((5,),)).param == "bad_words"
    assert door(bad_words=("a" * 64,) * 64, words=((5,),)).sampling.bad_words == ((5,),)


@pytest.mark.parametrize("words", [(), ((),), ((512,),), ((-1,),), ((1.0,),), ((5,) * 261,), ((5,),) * 129])
def test_bad_words_as_ids(words: Any) -> None:
    """No texts without ids, no ids without texts: a word that nobody would look for is refused."""
    assert refused(bad_words=("ab",), words=words).param == "bad_words"
    assert refused(words=((5,),)).param == "bad_words"
    assert door(bad_words=("ab",), words=[[7, 8], [5], [7, 8]]).sampling.bad_words == ((5,), (7, 8))


def test_something_must_be_left_to_sample() -> None:
    assert refused(allowed_token_ids=(5, 6), bad_words=("a", "b"), words=((5,), (6,))).param == "allowed_token_ids"
    assert door(allowed_token_ids=(5, 6), bad_words=("a", "b"), words=((5,), (6, 6)))
    assert refused(allowed_token_ids=(1, 106), min_tokens=1).param == "allowed_token_ids"
    assert door(allowed_token_ids=(1, 106)) and door(allowed_token_ids=(1, 106), min_tokens=1, ignore_eos=True)


def test_the_best_of_many_share_the_context() -> None:
    assert refused(n=3, best_of=2).param == "best_of"
    assert refused(best_of=8, max_tokens=129).param == "best_of"
    request = door(n=2, best_of=5)
    assert (request.choices, request.sampling.logprobs) == (5, 0)
    assert door(n=2, best_of=5, logprobs=3).sampling.logprobs == 3
    assert door(n=5, best_of=5).sampling.logprobs is None
    assert door(best_of=8, max_tokens=None).max_tokens == 128


def test_no_output_is_one_that_the_front_end_drops() -> None:
    request = door(max_tokens=0, prompt_logprobs=0)
    assert (request.max_tokens, request.two_phase, request.prompt_logprobs) == (1, True, 0)
    assert refused(max_tokens=0, min_tokens=1).param == "min_tokens"
    assert door(prompt=(1,) * 1023, max_tokens=0)


def test_only_the_first_choice_scores_the_prompt() -> None:
    request = door(n=2, prompt_logprobs=4)
    assert [request.row_params(choice).prompt_logprobs for choice in range(2)] == [4, None]


def test_every_sampling_parameter_reaches_its_row() -> None:
    given: dict[str, Any] = {
        "temperature": 0.5, "top_k": 4, "top_p": 0.9, "min_p": 0.1, "presence_penalty": 1, "frequency_penalty": -1,
        "repetition_penalty": 1.5, "logit_bias": ((7, 2),), "allowed_token_ids": (7, 9), "bad_words": ("ab",), "logprobs": 2,
    }  # fmt: skip
    sampling = door(**given, words=((5,),)).row_params(0).sampling
    expected = {**given, "allowed_ids": (7, 9), "bad_words": ((5,),), "grammar": None, "thinking": None}
    assert {name: getattr(sampling, name) for name in sampling.__slots__} == {name: expected[name] for name in sampling.__slots__}


@pytest.mark.parametrize("prompt", [(), [], (-1,), (512,), (2**40,), (1.0,), (True,), ("a",), "abc", (1,) * 1024])
def test_prompts(prompt: Any) -> None:
    assert refused(prompt=prompt).param == "prompt"
    assert door(prompt=(0, 511)).prompt == (0, 511)


def test_context_is_shared_by_prompt_and_answer() -> None:
    assert door(prompt=(1,) * 1000, max_tokens=24).max_tokens == 24
    error = refused(prompt=(1,) * 1000, max_tokens=25)
    assert error.code == "context_length_exceeded"
    assert all(number in error.message for number in ("1000", "25", "1025", "1024", "24"))
    assert door(prompt=(1,) * 1000, max_tokens=None).max_tokens == 24
    assert door(prompt=(1,) * 1023, max_tokens=None).max_tokens == 1
    assert refused(prompt=(1,) * 1024, max_tokens=None).code == "context_length_exceeded"


def test_choices_share_the_context_too() -> None:
    assert door(n=8, max_tokens=128).choices == 8
    assert "128" in refused(n=8, max_tokens=129).message
    assert door(n=8, max_tokens=None).max_tokens == 128
    assert door(n=2, prompt=(1,) * 1000, max_tokens=None).max_tokens == 24


def test_what_never_fits_is_refused() -> None:
    """At the boundary and one token beyond it, for each number of blocks: nothing that is admitted waits for ever."""
    for blocks in (1, 2, 7):
        limits = replace(LIMITS, kv=replace(FULL, blocks=blocks))
        assert door(limits=limits, prompt=(1,) * 8, max_tokens=16 * blocks - 7)
        error = refused(limits=limits, prompt=(1,) * 8, max_tokens=16 * blocks - 6)
        assert str(blocks + 1) in error.message and error.code == "context_length_exceeded"


def test_what_comes_out() -> None:
    request = door(temperature=0, top_k=-1)
    assert (request.sampling.temperature, request.sampling.top_k, request.seed, request.domain) == (0.0, 0, 42, b"d")
    assert isinstance(request.sampling.temperature, float)
    assert door(temperature=1e-300).sampling.temperature == 0.01
    assert door(top_k=512).sampling.top_k == 0 and door(top_k=511).sampling.top_k == 511
    assert door(seed=-1).seed == 2**63 - 1 and door(seed=0).seed == 0
    assert door(ignore_eos=True, stop_token_ids=(9,)).stop_ids == {9}
    assert door(min_tokens=3).row_params(0).banned_until == (1, 106)


def test_tenant_domains_need_the_secret() -> None:
    assert tenant_domain(b"s", "a") == tenant_domain(b"s", "a")
    assert len({tenant_domain(b"s", "a"), tenant_domain(b"s", "b"), tenant_domain(b"t", "a"), b""}) == 4


def test_seeds_are_drawn_in_range_and_reproducibly() -> None:
    first, second, free = make_seed_source(5), make_seed_source(5), make_seed_source(None)
    drawn = [first() for _ in range(100)]
    assert drawn == [second() for _ in range(100)] and len(set(drawn)) == 100
    assert all(0 <= seed < 2**63 for seed in drawn) and free() != free()
