"""From a GGUF header to a `ModelShape`, for any architecture that uses the format's standard keys. Reads no weights."""

from collections.abc import Callable
from math import prod
from pathlib import Path

from ridgeline.errors import ModelFormatError
from ridgeline.facts.architectures import ARCHITECTURES
from ridgeline.facts.config_json import MAX_CONTEXT, MAX_EXPERTS, MAX_LAYERS, MAX_VOCAB, MAX_WIDTH
from ridgeline.facts.gguf import Header, read_header
from ridgeline.facts.model import TensorFacts
from ridgeline.facts.shape import CLASSES, Experts, ModelShape, attention_kind


def read_gguf_shape(path: Path) -> ModelShape:
    """The shape of the GGUF model at `path` (the first file of a split). Raises ModelFormatError, ModelNotFoundError."""
    return gguf_shape(read_header(path))


def gguf_shape(header: Header) -> ModelShape:
    """The shape that a header describes."""
    arch = header.text("general.architecture")
    layers = header.integer(f"{arch}.block_count", 1, MAX_LAYERS)
    hidden = header.integer(f"{arch}.embedding_length", 1, MAX_WIDTH)
    heads = header.integer(f"{arch}.attention.head_count", 1, MAX_WIDTH)
    kv_heads = header.integer(f"{arch}.attention.head_count_kv", 1, heads, default=heads)
    head_dim = header.integer(f"{arch}.attention.key_length", 1, MAX_WIDTH, default=max(1, hidden // heads))
    value_dim = header.integer(f"{arch}.attention.value_length", 1, MAX_WIDTH, default=head_dim)
    head_dim = header.integer(f"{arch}.attention.key_length_mla", 1, MAX_WIDTH, default=head_dim)
    value_dim = header.integer(f"{arch}.attention.value_length_mla", 1, MAX_WIDTH, default=value_dim)
    latent = header.integer(f"{arch}.attention.kv_lora_rank", 0, MAX_WIDTH, default=0)
    rotary = header.integer(f"{arch}.rope.dimension_count", 0, MAX_WIDTH, default=head_dim)
    kinds, window = _layer_kinds(header, arch, layers)
    return ModelShape(
        name=header.text("general.name", default=arch),
        architecture=arch,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=1 if latent else kv_heads,
        head_dim=head_dim,
        ffn=header.integer(f"{arch}.feed_forward_length", 1, MAX_WIDTH, default=4 * hidden),
        vocab=_vocab(header),
        context=header.integer(f"{arch}.context_length", 1, MAX_CONTEXT),
        attention="MLA" if latent else attention_kind(heads, kv_heads),
        layer_kinds=kinds,
        window=window,
        kv_elements=latent + rotary if latent else kv_heads * (head_dim + value_dim),
        decode_width=heads * (2 * latent + rotary if latent else head_dim + value_dim),
        prefill_width=heads * (head_dim + value_dim),
        parameters=_by_class(header, _elements),
        dtype=_dominant_format(header),
        experts=_experts(header, arch),
        stored_bytes=_by_class(header, lambda tensor: tensor.bytes),
    )


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
    if part.startswith("attn_") and not part.endswith("norm"):
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
