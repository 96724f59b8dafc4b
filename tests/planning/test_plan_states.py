"""Hybrids of attention and recurrences, planned from a config.json alone; expert parallel layouts."""

import json
from pathlib import Path

import pytest

from ridgeline.config.env import ModelStores
from ridgeline.errors import ConfigError, ModelFormatError
from ridgeline.facts.headers.config_json import parse_config
from ridgeline.facts.headers.read import describe_model
from ridgeline.facts.model import ModelFacts, StateLayers
from ridgeline.planning import speed
from ridgeline.planning.arguments import PlanOptions, deployment_of
from ridgeline.planning.deployment import Deployment, Layout
from ridgeline.planning.formats import class_bytes
from ridgeline.planning.objectives import Objective
from ridgeline.planning.report import make_report
from ridgeline.planning.step import STATE_FLOPS, RowGroup, link_seconds, step_work
from ridgeline.sim.fleet.scenario import Knobs, Scenario

NOWHERE = Path("/nonexistent")
SMALL = {
    "num_hidden_layers": 3, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 96,
    "vocab_size": 100, "max_position_embeddings": 128,
}  # fmt: skip
NEMOTRON = {"model_type": "nemotron_h", "head_dim": 16, "mamba_num_heads": 8, "mamba_head_dim": 16, "n_groups": 2}
DELTA = {"model_type": "qwen3_next", "head_dim": 32, "linear_num_value_heads": 8, "linear_num_key_heads": 4}
GRANITE = {"model_type": "granitemoehybrid", "layer_types": ["mamba", "mamba", "attention"], "mamba_n_heads": 8}
FALCON = {"model_type": "falcon_h1", "mamba_d_ssm": 96, "mamba_n_heads": 6}


def facts(**values: object) -> ModelFacts:
    return parse_config(json.dumps({**SMALL, **values}), "small").facts


def shape(**values: object) -> ModelFacts:
    return facts(**values)


def planned(model: str, device: str = "h100", **asked: object) -> Deployment:
    return deployment_of(describe_model(model, ModelStores(NOWHERE)), PlanOptions(device, **asked))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("values", "parameters", "attending", "state"),
    [
        ({"model_type": "jamba", "num_hidden_layers": 8, "num_experts": 4}, 624_572, 1, StateLayers(7, 2048, 384)),
        (
            {"model_type": "jamba", "num_hidden_layers": 8, "num_experts": 1, "mamba_dt_rank": 7, "mamba_proj_bias": True},
            410_001, 1, StateLayers(7, 2048, 384),
        ),
        (
            {**NEMOTRON, "num_hidden_layers": None, "hybrid_override_pattern": "M-M*", "ssm_state_size": 32},
            107_120, 1, StateLayers(2, 4096, 768),
        ),
        (
            {
                **NEMOTRON, "num_hidden_layers": 6, "hybrid_override_pattern": "MEM*E-", "n_routed_experts": 4, "moe_intermediate_size": 48,
                "moe_shared_expert_intermediate_size": 40, "n_shared_experts": 1, "num_experts_per_tok": 2,
            },
            220_144, 1, StateLayers(2, 16_384, 1920),
        ),
        (
            {**DELTA, "num_hidden_layers": 8, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 48},
            3_089_440, 2, StateLayers(6, 131_072, 6144, 4, 128, 8, 128, 4),
        ),
        ({**FALCON, "mamba_rms_norm": True}, 269_622, 3, StateLayers(3, 24_576, 1824)),
        ({**FALCON, "mamba_d_state": 64}, 189_846, 3, StateLayers(3, 6144, 672)),
        ({**GRANITE, "num_local_experts": 4}, 959_728, 1, StateLayers(2, 32_768, 1920)),
        ({**GRANITE, "num_local_experts": 0, "shared_intermediate_size": 80}, 194_032, 1, StateLayers(2, 32_768, 1920)),
    ],
)  # fmt: skip
def test_small_hybrids(values: dict[str, object], parameters: int, attending: int, state: StateLayers) -> None:
    """Parameters as counted once by building each with transformers 5 on its meta device; states are those of its caches, less the
    input of the convolution that the next token brings itself."""
    found = shape(**values)
    assert (found.total_parameters, found.kv_layers, found.state) == (parameters, attending, state)


@pytest.mark.parametrize(
    ("name", "parameters", "active", "megabytes"),
    [
        ("jamba-v0.1", 51_570_323_328, 12.1e9, 17.4),
        ("qwen3-next-80b-a3b", 79_674_391_296, 3.9e9, 79.0),
        ("nemotron-h-8b", 8_100_852_736, 8.1e9, 103.6),
        ("falcon-h1-7b", 7_585_519_712, 7.6e9, 140.3),
        ("granite-4.0-h-small", 32_207_337_984, 8.8e9, 154.6),
    ],
)
def test_known_hybrids(name: str, parameters: int, active: float, megabytes: float) -> None:
    """Totals are those that the models' publishers name: 52, 80, 8, 7.6 and 32 B."""
    found = describe_model(name, ModelStores(NOWHERE))
    assert found.total_parameters == parameters
    assert found.active_parameters == pytest.approx(active, rel=0.02)
    assert found.state_bytes / 1e6 == pytest.approx(megabytes, abs=0.06)


