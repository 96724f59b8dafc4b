"""A tiny network with routed experts, recorded by hand: what Mixtral, Qwen 3 MoE and gpt-oss do in a layer, and its direct computation."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from tiny import Driver

from ridgeline.compute.exact.cache import allocate_kv
from ridgeline.compute.exact.runner import NumpyRunner
from ridgeline.compute.graph import OpList, Recorder, Weights
from ridgeline.compute.ops.definition import floats
from ridgeline.compute.ops.table import OPS
from ridgeline.facts.model import ModelFacts, Rope, TensorFacts

HIDDEN, HEADS, KV_HEADS, HEAD, EXPERTS, CHOICES, FFN, VOCAB = 64, 4, 2, 16, 6, 3, 32, 61
ROPE = Rope(100.0, HEAD)

ROUTING = (
    {"scores": "softmax", "normalise": True},
    {"scores": "softmax_chosen"},
    {"scores": "sigmoid", "groups": 3, "groups_kept": 2, "group_score": "top2", "bias_selects": True, "normalise": True, "scale": 2.5},
)
"""One layer each: the second and the third have a bias in the router, the second in its experts too."""


def _shapes() -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {"token_embd.weight": (VOCAB, HIDDEN), "output_norm.weight": (HIDDEN,)}
    for i, said in enumerate(ROUTING):
        layer = {"attn_norm": (HIDDEN,), "ffn_norm": (HIDDEN,), "attn_q": (HEADS * HEAD, HIDDEN), "attn_output": (HIDDEN, HEADS * HEAD)}
        layer |= dict.fromkeys(("attn_k", "attn_v"), (KV_HEADS * HEAD, HIDDEN))
        layer |= {"ffn_gate_inp": (EXPERTS, HIDDEN), **dict.fromkeys(("ffn_gate_exps", "ffn_up_exps"), (EXPERTS, FFN, HIDDEN))}
        found |= {f"blk.{i}.{name}.weight": shape for name, shape in (layer | {"ffn_down_exps": (EXPERTS, HIDDEN, FFN)}).items()}
        if said["scores"] != "softmax":
            found[f"blk.{i}.ffn_gate_inp.bias"] = (EXPERTS,)
        if said["scores"] == "softmax_chosen":
            biases = {"ffn_gate_exps": FFN, "ffn_up_exps": FFN, "ffn_down_exps": HIDDEN}
            found |= {f"blk.{i}.{name}.bias": (EXPERTS, width) for name, width in biases.items()}
    return found


SHAPES = _shapes()

ARRAYS = {name: floats(seed, *shape, size=0.3 if len(shape) > 1 else 1.0) for seed, (name, shape) in enumerate(SHAPES.items())}
"""The weights as fp32."""

FACTS = ModelFacts(
    architecture="routed", name="routed", layers=len(ROUTING), hidden=HIDDEN, heads=HEADS, kv_heads=KV_HEADS, head_dim=HEAD, ffn=FFN,
    vocab=VOCAB, tokens=VOCAB, context=512, eps=1e-6, layer_kinds=("full",) * len(ROUTING), window=0, rope={"full": ROPE}, tied=True,
    tensors={name: TensorFacts(name, "F32", shape, Path(), 0, 0) for name, shape in SHAPES.items()}, fingerprint=b"", attn_scale=HEAD**-0.5,
)  # fmt: skip


def routed_list() -> OpList:
    """The network's list."""
    g, w = Recorder(OPS), Weights(SHAPES)
    x = g.embed(g.input.ids, w["token_embd"])
    for i, said in enumerate(ROUTING):
        a = g.rms_norm(x, w[i, "attn_norm"], 1e-6)
        q, k = (g.rope(g.linear(a, w[i, f"attn_{part}"]), g.input.positions, ROPE, head_dim=HEAD) for part in "qk")
        g.kv_write(k, g.linear(a, w[i, "attn_v"]), layer=i)
        x = g.add(x, g.linear(g.attention(q, layer=i, head_dim=HEAD, scale=HEAD**-0.5), w[i, "attn_output"]))
        f = g.rms_norm(x, w[i, "ffn_norm"], 1e-6)
        names = ("ffn_gate_inp", "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps")
        router, gate, up, down = ([w[i, name], *([w[i, f"{name}.bias"]] if (i, f"{name}.bias") in w else [])] for name in names)
        experts, weights = g.route(f, *router, k=CHOICES, **said)
        h = g.glu(g.linear_experts(f, experts, *gate), g.linear_experts(f, experts, *up), "silu")
        x = g.add(x, g.combine(g.linear_experts(h, experts, *down), weights))
    x = g.rms_norm(x, w["output_norm"], 1e-6)
    g.tap("hidden", x)
    return g.finish("step", logits=g.linear(g.select(x), w["token_embd"]))


