"""From a model's files to `ModelFacts`: here GGUF files, every dimension bounded, every tensor's shape checked against the architecture.

Checkpoints in directories are read by `facts.headers.checkpoint`.
"""

from array import array
from dataclasses import replace
from pathlib import Path

from ridgeline.errors import ModelFormatError
from ridgeline.facts.files.gguf import Header, read_header
from ridgeline.facts.files.gguf_values import quoted
from ridgeline.facts.headers.architectures import ARCHITECTURES, GGUF_NEUTRAL, Architecture, gguf_layout
from ridgeline.facts.headers.checkpoint import read_checkpoint
from ridgeline.facts.headers.config_json import MAX_CONTEXT, MAX_LAYERS, MAX_VOCAB, MAX_WIDTH
from ridgeline.facts.headers.fingerprint import fingerprint
from ridgeline.facts.headers.gguf_rope import read_ropes
from ridgeline.facts.headers.names import canonical_tensors, expected_shapes
from ridgeline.facts.headers.rope import Rotations
from ridgeline.facts.model import ModelFacts

_TOKENS = "tokenizer.ggml.tokens"


def read_model_facts(path: Path) -> ModelFacts:
    """Facts of the model at `path`: a GGUF file (the first of a split), or a directory with a config.json and safetensors files.

    Raises ModelFormatError, ModelNotFoundError.
    """
    return read_checkpoint(path) if path.is_dir() else model_facts(read_header(path))


def model_facts(header: Header) -> ModelFacts:
    """Facts from a header that has been read already."""
    name = header.text("general.architecture")
    architecture = ARCHITECTURES.get(name)
    if architecture is None:
        raise ModelFormatError(f"architecture {quoted(name)} is not supported; supported: {', '.join(sorted(ARCHITECTURES))}")
    _check_neutral(header, name)
    layers = header.integer(f"{name}.block_count", 1, MAX_LAYERS)
    hidden = header.integer(f"{name}.embedding_length", 1, MAX_WIDTH)
    heads = header.integer(f"{name}.attention.head_count", 1, MAX_WIDTH)
    kv_heads = header.integer(f"{name}.attention.head_count_kv", 1, heads, default=heads)
    if heads % kv_heads:
        raise ModelFormatError(f"{heads} query heads are no multiple of {kv_heads} KV heads")
    head_dim = _head_dim(header, name, hidden // heads)
    context = header.integer(f"{name}.context_length", 1, MAX_CONTEXT)
    kinds, window = _layer_kinds(header, name, layers, architecture)
    ropes = read_ropes(header, name, architecture, head_dim, context) if architecture.rope else Rotations({}, None, context)
    scores, logits = architecture.softcaps
    scaled = hidden // heads if layers in architecture.hidden_scaled else head_dim
    facts = ModelFacts(
        architecture=name,
        name=header.text("general.name", default=name),
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        ffn=header.integer(f"{name}.feed_forward_length", 1, MAX_WIDTH),
        vocab=_vocab(header, hidden),
        tokens=len(header.strings(_TOKENS)),
        context=ropes.context,
        eps=header.number(f"{name}.{architecture.eps}", 0.0, 1.0),
        layer_kinds=kinds,
        window=window,
        rope=ropes.by_kind,
        tied="output.weight" not in header.tensors,
        tensors={},
        fingerprint=fingerprint(header.files, header.tensors.values()),
        attn_scale=scaled**-0.5,
        attn_softcap=header.number(f"{name}.attn_logit_softcapping", 0.0, 1e6, default=scores),
        final_softcap=header.number(f"{name}.final_logit_softcapping", 0.0, 1e6, default=logits),
        long_rope=ropes.long,
    )
    must, may = expected_shapes(architecture, facts, context, flags=None)
    return replace(facts, tensors=canonical_tensors(header.tensors, gguf_layout(architecture), must, may, name))


def _check_neutral(header: Header, name: str) -> None:
    for key, neutral in GGUF_NEUTRAL:
        found = header.metadata.get(f"{name}.{key}", neutral)
        if found != neutral:
            raise ModelFormatError(f"{name}.{key} is {quoted(found)}, which is not computed; {neutral!r} is, or a file without it")


def _head_dim(header: Header, name: str, default: int) -> int:
    """Length of a head's keys and of its values: one number, even."""
    length = header.integer(f"{name}.attention.key_length", 1, MAX_WIDTH, default=default)
    key = f"{name}.attention.value_length"
    if header.integer(key, 1, MAX_WIDTH, default=length) != length:
        raise ModelFormatError(f"{key} is {header.metadata[key]}, but keys have length {length}; they must be equal")
    if length < 2 or length % 2:
        raise ModelFormatError(f"heads have length {length}, an even number ≥ 2 was expected; the file is damaged")
    return length


def _layer_kinds(header: Header, name: str, layers: int, architecture: Architecture) -> tuple[tuple[str, ...], int]:
    """(kind of each layer, tokens of the window or 0). The file may give the period, or a flag for each layer (1: a window)."""
    key = f"{name}.attention.sliding_window"
    if architecture.windowed and f"{key}_pattern" not in header.metadata:
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


def _vocab(header: Header, hidden: int) -> int:
    embedding = header.tensors.get("token_embd.weight")
    if embedding is None:
        raise ModelFormatError("tensor 'token_embd.weight' is missing; this is not a complete model file")
    if len(embedding.shape) != 2 or embedding.shape[1] != hidden or embedding.shape[0] > MAX_VOCAB:
        raise ModelFormatError(f"tensor 'token_embd.weight' has shape {embedding.shape}, (vocabulary, {hidden}) was expected")
    tokens = len(header.strings(_TOKENS))
    if not 1 <= tokens <= embedding.shape[0]:
        raise ModelFormatError(f"the tokenizer has {tokens} tokens, 1 … {embedding.shape[0]} (the rows of the embedding) were expected")
    return embedding.shape[0]
