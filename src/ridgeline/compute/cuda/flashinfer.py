"""Attention by FlashInfer, where its package is installed: an optional backend whose steps are planned on the host.

Owns its wrappers and their workspaces: steps of single tokens have one a size, over fixed addresses, so that a graph can hold them; steps
with prompts share one, which is launched. A step is planned once for all layers that are alike, from columns that the host has, and waits
for nothing but the copies of the plan before. Never writes K or V. Written for version 0.7 (Ye et al. 2025); has run only against a
stand-in of the same signatures.
"""

from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ridgeline.compute.cuda.attention import Attention, Case, Columns, Run, Sizes
from ridgeline.compute.cuda.buckets import Bucket
from ridgeline.compute.cuda.cache import DTYPES
from ridgeline.compute.cuda.device import Device
from ridgeline.compute.graph import Op

if TYPE_CHECKING:
    from ridgeline.compute.cuda.plan import Binding

PACKAGE: Final = "flashinfer"
INSTALL: Final = "pip install flashinfer-python"

HEAD_DIMS: Final = {"bf16": (64, 128, 256), "fp16": (64, 128, 256), "fp8": (128, 256)}
"""By the type of the cache."""

WORKSPACE_BYTES: Final = 384 << 20
"""For what splits of keys sum up. 128 MiB are advised; splits of prompts with many heads need more."""

PLAN_BYTES: Final = 8 << 20
"""For one plan: what a wrapper takes of itself. Plans of layers that are alike follow each other on the device, and share one piece."""


class Kind(NamedTuple):
    """Layers that one plan serves."""

    group: int
    heads: int
    head_dim: int
    scale: float
    window: int
    softcap: float


class Pages(NamedTuple):
    """The pages of rows, one row's behind another's: indices[indptr[r] : indptr[r + 1]] are those of row r."""

    indptr: NDArray[np.int32]
    indices: NDArray[np.int32]
    last: NDArray[np.int32]
    """Tokens of each row's last page."""


def serves(case: Case) -> str | None:
    """Why it does not compute this case; None where it does."""
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


def open_backend(case: Case) -> Attention:
    """The backend. ImportError or OSError where the package is not there, or does not fit this torch."""
    made = FlashInfer(import_module(PACKAGE), case)
    return Attention("flashinfer", made.bind, made.reserve, made.prepare)


