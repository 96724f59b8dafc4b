"""Planned bytes are allocated bytes: the planner's blocks against the runner's arrays."""

from pathlib import Path

from ridgeline.compute.exact.cache import allocate_kv
from ridgeline.config.env import ModelStores
from ridgeline.core.plan import KVShape
from ridgeline.facts.headers.read import describe_model, read_model_facts
from ridgeline.planning.arguments import PlanOptions, deployment_of
from ridgeline.planning.memory import block_bytes, kv_groups, sequence_blocks


def test_kv_of_a_planned_sequence_is_what_the_runner_allocates(demo_file: Path) -> None:
    facts = read_model_facts(demo_file)
    facts = describe_model(str(demo_file), ModelStores(demo_file.parent))
    planned = deployment_of(facts, PlanOptions("epyc-9654", kv_dtype="f32", context=3000))
    groups = kv_groups(facts)
    blocks = sequence_blocks(groups, planned.block_tokens, planned.context, planned.chunk)
    pool = allocate_kv(KVShape(groups, planned.block_tokens, blocks, b""), facts.cached).pool
    reserved = block_bytes(facts, groups[0], planned.block_tokens, "f32")
    assert pool.nbytes - reserved == planned.memory.kv_sequence
