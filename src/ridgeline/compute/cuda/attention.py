"""Attention as a step binds it: what decides who computes it, and our own kernels.

Owns the seam behind which kernels of optional packages stand (`flash_attention.py`, `flashinfer.py`), of which `attention_backends.py`
chooses. K and V are written by our kernels whoever reads them: a block is [tokens of a block, KV heads, head dimension], which is what all
of them take.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from numpy.typing import NDArray

from ridgeline.compute.cuda.buckets import Bucket, Buckets
from ridgeline.compute.cuda.device import Device
from ridgeline.compute.cuda.triton import attention as ours
from ridgeline.compute.graph import Op, OpList
from ridgeline.core.plan import KVShape

if TYPE_CHECKING:
    from ridgeline.compute.cuda.plan import Binding

Run = Callable[[], None]
Columns = Mapping[str, NDArray[Any]]
"""A step's columns as the host has packed them, padding included; see `step.columns_of`."""


class Case(NamedTuple):
    """All that decides who can compute a model's attention. Windows and softcaps do not: everybody has them.

    dtype, kv_dtype  of queries, and of the cache, as `cache.DTYPES` names them
    group            query heads that share a KV head
    invariant        a token's bits must not depend on what else is in its step
    """

    capability: tuple[int, int]
    dtype: str
    kv_dtype: str
    head_dim: int
    kv_heads: int
    group: int
    invariant: bool


class Sizes(NamedTuple):
    """What memory that a backend keeps depends on."""

    oplist: OpList
    shape: KVShape
    buckets: Buckets


@dataclass(frozen=True, slots=True)
class Attention:
    """A backend.

    bind     (binding, op) → what computes the op in every step of a bucket, over the same addresses, so that a graph can hold it
    reserve  takes what memory it will ever need of the device, and says how many bytes; before the cache takes the rest
    prepare  looks at a step's columns before it is launched
    """

    name: str
    bind: Callable[["Binding", Op], Run]
    reserve: Callable[[Device, Sizes], int] = lambda device, sizes: 0
    prepare: Callable[[Bucket, Columns], None] = lambda bucket, columns: None


def _bind(b: "Binding", op: Op) -> Run:
    group, layer = b.layer(op)
    inputs = b.inputs
    return partial(
        ours.attention,
        b.value(op.inputs[0]),
        layer,
        inputs.tables[group],
        inputs["cu_q"],
        inputs["kv_len"],
        inputs["row_of_token"],
        head_dim=op.attributes["head_dim"],
        scale=op.attributes["scale"],
        window=op.attributes["window"],
        softcap=op.attributes["softcap"],
        out=b.value(op.outputs[0]),
        work=b.plan.scratch,
        most_q=inputs.bucket.most_q,
        invariant=b.plan.invariant,
    )


TRITON: Final = Attention("triton", _bind)
"""Ours: serves every case."""
