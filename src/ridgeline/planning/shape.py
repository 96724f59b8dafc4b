"""Numbers of a network for the planner, derived from its facts; formats of weights and KV cache."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from ridgeline.facts.files.formats import FORMATS
from ridgeline.facts.model import CLASSES, AttentionWidths, Experts, ModelFacts, StateLayers

AttentionKind = Literal["MHA", "GQA", "MQA", "MLA"]


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """Bits per parameter in layers, and in embedding and head; `compute` is the data type of the matrix products."""

    layer_bits: float
    embedding_bits: float
    compute: str


WEIGHT_FORMATS: dict[str, WeightFormat] = {
    "f32": WeightFormat(32, 32, "f32"),
    "f16": WeightFormat(16, 16, "f16"),
    "bf16": WeightFormat(16, 16, "f16"),
    "fp8": WeightFormat(8, 8, "fp8"),
    "int8": WeightFormat(8, 8, "int8"),
    "int4": WeightFormat(4, 4, "f16"),
    # Groups of 128 weights with a 16-bit scale and a 4-bit zero; embedding and head stay in 16 bits.
    "awq": WeightFormat(4 + 20 / 128, 16, "f16"),
    "gptq": WeightFormat(4 + 20 / 128, 16, "f16"),
    "gptq8": WeightFormat(8 + 24 / 128, 16, "f16"),
    # compressed-tensors: symmetric groups of 128; one 16-bit scale per row, which is not counted; the same with 8-bit activations.
    "w4a16": WeightFormat(4 + 16 / 128, 16, "f16"),
    "w8a16": WeightFormat(8, 16, "f16"),
    "w8a8": WeightFormat(8, 16, "int8"),
    **{
        name.lower(): WeightFormat(stored.bits_per_weight, stored.bits_per_weight, "f16") for name, stored in FORMATS.items() if "_" in name
    },
}
"""Precisions without scales (4, 2, 1, ½ bytes), and stored formats with them. GGUF blocks are dequantised and multiplied as f16."""

KV_BITS = {"f32": 32, "f16": 16, "bf16": 16, "fp8": 8, "int8": 8, "int4": 4}
"""Bits per cached element; scales are not counted."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A decoder-only transformer in numbers.

    layer_kinds   "full" or "window" per layer, "none" where a layer has no KV cache
    window        tokens of the sliding window, 0 without one
    kv_elements   elements in the KV cache per token and layer: 2 · KV heads · head dimension, or MLA's latent and rotary part
    decode_width  multiply-adds per cached token and layer: heads · (dimensions of a score + dimensions of a value)
    prefill_width the same for many tokens at once; MLA then expands its latent into smaller heads
    state         recurrent layers, in place of attention or in parallel to it
    parameters    counts by class (`CLASSES`); a tied head counts 0 and is read as the embedding
    dtype         format of the checkpoint's weights, a key of `WEIGHT_FORMATS`
    stored_bytes  bytes by class where files exist, else empty
    """

    name: str
    architecture: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    context: int
    attention: AttentionKind
    layer_kinds: tuple[str, ...]
    window: int
    kv_elements: int
    decode_width: int
    prefill_width: int
    parameters: Mapping[str, int]
    dtype: str = "bf16"
    experts: Experts | None = None
    state: StateLayers | None = None
    stored_bytes: Mapping[str, int] = field(default_factory=dict)

    @property
    def kv_layers(self) -> int:
        """Number of layers with a KV cache."""
        return self.layers - self.layer_kinds.count("none")

    @property
    def state_bytes(self) -> int:
        """Bytes per sequence in recurrent layers."""
        return self.state.bytes if self.state else 0

    @property
    def total_parameters(self) -> int:
        """All parameters; a tied head counts once."""
        return sum(self.parameters.values())

    @property
    def active_parameters(self) -> float:
        """Parameters used per token: of the routed experts only the active ones."""
        share = self.experts.active / self.experts.routed if self.experts else 0.0
        return self.total_parameters - self.parameters["experts"] * (1.0 - share)

    def class_bytes(self, dtype: str | None) -> dict[str, float]:
        """Bytes by class in a weight format; None: as stored."""
        if dtype is None and self.stored_bytes:
            return {name: float(self.stored_bytes.get(name, 0)) for name in CLASSES}
        form = WEIGHT_FORMATS[dtype or self.dtype]
        ends = ("embedding", "head")
        return {name: count * (form.embedding_bits if name in ends else form.layer_bits) / 8 for name, count in self.parameters.items()}


def shape_of(facts: ModelFacts) -> ModelShape:
    """Shape of the network described by `facts`."""
    keys, queries = facts.kv_heads * facts.head_dim, facts.heads * facts.head_dim
    widths = facts.attention or AttentionWidths(2 * keys, 2 * queries, 2 * queries)
    return ModelShape(
        name=facts.name,
        architecture=facts.architecture,
        layers=facts.layers,
        hidden=facts.hidden,
        heads=facts.heads,
        kv_heads=facts.kv_heads,
        head_dim=facts.head_dim,
        ffn=facts.ffn,
        vocab=facts.vocab,
        context=facts.context,
        attention="MLA" if widths.latent else attention_kind(facts.heads, facts.kv_heads),
        layer_kinds=facts.layer_kinds,
        window=facts.window,
        kv_elements=widths.cached,
        decode_width=widths.decode,
        prefill_width=widths.prefill,
        parameters=facts.parameters,
        dtype=facts.dtype,
        experts=facts.experts,
        state=facts.state,
        stored_bytes=facts.stored,
    )


def attention_kind(heads: int, kv_heads: int) -> AttentionKind:
    """Name of the attention variant with these query and KV heads. Notes on inference, part 4, section 7."""
    if kv_heads == heads:
        return "MHA"
    return "MQA" if kv_heads == 1 else "GQA"
