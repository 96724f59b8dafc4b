"""The description of a model, from its header alone: no weights are read and no array library is needed."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

CLASSES: Final = ("embedding", "head", "attention", "ffn", "experts", "norms")
"""Classes of tensors. Recurrences count as `attention`. `experts` are the routed ones; shared experts and routers are `ffn`."""


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
    """Size of its elements, without those of others that stand between them."""
    view: str = ""
    """Way from what is stored to the canonical tensor of `shape`, taken by `compute.load`; "" is as stored:

    transposed   stored (columns, rows), a Conv1D's way; the stored rows are `stride` bytes apart
    interleaved  the rows of each head stand in the order of pairwise RoPE (0, h/2, 1, h/2 + 1 …), as GGUF Llama files have Q and K
    plus_one     stored less one: a norm whose formula is (1 + w)
    """
    stride: int = 0
    integers: "Integers | None" = None
    """Places of the parts of a matrix of grouped integers; `offset` is then that of the codes, `bytes` counts scales and zeros too."""

    @property
    def files(self) -> tuple[Path, ...]:
        """Files of its numbers: one, or those of its parts."""
        if self.integers is None:
            return (self.file,)
        parts = (self.integers.codes, self.integers.scales, self.integers.zeros, self.integers.order, self.integers.stated)
        return tuple(sorted({part.file for part in parts if part is not None}))


@dataclass(frozen=True, slots=True)
class Integers:
    """A matrix [N, K] of integers of `bits` bits, of which `group` along a row share a scale and perhaps a zero; G = K / group.

    layout  how its tensors are stored. Words are int32, of which the lowest bits come first:
            gptq    codes: words [K·bits / 32, N], along the inputs; zeros: words [G, N·bits / 32]; scales [G, N]; order [K]
            awq     codes: words [K, N / 8], along the outputs in the order 0 2 4 6 1 3 5 7; zeros alike [G, N / 8]; scales [G, N]
            packed  codes: words [N, K·bits / 32], along the inputs; zeros: words [N·bits / 32, G], along the outputs; scales [N, G]
            bytes   codes: int8 [N, K]; zeros: int8 [N, G]; scales [N, G]
            e4m3, e4m3 inverse  codes: fp8 [N, K], no integers; scales [ceil(N / tall), ceil(K / group)]
            Words hold unsigned integers; int8 is signed
    zeros   None: 2^(bits - 1) for words, 0 for bytes. `zero_added` is added to each stored word's fields
    order   the group of every input; None: `group` after each other
    stated  the shape, written as a tensor of two integers
    rows    rows of the stored matrix, of which this tensor's begin with `first`: projections may be stored as one
    tall    rows that share scales
    """

    layout: str
    bits: int
    group: int
    codes: TensorFacts
    scales: TensorFacts
    zeros: TensorFacts | None = None
    order: TensorFacts | None = None
    stated: TensorFacts | None = None
    zero_added: int = 0
    rows: int = 0
    first: int = 0
    tall: int = 1


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
class Attention:
    """Widths of attention, per layer, where they are not those of `kv_heads` pairs of `head_dim`: heads differ by layer, keys from values.

    cached    elements kept per token        decode   multiplied with where one token looks at the cache
    latent    keys and values are a latent (MLA)     prefill  the same for many tokens at once: MLA then expands its latent into heads
    """

    cached: int
    decode: int
    prefill: int
    latent: bool = False


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture: `routed` experts in each of `layers` layers, of which every token uses `active`."""

    routed: int
    active: int
    layers: int


@dataclass(frozen=True, slots=True)
class StateLayers:
    """Recurrences: each of `layers` layers keeps so many elements per sequence, whatever its length.

    recurrent    the state itself, 32 bits each, as the reference implementations compute it
    convolution  the last inputs of the short convolution before it, 16 bits each
    """

    layers: int
    recurrent: int
    convolution: int

    @property
    def bytes(self) -> int:
        """Size for one sequence in all layers."""
        return self.layers * (4 * self.recurrent + 2 * self.convolution)


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Numbers that define the network. The planner needs no more than a header's numbers; what runners need is filled in by `facts.headers`
    where it is asked for, after every tensor has been accounted for.

    name        what the file calls itself
    layer_kinds "full" or "window" per layer, "none" where a layer has no keys and values; `window`: tokens of the window, 0 without one
    vocab       rows of the embedding = width of the logits
    context     positions the model was trained for
    tied        the output head is the embedding
    dtype       format in which most weights are stored: a key of `planning.shape.WEIGHT_FORMATS`
    parameters  counts by class (`CLASSES`); a tied head counts 0 and is read as the embedding
    stored      bytes by class, {} where there are no weights
    attention, experts, state    where the network has more than plain attention and a dense feed-forward

    Of runners:
    tokens      ids that the tokenizer names; rows beyond them are padding and are never sampled
    eps         of norms
    rope        by kind of layer, {} where nothing turns
    attn_scale  factor on the scores q · k
    attn_softcap, final_softcap  cap · tanh(x / cap) on scores, on logits; 0: none
    long_rope   (context, rotation): beyond so many positions the model must be loaded with this rotation instead of `rope`
    tensors     by canonical name, which is GGUF's (`blk.3.attn_q.weight`), whatever the file calls them; fused projections appear as parts
    fingerprint SHA-256 identifying header and weights; part of every prefix key
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
    context: int
    layer_kinds: tuple[str, ...]
    window: int
    tied: bool
    dtype: str = "bf16"
    parameters: Mapping[str, int] = field(default_factory=dict)
    stored: Mapping[str, int] = field(default_factory=dict)
    attention: Attention | None = None
    experts: Experts | None = None
    state: StateLayers | None = None
    tokens: int = 0
    eps: float = 0.0
    rope: Mapping[str, Rope] = field(default_factory=dict)
    attn_scale: float = 0.0
    attn_softcap: float = 0.0
    final_softcap: float = 0.0
    long_rope: tuple[int, Rope] | None = None
    tensors: Mapping[str, TensorFacts] = field(default_factory=dict)
    fingerprint: bytes = b""
