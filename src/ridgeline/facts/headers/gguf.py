"""Reader of GGUF headers to `ModelFacts`: for the planner any architecture with the format's standard keys, for runners the supported
ones, with every dimension bounded and every tensor's shape checked.
"""

from array import array
from collections.abc import Sequence
from dataclasses import replace
from math import prod

from ridgeline.errors import ModelFormatError
from ridgeline.facts.files.formats import FILE_TYPES
from ridgeline.facts.files.gguf import Header
from ridgeline.facts.files.values import quoted
from ridgeline.facts.headers.experts import gguf_expert_sizes, gguf_experts
from ridgeline.facts.headers.fields import MAX_CONTEXT, MAX_LAYERS, MAX_VOCAB, MAX_WIDTH
from ridgeline.facts.headers.gguf_rope import MSCALE, read_ropes
from ridgeline.facts.headers.latent import latent_sizes, latent_widths
from ridgeline.facts.headers.pooling import gguf_pooling
from ridgeline.facts.headers.recurrence import gguf_delta_sizes, gguf_state
from ridgeline.facts.headers.rope import Ropes
from ridgeline.facts.headers.tensors import (
    Shapes,
    add_tensors,
    canonical_tensors,
    dense_sizes,
    expected_shapes,
    fingerprint,
    packed_by_class,
    sum_by_class,
)
from ridgeline.facts.model import AttentionWidths, Latent, ModelFacts
from ridgeline.models.declare import Architecture, TensorNames
from ridgeline.models.table import RUNNABLE, module_name

_TOKENS = "tokenizer.ggml.tokens"
_REQUIRED_VALUES: tuple[tuple[str, float | str | bool], ...] = (
    ("attention.clamp_kqv", 0.0),
    ("attention.max_alibi_bias", 0.0),
    ("attention.temperature_scale", 0.0),
    ("use_parallel_residual", False),
    ("rope.scale_linear", 1.0),
    ("rope.scaling.yarn_ext_factor", 1.0),
    ("rope.scaling.yarn_attn_factor", 1.0),
)
"""Keys, without the architecture's prefix, that change the network in ways that are not computed, and the only value that leaves it."""
_SCALES = {
    "attention.scale": "attention_multiplier",
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "logit_scale": "logits_scaling",
}
"""Keys of factors → what config.json calls them; not computed, as the above, for architectures whose `defaults` have no such key."""


def model_facts(header: Header) -> ModelFacts:
    """Facts for runners of a GGUF header. Raises ModelFormatError for what is not supported."""
    architecture, name = check_architecture(header), header.text("general.architecture")
    header = without_predictors(header)
    _check_required_values(header, name, architecture)
    facts = describe_gguf(header)
    _check_heads(header, name, facts)
    _check_vocab(header, facts)
    latent = facts.widths.latent
    turned = latent.rotary if latent else facts.head_dim
    ropes = read_ropes(header, name, architecture, turned, facts.context) if architecture.has_rope else None
    ropes = ropes or Ropes({}, None, facts.context)
    scores, logits = architecture.softcaps
    scaled = facts.hidden // facts.heads if facts.layers in architecture.hidden_scaled_layers else facts.head_dim
    complete = replace(
        facts,
        ffn=header.integer(f"{name}.feed_forward_length", 1, MAX_WIDTH),
        tokens=len(header.strings(_TOKENS)),
        context=ropes.context,
        attention=facts.attention if latent else None,
        eps=header.number(f"{name}.{architecture.eps_key}", 0.0, 1.0),
        rope=ropes.by_kind,
        attn_scale=(_factor(header, f"{name}.attention.scale") or scaled**-0.5) * ropes.scores,
        attn_softcap=header.number(f"{name}.attn_logit_softcapping", 0.0, 1e6, default=scores),
        final_softcap=header.number(f"{name}.final_logit_softcapping", 0.0, 1e6, default=logits),
        embedding_scale=_factor(header, f"{name}.embedding_scale") or 1.0,
        residual_scale=_factor(header, f"{name}.residual_scale") or 1.0,
        logit_scale=1.0 / (_factor(header, f"{name}.logit_scale") or 1.0),
        long_rope=ropes.long,
        pooling=gguf_pooling(header, name),
        bidirectional=architecture.bidirectional,
    )
    required, optional = gguf_shapes(header, complete)
    tensors = canonical_tensors(header.tensors, gguf_names(architecture), required, optional, name)
    return add_tensors(complete, tensors, fingerprint(header.files, header.tensors.values()))


