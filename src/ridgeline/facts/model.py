"""The description of a model, from its header alone: no weights are read and no array library is needed."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

CLASSES: Final = ("embedding", "head", "attention", "ffn", "experts", "norms")
"""Classes of tensors. Recurrences count as `attention`. `experts` are the routed ones; shared experts and routers are `ffn`."""


@dataclass(frozen=True, slots=True)
class TensorFacts:
    """One tensor of a file.

    name       what the file calls it; in `ModelFacts.tensors` the canonical name
    kind       name of the stored type: Q8_0, F32 …
    shape      outermost dimension first (rows, columns)
    offset     bytes from the start of `file`
    bytes      size of its elements, without other tensors' elements between them
    transform  difference between what is stored and the canonical tensor of `shape`, undone by `compute.load`; "" is none:
               transposed   stored as (columns, rows), as Conv1D does; the stored rows are `stride` bytes apart, elements of one
                            `row_stride`, or, where that is 0, one behind the other
               interleaved  the rows of each head are in the order of pairwise RoPE (0, h/2, 1, h/2 + 1 …), as Q and K of GGUF Llama files
               plus_one     stored less one: a norm whose formula is (1 + w)
               minus_exp    stored as a logarithm: a decay whose formula is −exp(w)
    quantised  the tensors of a quantised matrix; `offset` is then that of the codes, `bytes` includes scales and zeros
    experts    of a matrix per expert [E, N, K] whose matrices do not lie one behind the other as they are multiplied with: each by itself
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    file: Path
    offset: int
    bytes: int
    transform: str = ""
    stride: int = 0
    row_stride: int = 0
    quantised: "QuantisedParts | None" = None
    experts: "tuple[TensorFacts, ...]" = ()

    @property
    def files(self) -> tuple[Path, ...]:
        """Files of its elements: one, or those of the parts of a quantised matrix, or of experts."""
        if self.experts:
            return tuple(sorted({file for expert in self.experts for file in expert.files}))
        if self.quantised is None:
            return (self.file,)
        own = self.quantised
        parts = (own.codes, own.scales, own.zeros, own.order, own.shape_tensor, own.factor)
        return tuple(sorted({part.file for part in parts if part is not None}))


@dataclass(frozen=True, slots=True)
class QuantisedParts:
    """Tensors of one quantised matrix [N, K]: codes of `bits` bits, of which `group` along a row share a scale and a zero; G = K / group.

    layout  how the tensors are stored. Words are int32 with the lowest bits first:
            gptq    codes: words [K·bits / 32, N], along the inputs; zeros: words [G, N·bits / 32]; scales [G, N]; order [K]
            awq     codes: words [K, N / 8], along the outputs in the order 0 2 4 6 1 3 5 7; zeros alike [G, N / 8]; scales [G, N]
            packed  codes: words [N, K·bits / 32], along the inputs; zeros: words [N·bits / 32, G], along the outputs; scales [N, G]
            bytes   codes: int8 [N, K]; zeros: int8 [N, G]; scales [N, G]
            mxfp4   codes: bytes [E, N, G, 16] of two e2m1, the lower bits first; scales: bytes [E, N, G] of e8m0; groups of 32
            e4m3, e4m3 inverse  codes: fp8 [N, K]; scales [ceil(N / group_rows), ceil(K / group)]
            nvfp4 divided, nvfp4 multiplied  codes: bytes [N, K / 2] of two e2m1, the lower bits first; scales: fp8 [N, G]; groups of 16
            mxfp4 rows  codes as those of nvfp4; scales: bytes [N, G] of e8m0; groups of 32
            Words hold unsigned integers; int8 is signed
    zeros   None: 2^(bits - 1) for words, 0 for bytes
    order   group index of every input (g_idx); None: consecutive groups
    shape_tensor  the shape as a tensor of two integers
    zero_offset   added to each stored zero: 1 in the first format of GPTQ
    rows, first   rows of the stored matrix, and the first one of this tensor: projections may be stored as one matrix
    step          rows of it are every `step`-th of the stored ones
    group_rows    rows that share a scale
    factor        one number that all scales of nvfp4 are divided by, or multiplied with
    """

    layout: str
    bits: int
    group: int
    codes: TensorFacts
    scales: TensorFacts
    zeros: TensorFacts | None = None
    order: TensorFacts | None = None
    shape_tensor: TensorFacts | None = None
    zero_offset: int = 0
    rows: int = 0
    first: int = 0
    step: int = 1
    group_rows: int = 1
    factor: TensorFacts | None = None


