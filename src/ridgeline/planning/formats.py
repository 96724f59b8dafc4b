"""Formats of weights and KV cache, and the bytes of a model in them."""

from dataclasses import dataclass

from ridgeline.facts.files.formats import FORMATS
from ridgeline.facts.model import CLASSES, ModelFacts


@dataclass(frozen=True, slots=True)
class FormatBits:
    """Bits per parameter in layers, and in embedding and head; `compute` is the data type of the matrix products.

    other_bits  of layers outside routed experts, where these differ
    native_bits  of blocks in the order in which a CPU's kernels read them; None: as stored
    code_bits  width of the codes that a CPU multiplies as integers, 4, 5, 6 or 8; 0: floats
    """

    layer_bits: float
    embedding_bits: float
    compute: str
    code_bits: int = 0
    other_bits: float | None = None
    native_bits: float | None = None

    def bits(self, kind: str, native: bool = False) -> float:
        """Bits per parameter of a class of tensors; `native`: as a CPU's kernels read them."""
        if native and self.native_bits is not None:
            return self.native_bits
        if kind in ("embedding", "head"):
            return self.embedding_bits
        return self.layer_bits if kind == "experts" or self.other_bits is None else self.other_bits


def _code_bits(name: str) -> int:
    """Bits per code of blocks of GGUF files. Codes of less than four bits are computed as those of four, and those that look values up as
    eight."""
    return 4 if name.startswith("TQ") else max(4, int(name[1])) if name.startswith("Q") else 8


def code_dtype(bits: int) -> str:
    """The name of products with codes of so many bits among a device's data types."""
    return f"{bits}-bit codes"


WEIGHT_FORMATS: dict[str, FormatBits] = {
    "f32": FormatBits(32, 32, "f32"),
    "f16": FormatBits(16, 16, "f16"),
    "bf16": FormatBits(16, 16, "f16"),
    "fp8": FormatBits(8, 8, "fp8"),
    "int8": FormatBits(8, 8, "int8"),
    "int4": FormatBits(4, 4, "f16"),
    # Routed experts alone are in four bits, with a scale of 8 bits for 32 or 16.
    "mxfp4": FormatBits(FORMATS["MXFP4"].bits_per_weight, 16, "f16", 5, 16),
    "nvfp4": FormatBits(FORMATS["NVFP4"].bits_per_weight, 16, "f16", 0, 16),
    # Groups of 128 weights with a 16-bit scale and a 4-bit zero; embedding and head stay in 16 bits.
    "awq": FormatBits(4 + 20 / 128, 16, "f16", 4),
    "gptq": FormatBits(4 + 20 / 128, 16, "f16", 4),
    "gptq8": FormatBits(8 + 24 / 128, 16, "f16", 8),
    # compressed-tensors: symmetric groups of 128; one 16-bit scale per row, which is not counted; the same with 8-bit activations.
    "w4a16": FormatBits(4 + 16 / 128, 16, "f16", 4),
    "w8a16": FormatBits(8, 16, "f16", 8),
    "w8a8": FormatBits(8, 16, "int8", 8),
    **{
        name.lower(): FormatBits(
            stored.bits_per_weight,
            stored.bits_per_weight,
            "f16",
            _code_bits(name),
            native_bits=stored.native_bytes * 8 / stored.block_elements if stored.native_bytes else None,
        )
        for name, stored in FORMATS.items()
        if "_" in name
    },
}
"""Precisions without scales (4, 2, 1, ½ bytes), and stored formats with them. GGUF blocks are dequantised and multiplied as f16."""

KV_BITS = {"f32": 32, "f16": 16, "bf16": 16, "fp8": 8, "int8": 8, "int4": 4}
"""Bits per cached element, without scales."""

INT8_SCALE_BITS = 32
"""Bits of the scale of each head's K, and V, of a token in an int8 cache."""


def token_kv_bits(model: ModelFacts, kv_dtype: str) -> int:
    """Bits of a token's cache in one layer, with scales. MLA's latent is K and V, with one."""
    scales = (1 if model.widths.latent else 2 * model.kv_heads) if kv_dtype == "int8" else 0
    return model.widths.cached * KV_BITS[kv_dtype] + scales * INT8_SCALE_BITS


def class_bytes(model: ModelFacts, dtype: str | None, *, native: bool = False) -> dict[str, float]:
    """Bytes of weights by class in a weight format, None: as stored; `native`: as a CPU's kernels read them."""
    if dtype is None and model.stored:
        held = (native and model.packed) or model.stored
        return {name: float(held.get(name, 0)) for name in CLASSES}
    form = WEIGHT_FORMATS[dtype or model.dtype]
    return {name: count * form.bits(name, native) / 8 for name, count in model.parameters.items()}
