"""How much of a device's memory goes where: scratch before anything runs, the KV cache when the largest step has been seen to run.

Owns sizes; allocates nothing.
"""

from math import prod
from typing import Final

import torch

from ridgeline.compute.cuda import linear, sampler
from ridgeline.compute.cuda.buckets import Bucket, Buckets
from ridgeline.compute.cuda.device import Device
from ridgeline.compute.cuda.plan import Weights
from ridgeline.compute.cuda.triton import attention
from ridgeline.compute.cuda.triton.launch import power_of_2
from ridgeline.compute.cuda.weights import placed_bytes
from ridgeline.compute.graph import OpList
from ridgeline.errors import ConfigError
from ridgeline.facts.model import ModelFacts
from ridgeline.planning.memory import available_kv_bytes

FEW_QUERIES: Final = (2, 4, 8, 16, 32, 64)
"""Queries of a row for which attention may give splits programs of their own."""


def scratch_bytes(
    oplist: OpList,
    weights: Weights,
    buckets: Buckets,
    *,
    kv_heads: int,
    block_tokens: int,
    dtype: torch.dtype,
    device: Device,
    invariant: bool,
) -> int:
    """The most that any product or attention of any step uses beside its arguments: they follow each other, so one piece serves all."""
    rows = buckets.largest.tokens
    products = (linear.scratch_bytes(weight, rows, invariant=invariant) for weight in weights.matrices.values())
    sampling = sampler.scratch_bytes(buckets.largest.rows)
    return max(sampling, *products, _attention_bytes(oplist, buckets, kv_heads, block_tokens, dtype, device, invariant))


def _attention_bytes(
    oplist: OpList, buckets: Buckets, kv_heads: int, block_tokens: int, dtype: torch.dtype, device: Device, invariant: bool
) -> int:
    """The most that an attention of the list needs in any bucket. Of mixed steps those with few queries a row need any, and in the
    batch-invariant mode all."""
    dims = {op.inputs[0]: int(op.attributes["head_dim"]) for op in oplist.ops if op.name == "attention"}  # type: ignore[arg-type]
    shapes = {(oplist.values[name].width // head_dim, head_dim) for name, head_dim in dims.items()}
    mixed = [
        Bucket(tokens, rows, blocks, most_q)
        for tokens in buckets.sizes
        for rows in buckets.rows
        for blocks in buckets.blocks
        for most_q in (*FEW_QUERIES, power_of_2(tokens))
        if rows <= tokens
    ]
    return max(
        attention.work_bytes(
            bucket.tokens,
            bucket.rows,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            most_q=bucket.most_q,
            most_kv=bucket.blocks * block_tokens,
            device=device.torch,
            fp32=dtype == torch.float32,
            invariant=invariant,
        )
        for heads, head_dim in shapes
        for bucket in (*buckets.single, *mixed, buckets.largest)
    )


def cache_bytes(device: Device, free_bytes: int, graphs: int) -> int:
    """What the KV cache may take of what the largest step has left. Raises ConfigError where nothing is left."""
    left = available_kv_bytes(device.memory_bytes, free_bytes, graphs)
    if left <= 0:
        raise ConfigError(
            f"{free_bytes} bytes of {device.name} are free behind weights and the largest step, {free_bytes - left} are kept for graphs "
            "and libraries: nothing is left for the KV cache; lower --max-num-batched-tokens or --max-num-seqs, or take --dtype fp8",
            fix={"--dtype": "fp8"},
        )
    return left


def weights_bytes(facts: ModelFacts, dtype: torch.dtype, *, fp8: bool) -> int:
    """What a model's tensors take of a device at most, from their headers."""
    total = 0
    for tensor in facts.tensors.values():
        if len(tensor.shape) == 1:
            total += 4 * tensor.shape[0]
        elif tensor.kind.startswith("F8") or fp8:
            total += prod(tensor.shape) + 4 * tensor.shape[0]
        else:
            rows, columns = tensor.shape
            total += placed_bytes(tensor.kind, (rows, columns), dtype, tensor.quantised.group if tensor.quantised else 0)
    return total
