"""Paged samples of attention as tensors of a cache's type, everything that no sequence owns poisoned."""

from typing import Any

import numpy as np
import torch
from tensors import DEVICE, on_device, poisoned

from ridgeline.compute.cuda.cache import DeviceKVCache, allocate_device_kv
from ridgeline.compute.cuda.triton import attention
from ridgeline.core.plan import KVGroup, KVShape
from ridgeline.facts.model import CachedHeads

OPERANDS = {"f32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.bfloat16, "int8": torch.bfloat16}
"""Type of the queries over a cache of each type."""


def empty_cache(kind: str, blocks: int, block_tokens: int, kv_heads: int, head_dim: int, layers: int = 1, latent: int = 0) -> DeviceKVCache:
    """A cache full of NaN: codes of int8 are 0x7F, their scales NaN."""
    shape = KVShape((KVGroup("full", tuple(range(layers)), 0),), block_tokens, blocks, b"")
    cache = allocate_device_kv(shape, CachedHeads(kv_heads, head_dim, latent), kind, DEVICE)
    cache.pool.fill_(0xFF)
    if kind == "int8":
        for index in range(layers):
            layer = cache.layer(index)
            layer.keys.fill_(127)
            layer.values.fill_(127)
    return cache


def stored(keys: np.ndarray, values: np.ndarray, block_tokens: int, kind: str) -> DeviceKVCache:
    """fp32 [slots, KV heads, D] in a cache, of a latent where values are narrower; slots whose keys are NaN stay poisoned."""
    slots, kv_heads, head_dim = keys.shape
    latent = values.shape[2] if values.shape[2] < head_dim else 0
    cache = empty_cache(kind, slots // block_tokens - 1, block_tokens, kv_heads, head_dim, latent=latent)
    mine, layer = torch.from_numpy(np.isfinite(keys).all(axis=(1, 2))).to(DEVICE), cache.layer(0)
    slot = torch.arange(slots, device=DEVICE)[mine]
    block, offset = slot // block_tokens, slot % block_tokens
    parts = ((layer.keys, layer.key_scales, keys), (layer.values, layer.value_scales, values))
    for records, scales, numbers in parts[:1] if layer.latent else parts:
        found = on_device(numbers)[mine]
        if scales is not None:
            largest = found.abs().amax(dim=2) / 127
            scales[block, offset] = largest
            found = (found / largest[..., None]).round()
        records[block, offset] = found.to(records.dtype)
    return cache


def attend(arguments: dict[str, Any], cache: DeviceKVCache, dtype: torch.dtype, *, invariant: bool = False, pad: int = 0) -> torch.Tensor:
    """Our attention of a sample's arguments; `pad` rows without tokens behind its own, and as many tokens that no row owns."""
    q = on_device(np.pad(arguments["q"], ((0, pad), (0, 0)), constant_values=np.nan), dtype)
    cu_q = np.pad(arguments["cu_q"], (0, pad), mode="edge")
    kv_len, tables = np.pad(arguments["kv_len"], (0, pad)), np.pad(arguments["tables"], ((0, pad), (0, 0)))
    max_q, head_dim = int(np.diff(cu_q).max(initial=0)), arguments["head_dim"]
    sizes = {"heads": q.shape[1] // head_dim, "kv_heads": cache.kv_heads, "head_dim": head_dim, "max_q": max_q, "invariant": invariant}
    sizes["latent"] = latent = cache.cached.latent
    max_kv, fp32 = tables.shape[1] * cache.block_tokens, dtype == torch.float32
    work = attention.work_bytes(len(q), len(kv_len), max_kv=max_kv, device=DEVICE, fp32=fp32, **sizes)
    out = poisoned(len(q), sizes["heads"] * (latent or head_dim), dtype=dtype)
    attention.attention(
        q,
        cache.layer(0),
        *(on_device(x.astype(np.int32)) for x in (tables[::-1], np.arange(len(tables))[::-1], cu_q, kv_len)),
        **{name: arguments[name] for name in ("head_dim", "scale", "window", "softcap")},
        sinks=None if arguments.get("sinks") is None else on_device(arguments["sinks"]),
        out=out,
        work=poisoned(work // 4) if work else None,
        counters=(counters := attention.counters_of(len(q), len(kv_len), sizes["heads"], DEVICE)),
        max_q=max_q,
        invariant=invariant,
    )()
    assert not counters.any()
    return out
