"""Gemma 3 against transformers and against a plain model of it: the same weights, every position."""

import dataclasses

import numpy as np
import pytest
from tiny import Driver, Tiny, log_softmax, open_tiny, plain_logits, tiny_weights

from ridgeline.facts.model import Rope

PROMPTS = [np.random.default_rng(seed).integers(0, 300, length).tolist() for seed, length in [(1, 40), (2, 1), (3, 5), (4, 23)]]

TRANSFORMERS_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "post_ffw_norm": "post_feedforward_layernorm",
}


def transformers_logits(size: Tiny, prompts: list[list[int]]) -> list[np.ndarray]:
    """Logits of transformers' Gemma 3 with the tiny model's weights, in fp32."""
    import torch
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    config = Gemma3TextConfig(
        vocab_size=size.vocab,
        hidden_size=size.hidden,
        intermediate_size=size.ffn,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.kv_heads,
        head_dim=size.head_dim,
        query_pre_attn_scalar=size.head_dim,
        sliding_window=size.window,
        max_position_embeddings=size.context,
        rms_norm_eps=size.eps,
        rope_parameters={
            "full_attention": {"rope_type": "default", "rope_theta": 1_000_000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
        },
        layer_types=["full_attention" if (i + 1) % 6 == 0 else "sliding_attention" for i in range(size.layers)],
        attn_implementation="eager",
    )
    model = Gemma3ForCausalLM(config).eval()
    state = {}
    for name, values in tiny_weights(size).items():
        parts = name.removesuffix(".weight").split(".")
        plain = values - 1 if parts[-1].endswith("norm") else values
        if parts[0] == "blk":
            target = f"model.layers.{parts[1]}.{TRANSFORMERS_NAMES[parts[2]]}.weight"
        else:
            target = {"token_embd": "model.embed_tokens.weight", "output_norm": "model.norm.weight"}[parts[0]]
        state[target] = torch.from_numpy(plain)
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}
    model.tie_weights()
    with torch.no_grad():
        return [model(torch.tensor([ids])).logits[0].numpy() for ids in prompts]


def greatest_difference(ours: np.ndarray, theirs: np.ndarray) -> float:
    return float(np.abs(log_softmax(ours) - log_softmax(theirs)).max())


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory):
    return open_tiny(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


@pytest.fixture(scope="module")
def expected() -> list[np.ndarray]:
    return transformers_logits(Tiny(), PROMPTS)


def test_equals_transformers(model, expected) -> None:
    facts, weights = model
    assert facts.layer_kinds == ("window",) * 5 + ("full", "window") and facts.window == 4 and facts.tied
    driver = Driver(facts, weights)
    for number, (ids, theirs) in enumerate(zip(PROMPTS, expected, strict=True)):
        ours = driver.step((number, ids))
        assert greatest_difference(ours, theirs) < 1e-4
        best = np.sort(theirs, axis=1)
        clear = best[:, -1] - best[:, -2] > 1e-3
        assert (ours.argmax(1) == theirs.argmax(1))[clear].all() and clear.mean() > 0.9


def test_the_plain_model_equals_transformers(model, expected) -> None:
    for ids, theirs in zip(PROMPTS, expected, strict=True):
        assert greatest_difference(plain_logits(*model, ids), theirs) < 1e-4


@pytest.mark.parametrize(
    "change",
    [
        {"window": 3},
        {"window": 5},
        {"rope": {"full": Rope(1e6, 16), "window": Rope(1e6, 16)}},
        {"rope": {"full": Rope(1e4, 16), "window": Rope(1e4, 16)}},
        {"eps": 1e-3},
        {"layer_kinds": ("window",) * 6 + ("full",)},
    ],
    ids=str,
)
def test_each_trap_shows(model, expected, change) -> None:
    facts, weights = model
    ours = Driver(dataclasses.replace(facts, **change), weights).step((0, PROMPTS[0]))
    assert greatest_difference(ours, expected[0]) > 1e-3


def test_a_mixed_step_equals_the_plain_model(model) -> None:
    """Recorded once, run at T = 64, R = 16: rows of different lengths, some continued."""
    facts, weights = model
    driver = Driver(facts, weights, block_tokens=4)
    random = np.random.default_rng(7)
    counts = [1, 9, 2, 7, 1, 1, 4, 8, 3, 1, 6, 5, 1, 10, 2, 3]
    begun = [random.integers(0, 300, count).tolist() for count in random.integers(1, 30, 16)]
    driver.step(*enumerate(begun))
    more = [random.integers(0, 300, count).tolist() for count in counts]
    inputs = driver.inputs(list(enumerate(more)))
    assert (inputs.sizes.T, inputs.sizes.R) == (64, 16)
    ours = driver.runner.run(inputs, driver.kv)["logits"]
    theirs = np.concatenate([plain_logits(facts, weights, a + b)[len(a) :] for a, b in zip(begun, more, strict=True)])
    assert greatest_difference(ours, theirs) < 1e-4
