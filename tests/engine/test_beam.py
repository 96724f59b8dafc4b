"""Beam search against an exhaustive search, and against transformers where both have the same semantics."""

from collections.abc import Callable, Sequence
from itertools import product
from math import log

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from ridgeline.core.events import Finish
from ridgeline.core.plan import TokenLogprobs
from ridgeline.engine.beams import MAX_BEAMS, Beam, BeamSearch

Model = Callable[[Sequence[int]], np.ndarray]
"""Ids to the log-probabilities of the next one."""


def hashed(vocab: int, seed: int) -> Model:
    """Random log-probabilities that depend on everything before."""

    def following(ids: Sequence[int]) -> np.ndarray:
        logits = np.random.default_rng([seed, *ids]).normal(scale=1.5, size=vocab)
        return np.asarray(logits - np.log(np.exp(logits).sum()))

    return following


def drive(search: BeamSearch, model: Model) -> list[Beam]:
    """Drives the search as an engine does: passes the likeliest next tokens of every sequence of the frontier."""
    while not search.is_done:
        answers = []
        for ids in search.frontier:
            values = model(ids)
            best = np.argsort(-values)[: 2 * search.width]
            answers.append(TokenLogprobs(float(values[best[0]]), tuple((int(token), float(values[token])) for token in best)))
        search.advance(answers)
    return search.best(MAX_BEAMS)


def everything(
    model: Model, prompt: tuple[int, ...], vocab: int, length: int, eos: int | None, penalty: float
) -> list[tuple[float, tuple[int, ...]]]:
    """Every answer there is, with its score: those that end with `eos` before or at the length, and those of full length."""
    found = {}
    for ids in product(range(vocab), repeat=length):
        end = ids.index(eos) + 1 if eos in ids else length
        answer = ids[:end]
        if answer not in found:
            total = sum(float(model(prompt + answer[:at])[token]) for at, token in enumerate(answer))
            tokens = len(prompt) + len(answer) - (eos in answer)
            found[answer] = total / tokens**penalty
    return sorted(((score, ids) for ids, score in found.items()), key=lambda each: (-each[0], each[1]))


@pytest.mark.parametrize("penalty", [0.0, 1.0, 2.0])
@pytest.mark.parametrize("eos", [None, 2])
@pytest.mark.parametrize("seed", range(4))
def test_a_beam_as_wide_as_the_tree_finds_the_best(seed: int, eos: int | None, penalty: float) -> None:
    """Three ids, three steps: at most nine sequences live at once, so that ten beams lose nothing."""
    model, prompt = hashed(3, seed), (1, 0)
    search = BeamSearch(prompt, 10, 3, () if eos is None else (eos,), penalty)
    found, expected = drive(search, model), everything(model, prompt, 3, 3, eos, penalty)
    assert [beam.ids for beam in found] == [ids for _, ids in expected[:10]]
    assert [beam.score for beam in found] == pytest.approx([score for score, _ in expected[:10]])
    for beam in found:
        assert beam.finish is (Finish.STOP if eos is not None and beam.ids[-1] == eos else Finish.LENGTH)
        assert beam.cumulative == pytest.approx(sum(float(model(prompt + beam.ids[:at])[token]) for at, token in enumerate(beam.ids)))


@pytest.mark.parametrize("width", [1, 2, 3, 5])
def test_the_same_beams_as_transformers(width: int) -> None:
    """A random GPT-2 without an end: all beams have the same length, and scores differ by a factor at most."""
    torch.manual_seed(width)
    config = GPT2Config(vocab_size=40, n_positions=32, n_embd=32, n_layer=2, n_head=2, eos_token_id=None, initializer_range=0.6)
    model = GPT2LMHeadModel(config).eval()
    prompt = (5, 9, 31)

    def following(ids: Sequence[int]) -> np.ndarray:
        with torch.no_grad():
            return torch.log_softmax(model(torch.tensor([list(ids)])).logits[0, -1].double(), -1).numpy()

    made = model.generate(
        torch.tensor([prompt]), num_beams=width, num_return_sequences=width, max_new_tokens=7, do_sample=False, length_penalty=0.0,
        return_dict_in_generate=True, output_scores=True, pad_token_id=0, attention_mask=torch.ones(1, len(prompt)),
    )  # fmt: skip
    found = drive(BeamSearch(prompt, width, 7, length_penalty=0.0), following)
    assert [beam.ids for beam in found] == [tuple(row[len(prompt) :].tolist()) for row in made.sequences]
    if width > 1:
        assert [beam.cumulative for beam in found] == pytest.approx(made.sequences_scores.tolist(), abs=1e-4)


def test_width_one_is_greedy() -> None:
    model = hashed(7, 3)
    ids: tuple[int, ...] = (4,)
    for _ in range(9):
        ids += (int(model(ids).argmax()),)
    assert drive(BeamSearch((4,), 1, 9), model)[0].ids == ids[1:]


def test_a_stop_id_completes_a_beam_and_counts_for_nothing_in_the_length() -> None:
    search = BeamSearch((8, 8), 2, 3, {0}, length_penalty=1.0)
    assert search.frontier == [(8, 8)] and search.width == 2
    search.advance([TokenLogprobs(-0.1, ((0, log(0.9)), (1, log(0.05)), (2, log(0.03)), (3, log(0.02))))])
    assert search.frontier == [(8, 8, 1), (8, 8, 2)]
    best = search.best(1)[0]
    assert (best.ids, best.finish) == ((0,), Finish.STOP) and best.score == pytest.approx(log(0.9) / 2)
    ignoring = BeamSearch((8, 8), 2, 3, {0}, ignore_eos=True)
    ignoring.advance([TokenLogprobs(-0.1, ((0, log(0.9)), (1, log(0.05))))])
    assert ignoring.frontier == [(8, 8, 0), (8, 8, 1)]


def test_it_ends_when_nothing_lives() -> None:
    search = BeamSearch((8,), 1, 5, {0, 1})
    search.advance([TokenLogprobs(-0.1, ((0, -0.1), (1, -2.0)))])
    assert search.is_done and search.frontier == []
    assert [beam.ids for beam in search.best(3)] == [(0,)]
    with pytest.raises(ValueError, match="1 answers to 0 sequences"):
        search.advance([TokenLogprobs(-0.1)])


@pytest.mark.parametrize(("width", "tokens"), [(0, 1), (MAX_BEAMS + 1, 1), (1, 0)])
def test_bounds(width: int, tokens: int) -> None:
    with pytest.raises(ValueError, match="a beam search of width"):
        BeamSearch((1,), width, tokens)
