"""The sampler's features on a tiny random model: alone = in a batch = chunked = after a preemption = at every depth = over n, bit by bit.

Also what features do to answers: prompt scores against a plain model of the network, and everything at once.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from serving import Answer, Run, serve
from tiny import Tiny, dense, log_softmax, plain_logits, write_tiny

from ridgeline.compute import backend
from ridgeline.core.params import Admitted, Sampling
from ridgeline.core.thinking import ReasoningMarks, Thinking
from ridgeline.facts.headers.read import read_model_facts

SIZE = Tiny(hidden=32, heads=2, kv_heads=1, ffn=48)
PAGE = 2 * 4 * SIZE.kv_heads * SIZE.head_dim * 4
FEATURES: dict[str, dict[str, Any]] = {
    "plain": {},
    "greedy": {"temperature": 0.0},
    "top_k": {"top_k": 3},
    "top_p": {"top_p": 0.6},
    "min_p": {"min_p": 0.3},
    "presence": {"presence_penalty": 2.0},
    "frequency": {"frequency_penalty": 1.5},
    "repetition": {"repetition_penalty": 3.0},
    "bias": {"logit_bias": ((7, 9.0), (8, -20.0))},
    "allowed": {"allowed_ids": tuple(range(40, 60))},
    "bad words": {"bad_words": ((44,), *((first, 50) for first in range(40, 60))), "allowed_ids": tuple(range(40, 60))},
    "min_tokens": {"min_tokens": 12, "stop_ids": frozenset(range(4, 60))},
    "prompt scores": {"prompt_logprobs": 2},
    "thinking": {"thinking": Thinking(ReasoningMarks(2, ((0, 50, 1), (1, 51, 2))), True, 5, (41, 50, 51), 2)},
    "thinking, greedy": {"temperature": 0.0, "logprobs": None, "thinking": Thinking(ReasoningMarks(1, ((0, 50, 1),)), True, 3, (50,), 1)},
    "everything": {
        "temperature": 1.5, "top_k": 60, "top_p": 0.95, "min_p": 0.01, "presence_penalty": 0.5, "frequency_penalty": -0.5,
        "repetition_penalty": 1.2, "logit_bias": ((7, 2.0),), "bad_words": ((9,), (7, 7)), "min_tokens": 3,
        "stop_ids": frozenset({5, 6}), "prompt_logprobs": 3,
    },
}  # fmt: skip
BASE = {"temperature": 2.0, "top_k": 12, "logprobs": 2}
OWN = {"min_tokens", "stop_ids", "prompt_logprobs"}


def request(number: int, name: str) -> Admitted:
    """Prompts of 5 … 40 ids, some of which share 24. Every answer depends on every bit of the logits."""
    rng = np.random.default_rng(number)
    shared = np.random.default_rng(99).integers(4, SIZE.vocab, 24) if number % 2 else []
    prompt = np.concatenate([shared, rng.integers(4, SIZE.vocab, int(rng.integers(5, 16)))]).astype(int)
    given = BASE | FEATURES[name]
    sampling = Sampling(**{key: value for key, value in given.items() if key not in OWN})
    own = {key: value for key, value in given.items() if key in OWN}
    return Admitted(name, tuple(prompt.tolist()), max_tokens=16, seed=7, sampling=sampling, **own)


REQUESTS = [request(number, name) for number, name in enumerate(FEATURES)]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("matrix") / "tiny.gguf", SIZE)


@pytest.fixture(scope="module")
def alone(tiny: Path) -> Run:
    """Every request by itself, whole prompts, without a cache."""
    return serve(tiny, [[each] for each in REQUESTS], enable_prefix_caching=False)


def same(run: Run, alone: Run) -> None:
    assert run.answers == alone.answers
    assert run.scores == alone.scores


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
@pytest.mark.parametrize("chunk", [5, 512])
def test_in_a_batch_in_chunks_at_every_depth(tiny: Path, alone: Run, depth: int, chunk: int) -> None:
    same(serve(tiny, [REQUESTS], depth=depth, max_num_batched_tokens=chunk, block_size=4), alone)


LONG = [replace(each, prompt=each.prompt[-7:], max_tokens=40) for each in REQUESTS]


@pytest.fixture(scope="module")
def long_alone(tiny: Path) -> Run:
    """Serving them together in a pool for all of them: the test above says that this is alone."""
    run = serve(tiny, [LONG])
    assert run.preempted == 0
    return run


@pytest.mark.parametrize("depth", [1, 3])
def test_after_preemptions(tiny: Path, long_alone: Run, depth: int) -> None:
    """Short prompts start together and outgrow a pool that holds little more than one of the answers."""
    settings: dict[str, Any] = {"kv_cache_memory_bytes": 54 * PAGE, "max_model_len": 60, "max_num_batched_tokens": 12}
    run = serve(tiny, [LONG[::-1]], depth=depth, block_size=4, **settings)
    assert run.preempted > 3
    same(run, long_alone)


def test_over_n(tiny: Path, alone: Run) -> None:
    """Choice 0 of three is the answer of one, the others are others; only choice 0 scores the prompt."""
    run = serve(tiny, [[replace(each, choices=3) for each in REQUESTS]], block_size=4, max_num_batched_tokens=40)
    assert {(name, 0): run.answers[name, 0] for name in FEATURES} == alone.answers
    assert run.scores == alone.scores
    for name in set(FEATURES) - {"greedy", "thinking, greedy"}:
        assert len({run.answers[name, choice][0] for choice in range(3)}) == 3, name


def test_a_warm_cache_changes_no_score(tiny: Path, alone: Run) -> None:
    run = serve(tiny, [REQUESTS, [replace(each, request_id=f"{each.request_id} again") for each in REQUESTS]], block_size=4)
    for name in FEATURES:
        assert run.answers[f"{name} again", 0] == alone.answers[name, 0]
        assert run.scores.get(f"{name} again") == alone.scores.get(name)


def plain(name: str) -> Admitted:
    """The same prompt and seed, and nothing asked for but log-probabilities."""
    each = REQUESTS[list(FEATURES).index(name)]
    return Admitted(name, each.prompt, max_tokens=16, seed=7, sampling=Sampling(**BASE), stop_ids=each.stop_ids)


def test_every_feature_changes_its_answer(tiny: Path, alone: Run) -> None:
    run = serve(tiny, [[plain(name)] for name in FEATURES])
    same_ids = {name for name in FEATURES if run.answers[name, 0][0] == alone.answers[name, 0][0]}
    assert same_ids == {"plain", "prompt scores"}
    assert set(alone.scores) == {"prompt scores", "everything"}


def ids(answer: Answer) -> tuple[int, ...]:
    return answer[0]


def test_bans_hold_to_the_end(alone: Run) -> None:
    assert set(ids(alone.answers["allowed", 0])) <= set(range(40, 60))
    assert not {44, 50} & set(ids(alone.answers["bad words", 0])[1:])
    assert len(ids(alone.answers["min_tokens", 0])) > 12
    assert 8 not in ids(alone.answers["bias", 0])


def test_a_budget_of_reasoning_is_followed_by_its_end(tiny: Path, alone: Run) -> None:
    """What comes before it is what comes without one."""
    run = serve(tiny, [[plain("thinking")]])
    found = ids(alone.answers["thinking", 0])
    assert found[:8] == (*ids(run.answers["thinking", 0])[:5], 41, 50, 51) and ids(alone.answers["thinking, greedy", 0])[3] == 50


def test_scores_are_those_of_a_plain_model(tiny: Path, alone: Run) -> None:
    """fp32 against numpy in double precision, and the sampled token's log-probability by the same rule."""
    prompt = REQUESTS[list(FEATURES).index("prompt scores")].prompt
    facts = read_model_facts(tiny)
    expected = log_softmax(plain_logits(facts, dense(facts), prompt))
    found = alone.scores["prompt scores"]
    assert len(found) == len(prompt) - 1
    for position, score in enumerate(found):
        assert score.logprob == pytest.approx(expected[position, prompt[position + 1]], abs=1e-4)
        best = np.argsort(-expected[position])[:2]
        assert [value for _, value in score.top] == pytest.approx(expected[position, best].tolist(), abs=1e-4)


def test_scores_come_in_slices(tiny: Path, alone: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Logits of 16 positions at most exist at once; of how many does not matter."""
    for size in (1, 7):
        monkeypatch.setattr(backend, "SCORED_POSITIONS", size)
        assert serve(tiny, [[REQUESTS[-1]]]).scores["everything"] == alone.scores["everything"]