def pages_of(kv_len: NDArray[np.int32], table: NDArray[np.int32], block_tokens: int) -> Pages:
    """The pages of rows that have `kv_len` [R] positions each, over their table [R, P]."""
    blocks = -(-kv_len // block_tokens)
    indptr = np.zeros(len(blocks) + 1, np.int32)
    np.cumsum(blocks, out=indptr[1:])
    indices = table[np.arange(table.shape[1]) < blocks[:, None]]
    return Pages(indptr, indices, kv_len - np.maximum(blocks - 1, 0) * block_tokens)


class FlashInfer:
    """For one runner. `package`: the module `flashinfer`."""

    def __init__(self, package: Any, case: Case) -> None:
        self._package, self._case = package, case
        self._dtypes = {"q_data_type": DTYPES[case.dtype], "kv_data_type": DTYPES[case.kv_dtype]}
        self._block_tokens, self._tokens = 0, 0
        self._kinds: list[Kind] = []
        self._single: dict[tuple[Kind, int], Any] = {}
        self._mixed: dict[Kind, Any] = {}

    def reserve(self, device: Device, sizes: Sizes) -> int:
        """Makes every wrapper there will be; returns what they take of the device, in bytes."""
        groups, largest = sizes.shape.groups, sizes.buckets.largest
        of_layer = {layer: number for number, group in enumerate(groups) for layer in group.layers}
        found = {_kind(op, of_layer[int(op.attributes["layer"])], self._case) for op in sizes.oplist.ops if op.name == "attention"}  # type: ignore[arg-type]
        self._kinds, self._block_tokens = sorted(found), sizes.shape.block_tokens
        self._planned = device.event()
        self._host = device.host(len(groups), largest.rows * largest.blocks, dtype=torch.int32)
        self._indices = device.empty(len(groups), largest.rows * largest.blocks, dtype=torch.int32)
        workspace = device.zeros(WORKSPACE_BYTES, dtype=torch.uint8)
        taken = [self._indices, workspace]
        for kind in self._kinds:
            single, mixed = device.zeros(2, PLAN_BYTES, dtype=torch.uint8)
            taken += [single, mixed]
            for rows in {bucket.rows for bucket in sizes.buckets.single}:
                indptr, last = (device.zeros(size, dtype=torch.int32) for size in (rows + 1, rows))
                taken += [indptr, last]
                self._single[kind, rows] = self._package.BatchDecodeWithPagedKVCacheWrapper(
                    workspace,
                    "NHD",
                    use_cuda_graph=True,
                    use_tensor_cores=True,
                    paged_kv_indptr_buffer=indptr,
                    paged_kv_indices_buffer=self._indices[kind.group],
                    paged_kv_last_page_len_buffer=last,
                    backend="fa2",
                )
                self._single[kind, rows].reset_workspace_buffer(workspace, single)
            self._mixed[kind] = self._package.BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD")
            self._mixed[kind].reset_workspace_buffer(workspace, mixed)
        return sum(tensor.nbytes for tensor in taken)

    def prepare(self, bucket: Bucket, columns: Columns) -> None:
        """Plans a step. What the plan before had to copy has been copied once the step before it is done, which depth 2 has waited for."""
        self._planned.synchronize()
        self._tokens = int(columns["cu_q"][-1])
        pages = [pages_of(columns["kv_len"], table, self._block_tokens) for table in columns["tables"]]
        for group, (_, indices, _) in enumerate(pages):
            self._host[group, : len(indices)].copy_(torch.from_numpy(indices))
            self._indices[group, : len(indices)].copy_(self._host[group, : len(indices)], non_blocking=True)
        for kind in self._kinds:
            self._plan(kind, bucket, pages[kind.group], columns["cu_q"])
        self._planned.record()

    def bind(self, b: "Binding", op: Op) -> Run:
        """What runs the op over the plan of its step."""
        group, layer = b.layer(op)
        kind, bucket = _kind(op, group, self._case), b.inputs.bucket
        q, out = (b.value(name).unflatten(1, (kind.heads, kind.head_dim)) for name in (op.inputs[0], op.outputs[0]))
        cache = (layer.keys, layer.values)
        if bucket.single:
            return partial(self._single[kind, bucket.rows].run, q, cache, out=out)
        mixed = self._mixed[kind]
        return lambda: mixed.run(q[: self._tokens], cache, out=out[: self._tokens])

    def _plan(self, kind: Kind, bucket: Bucket, pages: Pages, cu_q: NDArray[np.int32]) -> None:
        indptr, last = torch.from_numpy(pages.indptr), torch.from_numpy(pages.last)
        indices = self._indices[kind.group, : len(pages.indices)]
        sizes = (kind.heads, self._case.kv_heads, kind.head_dim, self._block_tokens)
        how: dict[str, Any] = {
            "window_left": kind.window - 1 if kind.window else -1,
            "logits_soft_cap": kind.softcap,
            "sm_scale": kind.scale,
            **self._dtypes,
        }
        if bucket.single:
            self._single[kind, bucket.rows].plan(indptr, indices, last, *sizes, **how)
        else:
            self._mixed[kind].plan(torch.from_numpy(cu_q.copy()), indptr, indices, last, *sizes, causal=True, **how)


def _kind(op: Op, group: int, case: Case) -> Kind:
    """What an attention needs of its plan."""
    head_dim, scale, window, softcap = (op.attributes[name] for name in ("head_dim", "scale", "window", "softcap"))
    return Kind(group, case.kv_heads * case.group, int(head_dim), float(scale), int(window), float(softcap))  # type: ignore[arg-type]
