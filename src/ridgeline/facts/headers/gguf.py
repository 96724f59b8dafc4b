"""Reader of GGUF headers, to `ModelFacts`: for the planner of any architecture that uses the format's standard keys, for runners of
those that are computed, with every dimension bounded and every tensor's shape checked.
"""

from array import array
from collections.abc import Sequence
from dataclasses import replace
from math import prod

from ridgeline.errors import ModelFormatError
from ridgeline.facts.files.gguf import Header
from ridgeline.facts.files.values import quoted
from ridgeline.facts.headers.fields import MAX_CONTEXT, MAX_EXPERTS, MAX_LAYERS, MAX_VOCAB, MAX_WIDTH
from ridgeline.facts.headers.gguf_rope import read_ropes
from ridgeline.facts.headers.rope import Rotations
from ridgeline.facts.headers.tensors import by_class, canonical_tensors, expected_shapes, fingerprint, plain_sizes, with_tensors
from ridgeline.facts.model import Attention, Experts, ModelFacts, StateLayers
from ridgeline.models.declare import Architecture, Layout
from ridgeline.models.table import COMPUTED

_TOKENS = "tokenizer.ggml.tokens"
_PLAIN = frozenset(("attention", "dense"))
_NEUTRAL: tuple[tuple[str, float | str | bool], ...] = (
    ("expert_count", 0),
    ("attention.causal", True),
    ("attention.scale", 0.0),
    ("attention.clamp_kqv", 0.0),
    ("attention.max_alibi_bias", 0.0),
    ("attention.temperature_scale", 0.0),
    ("logit_scale", 0.0),
    ("embedding_scale", 0.0),
    ("residual_scale", 0.0),
    ("use_parallel_residual", False),
    ("rope.scale_linear", 1.0),
    ("rope.scaling.yarn_ext_factor", 1.0),
    ("rope.scaling.yarn_attn_factor", 1.0),
    ("rope.scaling.yarn_log_multiplier", 0.0),
)
"""Keys, without the architecture's prefix, that change the network in ways that are not computed, and the only value that leaves it."""


def model_facts(header: Header) -> ModelFacts:
    """Facts for runners of a header that has been read. Raises ModelFormatError for what is not computed."""
    name = header.text("general.architecture")
    architecture = COMPUTED.get(name)
    if architecture is None:
        raise ModelFormatError(f"architecture {quoted(name)} is not supported; supported: {', '.join(sorted(COMPUTED))}")
    _check_neutral(header, name)
    facts = describe_gguf(header)
    _check_heads(header, name, facts)
    _check_vocab(header, facts)
    ropes = read_ropes(header, name, architecture, facts.head_dim, facts.context) if architecture.rope else None
    ropes = ropes or Rotations({}, None, facts.context)
    scores, logits = architecture.softcaps
    scaled = facts.hidden // facts.heads if facts.layers in architecture.hidden_scaled else facts.head_dim
    numbers = replace(
        facts,
        ffn=header.integer(f"{name}.feed_forward_length", 1, MAX_WIDTH),
        tokens=len(header.strings(_TOKENS)),
        context=ropes.context,
        attention=None,
        eps=header.number(f"{name}.{architecture.eps}", 0.0, 1.0),
        rope=ropes.by_kind,
        attn_scale=scaled**-0.5,
        attn_softcap=header.number(f"{name}.attn_logit_softcapping", 0.0, 1e6, default=scores),
        final_softcap=header.number(f"{name}.final_logit_softcapping", 0.0, 1e6, default=logits),
        long_rope=ropes.long,
    )
    sizes = plain_sizes(numbers, facts.context)
    must, may = expected_shapes(architecture, sizes, (_PLAIN,) * facts.layers, tied=facts.tied, flags=None)
    tensors = canonical_tensors(header.tensors, _layout(architecture), must, may, name)
    return with_tensors(numbers, tensors, fingerprint(header.files, header.tensors.values()))


