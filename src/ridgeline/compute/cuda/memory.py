"""Sizes of memory on a device: weights from headers, scratch before anything runs, the KV cache once the largest step has run.

Allocates nothing.
"""

from math import prod
from typing import Final

import torch

from ridgeline.compute.cuda import linear
from ridgeline.compute.cuda.adapters import DeviceAdapterSlots, is_change
from ridgeline.compute.cuda.buckets import Bucket, Buckets
from ridgeline.compute.cuda.device import Device
from ridgeline.compute.cuda.triton import attention, experts, lora, sampling
from ridgeline.compute.cuda.triton.launch import power_of_2
from ridgeline.compute.cuda.weights import DeviceWeights, FloatMatrix, Fp8Matrix, placed_bytes
from ridgeline.compute.graph import OpList
from ridgeline.errors import ConfigError
from ridgeline.facts.model import CachedHeads, ModelFacts
from ridgeline.planning.memory import available_kv_bytes

GATED: Final = ("linear_glu", "linear_fp8_glu")

OF_HEADS: Final = ("attn_k_b", "attn_v_b")
"""Matrices of heads of a latent, which become floats."""

SPLIT_QUERIES: Final = (2, 4, 8, 16, 32, 64)
"""Queries per row for which attention may compute splits in programs of their own."""


def scratch_bytes(
    oplist: OpList,
    weights: DeviceWeights,
    buckets: Buckets,
    *,
    cached: CachedHeads,
    block_tokens: int,
    dtype: torch.dtype,
    device: Device,
    invariant: bool,
    adapters: DeviceAdapterSlots | None = None,
) -> int:
    """Scratch bytes that the largest product, attention or sampling of any step needs: they run one after the other, so one buffer serves
    all."""
    rows = buckets.largest.tokens
    products = (linear.scratch_bytes(weight, rows, invariant=invariant) for weight in weights.matrices.values())
    gated = (
        linear.gated_bytes(found, rows, dtype, invariant=invariant)
        for op in oplist.ops
        if op.name in GATED and isinstance(found := weights.matrices[op.outputs[0]], FloatMatrix | Fp8Matrix)
    )
    changes = (
        lora.scratch_bytes(rows, len(op.weights), adapters.slots.most_rank, op.weights[0].shape[1], invariant=invariant)
        for op in oplist.ops
        if adapters is not None and is_change(op)
    )
    routed = (
        experts.route_bytes(rows, *op.weights[0].shape, invariant=invariant)  # type: ignore[call-arg]
        for op in oplist.ops
        if op.name == "route"
    )
    return max(
        sampling.scratch_bytes(buckets.selected),
        *changes,
        *products,
        *gated,
        *routed,
        _attention_bytes(oplist, buckets, cached, block_tokens, dtype, device, invariant),
    )


def _attention_bytes(
    oplist: OpList, buckets: Buckets, cached: CachedHeads, block_tokens: int, dtype: torch.dtype, device: Device, invariant: bool
) -> int:
    """Scratch bytes of the largest attention in any bucket. Of mixed steps only those with few queries per row need any, and all in the
    batch-invariant mode."""
    dims = {op.inputs[0]: int(op.attributes["head_dim"]) for op in oplist.ops if op.name == "attention"}  # type: ignore[arg-type]
    shapes = {(oplist.values[name].width // head_dim, head_dim) for name, head_dim in dims.items()}
    mixed = [
        Bucket(tokens, rows, blocks, max_q)
        for tokens in buckets.mixed_tokens
        for rows in buckets.rows
        for blocks in buckets.blocks
        for max_q in (*SPLIT_QUERIES, power_of_2(tokens))
        if rows <= tokens
    ]
    return max(
        (
            attention.work_bytes(
                bucket.tokens,
                bucket.rows,
                heads=heads,
                kv_heads=cached.heads,
                head_dim=head_dim,
                latent=cached.latent,
                max_q=bucket.max_q,
                max_kv=bucket.blocks * block_tokens,
                device=device.torch,
                fp32=dtype == torch.float32,
                invariant=invariant,
            )
            for heads, head_dim in shapes
            for bucket in (*buckets.decode, *buckets.verification, *mixed, buckets.largest)
        ),
        default=0,
    )


def cache_bytes(device: Device, free_bytes: int, graphs: int) -> int:
    """Bytes for the KV cache, of `free_bytes` that the largest step has left, with `graphs` to be captured. ConfigError where nothing is
    left."""
    left = available_kv_bytes(device.memory_bytes, free_bytes, graphs)
    if left <= 0:
        raise ConfigError(
            f"{free_bytes} bytes of {device.name} are free behind weights and the largest step, {free_bytes - left} are kept for graphs "
            "and libraries: nothing is left for the KV cache; lower --max-num-batched-tokens or --max-num-seqs, or take --dtype fp8",
            fix={"--dtype": "fp8"},
        )
    return left


def weights_bytes(facts: ModelFacts, dtype: torch.dtype, *, fp8: bool) -> int:
    """Bytes that a model's tensors take on a device at most, from their headers. `dtype`: of activations; `fp8`: floats are quantised on
    load. A table of embeddings has floats, and a tied head of any other kind is a matrix of its own."""
    total = 0
    for name, tensor in facts.tensors.items():
        if name == "token_embd.weight":
            total += prod(tensor.shape) * dtype.itemsize
            if not facts.tied or (tensor.kind in ("F32", "F16", "BF16") and not fp8):
                continue
        if len(tensor.shape) == 1:
            total += 4 * tensor.shape[0]
        elif name.removesuffix(".weight").endswith(OF_HEADS):
            total += prod(tensor.shape) * dtype.itemsize
        elif tensor.kind.startswith("F8") or fp8:
            total += prod(tensor.shape) + 4 * prod(tensor.shape[:-1])
        else:
            *rows, columns = tensor.shape
            total += placed_bytes(tensor.kind, (prod(rows), columns), dtype, tensor.quantised.group if tensor.quantised else 0)
    return total
