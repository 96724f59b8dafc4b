"""From a GGUF header to a `ModelShape`, for any architecture that uses the format's standard keys. Reads no weights."""

from array import array
from collections.abc import Callable, Sequence
from math import prod
from pathlib import Path

from ridgeline.errors import ModelFormatError
from ridgeline.facts.files.gguf import Header, read_header
from ridgeline.facts.headers.architectures import ARCHITECTURES
from ridgeline.facts.headers.config_json import MAX_CONTEXT, MAX_EXPERTS, MAX_LAYERS, MAX_VOCAB, MAX_WIDTH
from ridgeline.facts.headers.shape import CLASSES, Experts, ModelShape, StateLayers, attention_kind
from ridgeline.facts.model import TensorFacts


def read_gguf_shape(path: Path) -> ModelShape:
    """The shape of the GGUF model at `path` (the first file of a split). Raises ModelFormatError, ModelNotFoundError."""
    return gguf_shape(read_header(path))


def gguf_shape(header: Header) -> ModelShape:
    """The shape that a header describes."""
    arch = header.text("general.architecture")
    layers = header.integer(f"{arch}.block_count", 1, MAX_LAYERS)
    hidden = header.integer(f"{arch}.embedding_length", 1, MAX_WIDTH)
    all_heads = _per_layer(header, f"{arch}.attention.head_count", layers, None)
    heads = max(1, *all_heads)
    all_kv_heads = _per_layer(header, f"{arch}.attention.head_count_kv", layers, heads)
    recurring = _layers_with(header, "ssm_") & set(range(layers))
    keyed = _layers_with(header, "attn_k.")
    attending = [i for i in range(layers) if all_kv_heads[i] and (i in keyed or i not in recurring)]
    kv_heads = min((all_kv_heads[i] for i in attending), default=1)
    head_dim = header.integer(f"{arch}.attention.key_length", 1, MAX_WIDTH, default=max(1, hidden // heads))
    value_dim = header.integer(f"{arch}.attention.value_length", 1, MAX_WIDTH, default=head_dim)
    head_dim = header.integer(f"{arch}.attention.key_length_mla", 1, MAX_WIDTH, default=head_dim)
    value_dim = header.integer(f"{arch}.attention.value_length_mla", 1, MAX_WIDTH, default=value_dim)
    latent = header.integer(f"{arch}.attention.kv_lora_rank", 0, MAX_WIDTH, default=0)
    rotary = header.integer(f"{arch}.rope.dimension_count", 0, MAX_WIDTH, default=head_dim)
    kinds, window = _layer_kinds(header, arch, layers)
    width = head_dim + value_dim
    cached = latent + rotary if latent else _mean([all_kv_heads[i] * width for i in attending])
    looking = _mean([all_heads[i] for i in attending])
    return ModelShape(
        name=header.text("general.name", default=arch),
        architecture=arch,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=1 if latent else kv_heads,
        head_dim=head_dim,
        ffn=max(1, *_per_layer(header, f"{arch}.feed_forward_length", layers, 4 * hidden)),
        vocab=_vocab(header),
        context=header.integer(f"{arch}.context_length", 1, MAX_CONTEXT),
        attention="MLA" if latent else attention_kind(heads, kv_heads),
        layer_kinds=tuple(kind if i in attending else "none" for i, kind in enumerate(kinds)),
        window=window,
        kv_elements=cached,
        decode_width=looking * (2 * latent + rotary if latent else width),
        prefill_width=looking * width,
        parameters=_by_class(header, _elements),
        dtype=_dominant_format(header),
        experts=_experts(header, arch),
        state=_state(header, arch, len(recurring)),
        stored_bytes=_by_class(header, lambda tensor: tensor.bytes),
    )


def _per_layer(header: Header, key: str, layers: int, default: int | None) -> Sequence[int]:
    """A number for each layer: an array of the file, else its one number, else `default`."""
    value = header.metadata.get(key)
    if not isinstance(value, array):
        return (header.integer(key, 1, MAX_WIDTH, default=default),) * layers
    if len(value) != layers or any(type(each) is not int or not 0 <= each <= MAX_WIDTH for each in value):
        raise ModelFormatError(f"{key} has {len(value)} entries, {layers} integers of 0 … {MAX_WIDTH} were expected")
    return value


def _mean(values: Sequence[int]) -> int:
    """Of layers that differ, rounded up; 0 of none."""
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


def _vocab(header: Header) -> int:
    embedding = header.tensors.get("token_embd.weight")
    if embedding is None:
        raise ModelFormatError("tensor 'token_embd.weight' is missing; this file holds no whole model")
    if not 1 <= embedding.shape[0] <= MAX_VOCAB:
        raise ModelFormatError(f"tensor 'token_embd.weight' has {embedding.shape[0]} rows, 1 … {MAX_VOCAB} were expected")
    return embedding.shape[0]


def _layer_kinds(header: Header, arch: str, layers: int) -> tuple[tuple[str, ...], int]:
    """Layers of an architecture without a known pattern count as full: their cache is then over-, never underestimated."""
    known = ARCHITECTURES.get(arch)
    window = header.integer(f"{arch}.attention.sliding_window", 0, MAX_CONTEXT, default=0)
    if known is None or not window or not (known.windowed or known.pattern > 1):
        return ("full",) * layers, 0
    return tuple("window" if known.windowed or (i + 1) % known.pattern else "full" for i in range(layers)), window


def _experts(header: Header, arch: str) -> Experts | None:
    routed = header.integer(f"{arch}.expert_count", 0, MAX_EXPERTS, default=0)
    if not routed:
        return None
    active = header.integer(f"{arch}.expert_used_count", 1, routed)
    return Experts(routed, active, sum(name.endswith("ffn_down_exps.weight") for name in header.tensors))


def _class(name: str) -> str:
    if name.startswith(("token_embd.", "position_embd.")):
        return "embedding"
    if name.startswith("output."):
        return "head"
    part = name.split(".")[2] if name.startswith("blk.") and name.count(".") > 2 else ""
    if part.startswith(("attn_", "ssm_")) and not part.endswith("norm"):
        return "attention"
    if part.startswith("ffn_") and not part.endswith("norm"):
        return "experts" if part.endswith("_exps") else "ffn"
    return "norms"


def _elements(tensor: TensorFacts) -> int:
    return prod(tensor.shape)


def _by_class(header: Header, amount: Callable[[TensorFacts], int]) -> dict[str, int]:
    sums = dict.fromkeys(CLASSES, 0)
    for tensor in header.tensors.values():
        sums[_class(tensor.name)] += amount(tensor)
    return sums


def _dominant_format(header: Header) -> str:
    """The format that holds most parameters of the layers."""
    held: dict[str, int] = {}
    for tensor in header.tensors.values():
        if tensor.name.startswith("blk."):
            held[tensor.kind] = held.get(tensor.kind, 0) + _elements(tensor)
    if not held:
        raise ModelFormatError("the file has no layers (no tensor 'blk.0.…'); this file holds no whole model")
    return max(held, key=held.__getitem__).lower()
