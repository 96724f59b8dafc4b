"""What a family does differently shows: without each of its features the log-probabilities are wrong."""

import dataclasses
from collections.abc import Callable, Mapping

import numpy as np
import pytest
from checkpoints import HEAD_DIM, WINDOW
from convert import permute
from tiny import Driver, dense, log_softmax

from ridgeline.compute.quant.weight import DenseWeight, Weight
from ridgeline.facts.headers.read import read_model_facts
from ridgeline.facts.headers.rope import select_rope
from ridgeline.facts.model import ModelFacts, Rope

Weights = Mapping[str, Weight]
Change = Callable[[ModelFacts, Weights], tuple[ModelFacts, Weights]]


def says(**numbers: object) -> Change:
    """The header says something else."""
    return lambda facts, weights: (dataclasses.replace(facts, **numbers), weights)  # type: ignore[arg-type]


def turns(change: Callable[[Rope], Rope], *kinds: str) -> Change:
    """The rotation of layers of these kinds, or of all, is another."""

    def apply(facts: ModelFacts, weights: Weights) -> tuple[ModelFacts, Weights]:
        ropes = {kind: change(rope) if not kinds or kind in kinds else rope for kind, rope in facts.rope.items()}
        return dataclasses.replace(facts, rope=ropes), weights

    return apply


