"""Every feature of the sampler against formulas written plainly: OpenAI's, transformers' logits processors, and an oracle in float64."""

from collections import Counter
from dataclasses import replace
from math import exp, log
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from single import single
from transformers import MinPLogitsWarper, NoBadWordsLogitsProcessor, RepetitionPenaltyLogitsProcessor, SequenceBiasLogitsProcessor

from ridgeline.compute.decoding.edits import EDITS, Context, edited, history_of
from ridgeline.compute.decoding.filters import min_p
from ridgeline.compute.decoding.rng import gumbel
from ridgeline.compute.decoding.sampler import sample_rows
from ridgeline.core.params import RowParams, Sampling

VOCAB = 23
PROMPT = (3, 5, 3, 7)
OUTPUTS = (5, 9, 9, 11)
IDS = PROMPT + OUTPUTS


def row(**sampling: Any) -> RowParams:
    return RowParams(seed=5, choice=1, prompt_tokens=len(PROMPT), sampling=Sampling(**sampling))


def changed(logits: NDArray[np.float32], params: RowParams, ids: tuple[int, ...] = IDS) -> NDArray[np.float32]:
    return edited(logits, params, len(ids) - params.prompt_tokens, Context(history_of(params, ids)))


def drawn(logits: NDArray[np.float32], params: RowParams, ids: tuple[int, ...] = IDS) -> int:
    return single(sample_rows, logits[None], [params], [len(ids)], [history_of(params, ids)])[0][0]


@pytest.fixture
def logits() -> NDArray[np.float32]:
    return (np.random.default_rng(8).standard_normal(VOCAB) * 3).astype(np.float32)


# ── against others ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_presence_and_frequency_are_openais_formula(logits: NDArray[np.float32]) -> None:
    """mu[j] − c[j] · alpha_frequency − float(c[j] > 0) · alpha_presence, with c the counts among the outputs alone."""
    found = changed(logits, row(frequency_penalty=0.7, presence_penalty=-1.1))
    counts = Counter(OUTPUTS)
    expected = [float(mu) - counts[j] * 0.7 - float(counts[j] > 0) * -1.1 for j, mu in enumerate(logits)]
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert found[3] == logits[3], "the prompt does not count"


@pytest.mark.parametrize("penalty", [0.5, 1.3, 10.0])
def test_repetition_is_transformers(logits: NDArray[np.float32], penalty: float) -> None:
    expected = RepetitionPenaltyLogitsProcessor(penalty)(torch.tensor([IDS]), torch.tensor(logits[None]))[0]
    np.testing.assert_allclose(changed(logits, row(repetition_penalty=penalty)), expected.numpy(), rtol=1e-6)


def test_bad_words_are_transformers(logits: NDArray[np.float32]) -> None:
    words = [[4], [9, 11, 13], [11, 12], [9, 12], [7, 5, 9, 9, 11, 1], [3, 5, 3, 7, 5, 9, 9, 11, 2], [8, 3, 5, 3, 7, 5, 9, 9, 11, 6]]
    expected = NoBadWordsLogitsProcessor(words)(torch.tensor([IDS]), torch.tensor(logits[None]))[0].numpy()
    found = changed(logits, row(bad_words=tuple(map(tuple, words))))
    np.testing.assert_array_equal(found, expected)
    assert set(np.flatnonzero(np.isneginf(found))) == {4, 13, 12, 1, 2}


def test_bias_is_transformers(logits: NDArray[np.float32]) -> None:
    biases = ((2, 1.5), (7, -100.0), (22, 100.0))
    bias = SequenceBiasLogitsProcessor([[[token], value] for token, value in biases])
    expected = bias(torch.tensor([IDS]), torch.tensor(logits[None]))[0].numpy()
    np.testing.assert_allclose(changed(logits, row(logit_bias=biases)), expected, rtol=1e-6)


@pytest.mark.parametrize("share", [0.001, 0.05, 0.5, 1.0])
def test_min_p_is_transformers(logits: NDArray[np.float32], share: float) -> None:
    expected = MinPLogitsWarper(share)(torch.tensor([IDS]), torch.tensor(logits[None]))[0].numpy()
    kept = min_p(logits.astype(np.float64) - float(logits.max()), share)
    assert kept.tolist() == np.flatnonzero(np.isfinite(expected)).tolist()


# ── each alone ──────────────────────────────────────────────────────────────────────────────────────────────────────


CHANGES: dict[str, Any] = {
    "min_p": 0.9, "presence_penalty": 2.0, "frequency_penalty": 2.0, "repetition_penalty": 5.0, "logit_bias": ((2, 30.0),),
    "allowed_ids": (1, 2), "bad_words": ((11, 9), (5,), (9,), (11,)), "top_k": 1, "top_p": 0.01, "temperature": 0.0,
}  # fmt: skip


