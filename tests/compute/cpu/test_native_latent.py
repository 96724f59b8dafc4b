"""Latent attention on the native runner: its products against their references, its bits in any company, and what it takes of memory."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import VOCAB
from native import NativeDriver
from serving import Answer, serve

from ridgeline.compute.cpu import ext
from ridgeline.compute.cpu.cache import allocate_native_kv
from ridgeline.compute.cpu.packing import pack_weights
from ridgeline.compute.load.weights import map_weights
from ridgeline.compute.ops.table import OPS
from ridgeline.compute.quant.groups import groups
from ridgeline.compute.quant.weight import CodedWeight
from ridgeline.config.env import ModelStores
from ridgeline.core.params import Admitted, Sampling
from ridgeline.core.plan import KVShape
from ridgeline.facts.headers.read import describe_model, read_model_facts
from ridgeline.facts.headers.rope import select_rope
from ridgeline.facts.model import ModelFacts
from ridgeline.planning.arguments import PlanOptions, deployment_of
from ridgeline.planning.memory import block_bytes, kv_groups, sequence_blocks

pytestmark = pytest.mark.skipif(ext.lost() is not None, reason="the native extension is not built")

FORMS = [("deepseek2", "Q8_0"), ("deepseek3", "Q8_0"), ("deepseek2-greedy", "safetensors")]
"""Queries of the hidden state and of a latent, codes, and the BF16 of `kv_b_proj` seen as a matrix per head."""

IDS = np.random.default_rng(3).integers(0, VOCAB, 300).tolist()
"""Longer than a split of the cache."""

LONGEST = 64


@pytest.fixture(scope="module")
def opened(stored) -> Callable[[str, str], tuple[ModelFacts, Any]]:
    """Facts and packed weights by recipe and form."""
    made: dict[tuple[str, str], tuple[ModelFacts, Any]] = {}

    def of(name: str, form: str) -> tuple[ModelFacts, Any]:
        if (name, form) not in made:
            facts = select_rope(read_model_facts(stored(name, form)), 256)[0]
            made[name, form] = facts, pack_weights(facts, 2, lambda stage, fraction: None)
        return made[name, form]

    return of


@pytest.mark.parametrize("level", ext.isa_levels())
def test_products_of_codes_have_the_values_of_their_reference(stored, opened, level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One token, some, and so many that heads come in more than a tile."""
    monkeypatch.setattr(ext, "isa", lambda: level)
    codes = map_weights(read_model_facts(stored("deepseek2", "Q8_0")))
    driver = NativeDriver(*opened("deepseek2", "Q8_0"), threads=2)
    for number, count in enumerate((1, 9, 150)):
        values = driver.runner.values(driver.inputs([(number, IDS[:count])]), driver.kv)
        products = [op for op in driver.runner.oplist.ops if op.name == "linear_heads_codes"]
        assert len(products) == 2 * driver.facts.layers
        for op in products:
            weight = codes[op.weights[0].name]
            assert isinstance(weight, CodedWeight)
            heads = tuple(groups(weight.kind, weight.part(head).codes) for head in range(weight.shape[0]))
            expected = OPS[op.name](*(values[name] for name in op.inputs), heads)
            assert np.array_equal(values[op.outputs[0]], expected), f"{op} with {count} tokens"


@pytest.mark.parametrize(("name", "form"), FORMS)
@pytest.mark.parametrize("kind", ["f32", "bf16", "int8"])
def test_no_chunk_thread_level_or_neighbour_changes_a_bit(opened, name: str, form: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    facts, weights = opened(name, form)
    expected = NativeDriver(facts, weights, kv_dtype=kind).step((0, IDS)).tobytes()
    for number, (chunk, threads, block_tokens) in enumerate([(1, 2, 16), (7, 1, 4), (64, 3, 1), (299, 2, 16)]):
        level = ext.isa_levels()[number % len(ext.isa_levels())]
        monkeypatch.setattr(ext, "isa", lambda level=level: level)
        driver = NativeDriver(facts, weights, kv_dtype=kind, threads=threads, block_tokens=block_tokens)
        found = []
        for start in range(0, len(IDS), chunk):
            before = IDS[start % 50 : start % 50 + 1 + start % 5]
            rows = driver.step((1 + start % 3, before), (0, IDS[start : start + chunk]), (9, IDS[:1]))
            found.append(rows[len(before) : -1].copy())
        driver.runner.close()
        assert np.concatenate(found).tobytes() == expected, (chunk, threads, block_tokens)


def request(number: int) -> Admitted:
    """A prompt of some ids, half of them behind 20 shared ones; sampled, so that every bit of the logits counts."""
    draw = np.random.default_rng(number)
    own = draw.integers(4, VOCAB, int(draw.integers(2, 10))).tolist()
    prompt = (*IDS[:20], *own) if number % 2 else tuple(own)
    return Admitted(f"r{number}", prompt, max_tokens=16, seed=number, sampling=Sampling(temperature=2.0, logprobs=2))


REQUESTS = [request(number) for number in range(8)]


@pytest.mark.parametrize("kind", ["bf16", "int8"])
def test_company_cached_prefixes_and_preemption_change_no_answer(stored, kind: str) -> None:
    path: Path = stored("deepseek2", "Q8_0")
    common = {"runner": "native", "kv_dtype": kind, "max_model_len": LONGEST, "threads": 2}
    alone: dict[tuple[str, int], Answer] = serve(path, [[each] for each in REQUESTS], enable_prefix_caching=False, **common).answers
    again = [replace(each, request_id=f"{each.request_id}-again") for each in REQUESTS]
    run = serve(path, [REQUESTS, again], depth=3, max_num_batched_tokens=9, block_size=4, **common)
    assert run.hit_tokens >= 4 * 20
    assert run.answers == {(f"{name}{suffix}", choice): answer for (name, choice), answer in alone.items() for suffix in ("", "-again")}
    facts = read_model_facts(path)
    memory = sequence_blocks(kv_groups(facts), 4, LONGEST, chunk=12) * 5 // 4 * block_bytes(facts, kv_groups(facts)[0], 4, kind)
    run = serve(path, [REQUESTS], depth=2, block_size=4, kv_cache_memory_bytes=memory, max_num_batched_tokens=12, **common)
    assert run.preempted > 0 and run.answers == alone


@pytest.mark.parametrize(("name", "form"), FORMS)
@pytest.mark.parametrize("kind", ["f32", "bf16", "int8"])
def test_the_plan_has_the_memory_that_loading_takes(stored, opened, name: str, form: str, kind: str) -> None:
    """Of a token 40 numbers a layer are cached, however many heads read them. Of so small matrices rows that fill up blocks of 16 count."""
    facts, weights = opened(name, form)
    described = describe_model(str(stored(name, form)), ModelStores(Path()))
    planned = deployment_of(described, PlanOptions("epyc-9654", kv_dtype=kind, context=160))
    assert planned.memory.weights == pytest.approx(sum(weight.nbytes for weight in weights.values()), rel=0.02)
    shape = KVShape(kv_groups(facts), planned.block_tokens, 10, b"")
    assert allocate_native_kv(shape, facts.cached, kind).pool.nbytes == 11 * block_bytes(facts, shape.groups[0], planned.block_tokens, kind)
    assert planned.memory.kv_sequence == 10 * block_bytes(facts, shape.groups[0], planned.block_tokens, kind)
    each = {"f32": 160, "bf16": 80, "int8": 44}[kind]
    assert block_bytes(facts, shape.groups[0], 16, kind) == facts.layers * 16 * each