def describe_gguf(header: Header) -> ModelFacts:
    """Facts for the planner of a header that has been read. Tensors are counted by what they are called, whatever their shapes."""
    arch = header.text("general.architecture")
    layers = header.integer(f"{arch}.block_count", 1, MAX_LAYERS)
    hidden = header.integer(f"{arch}.embedding_length", 1, MAX_WIDTH)
    all_heads = _per_layer(header, f"{arch}.attention.head_count", layers, None)
    heads = max(1, *all_heads)
    all_kv_heads = _per_layer(header, f"{arch}.attention.head_count_kv", layers, heads)
    recurring = _layers_with(header, "ssm_") & set(range(layers))
    keyed = _layers_with(header, "attn_k.")
    attending = [i for i in range(layers) if all_kv_heads[i] and (i in keyed or i not in recurring)]
    head_dim, attention = _attention(header, arch, hidden // heads, [(all_heads[i], all_kv_heads[i]) for i in attending])
    kinds, window = _layer_kinds(header, arch, layers)
    tensors = header.tensors
    return ModelFacts(
        architecture=arch,
        name=header.text("general.name", default=arch),
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=1 if attention.latent else min((all_kv_heads[i] for i in attending), default=1),
        head_dim=head_dim,
        ffn=max(1, *_per_layer(header, f"{arch}.feed_forward_length", layers, 4 * hidden)),
        vocab=_vocab(header),
        context=header.integer(f"{arch}.context_length", 1, MAX_CONTEXT),
        layer_kinds=tuple(kind if i in attending else "none" for i, kind in enumerate(kinds)),
        window=window,
        tied="output.weight" not in tensors,
        dtype=_dominant_format(header),
        parameters=by_class((name, prod(tensor.shape)) for name, tensor in tensors.items()),
        stored=by_class((name, tensor.bytes) for name, tensor in tensors.items()),
        attention=attention,
        experts=_experts(header, arch),
        state=_state(header, arch, len(recurring)),
    )


def _layout(architecture: Architecture) -> Layout:
    """Names in GGUF files: canonical ones, fused tensors apart."""
    whole = {row[0]: (row[0],) for row in architecture.tensors}
    ends = {name: name for name in ("token_embd", "output", *(row[0] for row in architecture.ends))}
    ignored = "|".join(rf"{name}\.weight" for name in architecture.rope_tensors) or r"(?!)"
    views = dict.fromkeys(architecture.interleaved, "interleaved")
    return Layout({**whole, **architecture.fused}, "blk.", ends, roots=("",), views=views, ignored=ignored)


def _check_neutral(header: Header, name: str) -> None:
    for key, neutral in _NEUTRAL:
        found = header.metadata.get(f"{name}.{key}", neutral)
        if found != neutral:
            raise ModelFormatError(f"{name}.{key} is {quoted(found)}, which is not computed; {neutral!r} is, or a file without it")


def _check_heads(header: Header, name: str, facts: ModelFacts) -> None:
    """Heads of a network that is computed: alike in all layers, keys as long as values, of an even length."""
    for key in ("head_count", "head_count_kv"):
        header.integer(f"{name}.attention.{key}", 1, facts.heads, default=facts.heads)
    if facts.heads % facts.kv_heads:
        raise ModelFormatError(f"{facts.heads} query heads are no multiple of {facts.kv_heads} KV heads")
    length, key = facts.head_dim, f"{name}.attention.value_length"
    if header.integer(key, 1, MAX_WIDTH, default=length) != length:
        raise ModelFormatError(f"{key} is {header.metadata[key]}, but keys have length {length}; they must be equal")
    if length < 2 or length % 2:
        raise ModelFormatError(f"heads have length {length}, an even number ≥ 2 was expected; the file is damaged")


def _attention(header: Header, arch: str, default: int, heads: Sequence[tuple[int, int]]) -> tuple[int, Attention]:
    """(length of a head's keys, widths) of attending layers with so many query and KV heads each."""
    key = f"{arch}.attention"
    keys = header.integer(f"{key}.key_length", 1, MAX_WIDTH, default=max(1, default))
    values = header.integer(f"{key}.value_length", 1, MAX_WIDTH, default=keys)
    keys = header.integer(f"{key}.key_length_mla", 1, MAX_WIDTH, default=keys)
    values = header.integer(f"{key}.value_length_mla", 1, MAX_WIDTH, default=values)
    latent = header.integer(f"{key}.kv_lora_rank", 0, MAX_WIDTH, default=0)
    rotary = header.integer(f"{arch}.rope.dimension_count", 0, MAX_WIDTH, default=keys)
    width, looking = keys + values, _mean([queries for queries, _ in heads])
    if latent:
        return keys, Attention(latent + rotary, looking * (2 * latent + rotary), looking * width, latent=True)
    return keys, Attention(_mean([kv * width for _, kv in heads]), looking * width, looking * width)


def _per_layer(header: Header, key: str, layers: int, default: int | None) -> Sequence[int]:
    """A number for each layer: an array of the file, else its one number, else `default`."""
    value = header.metadata.get(key)
    if not isinstance(value, array):
        return (header.integer(key, 1, MAX_WIDTH, default=default),) * layers
    if len(value) != layers or any(type(each) is not int or not 0 <= each <= MAX_WIDTH for each in value):
        raise ModelFormatError(f"{key} has {len(value)} entries, {layers} integers of 0 … {MAX_WIDTH} were expected")
    return value


def _mean(values: Sequence[int]) -> int:
    """Mean of layers that differ, rounded up; 0 of none."""
    return -(-sum(values) // max(1, len(values)))


def _layers_with(header: Header, part: str) -> set[int]:
    """Layers that have a tensor whose name begins so."""
    names = (name.split(".", 2) for name in header.tensors if name.startswith("blk."))
    return {int(name[1]) for name in names if len(name) == 3 and name[1].isdecimal() and name[2].startswith(part)}


def _state(header: Header, arch: str, layers: int) -> StateLayers | None:
    """Recurrences: a state of channels × size, and the last inputs of the convolution over channels and, grouped, both projections."""
    if not layers:
        return None
    channels, size = (header.integer(f"{arch}.ssm.{key}", 1, MAX_WIDTH) for key in ("inner_size", "state_size"))
    kernel = header.integer(f"{arch}.ssm.conv_kernel", 1, MAX_WIDTH)
    groups = header.integer(f"{arch}.ssm.group_count", 0, MAX_WIDTH, default=0)
    return StateLayers(layers, channels * size, (kernel - 1) * (channels + 2 * groups * size))


def _experts(header: Header, arch: str) -> Experts | None:
    routed = header.integer(f"{arch}.expert_count", 0, MAX_EXPERTS, default=0)
    if not routed:
        return None
    active = header.integer(f"{arch}.expert_used_count", 1, routed)
    return Experts(routed, active, sum(name.endswith("ffn_down_exps.weight") for name in header.tensors))


def _layer_kinds(header: Header, name: str, layers: int) -> tuple[tuple[str, ...], int]:
    """(kind of each layer, tokens of the window or 0). The file may give the period, or a flag for each layer (1: a window).

    Layers of an architecture without a known pattern count as full: their cache is then over-, never underestimated.
    """
    architecture, key = COMPUTED.get(name), f"{name}.attention.sliding_window"
    if architecture is None:
        return ("full",) * layers, 0
    if "gguf" in architecture.windowed and f"{key}_pattern" not in header.metadata:
        window = header.integer(key, 0, MAX_CONTEXT, default=0)
        return (("window",) if window else ("full",)) * layers, window
    kinds = _pattern(header, f"{key}_pattern", layers, architecture.pattern)
    if "window" not in kinds:
        return kinds, 0
    return kinds, header.integer(key, 1, MAX_CONTEXT, default=architecture.window or None)


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


def _dominant_format(header: Header) -> str:
    """The format that holds most parameters of the layers."""
    held: dict[str, int] = {}
    for name, tensor in header.tensors.items():
        if name.startswith("blk."):
            held[tensor.kind] = held.get(tensor.kind, 0) + prod(tensor.shape)
    if not held:
        raise ModelFormatError("the file has no layers (no tensor 'blk.0.…'); this file holds no whole model")
    return max(held, key=held.__getitem__).lower()
