"""Attention by FlashInfer, an optional backend whose steps are planned on the host.

Owns its wrappers and their workspaces: decode steps have one per batch size, over fixed addresses, so that a graph can hold them; other
steps share one, which is launched. A step is planned once for all layers of the same kind, from columns that the host has, and waits only
for the copies of the plan before. Never writes K or V. Written for version 0.7 (Ye et al. 2025); has run only against a stand-in of the
same signatures.
"""

from functools import partial
from importlib import import_module
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ridgeline.compute.cuda.attention import AttentionBackend, AttentionCase, BackendSizes, Columns, OptionalBackend
from ridgeline.compute.cuda.buckets import Bucket
from ridgeline.compute.cuda.cache import DTYPES
from ridgeline.compute.cuda.device import Device
from ridgeline.compute.cuda.plan import Binding, Run
from ridgeline.compute.graph import Op

PACKAGE: Final = "flashinfer"
INSTALL: Final = "pip install flashinfer-python"

HEAD_DIMS: Final = {"bf16": (64, 128, 256), "fp16": (64, 128, 256), "fp8": (128, 256)}
"""Head dimensions that it computes, by the type of the cache."""

WORKSPACE_BYTES: Final = 384 << 20
"""For partial results of splits. 128 MiB are advised; splits of prompts with many heads need more."""

PLAN_BYTES: Final = 8 << 20
"""For one plan, as a wrapper allocates by default. Layers of the same kind run one after the other, and share one plan."""


class LayerKind(NamedTuple):
    """Attributes of layers that share a plan."""

    group: int
    heads: int
    head_dim: int
    scale: float
    window: int
    softcap: float


class BlockLists(NamedTuple):
    """Block ids of rows, one row after the other (CSR): indices[indptr[r] : indptr[r + 1]] are those of row r; int32."""

    indptr: NDArray[np.int32]
    indices: NDArray[np.int32]
    last: NDArray[np.int32]
    """Tokens in each row's last block, int32 [R]."""


def serves(case: AttentionCase) -> str | None:
    """The reason why the backend cannot compute this case; None where it can."""
    if case.invariant:
        return "its sums depend on what else is in a step, and --batch-invariant is on"
    if case.capability < (8, 0):
        return f"it is for compute capability 8.0 and later, this device has {case.capability[0]}.{case.capability[1]}"
    if case.dtype not in ("bf16", "fp16") or case.kv_dtype not in (case.dtype, "fp8"):
        return f"it takes queries of bf16 or fp16 and a KV cache of the same type or fp8, not {case.dtype} and {case.kv_dtype}"
    if case.head_dim not in HEAD_DIMS[case.kv_dtype]:
        dims = ", ".join(map(str, HEAD_DIMS[case.kv_dtype]))
        return f"it takes head dimensions of {dims} with a cache of {case.kv_dtype}, not {case.head_dim}"
    return None


def open_backend(case: AttentionCase) -> AttentionBackend:
    """The backend. ImportError or OSError where the package is not there, or does not fit this torch."""
    backend = FlashInfer(import_module(PACKAGE), case)
    return AttentionBackend("flashinfer", backend.bind, backend.reserve, backend.prepare)


