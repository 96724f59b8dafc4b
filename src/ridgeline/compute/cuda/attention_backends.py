"""Which attention a device runs, by its name: `--attention-backend`.

Owns the refusal where a backend that was asked for is not installed, or does not compute the model. Nothing falls back by itself.
"""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from ridgeline.compute.cuda import flash_attention, flashinfer
from ridgeline.compute.cuda.attention import TRITON, Attention, Case
from ridgeline.errors import ConfigError


class Optional(NamedTuple):
    """A backend of a package that need not be there."""

    serves: Callable[[Case], str | None]
    open: Callable[[Case], Attention]
    install: str


OPTIONAL: Final[Mapping[str, Optional]] = {
    "flash-attention": Optional(flash_attention.serves, flash_attention.open_backend, flash_attention.INSTALL),
    "flashinfer": Optional(flashinfer.serves, flashinfer.open_backend, flashinfer.INSTALL),
}
"""Name → backend: one line each. Ours needs none."""


def open_attention(name: str, case: Case) -> Attention:
    """The backend of a name that `config.runner` has settled. ConfigError where it does not serve the case, or is not installed."""
    if name == TRITON.name:
        return TRITON
    backend = OPTIONAL[name]
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
