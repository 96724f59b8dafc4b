"""Table of stored tensor formats (ggml types) with their block sizes, for header readers and dequantisers."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StoredFormat:
    """Format that stores `block_elements` consecutive weights in `block_bytes` bytes.

    native_bytes  of a block in the order in which native kernels read it; 0: as many as are stored
    """

    name: str
    ggml_id: int
    block_elements: int
    block_bytes: int
    native_bytes: int = 0

    @property
    def bits_per_weight(self) -> float:
        """Bits per weight, scales included."""
        return self.block_bytes * 8 / self.block_elements

    def packed_bytes(self, stored_bytes: int) -> int:
        """Bytes that so many stored ones, whole blocks of them, take as native kernels read them."""
        return stored_bytes // self.block_bytes * (self.native_bytes or self.block_bytes)

    def row_bytes(self, columns: int) -> int:
        """Bytes of `columns` consecutive weights, whole blocks of them."""
        return columns // self.block_elements * self.block_bytes


FORMATS = {
    stored.name: stored
    for stored in (
        StoredFormat("F32", 0, 1, 4),
        StoredFormat("F16", 1, 1, 2),
        StoredFormat("Q4_0", 2, 32, 18),
        StoredFormat("Q4_1", 3, 32, 20),
        StoredFormat("Q5_0", 6, 32, 22),
        StoredFormat("Q5_1", 7, 32, 24),
        StoredFormat("Q8_0", 8, 32, 34),
        StoredFormat("Q2_K", 10, 256, 84),
        StoredFormat("Q3_K", 11, 256, 110, 114),
        StoredFormat("Q4_K", 12, 256, 144, 148),
        StoredFormat("Q5_K", 13, 256, 176, 180),
        StoredFormat("Q6_K", 14, 256, 210),
        StoredFormat("IQ2_XXS", 16, 256, 66, 146),
        StoredFormat("IQ2_XS", 17, 256, 74, 146),
        StoredFormat("IQ3_XXS", 18, 256, 98, 146),
        StoredFormat("IQ1_S", 19, 256, 50, 146),
        StoredFormat("IQ4_NL", 20, 32, 18),
        StoredFormat("IQ3_S", 21, 256, 110, 146),
        StoredFormat("IQ2_S", 22, 256, 82, 146),
        StoredFormat("IQ4_XS", 23, 256, 136, 138),
        StoredFormat("IQ1_M", 29, 256, 56, 146),
        StoredFormat("BF16", 30, 1, 2),
        StoredFormat("TQ1_0", 34, 256, 54, 82),
        StoredFormat("TQ2_0", 35, 256, 66, 82),
        StoredFormat("MXFP4", 39, 32, 17),
        StoredFormat("NVFP4", 40, 64, 36),
    )
}
FILE_TYPES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S", 12: "Q3_K_M", 13: "Q3_K_L",
    14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K", 19: "IQ2_XXS", 20: "IQ2_XS", 21: "Q2_K_S", 22: "IQ3_XS",
    23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL", 26: "IQ3_S", 27: "IQ3_M", 28: "IQ2_S", 29: "IQ2_M", 30: "IQ4_XS", 31: "IQ1_M", 32: "BF16",
    36: "TQ1_0", 37: "TQ2_0", 38: "MXFP4_MOE",
}  # fmt: skip
"""`general.file_type` of GGUF files → the name under which users know the mixture of stored types: of Q4_K_M, half of some matrices are
Q6_K, and rows that are no multiple of 256 are Q5_0 or Q8_0."""
BY_ID = {stored.ggml_id: stored for stored in FORMATS.values()}

UNSUPPORTED = {
    9: "Q8_1",
    15: "Q8_K",
    24: "I8",
    25: "I16",
    26: "I32",
    27: "I64",
    28: "F64",
    41: "Q1_0",
}
"""ggml type id → name, of types that are not supported."""