def block_lists(kv_len: NDArray[np.int32], table: NDArray[np.int32], block_tokens: int) -> BlockLists:
    """Block lists of rows that have `kv_len` [R] positions each, over their block table [R, P]."""
    blocks = -(-kv_len // block_tokens)
    indptr = np.zeros(len(blocks) + 1, np.int32)
    np.cumsum(blocks, out=indptr[1:])
    indices = table[np.arange(table.shape[1]) < blocks[:, None]]
    return BlockLists(indptr, indices, kv_len - np.maximum(blocks - 1, 0) * block_tokens)


class FlashInfer:
    """The backend of one runner. `package`: the module `flashinfer`."""

    def __init__(self, package: Any, case: AttentionCase) -> None:
        self._package, self._case = package, case
        self._dtypes = {"q_data_type": DTYPES[case.dtype], "kv_data_type": DTYPES[case.kv_dtype]}
        self._block_tokens, self._tokens = 0, 0
        self._kinds: list[LayerKind] = []
        self._decode: dict[tuple[LayerKind, int], Any] = {}
        self._mixed: dict[LayerKind, Any] = {}

    def reserve(self, device: Device, sizes: BackendSizes) -> int:
        """Makes all wrappers; returns their bytes on the device."""
        groups, largest = sizes.shape.groups, sizes.buckets.largest
        of_layer = {layer: number for number, group in enumerate(groups) for layer in group.layers}
        kinds = {_layer_kind(op, of_layer[int(op.attributes["layer"])], self._case) for op in sizes.oplist.ops if op.name == "attention"}  # type: ignore[arg-type]
        self._kinds, self._block_tokens = sorted(kinds), sizes.shape.block_tokens
        self._planned = device.event()
        self._host = device.host(len(groups), largest.rows * largest.blocks, dtype=torch.int32)
        self._indices = device.empty(len(groups), largest.rows * largest.blocks, dtype=torch.int32)
        workspace = device.zeros(WORKSPACE_BYTES, dtype=torch.uint8)
        buffers = [self._indices, workspace]
        for kind in self._kinds:
            decode, mixed = device.zeros(2, PLAN_BYTES, dtype=torch.uint8)
            buffers += [decode, mixed]
            for rows in {bucket.rows for bucket in sizes.buckets.decode}:
                indptr, last = (device.zeros(size, dtype=torch.int32) for size in (rows + 1, rows))
                buffers += [indptr, last]
                self._decode[kind, rows] = self._package.BatchDecodeWithPagedKVCacheWrapper(
                    workspace,
                    "NHD",
                    use_cuda_graph=True,
                    use_tensor_cores=True,
                    paged_kv_indptr_buffer=indptr,
                    paged_kv_indices_buffer=self._indices[kind.group],
                    paged_kv_last_page_len_buffer=last,
                    backend="fa2",
                )
                self._decode[kind, rows].reset_workspace_buffer(workspace, decode)
            self._mixed[kind] = self._package.BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD")
            self._mixed[kind].reset_workspace_buffer(workspace, mixed)
        return sum(tensor.nbytes for tensor in buffers)

    def prepare(self, bucket: Bucket, columns: Columns) -> None:
        """Plans a step from its packed columns. Waits for the copies of the plan before, which are done long before at depth 2."""
        self._planned.synchronize()
        self._tokens = int(columns["cu_q"][-1])
        lists = [block_lists(columns["kv_len"], table, self._block_tokens) for table in columns["tables"]]
        for group, (_, indices, _) in enumerate(lists):
            self._host[group, : len(indices)].copy_(torch.from_numpy(indices))
            self._indices[group, : len(indices)].copy_(self._host[group, : len(indices)], non_blocking=True)
        for kind in self._kinds:
            self._plan(kind, bucket, lists[kind.group], columns["cu_q"])
        self._planned.record()

    def bind(self, b: Binding, op: Op) -> Run:
        """The launch of the op over the plan of its step."""
        group, layer = b.layer(op)
        kind, bucket = _layer_kind(op, group, self._case), b.inputs.bucket
        q, out = (b.value(name).unflatten(1, (kind.heads, kind.head_dim)) for name in (op.inputs[0], op.outputs[0]))
        cache = (layer.keys, layer.values)
        if bucket.is_decode:
            return partial(self._decode[kind, bucket.rows].run, q, cache, out=out)
        mixed = self._mixed[kind]
        return lambda: mixed.run(q[: self._tokens], cache, out=out[: self._tokens])

    def _plan(self, kind: LayerKind, bucket: Bucket, lists: BlockLists, cu_q: NDArray[np.int32]) -> None:
        indptr, last = torch.from_numpy(lists.indptr), torch.from_numpy(lists.last)
        indices = self._indices[kind.group, : len(lists.indices)]
        sizes = (kind.heads, self._case.kv_heads, kind.head_dim, self._block_tokens)
        options: dict[str, Any] = {
            "window_left": kind.window - 1 if kind.window else -1,
            "logits_soft_cap": kind.softcap,
            "sm_scale": kind.scale,
            **self._dtypes,
        }
        if bucket.is_decode:
            self._decode[kind, bucket.rows].plan(indptr, indices, last, *sizes, **options)
        else:
            self._mixed[kind].plan(torch.from_numpy(cu_q.copy()), indptr, indices, last, *sizes, causal=True, **options)


def _layer_kind(op: Op, group: int, case: AttentionCase) -> LayerKind:
    """The kind of an attention op's layer."""
    head_dim, scale, window, softcap = (op.attributes[name] for name in ("head_dim", "scale", "window", "softcap"))
    return LayerKind(group, case.kv_heads * case.group, int(head_dim), float(scale), int(window), float(softcap))  # type: ignore[arg-type]


FLASHINFER: Final = OptionalBackend(serves, open_backend, INSTALL)
"""The backend `flashinfer`."""