def test_every_field_of_the_value_is_here() -> None:
    masked = {"grammar", "thinking"}  # test_grammar.py, test_sampling_matrix.py
    assert set(CHANGES) == set(Sampling.__dataclass_fields__) - masked - {"logprobs"}


@pytest.mark.parametrize("name", CHANGES)
def test_every_field_changes_what_is_sampled(name: str) -> None:
    """Logits that favour ids of the outputs: over 200 positions each field leads to other ids than its default."""
    logits = np.full(VOCAB, 1.0, np.float32)
    logits[[5, 9, 11]] = 1.8

    def ids(**fields: Any) -> list[int]:
        return [drawn(logits, replace(row(**fields), seed=seed)) for seed in range(200)]

    assert ids(**{name: CHANGES[name]}) != ids()


def test_rows_without_a_feature_are_not_copied(logits: NDArray[np.float32]) -> None:
    assert edited(logits, row(temperature=0.3, top_k=3, top_p=0.4, min_p=0.1, logprobs=5), 0, Context()) is logits
    assert history_of(row(logit_bias=((1, 1.0),), allowed_ids=(1, 2)), IDS) is None


def test_logits_stay_as_they_were(logits: NDArray[np.float32]) -> None:
    """Log-probabilities are of the raw logits, whatever is edited, and nobody else sees the edits."""
    before = logits.copy()
    asked = row(**(CHANGES | {"logprobs": 3}))
    (token,), (found,) = single(sample_rows, logits[None], [asked], [len(IDS)], [history_of(asked, IDS)])
    assert token in (1, 2)
    np.testing.assert_array_equal(logits, before)
    total = log(sum(exp(float(each)) for each in logits))
    assert found is not None and found.logprob == pytest.approx(float(logits[token]) - total, abs=1e-6)
    assert [each for each, _ in found.top] == np.argsort(-logits)[:3].tolist()


def test_what_came_first_holds_where_two_wishes_cannot() -> None:
    """Allowed ids are never left; bad words give way to them, and stop ids before min_tokens to both."""
    logits = np.zeros(VOCAB, np.float32)
    assert drawn(logits, row(allowed_ids=(5,), bad_words=((11, 5),))) == 5
    stops = replace(row(allowed_ids=(5, 6), bad_words=((6,),)), min_tokens=99, banned_until=(5,))
    assert drawn(logits, stops) == 5
    assert drawn(logits, replace(stops, sampling=Sampling(allowed_ids=(5, 6)))) == 6


def test_min_p_does_not_depend_on_temperature_order() -> None:
    """Min-p looks at probabilities after temperature, as in vLLM: a hot row keeps more."""
    logits = np.array([2.0, 1.0, 0.0], np.float32)
    cold = {drawn(logits, replace(row(min_p=0.3), seed=seed), (1,) * 5) for seed in range(200)}
    hot = {drawn(logits, replace(row(min_p=0.3, temperature=3.0), seed=seed), (1,) * 5) for seed in range(200)}
    assert (cold, hot) == ({0, 1}, {0, 1, 2})


def test_a_history_is_a_function_of_ids() -> None:
    """Rebuilt after a preemption it is what it was: pushed one by one or given at once."""
    asked = row(repetition_penalty=2.0)
    grown = history_of(asked, PROMPT)
    assert grown is not None
    for token in OUTPUTS:
        grown.push(token)
    made = history_of(asked, IDS)
    assert made is not None and (made.ids, made.seen, made.times) == (grown.ids, grown.seen, grown.times)
    assert dict(zip(made.seen, made.times, strict=True)) == {3: 0, 5: 1, 7: 0, 9: 2, 11: 1}


def test_the_order_is_vllms() -> None:
    names = [edit.apply.__name__ for edit in EDITS]
    assert names == ["follow_mask", "allow", "ban_bad_words", "ban_stops", "add_bias", "penalise"]


# ── all at once ─────────────────────────────────────────────────────────────────────────────────────────────────────


def rounded(value: float) -> float:
    return float(np.float32(value))


