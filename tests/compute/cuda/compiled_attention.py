"""Attention as it is launched for real models: the tiles of both tables, every type of cache, prefill, decode, verification."""

from functools import partial
from typing import Any

import torch
from compile_only import TESTED, Case

from ridgeline.compute.cuda.cache import allocate_device_kv
from ridgeline.compute.cuda.triton.attention import attention, counters_of, work_bytes
from ridgeline.core.plan import KVGroup, KVShape
from ridgeline.facts.model import CachedHeads

CPU = torch.device("cpu")


def launch(
    rows: int,
    max_q: int,
    max_kv: int,
    *,
    heads: int = 32,
    kv_heads: int = 8,
    head_dim: int = 128,
    kind: str = "bf16",
    dtype: torch.dtype = torch.bfloat16,
    window: int = 0,
    softcap: float = 0.0,
    invariant: bool = False,
    latent: int = 0,
) -> None:
    """One step of `rows` rows of `max_q` tokens each."""
    tokens = rows * max_q
    cached = CachedHeads(kv_heads, head_dim, latent)
    layer = allocate_device_kv(KVShape((KVGroup("full", (0,), 0),), 16, 3, b""), cached, kind, CPU).layer(0)
    sizes = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "max_q": max_q, "invariant": invariant, "latent": latent}
    work = work_bytes(tokens, rows, max_kv=max_kv, device=CPU, fp32=dtype == torch.float32, **sizes)
    integers = (torch.empty(shape, dtype=torch.int32) for shape in ((rows, max_kv // 16), (rows,), (rows + 1,), (rows,)))
    q, out = (torch.empty(tokens, heads * width, dtype=dtype) for width in (head_dim, latent or head_dim))
    how = {"head_dim": head_dim, "scale": 0.1, "window": window, "softcap": softcap, "max_q": max_q, "invariant": invariant}
    counters = counters_of(tokens, rows, heads, CPU)
    attention(q, layer, *integers, out=out, work=torch.empty(work, dtype=torch.uint8), counters=counters, **how)()


DECODE = {"attention_kernel": {80: ("mma.sync", "cp.async.cg"), 90: ("mma.sync", "cp.async.cg")}}
PREFILL = {"attention_kernel": {80: ("mma.sync", "cp.async.cg"), 90: ("wgmma.mma_async", "cp.async.cg")}}
GEMMA: dict[str, Any] = {"heads": 16, "head_dim": 256, "window": 4096, "softcap": 50.0}
LATENT: dict[str, Any] = {"heads": 128, "kv_heads": 1, "head_dim": 576, "latent": 512}
"""DeepSeek-V3."""
FP8 = {"attention_kernel": {90: ("cvt.rn.f16x2.e4m3x2",)}}

CASES = [
    Case("decode, 256 rows", partial(launch, 256, 1, 1024), DECODE),
    Case("decode, one row of 32k in splits", partial(launch, 1, 1, 32768), DECODE),
    Case("decode, fp8", partial(launch, 256, 1, 1024, kind="fp8"), FP8),
    Case("decode, int8 in splits", partial(launch, 4, 1, 4096, kind="int8")),
    Case("decode, window, softcap, 256 dimensions", partial(launch, 64, 1, 8192, **GEMMA), DECODE),
    Case("decode, fp16, 80 dimensions", partial(launch, 64, 1, 512, kind="fp16", dtype=torch.float16, head_dim=80)),
    Case("verification of 4", partial(launch, 32, 4, 2048), DECODE),
    Case("prefill", partial(launch, 2, 1024, 2048), PREFILL),
    Case("prefill, fp8", partial(launch, 2, 1024, 2048, kind="fp8"), FP8),
    Case("prefill, 64 dimensions, int8", partial(launch, 2, 1024, 2048, head_dim=64, kind="int8")),
    Case("prefill, int8", partial(launch, 2, 1024, 2048, kind="int8")),
    Case("prefill, window, softcap, 256 dimensions", partial(launch, 2, 512, 8192, **GEMMA), PREFILL),
    Case("mixed, invariant", partial(launch, 8, 64, 2048, invariant=True), DECODE),
    Case("verification of 16", partial(launch, 8, 16, 4096)),
    Case(  # an A100 spills 32 bytes of a thread
        "verification of 16, 256 dimensions", partial(launch, 8, 16, 4096, heads=16, kv_heads=4, head_dim=256), capabilities=(90,)
    ),
    Case("invariant, fp8, 256 dimensions", partial(launch, 2, 64, 2048, kind="fp8", heads=16, head_dim=256, invariant=True)),
    Case("invariant, int8, 256 dimensions", partial(launch, 2, 64, 2048, kind="int8", heads=16, head_dim=256, invariant=True)),
    Case("prefill, fp8, 256 dimensions", partial(launch, 2, 1024, 2048, kind="fp8", heads=16, head_dim=256)),
    Case("decode, latent", partial(launch, 64, 1, 4096, **LATENT), DECODE),
    Case("decode, latent, fp8 in splits", partial(launch, 1, 1, 8192, kind="fp8", **LATENT), capabilities=TESTED),
    Case("decode, latent, int8", partial(launch, 64, 1, 4096, kind="int8", **LATENT), capabilities=TESTED),
    Case("prefill, latent", partial(launch, 2, 1024, 2048, **LATENT), DECODE, capabilities=(80, 86, 90)),
    Case("mixed, few tokens per row", partial(launch, 64, 20, 2048), PREFILL),
    Case("fp32", partial(launch, 2, 64, 512, heads=4, kv_heads=2, head_dim=64, kind="f32", dtype=torch.float32), capabilities=TESTED),
]
