"""AttentionBackend backends: their interface, the selection by name, and the Triton backend.

Kernels of optional packages implement the same interface (`flash_attention.py`, `flashinfer.py`). K and V are written by Ridgeline's
kernels for every backend: a block is [tokens of a block, KV heads, head dimension], which all of them take. No backend falls back to
another.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

from numpy.typing import NDArray

from ridgeline.compute.cuda.buckets import Bucket, Buckets
from ridgeline.compute.cuda.device import Device
from ridgeline.compute.cuda.plan import Binding, Run
from ridgeline.compute.cuda.triton.attention import attention
from ridgeline.compute.graph import Op, OpList
from ridgeline.core.plan import KVShape
from ridgeline.errors import ConfigError

Columns = Mapping[str, NDArray[Any]]
"""Packed columns of a step on the host, padding included; see `step.step_columns`."""


class AttentionCase(NamedTuple):
    """Facts by which a backend accepts or rejects a model's attention. Windows and softcaps are not among them: every backend has them.

    dtype, kv_dtype  of queries, and of the cache: names of `cache.DTYPES`
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


class BackendSizes(NamedTuple):
    """Sizes that the memory of a backend depends on."""

    oplist: OpList
    shape: KVShape
    buckets: Buckets


@dataclass(frozen=True, slots=True)
class AttentionBackend:
    """An attention backend.

    bind     (binding, op) → the launch of the op in every step of a bucket, over the same addresses, so that a graph can hold it
    reserve  allocates all device memory that it will need, and returns its bytes; called before the cache takes the rest
    prepare  gets a step's packed columns before the step is launched
    """

    name: str
    bind: Callable[[Binding, Op], Run]
    reserve: Callable[[Device, BackendSizes], int] = lambda device, sizes: 0
    prepare: Callable[[Bucket, Columns], None] = lambda bucket, columns: None


def _bind(b: Binding, op: Op) -> Run:
    group, layer = b.layer(op)
    inputs = b.inputs
    return partial(
        attention,
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
        sinks=b.vector(op) if op.weights else None,
        out=b.value(op.outputs[0]),
        work=b.plan.scratch,
        max_q=inputs.bucket.max_q,
        invariant=b.plan.invariant,
    )


TRITON: Final = AttentionBackend("triton", _bind)
"""Ridgeline's own kernels: serve every case."""


class OptionalBackend(NamedTuple):
    """A backend that needs a package.

    serves   the reason why it cannot compute a case; None where it can
    open     the backend for a case. ImportError or OSError where the package is missing, or does not fit this torch
    install  how to install the package
    """

    serves: Callable[[AttentionCase], str | None]
    open: Callable[[AttentionCase], AttentionBackend]
    install: str


def open_attention(name: str, case: AttentionCase, optional: Mapping[str, OptionalBackend]) -> AttentionBackend:
    """The backend by a name of `--attention-backend`. ConfigError where it cannot compute the case, or its package cannot be imported."""
    if name == TRITON.name:
        return TRITON
    backend = optional[name]
    reason = backend.serves(case)
    if reason is not None:
        raise ConfigError(f"--attention-backend {name}: {reason}; use triton", fix={"--attention-backend": "triton"})
    try:
        return backend.open(case)
    except (ImportError, OSError) as problem:
        raise ConfigError(
            f"--attention-backend {name}: its package cannot be imported ({str(problem)[:200]}); {backend.install}, or use triton",
            fix={"--attention-backend": "triton"},
        ) from problem