def oracle(logits: list[float], params: RowParams, ids: tuple[int, ...]) -> int | None:
    """Plain Python in float64, each feature rounded to fp32 once. None where rounding may decide a filter."""
    asked, outputs = params.sampling, ids[params.prompt_tokens :]
    values = dict(enumerate(logits))
    if asked.allowed_ids is not None:
        values = {token: value for token, value in values.items() if token in asked.allowed_ids}
    completing = {word[-1] for word in asked.bad_words if (" ".join(map(str, ["", *ids]))).endswith(" ".join(map(str, ["", *word[:-1]])))}
    bans = [completing, set(params.banned_until) if len(outputs) < params.min_tokens else set()]
    for banned in bans:
        values = {token: value for token, value in values.items() if token not in banned} or values
    for token, bias in asked.logit_bias:
        if token in values:
            values[token] = rounded(values[token] + bias)
    for token in set(ids) & set(values):
        value, count = values[token], outputs.count(token)
        value = value / asked.repetition_penalty if value > 0 else value * asked.repetition_penalty
        values[token] = rounded(value - (asked.frequency_penalty * count + asked.presence_penalty * (count > 0)))
    order = sorted(values, key=lambda token: (-values[token], token))
    if asked.temperature == 0:
        return order[0]
    scaled = {token: (values[token] - values[order[0]]) / asked.temperature for token in order}
    if asked.top_k > 0:
        order = order[: asked.top_k]
    if asked.min_p > 0:
        if any(abs(scaled[token] - log(asked.min_p)) < 1e-9 for token in order):
            return None
        order = [token for token in order if scaled[token] > log(asked.min_p)]
    if asked.top_p < 1:
        mass, total = 0.0, sum(exp(scaled[token]) for token in order)
        for count, token in enumerate(order):
            mass += exp(scaled[token])
            if abs(mass / total - asked.top_p) < 1e-9:
                return None
            if mass >= asked.top_p * total:
                order = order[: count + 1]
                break
    noise = gumbel(params.seed, params.choice, len(ids), np.arange(len(logits)))
    return min(order, key=lambda token: (-(scaled[token] + noise[token]), token))


TOKENS = st.integers(0, VOCAB - 1)
SAMPLINGS = st.builds(
    Sampling,
    temperature=st.sampled_from((0.0, 0.3, 1.0, 4.0)),
    top_k=st.sampled_from((0, 0, 1, 5, VOCAB)),
    top_p=st.sampled_from((1.0, 0.313, 0.877)),
    min_p=st.sampled_from((0.0, 0.0137, 0.377)),
    presence_penalty=st.sampled_from((0.0, 0.0, -2.0, 1.3)),
    frequency_penalty=st.sampled_from((0.0, 0.0, -0.7, 2.0)),
    repetition_penalty=st.sampled_from((1.0, 1.0, 0.3, 1.7)),
    logit_bias=st.dictionaries(TOKENS, st.sampled_from((-100.0, -0.3, 2.5, 100.0)), max_size=3).map(lambda found: tuple(found.items())),
    allowed_ids=st.none() | st.sets(TOKENS, min_size=1, max_size=9).map(lambda found: tuple(sorted(found))),
    bad_words=st.lists(st.lists(TOKENS, min_size=1, max_size=3).map(tuple), max_size=4).map(tuple),
)


@settings(max_examples=600, deadline=None)
@given(
    sampling=SAMPLINGS, ids=st.lists(TOKENS, min_size=1, max_size=12), prompt=st.integers(1, 12), seed=st.integers(0, 2**63 - 1),
    least=st.integers(0, 4), stops=st.sets(TOKENS, max_size=3), number=st.integers(0, 2**32 - 1), flat=st.booleans(),
)  # fmt: skip
def test_equals_the_oracle(
    sampling: Sampling, ids: list[int], prompt: int, seed: int, least: int, stops: set[int], number: int, flat: bool
) -> None:
    logits = np.random.default_rng(number).normal(scale=3, size=VOCAB).astype(np.float32)
    logits = np.round(logits) if flat else logits
    params = RowParams(seed, 2, min(prompt, len(ids)), sampling, least, tuple(sorted(stops)))
    expected = oracle([float(each) for each in logits], params, tuple(ids))
    assert expected in (None, drawn(logits, params, tuple(ids)))


def test_rows_do_not_know_of_each_other() -> None:
    """Every feature in one batch, and each row alone: the same ids and log-probabilities to the bit."""
    rng = np.random.default_rng(4)
    asked = [row(**{name: value, "logprobs": 2}) for name, value in CHANGES.items()] + [row(**CHANGES), row(logprobs=2)]
    logits = rng.normal(size=(len(asked), 5003)).astype(np.float32)
    positions = [len(IDS)] * len(asked)
    together = single(sample_rows, logits, asked, positions, [history_of(each, IDS) for each in asked])
    for index, each in enumerate(asked):
        alone = single(sample_rows, logits[index : index + 1].copy(), [each], [len(IDS)], [history_of(each, IDS)])
        assert alone == ([together[0][index]], [together[1][index]])
