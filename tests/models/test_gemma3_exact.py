"""The numpy runner is exact: however a sequence is cut, batched, stored or threaded, its logits have the same bits."""

from pathlib import Path

import numpy as np
import pytest
from tiny import Driver, Tiny, dense, open_tiny, write_tiny

from ridgeline.compute.load.weights import map_weights
from ridgeline.facts.headers.read import read_model_facts

IDS = np.random.default_rng(11).integers(0, 300, 150).tolist()
"""Longer than a KV tile, so that tiles are merged."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory):
    return open_tiny(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


@pytest.fixture(scope="module")
def expected(model) -> np.ndarray:
    return Driver(*model).feed(0, IDS, len(IDS))


@pytest.mark.parametrize("block_tokens", [1, 4, 16])
@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 16, 64, 149])
def test_chunks_and_blocks(model, expected, chunk, block_tokens) -> None:
    assert np.array_equal(Driver(*model, block_tokens=block_tokens).feed(0, IDS, chunk), expected)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_batch(model, expected, threads) -> None:
    """Among seven others of other lengths, that come, stop and go on, at every place in the batch."""
    driver = Driver(*model, block_tokens=4, threads=threads)
    random = np.random.default_rng(5)
    done, step, rows = 0, 0, []
    while done < len(IDS):
        count = min([1, 5, 2, 17, 40][step % 5], len(IDS) - done)
        chunks = [(other, random.integers(0, 300, int(random.integers(1, 20))).tolist()) for other in range(1, 8)]
        chunks.insert(step % 8, (0, IDS[done : done + count]))
        first = sum(len(ids) for _, ids in chunks[: step % 8])
        rows.append(driver.step(*chunks)[first : first + count])
        done, step = done + count, step + 1
    assert np.array_equal(np.concatenate(rows), expected)


def test_selection(model, expected) -> None:
    """The head gives a position the same logits whichever others are wanted."""
    for wanted in ([149], [0, 149], list(range(3, 150, 7)), []):
        assert np.array_equal(Driver(*model).step((0, IDS), select=wanted), expected[wanted])


def test_logits_of_hidden_states(model, expected) -> None:
    """The end of the list by itself, on rows that come from steps, in any number and order."""
    driver = Driver(*model)
    hidden = driver.runner.run(driver.inputs([(0, IDS)], select=[]), driver.kv, taps=("hidden",))["hidden"]
    for rows in (list(range(150)), [149], list(range(100, 3, -7)), [5] * 17, []):
        assert np.array_equal(driver.runner.logits(hidden[rows]), expected[rows])


def test_reused_pages(model, expected) -> None:
    """What another sequence left in a page, not even a number, leaves no trace."""
    driver = Driver(*model, block_tokens=16)
    driver.kv.pool[:] = np.nan
    assert np.array_equal(driver.feed(0, IDS, 50), expected)


def test_a_neighbour_that_is_not_finite(model, expected) -> None:
    facts, weights = model
    driver = Driver(facts, weights)
    driver.step((1, IDS[:9]))
    for group in range(len(driver.shape.groups)):
        driver.kv.pool[:, :, driver.slot(1, group, 8)] = np.nan
    both = driver.step((1, IDS[:1]), (0, IDS))
    assert np.isnan(both[0]).all()
    assert np.array_equal(both[1:], expected)


@pytest.mark.parametrize("kind", ["Q8_0", "Q5_0", "F16"])
def test_codes_give_the_bits_of_fp32(tmp_path: Path, kind: str) -> None:
    facts = read_model_facts(write_tiny(tmp_path / "tiny.gguf", Tiny(vocab=600), kind=kind))
    coded, plain = map_weights(facts), dense(facts)
    assert coded["token_embd.weight"].nbytes < plain["token_embd.weight"].nbytes
    coded = {name: weight if len(weight.shape) > 1 else plain[name] for name, weight in coded.items()}
    assert np.array_equal(Driver(facts, coded).feed(0, IDS, 40), Driver(facts, plain).feed(0, IDS, 40))
