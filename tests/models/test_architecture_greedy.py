"""Answers of every architecture are those of transformers, token by token, on the native runner over the file's own weights."""

import pytest
from checkpoints import RECIPES, logits_of
from native import NativeDriver

from ridgeline.compute.cpu import ext
from ridgeline.compute.cpu.packing import pack_weights
from ridgeline.facts.headers.read import read_model_facts
from ridgeline.facts.headers.rope import select_rope

TOKENS = 64
BY_DAY = ("qwen3moe", "qwen3next", "glm4moe")
NAMES = [pytest.param(name, marks=() if name in BY_DAY else pytest.mark.night) for name in RECIPES]


@pytest.mark.skipif(ext.lost() is not None, reason="the native extension is not built")
@pytest.mark.parametrize("name", NAMES)
def test_greedy_tokens(checkpoint, name: str) -> None:
    made = checkpoint(name)
    facts = select_rope(read_model_facts(made.directory), made.recipe.reach)[0]
    driver = NativeDriver(facts, pack_weights(facts, 2, lambda stage, fraction: None), kv_dtype="f32", tokens=64)  # type: ignore[arg-type]
    ids = made.prompts()[2]
    rows = driver.step((0, ids))
    known = list(ids)
    for _ in range(min(TOKENS, made.recipe.reach - len(ids))):  # beyond its reach a Phi-3 turns by other factors
        best = int(rows[-1].argmax())
        assert best == int(logits_of(made.model, known)[-1].argmax()), f"token {len(known) - len(ids)}"
        known.append(best)
        rows = driver.step((0, [best]))
    driver.runner.close()