def holds(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Change:
    """Weights whose names end so are others, as after a wrong reading of the file."""

    def apply(facts: ModelFacts, weights: Weights) -> tuple[ModelFacts, Weights]:
        wrong = {key: DenseWeight(np.ascontiguousarray(change(w.dense()))) for key, w in weights.items() if key.endswith(name)}
        assert wrong
        return facts, {**weights, **wrong}

    return apply


def routes(**said: object) -> Change:
    """The header says something else of experts."""
    return lambda facts, weights: (dataclasses.replace(facts, experts=dataclasses.replace(facts.experts, **said)), weights)  # type: ignore[type-var, arg-type]


def lacks(name: str) -> Change:
    """Tensors whose names end so are not there."""

    def apply(facts: ModelFacts, weights: Weights) -> tuple[ModelFacts, Weights]:
        kept = {key: tensor for key, tensor in facts.tensors.items() if not key.endswith(name)}
        assert len(kept) < len(facts.tensors)
        return dataclasses.replace(facts, tensors=kept), weights

    return apply


def swapped(a: str, b: str) -> Change:
    """Two weights of each layer stand for one another, as after a cut at the wrong place."""

    def apply(facts: ModelFacts, weights: Weights) -> tuple[ModelFacts, Weights]:
        return facts, {key: weights[key.replace(a, b) if a in key else key.replace(b, a)] for key in weights}

    return apply


def pairs(heads: int) -> Callable[[np.ndarray], np.ndarray]:
    """Rows as GGUF Llama files have them."""
    return lambda rows: permute(rows, heads)


def unscaled(rope: Rope) -> Rope:
    return Rope(rope.base, rope.dim)


def ones(values: np.ndarray) -> np.ndarray:
    return np.ones_like(values)


def zeros(values: np.ndarray) -> np.ndarray:
    return np.zeros_like(values)


def less_one(values: np.ndarray) -> np.ndarray:
    return values - 1


def together(rows: np.ndarray) -> np.ndarray:
    """Rows of a matrix with queries, keys, values and gates of each key head in turn, as if they had no heads."""
    parts = np.split(rows.reshape(2, 32 + 32 + 64 + 64, -1), [32, 64, 128], axis=1)
    return np.concatenate([part.reshape(-1, rows.shape[1]) for part in parts])


ALTERNATE = ("full", "window") * 2
LAYER_BIASES = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")

TRAPS: dict[str, dict[str, Change]] = {
    "llama2": {
        "eps": says(eps=1e-3),
        "base": turns(lambda rope: Rope(5e3, rope.dim)),
        "queries in pairs": holds("attn_q.weight", pairs(4)),
        "keys in pairs": holds("attn_k.weight", pairs(4)),
        "both in pairs": lambda facts, weights: holds("attn_q.weight", pairs(4))(*holds("attn_k.weight", pairs(4))(facts, weights)),
        "scale of scores": says(attn_scale=1.0),
    },
    "gpt_oss": {
        "no sinks": holds("attn_sinks.weight", lambda sinks: sinks - 1e9),
        "gate and up": swapped("ffn_gate_exps", "ffn_up_exps"),
        "no biases of experts": holds("exps.bias", zeros),
        "no bias of the router": holds("ffn_gate_inp.bias", zeros),
        "windows elsewhere": says(layer_kinds=ALTERNATE),
        "unscaled": turns(unscaled),
        "softmax over all": lambda facts, weights: (
            dataclasses.replace(facts, experts=dataclasses.replace(facts.experts, scores="softmax")),
            weights,  # type: ignore[type-var]
        ),
    },
    "llama3": {
        "unscaled": turns(unscaled),
        "all divided alike": turns(lambda rope: Rope(rope.base, rope.dim, (8.0,) * (rope.dim // 2))),
        "keys in pairs": holds("attn_k.weight", pairs(2)),
    },
    "llama-biases": {"unscaled": turns(unscaled), **{f"no bias of {name}": lacks(f"{name}.bias") for name in LAYER_BIASES}},
    "mistral": {
        "no window": says(layer_kinds=("full",) * 3),
        "less window": says(window=WINDOW - 1),
        "more window": says(window=WINDOW + 1),
    },
    "qwen2": {
        "unscaled": turns(unscaled),
        "no attention factor": turns(lambda rope: dataclasses.replace(rope, scale=1.0)),
        "no divisors": turns(lambda rope: dataclasses.replace(rope, divisors=())),
        **{f"no bias of {name}": holds(f"{name}.bias", zeros) for name in LAYER_BIASES[:3]},
    },
    "qwen2-window": {"all full": says(layer_kinds=("full",) * 3), "all windows": says(layer_kinds=("window",) * 3)},
    "qwen3": {"plain queries": holds("attn_q_norm.weight", ones), "plain keys": holds("attn_k_norm.weight", ones), "eps": says(eps=1e-2)},
    "qwen3-biases": {f"no bias of {name}": lacks(f"{name}.bias") for name in LAYER_BIASES[:4]},
    "qwen3moe": {
        "weights as they are": routes(normalise=False),
        "one expert fewer": routes(active=2),
        "gate for up": swapped("ffn_gate_exps", "ffn_up_exps"),
        "plain keys": holds("attn_k_norm.weight", ones),
        "an expert further": holds("ffn_down_exps.weight", lambda experts: np.roll(experts, 1, axis=0)),
        "a router's row further": holds("ffn_gate_inp.weight", lambda rows: np.roll(rows, 1, axis=0)),
    },
    "qwen3moe-some": {"weights add up": routes(normalise=True), "no bias of attn_q": lacks("attn_q.bias")},
    "qwen2moe": {
        "weights add up": routes(normalise=True),
        "no shared expert": lacks("ffn_gate_shexp.weight"),
        "no gate of it": lacks("ffn_gate_inp_shexp.weight"),
        "no bias of attn_k": holds("attn_k.bias", zeros),
    },
    "qwen3next": {
        "weights as they are": routes(normalise=False),
        "no shared expert": lacks("ffn_gate_shexp.weight"),
        "no gate of it": lacks("ffn_gate_inp_shexp.weight"),
        "whole heads turn": turns(lambda rope: Rope(rope.base, HEAD_DIM)),
        "gates for queries": holds("attn_q.weight", lambda rows: rows.reshape(4, 2, HEAD_DIM, -1)[:, ::-1].reshape(rows.shape)),
        "parts of all heads together": holds("ssm_in.weight", together),
        **{
            f"{name} less one": holds(f"{name}.weight", less_one)
            for name in ("attn_norm", "post_attention_norm", "attn_k_norm", "output_norm")
        },
        "one more of the recurrence": holds("ssm_norm.weight", lambda values: values + 1),
        "nothing forgotten": holds("ssm_a.weight", zeros),
        "logarithms": holds("ssm_a.weight", lambda values: np.log(-values)),
        "no bias of steps": holds("ssm_dt.bias", zeros),
        "taps turned": holds("ssm_conv1d.weight", lambda taps: taps[:, ::-1]),
        "alpha for beta": holds("ssm_ba.weight", lambda rows: rows.reshape(2, 2, 2, -1)[:, ::-1].reshape(rows.shape)),
        "other value heads": holds("ssm_out.weight", lambda rows: rows.reshape(-1, 2, 2, 32).swapaxes(1, 2).reshape(rows.shape)),
    },
    "qwen3next-others": {"weights add up": routes(normalise=True), "no bias of attn_q": lacks("attn_q.bias")},
    "mixtral": {"weights as they are": routes(normalise=False), "gate for up": swapped("ffn_gate_exps", "ffn_up_exps")},
    "mixtral-window": {"no window": says(layer_kinds=("full",) * 3)},
    "olmoe": {"weights add up": routes(normalise=True), "plain queries": holds("attn_q_norm.weight", ones)},
    "granitemoe": {
        "weights as they are": routes(scores="softmax"),
        "gate for up": swapped("ffn_gate_exps", "ffn_up_exps"),
        **{f"no factor of {name}": says(**{f"{name}_scale": 1.0}) for name in ("embedding", "residual", "logit")},
        "scale of scores": says(attn_scale=HEAD_DIM**-0.5),
    },
    "glm4moe": {
        "softmax": routes(scores="softmax"),
        "weights as they are": routes(normalise=False),
        "no factor": routes(scale=1.0),
        "no groups": routes(groups=1, groups_kept=1),
        "the best of a group": routes(group_score="max"),
        "a bias of logits": routes(bias_selects=False),
        "no bias of the choice": holds("exp_probs_b.bias", zeros),
        "no shared experts": lacks("ffn_gate_shexp.weight"),
        "whole heads turn": turns(lambda rope: Rope(rope.base, HEAD_DIM)),
        "no norms of heads": lacks("attn_q_norm.weight"),
    },
    "deepseek2": {
        "unscaled": turns(unscaled),
        "scale of scores": says(attn_scale=40**-0.5),
        "no groups": routes(groups=1, groups_kept=1),
        "no factor": routes(scale=1.0),
        "weights add up": routes(normalise=True),
        "the two best of a group": routes(group_score="top2"),
        "no shared experts": lacks("ffn_gate_shexp.weight"),
        "plain latent": holds("attn_kv_a_norm.weight", ones),
        "a head further": holds("attn_v_b.weight", lambda heads: np.roll(heads, 1, axis=0)),
        "latents in pairs": holds("attn_kv_a_mqa.weight", lambda rows: np.concatenate([rows[:32], permute(rows[32:], 1)])),
    },
    "deepseek2-greedy": {
        "groups": routes(groups=4, groups_kept=2),
        "scale of rotations": turns(lambda rope: dataclasses.replace(rope, scale=1.0)),
        "scale of scores": says(attn_scale=40**-0.5),
        "plain queries": holds("attn_q_a_norm.weight", ones),
    },
    "deepseek3": {
        "softmax": routes(scores="softmax"),
        "weights as they are": routes(normalise=False),
        "the best of a group": routes(group_score="max"),
        "no bias of the choice": holds("exp_probs_b.bias", zeros),
        "eps": says(eps=1e-3),
        "a head further": holds("attn_k_b.weight", lambda heads: np.roll(heads, 1, axis=0)),
    },
    "dots1": {"no bias of the choice": holds("exp_probs_b.bias", zeros), "plain keys": holds("attn_k_norm.weight", ones)},
    "ernie": {
        "halves turn": holds("attn_q.weight", pairs(4)),
        "no bias of the choice": holds("exp_probs_b.bias", zeros),
        "weights as they are": routes(normalise=False),
        "no shared experts": lacks("ffn_gate_shexp.weight"),
    },
    "gemma2": {
        "uncapped scores": says(attn_softcap=0.0),
        "uncapped logits": says(final_softcap=0.0),
        "other layers have the window": says(layer_kinds=ALTERNATE),
        "more window": says(window=WINDOW + 1),
        "scale of the embedding": says(hidden=65),
        **{
            f"{name} less one": holds(f"{name}.weight", less_one)
            for name in ("attn_norm", "post_attention_norm", "ffn_norm", "output_norm")
        },
        "post_ffw_norm less one": holds("post_ffw_norm.weight", less_one),
    },
    "gemma2-scale": {"scale by the head": says(attn_scale=HEAD_DIM**-0.5)},
    "gemma3": {
        "unscaled": turns(unscaled, "full"),
        "windows scaled too": turns(lambda rope: Rope(rope.base, rope.dim, (8.0,) * 8), "window"),
        "one base": turns(lambda rope: Rope(1e6, rope.dim), "window"),
        "heads less one": holds("attn_k_norm.weight", less_one),
    },
    "phi3-short": {
        "unscaled": turns(unscaled),
        "no attention factor": turns(lambda rope: dataclasses.replace(rope, scale=1.0)),
        "whole heads turn": turns(lambda rope: Rope(rope.base, HEAD_DIM, (*rope.divisors, 1.0, 1.0), rope.scale)),
        "no window": says(layer_kinds=("full",) * 3),
        "gate for up": swapped("ffn_gate", "ffn_up"),
        "key for value": swapped("attn_k", "attn_v"),
    },
    "gpt2": {
        "eps": says(eps=1e-2),
        "a position further": holds("position_embd.weight", lambda rows: np.roll(rows, -1, axis=0)),
        "key for value": swapped("attn_k", "attn_v"),
        "turned output": holds("attn_output.weight", np.transpose),
        # Not attn_k's: where nothing turns it moves all scores of a query alike.
        **{
            f"no bias of {name}": holds(f"{name}.bias", zeros)
            for name in ("attn_norm", "attn_q", "attn_v", "attn_output", "ffn_norm", "ffn_up", "ffn_down", "output_norm")
        },
    },
    "starcoder2": {
        "eps": says(eps=1e-2),
        "no window": says(layer_kinds=("full",) * 3),
        "more window": says(window=WINDOW + 1),
        "base": turns(lambda rope: Rope(5e3, rope.dim)),
        **{f"no bias of {name}": lacks(f"{name}.bias") for name in (*LAYER_BIASES[:4], "ffn_up", "ffn_down")},
        **{f"no bias of {name}": holds(f"{name}.bias", zeros) for name in ("attn_norm", "ffn_norm", "output_norm")},
    },
}


@pytest.mark.parametrize(("name", "trap"), [(name, trap) for name, traps in TRAPS.items() for trap in traps])
def test_each_trap_shows(checkpoint, name: str, trap: str) -> None:
    made = checkpoint(name)
    facts = select_rope(read_model_facts(made.directory), made.recipe.reach)[0]
    right = dense(facts)
    ids = made.prompts()[0]
    theirs = log_softmax(made.logits(ids))

    def error(facts: ModelFacts, weights: Weights) -> float:
        return float(np.abs(log_softmax(Driver(facts, weights, blocks=64).step((0, ids))) - theirs).max())

    assert error(facts, right) < 1e-4
    assert error(*TRAPS[name][trap](facts, right)) > 1e-3


def test_long_and_short_rotations_differ(checkpoint) -> None:
    """Phi-3's choice is by max_model_len; the border is what the short factors were trained for."""
    made = checkpoint("phi3-long")
    facts = read_model_facts(made.directory)
    assert facts.long_rope is not None
    border = facts.long_rope[0]
    short, long = (select_rope(facts, length)[0] for length in (border, border + 1))
    ids = made.prompts()[0]
    assert len(ids) > border
    weights = dense(facts)
    a, b = (log_softmax(Driver(each, weights, blocks=64).step((0, ids))) for each in (short, long))
    assert np.abs(a - b).max() > 1e-3
    assert np.abs(b - log_softmax(made.logits(ids))).max() < 1e-4
    few = made.prompts()[0][:border]
    theirs = log_softmax(made.logits(few))
    assert np.abs(log_softmax(Driver(short, weights, blocks=64).step((0, few))) - theirs).max() < 1e-4


@pytest.mark.parametrize(
    ("name", "form", "view"),
    [("llama3", "F32", "interleaved"), ("gemma2", "safetensors", "plus_one"), ("qwen3next", "safetensors", "minus_exp")],
)
def test_files_need_their_views(checkpoint, stored, name: str, form: str, view: str) -> None:
    """The same files read without what undoes their order or their offset."""
    made = checkpoint(name)
    facts = read_model_facts(stored(name, form))
    views = {key: dataclasses.replace(tensor, transform="") for key, tensor in facts.tensors.items() if tensor.transform == view}
    assert views
    wrong = dataclasses.replace(facts, tensors={**facts.tensors, **views})
    ids = made.prompts()[0]
    right, found = (log_softmax(Driver(each, dense(each), blocks=64).step((0, ids))) for each in (facts, wrong))
    theirs = log_softmax(made.logits(ids))
    assert np.abs(right - theirs).max() < 1e-4 and np.abs(found - theirs).max() > 1e-3