def gguf_shapes(header: Header, facts: ModelFacts) -> tuple[Shapes, Shapes]:
    """(required tensors, optional biases) of a header without predictors: shapes by canonical name."""
    architecture, name = check_architecture(header), header.text("general.architecture")
    sizes = dense_sizes(facts, facts.context)
    if latent := facts.widths.latent:
        sizes |= latent_sizes(latent, facts.heads, header.integer(f"{name}.attention.q_lora_rank", 0, MAX_WIDTH, default=0))
    sizes["normed_head"] = facts.head_dim if _layers_with(header, "attn_q_norm.") else 0
    sparse: set[int] = set()
    if facts.experts is not None:
        sizes |= gguf_expert_sizes(header, name, facts.experts, facts.ffn)
        sparse = _layers_with(header, "ffn_gate_inp.") if "dense" in architecture.parts else set(range(facts.layers))
    if facts.state is not None and architecture.recurrence:
        sizes |= gguf_delta_sizes(header, facts.state)
    mixers = ("state" if kind == "none" else "attention" for kind in facts.layer_kinds)
    parts = tuple(frozenset((mixer, "sparse" if i in sparse else "dense")) for i, mixer in enumerate(mixers))
    return expected_shapes(architecture, sizes, parts, tied=facts.tied, flags=None)


def check_architecture(header: Header) -> Architecture:
    """The architecture of a GGUF header. Raises ModelFormatError where no runner has it."""
    name = header.text("general.architecture")
    if module_name(name) not in RUNNABLE:
        raise ModelFormatError(f"architecture {quoted(name)} is not supported; supported: {', '.join(sorted(RUNNABLE))}")
    return RUNNABLE[module_name(name)]


