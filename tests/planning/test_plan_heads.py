"""Heads that draft, planned and simulated: their memory, the seconds of a draft, and how deep they draft."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from ridgeline.cli.scenarios import describe_scenario, make_scenario
from ridgeline.config.env import ModelStores
from ridgeline.errors import ConfigError
from ridgeline.facts.headers.read import describe_model
from ridgeline.planning.arguments import PlanOptions, deployment_of
from ridgeline.planning.deployment import Deployment, drafting
from ridgeline.planning.heads import HEAD_KINDS, MEDUSA_HEADS
from ridgeline.planning.levers import levers
from ridgeline.planning.memory import DRAFT_SHARE
from ridgeline.planning.objectives import Objective
from ridgeline.planning.step import RowGroup, pass_seconds, step_work
from ridgeline.sim.fleet.drafts import draft_prices
from ridgeline.sim.fleet.measures import SimulationReport

HIDDEN, VOCAB = 4096, 128_256
LAYER = 2 * HIDDEN * HIDDEN + 2 * 1024 * HIDDEN + 3 * HIDDEN * 14_336
CACHE = 4096 * 2 * 1024 * 2
"""Bytes of K and V of a layer, of the 4,096 positions that a plan has."""
EXPECTED = {
    "medusa": MEDUSA_HEADS * 2 * (HIDDEN * HIDDEN + VOCAB * HIDDEN) + 4 * HIDDEN,
    "eagle": 2 * (LAYER + 2 * HIDDEN * HIDDEN) + CACHE + 4 * 128 * HIDDEN,
    "eagle3": 2 * (LAYER + 3 * HIDDEN * HIDDEN + (4096 + 2048) * HIDDEN + 32_000 * HIDDEN) + CACHE + 3 * 4 * 128 * HIDDEN,
    "mtp": 2 * (LAYER + 2 * HIDDEN * HIDDEN) + CACHE + 4 * 128 * HIDDEN,
}  # fmt: skip
"""Of Llama 3 8B in bf16: weights of their own, the cache and the hidden states of one sequence."""


def deployed(model: str, device: str = "a100", count: int = 1, draft: str | None = None, **asked: object) -> Deployment:
    facts = describe_model(model, ModelStores(Path("/nonexistent")))
    return deployment_of(facts, PlanOptions(device, count, **asked), draft)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", HEAD_KINDS)
def test_heads_take_memory_and_a_pass_costs_what_it_reads(kind: str) -> None:
    plain = deployed("llama-3-8b", "epyc-9654", kv_dtype="bf16")
    drafted = deployed("llama-3-8b", "epyc-9654", kv_dtype="bf16", draft=kind)
    assert drafted.memory.draft == pytest.approx(EXPECTED[kind], rel=1e-6)
    assert plain.memory.kv_budget - drafted.memory.kv_budget == drafted.memory.draft
    prices, alone = draft_prices(drafted), drafting(drafted)
    assert prices is not None and alone is not None
    one = prices.pass_seconds(1)
    assert one == pytest.approx(pass_seconds(alone, step_work(alone, [RowGroup(0, 1)])))
    assert 0 < one < 0.2 * pass_seconds(plain, step_work(plain, [RowGroup(0, 1)]))
    assert prices.pass_seconds(64) > one


def test_a_cache_is_for_all_users_within_its_share() -> None:
    one, some, many = (deployed("llama-3-8b", "h100", draft="eagle", users=users).memory.draft for users in (1, 5, 4000))
    each = CACHE + 2 * 128 * HIDDEN  # a GPU keeps hidden states in 16 bits
    assert some - one == 4 * each
    assert many - one == pytest.approx(DRAFT_SHARE * deployed("llama-3-8b", "h100").device.memory_bytes - CACHE + 3999 * 2 * 128 * HIDDEN)


def test_experts_of_a_predictor_are_those_of_a_layer() -> None:
    model = deployed("deepseek-v3", "h200", 16, draft="mtp")
    assert model.draft is not None and not isinstance(model.draft, str)
    heads = model.draft.one.parameters  # type: ignore[union-attr]
    assert heads["experts"] == 256 * 3 * 2048 * 7168 and heads["attention"] > 2 * 7168 * 7168


def test_no_more_than_its_heads_are_drafted() -> None:
    """At an acceptance that would pay for more."""

    def note(draft: str) -> str:
        asked = deployed("llama-3-8b", "h100", acceptance=0.99, draft=draft)
        return next(each.note for each in levers(asked, Objective()) if each.name == "speculation")

    assert f"({MEDUSA_HEADS} drafts)" in note("medusa") and "(8 drafts)" in note("mtp")
    assert float(re.findall(r"× (\d\.\d\d)", note("mtp"))[0]) > 3


SIM = {"requests": "30", "rate": "2", "prompt": "300", "output": "60", "num_speculative_tokens": "6", "acceptance": "0.8"}


def simulated(**settings: str) -> SimulationReport:
    return make_scenario("llama-3-8b", SIM | settings, None).run(1)


def test_drafts_that_cost_more_bring_less() -> None:
    free, heads, small, large = (
        simulated(**({"draft_model": name} if name else {})).itl.mean for name in ("", "eagle", "llama-3.2-1b", "llama-3-8b")
    )
    plain = simulated(num_speculative_tokens="0").itl.mean
    assert free < heads < small < plain
    assert large > 0.9 * plain, "a draft that costs as much as a token is not worth it"


def test_a_replica_has_what_the_plan_says() -> None:
    """Room for all rows, fewer blocks, and as many drafts as there are heads."""
    plain, heads = (make_scenario("llama-3-8b", SIM | extra, None) for extra in ({}, {"draft_model": "medusa"}))
    ours, theirs = plain.replica_config(), heads.replica_config()
    assert theirs.drafts == MEDUSA_HEADS < ours.drafts
    room = replace(heads.deployment, users=heads.knobs.max_num_seqs).memory.draft
    block = theirs.kv.block_bytes
    assert 0 <= (ours.kv.blocks - theirs.kv.blocks) * block - room < heads.knobs.max_num_seqs * VOCAB * 4 + 2 * block
    assert any("medusa heads of " in line for line in describe_scenario(heads, SIM, None))
    with pytest.raises(ConfigError, match="num_speculative_tokens"):
        simulated(draft_model="eagle", num_speculative_tokens="0")