@dataclass(frozen=True, slots=True)
class Rope:
    """Parameters of RoPE. Pair i of `dim` / 2 is rotated by position · base^(−2i / dim) / divisors[i].

    dim       leading dimensions of a head that are rotated; the rest is left as it is
    divisors  one per pair; () is 1 for all. Linear, Llama-3, YaRN and LongRoPE scaling are all of this form
    scale     factor on cosine and sine (the attention factor of YaRN and LongRoPE)
    """

    base: float
    dim: int
    divisors: tuple[float, ...] = ()
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Latent:
    """Multi-head latent attention (MLA). DeepSeek-AI 2024, "DeepSeek-V2", section 2.1.

    A token's K and V are `rank` numbers, from which every head's are made, and `rotary` numbers that all heads share and that alone are
    rotated. A head has `plain` + `rotary` numbers of K, and `value` of V.
    """

    rank: int
    rotary: int
    plain: int
    value: int

    @property
    def cached(self) -> int:
        """Numbers that the cache has of a token in a layer."""
        return self.rank + self.rotary


@dataclass(frozen=True, slots=True)
class CachedHeads:
    """Records that a layer caches of a token: `heads` times K of `head_dim` numbers and V of as many; or, with `latent`, K alone, whose
    first `latent` numbers are V too."""

    heads: int
    head_dim: int
    latent: int = 0

    @property
    def records(self) -> int:
        """Records of each head: K and V, or one that is both."""
        return 1 if self.latent else 2


