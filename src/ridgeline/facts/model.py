"""What is known of a model from its header alone: no weights are read and no array library is needed."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class TensorFacts:
    """One tensor of a file: `shape` outermost dimension first (rows, columns), `kind` the stored type's name (Q8_0, F32 …)."""

    name: str
    kind: str
    shape: tuple[int, ...]
    file: Path
    offset: int
    """Bytes from the start of `file`."""
    bytes: int


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Numbers that define the network. `layer_kinds[i]` is "full" or "window"; `rope_base` is keyed by kind.

    vocab      rows of the embedding = width of the logits
    tokens     ids that the tokenizer names; rows beyond them are padding and are never sampled
    context    positions the model was trained for
    tied       the output head is the embedding
    fingerprint  SHA-256 identifying header and weights; part of every prefix key
    """

    architecture: str
    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    tokens: int
    context: int
    eps: float
    layer_kinds: tuple[str, ...]
    window: int
    rope_base: Mapping[str, float]
    tied: bool
    tensors: Mapping[str, TensorFacts]
    fingerprint: bytes

    @property
    def weights_bytes(self) -> int:
        """Bytes of all tensors as stored."""
        return sum(tensor.bytes for tensor in self.tensors.values())
