"""RoPE of a GGUF file: its keys, and the small tensors of divisors (Llama 3, LongRoPE)."""

from array import array
from dataclasses import replace
from typing import Final

from ridgeline.errors import ModelFormatError
from ridgeline.facts.files.gguf import Header
from ridgeline.facts.files.values import quoted
from ridgeline.facts.headers.fields import MAX_CONTEXT, MAX_WIDTH
from ridgeline.facts.headers.rope import DEFAULT_BASE, MAX_BASE, MAX_FACTOR, Ropes, attention_scale, linear, longrope, yarn
from ridgeline.facts.model import Rope
from ridgeline.models.declare import Architecture

MSCALE: Final = "yarn_log_multiplier"
"""Key behind `rope.scaling.` of YaRN's factor on scores."""


def read_ropes(header: Header, name: str, architecture: Architecture, head_dim: int, context: int) -> Ropes:
    """`Rope` of full and of window layers. Raises ModelFormatError for kinds of scaling that are not supported."""
    base = header.number(f"{name}.rope.freq_base", 1.0, MAX_BASE, default=DEFAULT_BASE)
    dim = _dim(header, name, architecture, head_dim)
    original = header.integer(f"{name}.rope.scaling.original_context_length", 1, MAX_CONTEXT, default=context)
    scale = header.number(f"{name}.rope.scaling.attn_factor", 0.0, 100.0, default=1.0)
    full, context = _scaled(header, name, architecture, base, dim, original, context)
    mscale = header.number(f"{name}.rope.scaling.{MSCALE}", 0.0, 10.0, default=0.0) if architecture.yarn_scores else 0.0
    scores = 1.0
    if mscale:  # llama.cpp writes a tenth of `mscale_all_dim`, and takes `mscale` for equal to it
        factor = header.number(f"{name}.rope.scaling.factor", 1.0, MAX_FACTOR, default=1.0)
        full, scores = replace(full, scale=1.0), attention_scale(factor, 10.0 * mscale) ** 2
    full = replace(full, scale=full.scale * scale)
    long = None
    if "rope_freqs" in architecture.rope_tensors and (divisors := _factors(header, "rope_freqs.weight", dim // 2)):
        plain = full.divisors or (1.0,) * (dim // 2)
        full = replace(full, divisors=tuple(each * divisor for each, divisor in zip(plain, divisors, strict=True)))
    if "rope_factors_short" in architecture.rope_tensors and (short := _factors(header, "rope_factors_short.weight", dim // 2)):
        full = longrope(base, dim, short, scale)
        long = (original, longrope(base, dim, _factors(header, "rope_factors_long.weight", dim // 2), scale))
    window = full
    if architecture.window_rope_base is not None:
        window = Rope(header.number(f"{name}.rope.freq_base_swa", 1.0, MAX_BASE, default=architecture.window_rope_base), dim)
    return Ropes({"full": full, "window": window}, long, context, scores)


def _dim(header: Header, name: str, architecture: Architecture, head_dim: int) -> int:
    """Dimensions of a head that RoPE rotates."""
    key = f"{name}.rope.dimension_count"
    dim = header.integer(key, 1, MAX_WIDTH, default=head_dim)
    if dim > head_dim or dim % 2 or (architecture.interleaved and dim != head_dim):
        wanted = f"{head_dim}" if architecture.interleaved else f"an even number up to {head_dim}"
        raise ModelFormatError(f"{key} is {dim}, but heads have length {head_dim}; {wanted} was expected")
    return dim


def _scaled(header: Header, name: str, architecture: Architecture, base: float, dim: int, original: int, context: int) -> tuple[Rope, int]:
    """(rope of full layers as the keys say, context after scaling)."""
    key = f"{name}.rope.scaling"
    factor = header.number(f"{key}.factor", 0.0, MAX_FACTOR, default=1.0) or 1.0
    kind = header.text(f"{key}.type", default="linear")
    if kind == "none" or kind == "longrope":
        return Rope(base, dim), context
    if kind == "linear":
        return linear(base, dim, factor), context
    if kind != "yarn":
        raise ModelFormatError(f"{key}.type is {quoted(kind)}, which is not supported; none, linear, yarn and longrope are")
    fast = header.number(f"{key}.yarn_beta_fast", 1e-3, 1e6, default=32.0)
    slow = header.number(f"{key}.yarn_beta_slow", 1e-3, 1e6, default=1.0)
    scale, truncate = attention_scale(factor), architecture.yarn_truncated
    rope = yarn(base, dim, factor, original, fast=fast, slow=slow, scale=scale, truncate=truncate)
    return rope, min(MAX_CONTEXT, max(context, int(original * factor)))


def _factors(header: Header, name: str, count: int) -> tuple[float, ...]:
    """Elements of a small F32 tensor, () where the file has none."""
    tensor = header.tensors.get(name)
    if tensor is None:
        return ()
    if tensor.kind != "F32" or tensor.shape != (count,):
        raise ModelFormatError(f"tensor {name!r} is {tensor.kind} {tensor.shape}, F32 {(count,)} was expected")
    with tensor.file.open("rb") as file:
        file.seek(tensor.offset)
        values = array("f", file.read(tensor.bytes))
    if not all(1e-6 <= value <= MAX_FACTOR for value in values):
        span = f"{min(values)} … {max(values)}"
        raise ModelFormatError(f"tensor {name!r} holds {span}, factors within 1e-6 … {MAX_FACTOR} were expected")
    return tuple(values)