@pytest.mark.parametrize(
    ("values", "cause"),
    [
        ({**NEMOTRON, "num_hidden_layers": 2, "hybrid_override_pattern": "MX"}, "kind X"),
        ({**GRANITE, "num_hidden_layers": 4}, "does not name the 4"),
        ({**GRANITE, "layer_types": {"a": 1, "b": 2, "c": 3}}, "does not name"),
        ({**GRANITE, "mamba_n_heads": None}, "mamba_n_heads is missing"),
        ({"model_type": "jamba", "attn_layer_period": 4, "attn_layer_offset": 4}, "outside 0 … 3"),
        ({"model_type": "jamba", "mamba_dt_rank": "x"}, "an integer was expected"),
        ({**DELTA, "full_attention_interval": 0}, "outside 1"),
        ({**DELTA, "num_hidden_layers": 8, "linear_num_key_heads": 3}, "8 value heads .* are not a multiple of 3 key heads"),
    ],
)
def test_bad_hybrids_are_refused(values: dict[str, object], cause: str) -> None:
    with pytest.raises(ModelFormatError, match=cause):
        shape(**values)


def test_states_take_memory_beside_pages() -> None:
    """52 GB of Jamba in 8 bits on an H100: four layers of keys and values, and 17 MB per sequence whatever its length."""
    deployment = planned("jamba-v0.1", dtype="fp8", context=65_536)
    memory = deployment.memory
    assert (memory.kv_token, memory.state) == (4 * 2 * 8 * 128 * 2, 28 * 4 * 8192 * (16 + 3))
    assert memory.kv_sequence == 65_536 * memory.kv_token
    assert memory.max_sequences == memory.kv_budget // (memory.kv_sequence + memory.state)
    most = planned("jamba-v0.1", dtype="fp8", context=65_536, users=memory.max_sequences)
    assert most.memory.fits and most.memory.max_context >= 65_536
    assert not planned("jamba-v0.1", dtype="fp8", context=65_536, users=memory.max_sequences + 1).memory.fits
    dense = planned("llama-3-8b").memory
    assert (dense.state, memory.kv_token / dense.kv_token) == (0, 0.125)


def test_states_are_read_and_written_every_step() -> None:
    deployment = planned("nemotron-h-8b")
    short, long = (step_work(deployment, [RowGroup(start, 1, 8)]) for start in (100, 8000))
    state = deployment.model.state
    assert state is not None
    assert short.state_bytes == long.state_bytes == 2 * 8 * state.bytes
    assert short.state_flops == 8 * STATE_FLOPS * state.layers * state.recurrent
    assert short.moved_bytes - short.kv_bytes == long.moved_bytes - long.kv_bytes
    shared = planned("nemotron-h-8b", count=4, tensor=4)
    assert shared.memory.max_sequences > 4 * deployment.memory.max_sequences


def test_a_model_of_states_alone() -> None:
    """No keys and values at all: the context costs nothing, and there are no blocks to simulate."""
    values = {"model_type": "granitemoehybrid", "mamba_n_heads": 8, "num_local_experts": 0}
    deployment = deployment_of(facts(**values), PlanOptions("l4", users=100))
    assert (deployment.memory.kv_token, deployment.memory.kv_sequence, deployment.memory.max_context) == (0, 0, 128)
    assert deployment.memory.fits and make_report(deployment, Objective(), True, None).recommended_batch == 100
    with pytest.raises(ConfigError, match="no blocks to schedule"):
        Scenario(deployment, Knobs(), (), 1).replica_config()


def test_the_simulator_keeps_states_for_all_rows() -> None:
    deployment = planned("nemotron-h-8b", context=4096)
    few, many = (Scenario(deployment, Knobs(max_num_seqs=rows), (), 1).replica_config().kv.blocks for rows in (16, 116))
    block_bytes = 16 * 2 * 8 * 128 * 2 * len(Scenario(deployment, Knobs(), (), 1).replica_config().kv.groups[0].layers)
    assert few - many == pytest.approx(100 * deployment.model.state_bytes / block_bytes, abs=1)


def test_experts_over_devices() -> None:
    """Two layouts of eight: all matrices cut by eight, or experts by eight and attention copied."""
    tensor = planned("mixtral-8x7b", count=8, tensor=8, context=8192)
    expert = planned("mixtral-8x7b", count=8, expert=8, context=8192)
    assert expert.layout == Layout(1, 1, 8, 1)
    copied = sum(class_bytes(expert.model, None).values()) - class_bytes(expert.model, None)["experts"]
    assert expert.memory.weights - tensor.memory.weights == pytest.approx(7 * copied, abs=8)
    assert link_seconds(expert, 64) < link_seconds(tensor, 64)
    assert speed.decode_itl(expert, 64) < speed.decode_itl(planned("mixtral-8x7b", "h100", dtype="fp8"), 64)
    names = {flag.name: flag.value for flag in make_report(expert, Objective(), False, None).flags}
    assert (names["--enable-expert-parallel"], names["--data-parallel-size"]) == ("true", "8")


@pytest.mark.parametrize(
    ("model", "asked", "cause"),
    [
        ("llama-3-8b", {"count": 2, "expert": 2}, "no experts; take one of 1"),
        ("mixtral-8x7b", {"count": 3, "expert": 3}, "8 routed experts; take one of 1, 2, 4, 8"),
        ("mixtral-8x7b", {"count": 4, "expert": 8}, "set --count 8"),
        ("mixtral-8x7b", {"count": 4, "expert": 0}, "expert-parallel-size is 0, outside 1"),
        ("mixtral-8x7b", {"count": 4, "tensor": 0}, "tensor-parallel-size is 0, outside 1"),
        ("mixtral-8x7b", {"users": 0}, "users is 0, outside 1"),
    ],
)
def test_expert_layouts_that_cannot_be(model: str, asked: dict[str, int], cause: str) -> None:
    with pytest.raises(ConfigError, match=cause):
        planned(model, **asked)
