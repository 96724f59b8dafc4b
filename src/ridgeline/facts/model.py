"""What is known of a model from its header alone: no weights are read and no array library is needed."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class TensorFacts:
    """One tensor of a file: `shape` outermost dimension first (rows, columns), `kind` the stored type's name (Q8_0, F32 …).

    name  what the file calls it; in `ModelFacts.tensors` the canonical name
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    file: Path
    offset: int
    """Bytes from the start of `file`."""
    bytes: int
    """What its elements take, without those of others that stand between them."""
    view: str = ""
    """How `compute.load` makes the canonical tensor of `shape` from what is stored; "" is as stored:

    transposed   stored (columns, rows), a Conv1D's way; the stored rows are `stride` bytes apart
    interleaved  the rows of each head stand in the order of pairwise RoPE (0, h/2, 1, h/2 + 1 …), as GGUF Llama files have Q and K
    plus_one     stored less one: a norm whose formula is (1 + w)
    """
    stride: int = 0


@dataclass(frozen=True, slots=True)
class Rope:
    """One rotation. Pair i of `dim` / 2 turns by position · base^(−2i / dim) / divisors[i].

    dim       dimensions of a head that turn, the first ones; the rest pass
    divisors  one a pair; () is 1 for all. Linear, Llama-3, YaRN and LongRoPE scaling are all of this form
    scale     factor on cosine and sine (the attention factor of YaRN and LongRoPE)
    """

    base: float
    dim: int
    divisors: tuple[float, ...] = ()
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Numbers that define the network. `layer_kinds[i]` is "full" or "window"; `rope` is keyed by kind, {} where nothing turns.

    vocab      rows of the embedding = width of the logits
    tokens     ids that the tokenizer names; rows beyond them are padding and are never sampled
    context    positions the model was trained for
    tied       the output head is the embedding
    attn_scale     factor on the scores q · k
    attn_softcap, final_softcap  cap · tanh(x / cap) on scores, on logits; 0: none
    long_rope  (context, rotation): beyond so many positions the model must be loaded with this rotation instead of `rope`
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
    rope: Mapping[str, Rope]
    tied: bool
    tensors: Mapping[str, TensorFacts]
    """By canonical name, which is GGUF's (`blk.3.attn_q.weight`), whatever the file calls them. Fused projections appear as their parts."""
    fingerprint: bytes
    attn_scale: float
    attn_softcap: float = 0.0
    final_softcap: float = 0.0
    long_rope: tuple[int, Rope] | None = None

    @property
    def weights_bytes(self) -> int:
        """Bytes of all tensors as stored."""
        return sum(tensor.bytes for tensor in self.tensors.values())
