"""The paged KV cache: writing to it, and attention that reads from it.

A cache layer is `keys` and `values`, fp32 [slots, KV heads, head dimension]; slot = block id · block_tokens + offset. Values of a latent
cache (MLA) are a view of the first numbers of its keys.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.compute.graph import Handle, Weight
from ridgeline.compute.ops.definition import SUMMED, Floats, Ints, Sample, fits, floats, op


def _write_samples() -> list[Sample]:
    def case(name: str, tokens: int, slots: list[int]) -> Sample:
        cache = {"keys": floats(3, 24, 2, 8), "values": floats(4, 24, 2, 8)}
        written = {"k": floats(1, tokens, 16), "v": floats(2, tokens, 16), "slots": np.array(slots, np.int64)}
        return Sample(name, {**written, **cache})

    return [case("ragged", 5, [9, 4, 5, 23, 22]), case("one row", 1, [4])]


def _write_rule(k: Handle, v: Handle) -> tuple[Handle, ...]:
    fits(k.axis == v.axis, f"kv_write: {k} and {v} differ")
    return ()


@op(samples=_write_samples, rule=_write_rule, reads=("keys", "values", "slots"), writes=("keys", "values"))
def kv_write(k: Floats, v: Floats, keys: Floats, values: Floats, slots: NDArray[np.int64]) -> None:
    """k, v [T, KV heads · D] into the slots [T] of a cache layer; of a latent cache v is the first part of k."""
    keys[slots] = k.reshape(-1, *keys.shape[1:])
    values[slots] = v.reshape(-1, *values.shape[1:])


def paged_sample(
    name: str,
    lengths: list[tuple[int, int]],
    *,
    heads: int = 4,
    window: int = 0,
    softcap: float = 0.0,
    block_tokens: int = 4,
    size: float = 1.0,
    sinks: bool = False,
    causal: bool = True,
    latent: int = 0,
) -> Sample:
    """Rows of (cached, new) tokens over shuffled blocks; slots that no row owns hold garbage, block 0 holds NaN."""
    blocks = [-(-(cached + new) // block_tokens) for cached, new in lengths]
    ids = np.random.default_rng(5).permutation(np.arange(1, 1 + sum(blocks))).astype(np.int32)
    tables = np.zeros((len(lengths), max(blocks)), np.int32)
    for row, (start, count) in enumerate(zip(np.cumsum([0, *blocks]), blocks, strict=False)):
        tables[row, :count] = ids[start : start + count]
    cu_q = np.cumsum([0, *(new for _, new in lengths)]).astype(np.int32)
    keys, values = (floats(seed, (1 + sum(blocks)) * block_tokens, 1 if latent else 2, 8, size=size) for seed in (6, 7))
    values = keys[..., :latent] if latent else values
    keys[:block_tokens] = values[:block_tokens] = np.nan
    arguments: dict[str, Any] = {
        "q": floats(8, int(cu_q[-1]), heads * 8, size=size),
        "keys": keys,
        "values": values,
        "tables": tables,
        "cu_q": cu_q,
        "kv_len": np.array([cached + new for cached, new in lengths], np.int32),
        "block_tokens": block_tokens,
        "sinks": floats(9, heads, size=2.0) if sinks else None,
        "head_dim": 8,
        "scale": 8**-0.5,
        "window": window,
        "softcap": softcap,
        "causal": causal,
        "value_dim": latent,
    }
    return Sample(name, arguments)


def _attention_samples() -> list[Sample]:
    return [
        paged_sample("ragged", [(0, 9), (17, 1), (3, 5)]),
        paged_sample("one row", [(30, 1)], heads=2),
        paged_sample("long", [(250, 40), (0, 270), (128, 1), (127, 1)]),
        paged_sample("window", [(0, 37), (300, 7), (127, 3)], window=5, block_tokens=16),
        paged_sample("wide groups", [(130, 3)], heads=40, window=129),
        paged_sample("large", [(5, 3)], size=30.0),
        paged_sample("tiny", [(5, 3)], size=1e-9),
        paged_sample("both ways", [(0, 9), (0, 300), (0, 1), (3, 4)], causal=False),
        paged_sample("capped", [(0, 9), (250, 20)], window=130, softcap=0.5, size=3.0),
        paged_sample("sinks", [(0, 9), (300, 2), (700, 1)], window=300, sinks=True),
        paged_sample("latent", [(0, 9), (300, 2), (700, 1)], latent=5),
    ]


def _attention_rule(
    q: Handle, head_dim: int, window: int, causal: bool, value_dim: int, sinks: Weight | None = None, **_: Any
) -> tuple[Handle, ...]:
    fits(0 <= value_dim <= head_dim, f"attention: values of {value_dim} do not fit heads of {head_dim}")
    fits(causal or not window, f"attention: {q.name} has a window of {window} and sees both ways")
    fits(q.width % head_dim == 0, f"attention: {q.name} is {q.width} wide, heads are {head_dim}")
    fits(sinks is None or sinks.shape == (q.width // head_dim,), f"attention: {sinks} does not fit {q.name} and heads of {head_dim}")
    return (Handle("", q.axis, q.width // head_dim * (value_dim or head_dim)),)


@op(
    samples=_attention_samples,
    rule=_attention_rule,
    weights=("sinks",),
    reads=("keys", "values", "tables", "cu_q", "kv_len", "block_tokens"),
    tolerance={"numpy": 1e-5, **SUMMED},
)
def attention(
    q: Floats,
    keys: Floats,
    values: Floats,
    tables: Ints,
    cu_q: Ints,
    kv_len: Ints,
    block_tokens: int,
    sinks: Floats | None = None,
    *,
    head_dim: int,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    causal: bool = True,
    value_dim: int = 0,
) -> Floats:
    """q [T, H · D] → [T, H · D]: softmax(scale · q · kᵀ) · v over the cached positions of each token's row.

    A token at position p sees p - window < k ≤ p, or all k ≤ p where `window` is 0; every token sees all of its row where `causal` is
    false, which has no window. Query heads share KV heads in
    consecutive groups. Scores become softcap · tanh(score / softcap) unless `softcap` is 0. Summed in double precision.
    sinks [H]: the softmax of each head has one score more, without a value (OpenAI 2025, "gpt-oss"; Xiao et al. 2023, "attention sinks").
    value_dim: numbers of a value where they are not those of a key: [T, H · value_dim]; 0: they are.
    Vaswani et al. 2017; Ainslie et al. 2023 (grouped queries); Gemma Team 2024, "Gemma 2", section 2 (softcap).
    """
    queries = q.reshape(len(q), keys.shape[1], -1, head_dim).astype(np.float64)
    out = np.empty((*queries.shape[:3], values.shape[2]))
    for row, length in enumerate(kv_len):
        at = np.arange(length)
        slots = tables[row, at // block_tokens] * block_tokens + at % block_tokens
        for token in range(cu_q[row], cu_q[row + 1]):
            position = length - (cu_q[row + 1] - token) if causal else length - 1
            seen = slots[max(0, position - window + 1) if window else 0 : position + 1]
            scores = np.einsum("hgd,khd->hgk", queries[token] * scale, keys[seen].astype(np.float64))
            if softcap:
                scores = softcap * np.tanh(scores / softcap)
            sink = np.full((*scores.shape[:2], 1), -np.inf) if sinks is None else sinks.reshape(*scores.shape[:2], 1).astype(np.float64)
            most = np.maximum(scores.max(axis=-1, keepdims=True), sink)
            weights = np.exp(scores - most)
            weights /= weights.sum(axis=-1, keepdims=True) + np.exp(sink - most)
            out[token] = np.einsum("hgk,khd->hgd", weights, values[seen].astype(np.float64))
    return out.reshape(len(q), -1).astype(np.float32)