def describe_gguf(header: Header) -> ModelFacts:
    """Facts for the planner of a GGUF header. Tensors are classified by name; shapes are not checked."""
    arch = header.text("general.architecture")
    known = RUNNABLE.get(module_name(arch))
    header = without_predictors(header)
    layers = _layers(header, arch)
    hidden = header.integer(f"{arch}.embedding_length", 1, MAX_WIDTH)
    all_heads = _per_layer(header, f"{arch}.attention.head_count", layers, None)
    heads = max(1, *all_heads)
    all_kv_heads = _per_layer(header, f"{arch}.attention.head_count_kv", layers, heads)
    recurrent = _layers_with(header, "ssm_") & set(range(layers))
    with_keys = _layers_with(header, "attn_k.")
    attention_layers = [i for i in range(layers) if all_kv_heads[i] and (i in with_keys or i not in recurrent)]
    head_dim, attention = _attention(header, arch, hidden // heads, [(all_heads[i], all_kv_heads[i]) for i in attention_layers])
    kinds, window = _layer_kinds(header, arch, layers)
    tensors = header.tensors
    return ModelFacts(
        architecture=module_name(arch),
        name=header.text("general.name", default=arch),
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=1 if attention.latent else min((all_kv_heads[i] for i in attention_layers), default=1),
        head_dim=head_dim,
        ffn=max(1, *_per_layer(header, f"{arch}.feed_forward_length", layers, 4 * hidden)),
        vocab=_vocab(header),
        context=header.integer(f"{arch}.context_length", 1, MAX_CONTEXT),
        layer_kinds=tuple(kind if i in attention_layers else "none" for i, kind in enumerate(kinds)),
        window=window,
        tied="output.weight" not in tensors,
        dtype=_dominant_format(header),
        quantisation=_quantisation(header),
        parameters=sum_by_class((name, prod(tensor.shape)) for name, tensor in tensors.items()),
        stored=sum_by_class((name, tensor.bytes) for name, tensor in tensors.items()),
        packed=packed_by_class(tensors),
        attention=attention,
        experts=gguf_experts(header, arch, known),
        state=gguf_state(header, arch, len(recurrent), known.recurrence if known else ""),
    )


def _layers(header: Header, arch: str) -> int:
    """Layers of the network; those behind them that only predict further tokens do not count."""
    count = header.integer(f"{arch}.block_count", 1, MAX_LAYERS)
    return count - header.integer(f"{arch}.nextn_predict_layers", 0, count - 1, default=0)


def without_predictors(header: Header) -> Header:
    """A copy without the tensors of layers that only predict further tokens."""
    arch = header.text("general.architecture")
    last = header.integer(f"{arch}.block_count", 1, MAX_LAYERS)
    behind = tuple(f"blk.{number}." for number in range(_layers(header, arch), last))
    return replace(header, tensors={name: tensor for name, tensor in header.tensors.items() if not name.startswith(behind)})


def gguf_names(architecture: Architecture) -> TensorNames:
    """Tensor names of GGUF files: the canonical ones, and fused tensors."""
    rows = (*architecture.tensors, *(row for rows in architecture.parts.values() for row in rows))
    whole = {row[0]: (row[0],) for row in rows}
    outer = {name: name for name in ("token_embd", "output", *(row[0] for row in architecture.outer_tensors))}
    ignored = "|".join(rf"{name}\.weight" for name in architecture.rope_tensors) or r"(?!)"
    transforms = dict.fromkeys(architecture.interleaved, "interleaved") | dict.fromkeys(architecture.first_rows, "first_row")
    return TensorNames({**whole, **architecture.fused}, "blk.", outer, roots=("",), transforms=transforms, ignored=ignored)


def _check_required_values(header: Header, name: str, architecture: Architecture) -> None:
    causal = [("attention.causal", not architecture.bidirectional)]
    unscaled = [(key, 0.0) for key, own in _SCALES.items() if own not in architecture.defaults]
    dense = [] if "sparse" in architecture.parts else [("expert_count", 0)]
    plain = [] if architecture.yarn_scores else [(f"rope.scaling.{MSCALE}", 0.0)]
    for key, required in (*causal, *dense, *unscaled, *plain, *_REQUIRED_VALUES):
        found = header.metadata.get(f"{name}.{key}", required)
        if found != required:
            raise ModelFormatError(f"{name}.{key} is {quoted(found)}, which is not supported; {required!r} is, or a file without it")


def _factor(header: Header, key: str) -> float:
    """A factor of the file; 0 where it has none."""
    return header.number(key, 0.0, 1e9, default=0.0)


def _check_heads(header: Header, name: str, facts: ModelFacts) -> None:
    """Raises ModelFormatError unless heads are equal in all layers that attend, keys as long as values, and of even length."""
    if not facts.kv_layers:
        raise ModelFormatError(f"all layers of this {name} model are recurrent, which is not supported; one that attends was expected")
    for key in ("head_count", "head_count_kv"):
        header.integer(f"{name}.attention.{key}", 1, facts.heads, default=facts.heads)
    if facts.heads % facts.kv_heads:
        raise ModelFormatError(f"{facts.heads} query heads are not a multiple of {facts.kv_heads} KV heads")
    length, key = facts.head_dim, f"{name}.attention.value_length"
    if facts.widths.latent is None and header.integer(key, 1, MAX_WIDTH, default=length) != length:
        raise ModelFormatError(f"{key} is {header.metadata[key]}, but keys have length {length}; they must be equal")
    if length < 2 or length % 2:
        raise ModelFormatError(f"heads have length {length}, an even number ≥ 2 was expected; the file is damaged")


def _attention(header: Header, arch: str, default: int, heads: Sequence[tuple[int, int]]) -> tuple[int, AttentionWidths]:
    """(head dimension of keys, widths) of attention layers; `heads` are their (query heads, KV heads)."""
    key = f"{arch}.attention"
    keys = header.integer(f"{key}.key_length", 1, MAX_WIDTH, default=max(1, default))
    values = header.integer(f"{key}.value_length", 1, MAX_WIDTH, default=keys)
    keys = header.integer(f"{key}.key_length_mla", 1, MAX_WIDTH, default=keys)
    values = header.integer(f"{key}.value_length_mla", 1, MAX_WIDTH, default=values)
    width, query_heads = keys + values, _mean([queries for queries, _ in heads])
    if rank := header.integer(f"{key}.kv_lora_rank", 0, MAX_WIDTH, default=0):
        rotary = header.integer(f"{arch}.rope.dimension_count", 1, max(1, keys - 1))
        return keys, latent_widths(Latent(rank, rotary, keys - rotary, values), query_heads)
    return keys, AttentionWidths(_mean([kv * width for _, kv in heads]), query_heads * width, query_heads * width)


def _per_layer(header: Header, key: str, layers: int, default: int | None) -> Sequence[int]:
    """A number for each layer: an array of the file, else its one number, else `default`."""
    value = header.metadata.get(key)
    if not isinstance(value, array):
        return (header.integer(key, 1, MAX_WIDTH, default=default),) * layers
    if len(value) != layers or any(type(each) is not int or not 0 <= each <= MAX_WIDTH for each in value):
        raise ModelFormatError(f"{key} has {len(value)} entries, {layers} integers of 0 … {MAX_WIDTH} were expected")
    return value


def _mean(values: Sequence[int]) -> int:
    """Mean rounded up; 0 without values."""
    return -(-sum(values) // max(1, len(values)))


def _layers_with(header: Header, part: str) -> set[int]:
    """Layers that have a tensor whose name in the layer starts with `part`."""
    names = (name.split(".", 2) for name in header.tensors if name.startswith("blk."))
    return {int(name[1]) for name in names if len(name) == 3 and name[1].isdecimal() and name[2].startswith(part)}


def _layer_kinds(header: Header, name: str, layers: int) -> tuple[tuple[str, ...], int]:
    """(kind of each layer, tokens of the window or 0). The file may give the period, or a flag per layer (1: window).

    Unknown architectures count as full attention, which may overestimate the cache.
    """
    architecture, key = RUNNABLE.get(module_name(name)), f"{name}.attention.sliding_window"
    if architecture is None:
        return ("full",) * layers, 0
    if "gguf" in architecture.windows_everywhere and f"{key}_pattern" not in header.metadata:
        window = header.integer(key, 0, MAX_CONTEXT, default=0)
        return (("window",) if window else ("full",)) * layers, window
    kinds = _pattern(header, f"{key}_pattern", layers, architecture.window_pattern)
    if "window" not in kinds:
        return kinds, 0
    return kinds, header.integer(key, 1, MAX_CONTEXT, default=architecture.default_window or None)


def _pattern(header: Header, key: str, layers: int, period: int) -> tuple[str, ...]:
    flags = header.metadata.get(key, period)
    if isinstance(flags, (list, array)):
        if len(flags) != layers or any(flag not in (0, 1) for flag in flags):
            raise ModelFormatError(f"{key} has {len(flags)} entries, {layers} were expected, each 0 or 1")
        return tuple("window" if flag else "full" for flag in flags)
    period = header.integer(key, 1, MAX_LAYERS, default=period)
    return tuple("window" if (i + 1) % period else "full" for i in range(layers))


def _vocab(header: Header) -> int:
    embedding = header.tensors.get("token_embd.weight")
    if embedding is None:
        raise ModelFormatError("tensor 'token_embd.weight' is missing; this is not a complete model file")
    if not 1 <= embedding.shape[0] <= MAX_VOCAB:
        raise ModelFormatError(f"tensor 'token_embd.weight' has {embedding.shape[0]} rows, 1 … {MAX_VOCAB} were expected")
    return embedding.shape[0]


def _check_vocab(header: Header, facts: ModelFacts) -> None:
    shape = header.tensors["token_embd.weight"].shape
    if len(shape) != 2 or shape[1] != facts.hidden:
        raise ModelFormatError(f"tensor 'token_embd.weight' has shape {shape}, (vocabulary, {facts.hidden}) was expected")
    tokens = len(header.strings(_TOKENS))
    if not 1 <= tokens <= shape[0]:
        raise ModelFormatError(f"the tokenizer has {tokens} tokens, 1 … {shape[0]} (the rows of the embedding) were expected")


def _quantisation(header: Header) -> str:
    """Name of the file's mixture of formats, from its metadata; "" for one without weights in blocks, whatever it states."""
    kind = header.metadata.get("general.file_type")
    is_mixed = any(tensor.kind not in ("F32", "F16", "BF16") for tensor in header.tensors.values())
    return FILE_TYPES.get(kind, "") if type(kind) is int and is_mixed else ""


def _dominant_format(header: Header) -> str:
    """Format of most parameters in layers."""
    parameters: dict[str, int] = {}
    for name, tensor in header.tensors.items():
        if name.startswith("blk."):
            parameters[tensor.kind] = parameters.get(tensor.kind, 0) + prod(tensor.shape)
    if not parameters:
        raise ModelFormatError("the file has no layers (no tensor 'blk.0.…'); this file does not hold a whole model")
    return max(parameters, key=parameters.__getitem__).lower()
