"""Attention by FlashAttention-3, an optional backend: one call per op.

Maps a step to the arguments of `flash_attn_interface.flash_attn_with_kvcache` (version 3.0; Shah et al. 2024). Never writes K or V. Has run
only against a stand-in of the same signature.
"""

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any, Final

import torch

from ridgeline.compute.cuda.attention import AttentionBackend, AttentionCase, OptionalBackend
from ridgeline.compute.cuda.plan import Binding, Run
from ridgeline.compute.graph import Op

PACKAGE: Final = "flash_attn_interface"
INSTALL: Final = "build it from github.com/Dao-AILab/flash-attention, folder hopper: python setup.py install"

SPLIT_POSITIONS: Final = 512
"""Positions of a block table for which a decode step gets a split of its own."""

PROGRAMS: Final = 256
"""Thread blocks that a decode step is split into: about two for each multiprocessor of an H200."""


def serves(case: AttentionCase) -> str | None:
    """The reason why the backend cannot compute this case; None where it can."""
    if case.invariant:
        return "its sums depend on what else is in a step, and --batch-invariant is on"
    if case.capability[0] != 9:
        return f"it is for compute capability 9.x, this device has {case.capability[0]}.{case.capability[1]}"
    if case.dtype not in ("bf16", "fp16") or case.kv_dtype != case.dtype:
        return f"it takes queries and a KV cache that are both bf16 or both fp16, not {case.dtype} and {case.kv_dtype}"
    if case.head_dim % 8 or case.head_dim > 256:
        return f"it takes head dimensions up to 256 that 8 divides, not {case.head_dim}"
    return None


def open_backend(case: AttentionCase) -> AttentionBackend:
    """The backend. ImportError or OSError where the package is not there, or does not fit this torch."""
    return AttentionBackend("flash-attention", partial(_bind, import_module(PACKAGE).flash_attn_with_kvcache))


def splits(rows: int, kv_heads: int, positions: int, max_q: int) -> int:
    """Number of splits of a step's keys, at most: a function of its bucket alone, so that a graph can hold it. Steps with prompts have
    thread blocks enough without."""
    if max_q > 1:
        return 1
    return max(1, min(PROGRAMS // (rows * kv_heads), positions // SPLIT_POSITIONS))


def _bind(call: Callable[..., torch.Tensor], b: Binding, op: Op) -> Run:
    group, layer = b.layer(op)
    inputs, window = b.inputs, int(op.attributes["window"])  # type: ignore[arg-type]
    heads = (-1, int(op.attributes["head_dim"]))  # type: ignore[arg-type]
    q, out = (b.value(name).unflatten(1, heads) for name in (op.inputs[0], op.outputs[0]))
    bucket = inputs.bucket
    arguments: dict[str, Any] = {
        "q": q,
        "k_cache": layer.keys,
        "v_cache": layer.values,
        "cache_seqlens": inputs["kv_len"],
        "page_table": inputs.tables[group],
        "cu_seqlens_q": inputs["cu_q"],
        "max_seqlen_q": bucket.max_q,
        "softmax_scale": op.attributes["scale"],
        "causal": True,
        "window_size": (window - 1, 0) if window else (-1, -1),
        "softcap": op.attributes["softcap"],
        "num_splits": splits(bucket.rows, layer.kv_heads, bucket.blocks * layer.block_tokens, bucket.max_q),
    }

    def run() -> None:
        out.copy_(call(**arguments))  # its public call allocates its own result

    return run


FLASH_ATTENTION: Final = OptionalBackend(serves, open_backend, INSTALL)
"""The backend `flash-attention`."""
