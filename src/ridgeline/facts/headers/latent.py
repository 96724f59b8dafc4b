"""Latent attention (MLA) in headers: its dimensions, its widths, and the two matrices of a head that files keep as one."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ridgeline.errors import ModelFormatError
from ridgeline.facts.files.formats import FORMATS
from ridgeline.facts.files.values import quoted
from ridgeline.facts.model import AttentionWidths, Latent, TensorFacts
from ridgeline.models.declare import Sizes


def latent_sizes(latent: Latent, heads: int, query_rank: int) -> Sizes:
    """Dimensions by the names that rows have; `query_rank` 0: queries are made of the hidden state at once."""
    queries = heads * (latent.plain + latent.rotary)
    return {
        "heads": heads, "latent": latent.rank, "cached": latent.cached, "plain": latent.plain, "value": latent.value,
        "values": heads * latent.value, "query_rank": query_rank, "latent_queries": queries, "plain_queries": 0 if query_rank else queries,
    }  # fmt: skip


def latent_widths(latent: Latent, heads: int) -> AttentionWidths:
    """Widths of attention: queries come into the latent space, so scores sum over latent and rotary numbers, and values are latents."""
    prefill = heads * (latent.plain + latent.rotary + latent.value)
    return AttentionWidths(latent.cached, heads * (2 * latent.rank + latent.rotary), prefill, latent)


def split_heads(tensor: TensorFacts, parts: tuple[str, ...], shapes: Mapping[str, tuple[int, ...]]) -> list[TensorFacts]:
    """The parts of a matrix [heads · (plain + value), rank] that makes K and V of a latent: of every head first the rows of K, which are
    multiplied the other way round, [heads, rank, plain], then those of V [heads, value, rank].

    Raises ModelFormatError for another shape, and where elements cannot be transposed.
    """
    (heads, rank, plain), (_, value, _) = (shapes[part] for part in parts)
    whole = (heads * (plain + value), rank)
    if tensor.shape != whole:
        raise ModelFormatError(f"tensor {quoted(tensor.name)} has shape {tensor.shape}, the header says {whole}")
    form = FORMATS.get(tensor.kind) if tensor.quantised is None else None
    if form is None or form.block_elements != 1:
        raise ModelFormatError(
            f"tensor {quoted(tensor.name)} is stored as {tensor.kind}, whose rows of K cannot be transposed; F32, F16 and BF16 can. GGUF "
            "files of llama.cpp's converter since May 2025 have attn_k_b and attn_v_b in its place: convert or download the model again"
        )
    size = form.block_bytes
    row = rank * size
    own: list[tuple[str, tuple[int, int], int, dict[str, Any]]] = [
        (parts[0], (rank, plain), 0, {"transform": "transposed", "stride": row}),
        (parts[1], (value, rank), plain * row, {}),
    ]
    found = []
    for name, shape, first, view in own:
        each = shape[0] * shape[1] * size
        at = tensor.offset + first
        every = tuple(
            replace(tensor, name=name, shape=shape, offset=at + head * (plain + value) * row, bytes=each, **view) for head in range(heads)
        )
        found.append(replace(tensor, name=name, shape=(heads, *shape), offset=at, bytes=heads * each, experts=every))
    return found