@dataclass(frozen=True, slots=True)
class AttentionWidths:
    """Widths of attention per layer, where they are not those of `kv_heads` pairs of `head_dim`: MLA, or heads that differ by layer.

    cached   elements in the KV cache per token
    decode   multiply-adds per pair of query token and cached token, for one token at a time
    prefill  the same for many tokens at once, where MLA expands its latent into heads
    latent   keys and values are a latent (MLA); None: they are not
    """

    cached: int
    decode: int
    prefill: int
    latent: Latent | None = None


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of experts: `routed` experts in each of `layers` layers, `active` of them per token.

    The rest says how they are chosen and weighted: attributes of the op `route` (`compute/ops/experts.py`).
    """

    routed: int
    active: int
    layers: int
    scores: str = "softmax"
    normalise: bool = False
    scale: float = 1.0
    groups: int = 1
    groups_kept: int = 1
    group_score: str = "max"
    bias_selects: bool = False

    @property
    def routing(self) -> dict[str, Any]:
        """Attributes of `route`."""
        groups = {"groups": self.groups, "groups_kept": self.groups_kept, "group_score": self.group_score}
        chosen = {"k": self.active, "scores": self.scores, "bias_selects": self.bias_selects}
        return {**chosen, **groups, "normalise": self.normalise, "scale": self.scale}


@dataclass(frozen=True, slots=True)
class StateLayers:
    """Recurrent layers: each of `layers` layers keeps a state of fixed size per sequence, fp32.

    recurrent    elements of the state
    convolution  elements of the short convolution's last inputs

    Of the gated delta rule (Yang et al. 2024), 0 for other recurrences:
    key_heads, key_dim      heads of queries and of keys, and the numbers of one
    value_heads, value_dim  heads of values, each with a state of key_dim × value_dim; neighbours share a key head
    kernel       positions that the convolution reads
    """

    layers: int
    recurrent: int
    convolution: int
    key_heads: int = 0
    key_dim: int = 0
    value_heads: int = 0
    value_dim: int = 0
    kernel: int = 0

    @property
    def channels(self) -> int:
        """Channels of the delta rule's convolution: queries, keys and values."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    @property
    def bytes(self) -> int:
        """Bytes per sequence in all layers."""
        return 4 * self.layers * (self.recurrent + self.convolution)


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Numbers that define the network. Planning needs only those of a header; `facts.headers` adds the rest for runners, after every tensor
    has been accounted for.

    name        what the file calls itself
    layer_kinds "full" or "window" per layer, "none" where a layer has no keys and values
    window      tokens of the sliding window, 0 without one
    vocab       rows of the embedding = width of the logits
    context     positions that the model was trained for
    tied        the output head is the embedding
    dtype       format in which most weights are stored: a key of `planning.formats.WEIGHT_FORMATS`
    quantisation  name under which users know the mixture of a file's formats, Q4_K_M for instance; "" where it has none but `dtype`
    parameters  counts by class (`CLASSES`); a tied head counts 0 and is read as the embedding
    stored      bytes by class, {} where there are no weights
    packed      the same, as native kernels read them; {} where that is not known
    attention, experts, state    where the network has more than plain attention and a dense feed-forward

    For runners:
    tokens      ids that the tokenizer names; rows beyond them are padding and are never sampled
    eps         of norms
    ties_ignored  config.json ties the head to the embedding, but the files hold one, which is used
    activation_scales  matrices for whose inputs the files have a scale, which is not used: see `activation_note`
    bidirectional  tokens see those behind them: texts have vectors, and nothing is generated
    rope        by kind of layer, {} without RoPE
    attn_scale  factor on the scores q · k
    attn_softcap, final_softcap  cap · tanh(x / cap) on scores, on logits; 0: none
    embedding_scale, residual_scale, logit_scale  factors on embeddings, on what attention and feed-forward add, and on logits
    pooling     how its authors make a vector of a text: "last", "mean" or "cls"; "" where nothing says so
    long_rope   (context, rope): for more positions the model must be loaded with this `Rope` instead of `rope`
    tensors     by canonical name, which is GGUF's (`blk.3.attn_q.weight`), whatever the file calls them; fused projections are split
    fingerprint SHA-256 that identifies header and weights; part of every prefix key
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
    quantisation: str = ""
    parameters: Mapping[str, int] = field(default_factory=dict)
    stored: Mapping[str, int] = field(default_factory=dict)
    packed: Mapping[str, int] = field(default_factory=dict)
    attention: AttentionWidths | None = None
    experts: Experts | None = None
    state: StateLayers | None = None
    tokens: int = 0
    eps: float = 0.0
    ties_ignored: bool = False
    activation_scales: int = 0
    rope: Mapping[str, Rope] = field(default_factory=dict)
    attn_scale: float = 0.0
    attn_softcap: float = 0.0
    final_softcap: float = 0.0
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    pooling: str = ""
    bidirectional: bool = False
    long_rope: tuple[int, Rope] | None = None
    tensors: Mapping[str, TensorFacts] = field(default_factory=dict)
    fingerprint: bytes = b""

    @property
    def activation_note(self) -> str:
        """A sentence for who starts a model whose `activation_scales` are left out."""
        return "the files' scales of activations are not used: these stay floats, or get scales of their own: at least as exact"

    @property
    def format_name(self) -> str:
        """Name of the weights' format as users know it."""
        return self.quantisation or self.dtype

    @property
    def widths(self) -> AttentionWidths:
        """Widths of attention per layer: `attention`, or those of plain attention."""
        keys, queries = self.kv_heads * self.head_dim, self.heads * self.head_dim
        return self.attention or AttentionWidths(2 * keys, 2 * queries, 2 * queries)

    @property
    def cached(self) -> CachedHeads:
        """Records that a layer with keys and values caches of a token."""
        latent = self.widths.latent
        return CachedHeads(1, latent.cached, latent.rank) if latent else CachedHeads(self.kv_heads, self.head_dim)

    @property
    def attention_tokens(self) -> float:
        """Tokens in front of one at which attending to them takes as many multiply-adds as its products, and as its layers with a window,
        which see no more of them; 0: no layer sees them all."""
        share = self.experts.active / self.experts.routed if self.experts else 0.0
        products = self.parameters["attention"] + self.parameters["ffn"] + self.parameters["experts"] * share
        width, kinds = self.widths.prefill, self.layer_kinds
        seen = kinds.count("full") * width
        return (products + kinds.count("window") * self.window * width) / seen if seen else 0.0

    @property
    def attention_kind(self) -> Literal["MHA", "GQA", "MQA", "MLA"]:
        """Name of the attention variant. Notes on inference, part 4, section 7."""
        if self.widths.latent:
            return "MLA"
        if self.kv_heads == self.heads:
            return "MHA"
        return "MQA" if self.kv_heads == 1 else "GQA"

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
