"""Every architecture is exact: however a sequence is cut, batched, stored, cached or preempted, its answer has the same bits."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from checkpoints import RECIPES, VOCAB
from serving import Answer, serve
from tiny import Driver, dense

from ridgeline.compute.exact import runner as numpy_runner
from ridgeline.compute.exact.self_test import HeadShape
from ridgeline.compute.load.weights import load_weights, map_weights
from ridgeline.compute.quant.weight import CodedWeight, DenseWeight, StackedWeight, Weight
from ridgeline.core.params import Admitted, Sampling
from ridgeline.facts.headers.read import read_model_facts
from ridgeline.facts.headers.rope import select_rope
from ridgeline.facts.model import ModelFacts
from ridgeline.planning.memory import block_bytes, kv_groups, sequence_blocks

LONGEST = 64

NAMES = [name for name, recipe in RECIPES.items() if recipe.exact]
"""One of each architecture; among them one KV head per query head, one for all, and numbers between."""

IDS = np.random.default_rng(11).integers(0, VOCAB, 140).tolist()
"""Longer than a KV tile, so that tiles are merged."""

Model = tuple[ModelFacts, dict[str, Weight]]


@pytest.fixture(scope="module")
def opened(checkpoint) -> Callable[[str], Model]:
    """Facts and fp32 weights by name."""
    made: dict[str, Model] = {}

    def of(name: str) -> Model:
        if name not in made:
            facts = select_rope(read_model_facts(checkpoint(name).directory), 256)[0]
            made[name] = facts, dense(facts)
        return made[name]

    return of


@pytest.fixture(scope="module")
def expected(opened) -> Callable[[str], np.ndarray]:
    """Logits of `IDS` in one chunk, alone."""
    made: dict[str, np.ndarray] = {}

    def of(name: str) -> np.ndarray:
        if name not in made:
            made[name] = Driver(*opened(name)).feed(0, IDS, len(IDS))
        return made[name]

    return of


@pytest.mark.parametrize("name", NAMES)
def test_this_machine_is_exact_for_its_shapes(opened, name: str) -> None:
    found = Driver(*opened(name)).runner.exactness()
    assert found.exact, found.failures


def test_the_self_test_tries_what_the_model_runs(opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numpy_runner, "check_exactness", lambda matrices, heads, team: (matrices, heads))
    found = {name: Driver(*opened(name)).runner.exactness() for name in ("gemma2", "llama-biases", "gpt2")}
    assert found["gemma2"][1] == {HeadShape(4, 2, 16, softcap=0.7)}
    assert found["llama-biases"][1] == {HeadShape(4, 1, 16)}
    assert found["gpt2"] == ({(64, 64), (128, 64), (64, 128), (VOCAB, 64)}, {HeadShape(4, 4, 16)})


@pytest.mark.parametrize(("block_tokens", "chunk"), [(1, 7), (4, 64), (16, 139)])
@pytest.mark.parametrize("name", NAMES)
def test_chunks_and_blocks(opened, expected, name: str, block_tokens: int, chunk: int) -> None:
    assert np.array_equal(Driver(*opened(name), block_tokens=block_tokens).feed(0, IDS, chunk), expected(name))


@pytest.mark.parametrize("name", NAMES)
def test_single_tokens(opened, expected, name: str) -> None:
    """A token per step at the beginning, and across the end of the first KV tile."""
    driver = Driver(*opened(name))
    rows = driver.feed(0, IDS[:8], 1), driver.feed(0, IDS[8:116], 108), driver.feed(0, IDS[116:], 1)
    assert np.array_equal(np.concatenate(rows), expected(name))


@pytest.mark.parametrize("name", NAMES)
def test_batch(opened, expected, name: str) -> None:
    """Among seven others of other lengths, at every place in the batch, shared out over threads."""
    driver = Driver(*opened(name), block_tokens=4, threads=2)
    random = np.random.default_rng(5)
    done, step, rows = 0, 0, []
    while done < len(IDS):
        count = min([1, 5, 2, 17, 40][step % 5], len(IDS) - done)
        chunks = [(other, random.integers(0, VOCAB, int(random.integers(1, 9))).tolist()) for other in range(1, 8)]
        chunks.insert(step % 8, (0, IDS[done : done + count]))
        first = sum(len(ids) for _, ids in chunks[: step % 8])
        rows.append(driver.step(*chunks)[first : first + count])
        done, step = done + count, step + 1
    driver.runner.close()
    assert np.array_equal(np.concatenate(rows), expected(name))


@pytest.mark.parametrize("name", NAMES)
def test_logits_of_hidden_states(opened, expected, name: str) -> None:
    """The end of the list by itself, caps on logits included."""
    driver = Driver(*opened(name))
    hidden = driver.runner.run(driver.inputs([(0, IDS)], select=[3]), driver.kv, taps=("hidden",))["hidden"]
    for rows in (list(range(20)), [139], list(range(100, 3, -7))):
        assert np.array_equal(driver.runner.logits(hidden[rows]), expected(name)[rows])


@pytest.mark.parametrize("form", ["safetensors", "Q8_0"])
@pytest.mark.parametrize("name", NAMES)
def test_codes_give_the_bits_of_fp32(stored, name: str, form: str) -> None:
    """Whether weights stay as the file has them, permuted, fused and transposed ones too, or become fp32 at once."""
    facts = select_rope(read_model_facts(stored(name, form)), 256)[0]
    coded, loaded = map_weights(facts), load_weights(facts, 1 << 40, 2, lambda stage, fraction: None)
    assert {type(coded[key]) for key, w in loaded.items() if len(w.shape) > 1} <= {CodedWeight, StackedWeight}
    assert {type(w) for w in loaded.values()} == {DenseWeight}
    assert np.array_equal(Driver(facts, coded).step((0, IDS[:40])), Driver(facts, loaded).step((0, IDS[:40])))


def request(number: int) -> Admitted:
    """Prompts of 2 … 30 ids, half of them sharing 20; sampled at a temperature, so that every bit of the logits counts."""
    rng = np.random.default_rng(number)
    shared = np.random.default_rng(99).integers(4, VOCAB, 20)
    own = rng.integers(4, VOCAB, int(rng.integers(2, 10)))
    prompt = np.concatenate([shared, own]) if number % 2 else own
    return Admitted(f"r{number}", tuple(prompt.tolist()), max_tokens=16, seed=number, sampling=Sampling(temperature=2.0, logprobs=2))


REQUESTS = [request(number) for number in range(8)]


@pytest.fixture(scope="module")
def alone(stored) -> Callable[[str], dict[tuple[str, int], Answer]]:
    """Every request by itself, whole prompts, cold."""
    made: dict[str, dict[tuple[str, int], Answer]] = {}

    def of(name: str) -> dict[tuple[str, int], Answer]:
        if name not in made:
            run = serve(stored(name, "safetensors"), [[each] for each in REQUESTS], enable_prefix_caching=False, max_model_len=LONGEST)
            assert all(len(ids) == 16 for ids, _ in run.answers.values())
            made[name] = run.answers
        return made[name]

    return of


@pytest.mark.parametrize("depth", [pytest.param(1, marks=pytest.mark.night), 3])
@pytest.mark.parametrize("name", NAMES)
def test_company_depth_and_cache(opened, stored, alone, name: str, depth: int) -> None:
    """All at once in chunks of nine, then again over what the cache kept; nothing of a model with recurrent layers."""
    again = [replace(each, request_id=f"{each.request_id}-again") for each in REQUESTS]
    path: Path = stored(name, "safetensors")
    run = serve(path, [REQUESTS, again], depth=depth, max_num_batched_tokens=9, block_size=4, max_model_len=LONGEST)
    assert run.hit_tokens == 0 if opened(name)[0].state else run.hit_tokens >= 4 * 20
    for (request_id, choice), answer in run.answers.items():
        assert answer == alone(name)[request_id.removesuffix("-again"), choice]


@pytest.mark.parametrize("name", NAMES)
def test_preemption(opened, stored, alone, name: str) -> None:
    """Pages for little more than one request of full length."""
    facts, _ = opened(name)
    groups = kv_groups(facts)
    pages = sequence_blocks(groups, 4, LONGEST, chunk=12) * 5 // 4
    run = serve(
        stored(name, "safetensors"),
        [REQUESTS],
        depth=2,
        block_size=4,
        kv_cache_memory_bytes=pages * block_bytes(facts, groups[0], 4, "f32"),
        max_model_len=LONGEST,
        max_num_batched_tokens=12,
    )
    assert run.preempted > 0
    assert run.answers == alone(name)
