"""Formats of weights and KV cache, and the bytes of a model in them."""

from dataclasses import dataclass

from ridgeline.facts.files.formats import FORMATS
from ridgeline.facts.model import CLASSES, ModelFacts


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """Bits per parameter in layers, and in embedding and head; `compute` is the data type of the matrix products.

    code_bits  width of the codes that a CPU multiplies as integers, 4, 5, 6 or 8; 0: floats
    """

    layer_bits: float
    embedding_bits: float
    compute: str
    code_bits: int = 0


def _code_bits(name: str) -> int:
    """Of blocks of GGUF files. Codes of less than four bits are computed as those of four, and those that look values up as eight."""
    return max(4, int(name[1])) if name.startswith("Q") else 8


def code_dtype(bits: int) -> str:
    """The name of products with codes of so many bits among a device's data types."""
    return f"{bits}-bit codes"


WEIGHT_FORMATS: dict[str, WeightFormat] = {
    "f32": WeightFormat(32, 32, "f32"),
    "f16": WeightFormat(16, 16, "f16"),
    "bf16": WeightFormat(16, 16, "f16"),
    "fp8": WeightFormat(8, 8, "fp8"),
    "int8": WeightFormat(8, 8, "int8"),
    "int4": WeightFormat(4, 4, "f16"),
    # Groups of 128 weights with a 16-bit scale and a 4-bit zero; embedding and head stay in 16 bits.
    "awq": WeightFormat(4 + 20 / 128, 16, "f16", 4),
    "gptq": WeightFormat(4 + 20 / 128, 16, "f16", 4),
    "gptq8": WeightFormat(8 + 24 / 128, 16, "f16", 8),
    # compressed-tensors: symmetric groups of 128; one 16-bit scale per row, which is not counted; the same with 8-bit activations.
    "w4a16": WeightFormat(4 + 16 / 128, 16, "f16", 4),
    "w8a16": WeightFormat(8, 16, "f16", 8),
    "w8a8": WeightFormat(8, 16, "int8", 8),
    **{
        name.lower(): WeightFormat(stored.bits_per_weight, stored.bits_per_weight, "f16", _code_bits(name))
        for name, stored in FORMATS.items()
        if "_" in name
    },
}
"""Precisions without scales (4, 2, 1, ½ bytes), and stored formats with them. GGUF blocks are dequantised and multiplied as f16."""

KV_BITS = {"f32": 32, "f16": 16, "bf16": 16, "fp8": 8, "int8": 8, "int4": 4}
"""Bits per cached element, without scales."""

INT8_SCALE_BITS = 32
"""Of each head's K, and V, of a token in an int8 cache."""


def token_kv_bits(model: ModelFacts, kv_dtype: str) -> int:
    """Bits of a token's cache in one layer, with scales. MLA's latent has none."""
    scales = 2 * model.kv_heads * INT8_SCALE_BITS if kv_dtype == "int8" and not model.widths.latent else 0
    return model.widths.cached * KV_BITS[kv_dtype] + scales


def class_bytes(model: ModelFacts, dtype: str | None) -> dict[str, float]:
    """Bytes of weights by class in a weight format; None: as stored."""
    if dtype is None and model.stored:
        return {name: float(model.stored.get(name, 0)) for name in CLASSES}
    form = WEIGHT_FORMATS[dtype or model.dtype]
    ends = ("embedding", "head")
    return {name: count * (form.embedding_bits if name in ends else form.layer_bits) / 8 for name, count in model.parameters.items()}
