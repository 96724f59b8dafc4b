"""The op list: symbolic sizes, named values, and a recorder that needs no arrays."""

import dataclasses
import subprocess
import sys

import numpy as np
import pytest

from ridgeline.compute.exact.cache import KVCache, allocate_kv
from ridgeline.compute.exact.runner import NumpyRunner
from ridgeline.compute.graph import INPUTS, SELECTED, TOKENS, Axis, Handle, Op, OpList, Recorder, Sizes, StepInputs, Weight, Weights
from ridgeline.compute.ops.definition import floats
from ridgeline.compute.ops.table import OPS, check
from ridgeline.compute.quant.weight import DenseWeight
from ridgeline.core.plan import KVGroup, KVShape
from ridgeline.facts.model import CachedHeads, Rope

HIDDEN, HEAD, VOCAB, WINDOW = 24, 8, 19, 6
SHAPES = {
    "token_embd.weight": (VOCAB, HIDDEN),
    "blk.0.attn_norm.weight": (HIDDEN,),
    "blk.0.attn_q.weight": (2 * HEAD, HIDDEN),
    "blk.0.attn_k.weight": (HEAD, HIDDEN),
    "blk.0.attn_v.weight": (HEAD, HIDDEN),
    "blk.0.attn_output.weight": (HIDDEN, 2 * HEAD),
}
WEIGHTS = {name: DenseWeight(floats(seed, *shape)) for seed, (name, shape) in enumerate(SHAPES.items())}
KV = KVShape((KVGroup("window", (0,), WINDOW),), 4, 200, b"")


def record() -> OpList:
    """One attention layer between an embedding and its transpose."""
    g, w = Recorder(OPS), Weights(SHAPES)
    x = g.scale(g.embed(g.input.ids, w["token_embd"]), 2.0)
    a = g.rms_norm(x, w[0, "attn_norm"], 1e-6)
    q, k, v = (g.linear(a, w[0, f"attn_{part}"]) for part in "qkv")
    q, k = (g.rope(part, g.input.positions, Rope(100.0, HEAD), head_dim=HEAD) for part in (q, k))
    g.kv_write(k, v, layer=0)
    x = g.add(x, g.linear(g.attention(q, layer=0, head_dim=HEAD, scale=0.5, window=WINDOW), w[0, "attn_output"]))
    g.tap("hidden", x)
    return g.finish("step", logits=g.linear(g.select(x), w["token_embd"]))