@dataclass
class RoutedDriver(Driver):
    """Steps a numpy runner of the network, or of a list made of it, by hand."""

    facts: ModelFacts = FACTS
    weights: Mapping = field(default_factory=dict)
    oplist: OpList = field(default_factory=routed_list)

    def open(self) -> None:
        """Makes the runner and its cache."""
        self.runner = NumpyRunner(self.oplist, self.weights, self.shape, threads=self.threads)
        self.kv = allocate_kv(self.shape, FACTS.cached)
        self.kv.pool[:, :, : self.block_tokens] = np.nan


def direct(ids: list[int]) -> np.ndarray:
    """Logits of one sequence in double precision, every expert by itself."""
    w = {name: array.astype(np.float64) for name, array in ARRAYS.items()}
    x = w["token_embd.weight"][ids]
    turn = np.exp(1j * np.arange(len(ids))[:, None, None] * 100.0 ** (-np.arange(HEAD // 2) / (HEAD // 2)))
    seen = np.arange(len(ids))[:, None] >= np.arange(len(ids))
    for i, said in enumerate(ROUTING):
        layer = {name.split(".", 2)[2]: array for name, array in w.items() if name.startswith(f"blk.{i}.")}
        a = _norm(x, layer["attn_norm.weight"])
        q, k, v = ((a @ layer[f"attn_{part}.weight"].T).reshape(len(ids), -1, HEAD) for part in "qkv")
        q, k = (_turned(part, turn) for part in (q, k))
        k, v = (np.repeat(part, HEADS // KV_HEADS, axis=1) for part in (k, v))
        scores = np.where(seen, np.einsum("qhd,khd->hqk", q, k) * HEAD**-0.5, -np.inf)
        o = np.einsum("hqk,khd->qhd", _softmax(scores), v).reshape(len(ids), -1)
        x = x + o @ layer["attn_output.weight"].T
        f = _norm(x, layer["ffn_norm.weight"])
        x = x + np.stack([_mixed(token, layer, said) for token in f])
    return _norm(x, w["output_norm.weight"]) @ w["token_embd.weight"].T


def _mixed(token: np.ndarray, layer: Mapping[str, np.ndarray], said: Mapping) -> np.ndarray:
    logits = layer["ffn_gate_inp.weight"] @ token
    bias = layer.get("ffn_gate_inp.bias", np.zeros(EXPERTS))
    if said["scores"] == "sigmoid":
        scores = 1 / (1 + np.exp(-logits))
        size = EXPERTS // said["groups"]
        groups = [np.sort((scores + bias)[at : at + size])[-2:].sum() for at in range(0, EXPERTS, size)]
        kept = set(np.argsort(groups)[-said["groups_kept"] :].tolist())
        able = [expert for expert in range(EXPERTS) if expert // size in kept]
        chosen = sorted(able, key=lambda expert: -(scores + bias)[expert])[:CHOICES]
        weights = scores[chosen] / scores[chosen].sum() * said["scale"]
    else:
        chosen = np.argsort(-(logits + bias))[:CHOICES].tolist()
        weights = _softmax((logits + bias)[chosen])  # what softmax over all gives when it is normalised
    total = np.zeros(HIDDEN)
    for expert, weight in zip(chosen, weights, strict=True):
        gate, up = (_expert(token, layer, name, expert) for name in ("ffn_gate_exps", "ffn_up_exps"))
        total += weight * _expert(gate / (1 + np.exp(-gate)) * up, layer, "ffn_down_exps", expert)
    return total


def _expert(x: np.ndarray, layer: Mapping[str, np.ndarray], name: str, expert: int) -> np.ndarray:
    y = layer[f"{name}.weight"][expert] @ x
    return y + layer[f"{name}.bias"][expert] if f"{name}.bias" in layer else y


def _norm(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x * x).mean(1, keepdims=True) + 1e-6) * weight


def _turned(x: np.ndarray, turn: np.ndarray) -> np.ndarray:
    half = x.shape[2] // 2
    pairs = (x[:, :, :half] + 1j * x[:, :, half:]) * turn
    return np.concatenate([pairs.real, pairs.imag], axis=2)


def _softmax(x: np.ndarray) -> np.ndarray:
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)