def whole_rows(counts: list[int], seed: int) -> StepInputs:
    """A step of rows that all begin at position 0; every second token is selected."""
    total, blocks = sum(counts), -(-max(counts) // KV.block_tokens)
    row = np.repeat(np.arange(len(counts)), counts).astype(np.int32)
    positions = np.concatenate([np.arange(count) for count in counts])
    table = np.arange(1, 1 + len(counts) * blocks, dtype=np.int32).reshape(len(counts), blocks)
    slots = table[row, positions // 4].astype(np.int64) * 4 + positions % 4
    return StepInputs(
        ids=np.random.default_rng(seed).integers(0, VOCAB, total).astype(np.int32),
        positions=positions.astype(np.int32)[None],
        row_of_token=row,
        cu_q=np.cumsum([0, *counts]).astype(np.int32),
        kv_len=np.array(counts, np.int32),
        tables=(table,),
        slots=(slots,),
        select=np.arange(0, total, 2, dtype=np.int32),
    )


def empty_cache() -> KVCache:
    return allocate_kv(KV, CachedHeads(1, HEAD))


def direct(ids: np.ndarray) -> np.ndarray:
    """The same network on one sequence, written without the op list: hidden states in double precision."""
    w = {name.split(".")[-2]: weight.dense().astype(np.float64) for name, weight in WEIGHTS.items()}
    x = w["token_embd"][ids] * 2.0
    a = x / np.sqrt((x * x).mean(1, keepdims=True) + 1e-6) * w["attn_norm"]
    turn = np.exp(1j * np.arange(len(ids))[:, None, None] * 100.0 ** (-np.arange(HEAD // 2) / (HEAD // 2)))
    heads = []
    for part in "qk":
        pairs = (a @ w[f"attn_{part}"].T).reshape(len(ids), -1, 2, HEAD // 2)
        turned = (pairs[:, :, 0] + 1j * pairs[:, :, 1]) * turn
        heads.append(np.concatenate([turned.real, turned.imag], axis=-1))
    scores = np.einsum("qhd,kd->hqk", heads[0], heads[1][:, 0]) * 0.5
    apart = np.arange(len(ids))[:, None] - np.arange(len(ids))
    chances = np.exp(np.where((apart >= 0) & (apart < WINDOW), scores, -np.inf))
    mixed = np.einsum("hqk,kd->qhd", chances / chances.sum(-1, keepdims=True), a @ w["attn_v"].T)
    return x + mixed.reshape(len(ids), -1) @ w["attn_output"].T


@pytest.mark.parametrize("counts", [[3, 1, 3], [4] * 14 + [7, 1], [1] * 16, [64]])
def test_recorded_once_runs_at_any_size(counts: list[int]) -> None:
    """One list serves T = 7, R = 3 and T = 64, R = 16: shapes are as its handles say, values as a direct model computes them."""
    runner = NumpyRunner(record(), WEIGHTS, KV)
    inputs = whole_rows(counts, seed=1)
    values = runner.values(inputs, empty_cache())
    assert inputs.sizes == Sizes(T=sum(counts), R=len(counts), S=len(inputs.select))
    for op in runner.oplist.ops:
        for name in op.outputs:
            assert values[name].shape == runner.oplist.values[name].shape(inputs.sizes)
    rows = np.split(inputs.ids, inputs.cu_q[1:-1])
    hidden = np.concatenate([direct(ids) for ids in rows])
    made = runner.run(inputs, empty_cache(), taps=("hidden",))
    assert set(made) == {"logits", "hidden", "finite"} and made["finite"].tolist() == [True] * sum(counts)
    assert np.abs(made["hidden"] - hidden).max() < 1e-5 * np.abs(hidden).max()
    logits = hidden[inputs.select] @ WEIGHTS["token_embd.weight"].dense().T.astype(np.float64)
    assert np.abs(made["logits"] - logits).max() < 1e-5 * np.abs(logits).max()


def test_a_run_returns_what_is_asked() -> None:
    runner = NumpyRunner(record(), WEIGHTS, KV)
    assert set(runner.run(whole_rows([3], 1), empty_cache())) == {"logits", "finite"}
    with pytest.raises(KeyError):
        runner.run(whole_rows([3], 1), empty_cache(), taps=("nothing",))


def test_names_tell_where_a_value_was_made() -> None:
    oplist = record()
    made = [name for op in oplist.ops for name in op.outputs]
    assert made == [
        "token_embd",
        "scale.1",
        "blk.0.attn_norm",
        "blk.0.attn_q",
        "blk.0.attn_k",
        "blk.0.attn_v",
        "rope.1",
        "rope.2",
        "attention.0",
        "blk.0.attn_output",
        "add.1",
        "select.1",
        "token_embd.2",
    ]
    assert oplist.outputs == {"logits": "token_embd.2"} and oplist.taps == {"hidden": "add.1"}
    assert str(oplist.ops[8]) == "kv_write → layer 0" and str(oplist.ops[0]) == "embed → token_embd"
    assert not set(made) & INPUTS


def test_a_row_axis_has_a_factor() -> None:
    sizes = Sizes(T=7, R=3, S=2)
    assert [axis.at(sizes) for axis in (TOKENS, TOKENS * 4, Axis("rows"), SELECTED * 2 * 3)] == [7, 28, 3, 12]
    assert Handle("x", TOKENS * 2, 8).shape(sizes) == (14, 8)


def test_the_recorder_refuses_what_does_not_fit() -> None:
    g, w = Recorder(OPS), Weights(SHAPES)
    x = g.embed(g.input.ids, w["token_embd"])
    q = g.linear(x, w[0, "attn_q"])
    for wrong in (
        lambda: g.linear(q, w[0, "attn_q"]),
        lambda: g.add(x, q),
        lambda: g.glu(x, q, "gelu_tanh"),
        lambda: g.rms_norm(q, w[0, "attn_norm"], 1e-6),
        lambda: g.rms_norm(x, Weight("odd", (7,)), 1e-6),
        lambda: g.layer_norm(x, w[0, "attn_norm"], Weight("odd", (7,)), 1e-6),
        lambda: g.add_bias(q, w[0, "attn_norm"]),
    ):
        with pytest.raises(ValueError, match=r"wide|differ"):
            wrong()
    with pytest.raises(KeyError):
        _ = w["no such"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "softmax"}, "is not an op"),
        ({"inputs": ()}, "does not fit"),
        ({"inputs": ("later",)}, "before they exist"),
        ({"attributes": {"eps": 1e-6, "window": 3}}, "does not fit"),
        ({"outputs": ("scale.1",)}, "makes a value twice"),
        ({"weights": ()}, "does not fit"),
    ],
)
def test_a_list_is_checked_against_the_ops(change: dict, message: str) -> None:
    oplist = record()
    check(oplist)
    ops = list(oplist.ops)
    assert ops[2].name == "rms_norm"
    ops[2] = dataclasses.replace(ops[2], **change)
    with pytest.raises(ValueError, match=message):
        check(oplist.with_ops(tuple(ops)))


def test_biases_and_positions() -> None:
    """A bias has a name of its own; a table may be read at positions as at ids."""
    w = Weights({"norm.weight": (8,), "norm.bias": (8,), "blk.1.attn_q.bias": (4,), "places.weight": (16, 8)})
    assert w["norm.bias"] == Weight("norm.bias", (8,)) and w[1, "attn_q.bias"].name == "blk.1.attn_q.bias"
    assert (1, "attn_q.bias") in w and (0, "attn_q.bias") not in w and (1, "attn_q") not in w and "norm" in w
    g = Recorder(OPS)
    x = g.add(g.embed(g.input.ids, w["places"]), g.embed(g.input.positions, w["places"]))
    assert (x.axis, x.width) == (TOKENS, 8)
    assert g.add_bias(g.layer_norm(x, w["norm"], w["norm.bias"], 1e-5), w["norm.bias"]).name == "norm.bias"


def test_results_must_exist() -> None:
    with pytest.raises(ValueError, match="nothing makes"):
        check(dataclasses.replace(record(), taps={"hidden": "none"}))


def test_models_record_semantic_ops_only() -> None:
    g = Recorder(OPS)
    for name, definition in OPS.items():
        assert hasattr(g, name) == definition.semantic
    assert not hasattr(g, "softmax")


def test_recording_needs_no_array_library() -> None:
    program = "import sys; sys.modules['numpy'] = None; import ridgeline.compute.graph, ridgeline.models.gemma3"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_an_op_prints_its_layer_when_it_makes_nothing() -> None:
    assert str(Op("kv_write", ("k", "v"), (), {"layer": 3})) == "kv_write → layer 3"
