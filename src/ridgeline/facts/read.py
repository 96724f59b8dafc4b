"""From a header to `ModelFacts`: every dimension bounded, every tensor's shape checked against the architecture."""

import hashlib
from array import array
from dataclasses import replace
from pathlib import Path

from ridgeline.errors import ModelFormatError
from ridgeline.facts.architectures import ARCHITECTURES, Architecture
from ridgeline.facts.gguf import Header, read_header
from ridgeline.facts.gguf_values import MAX_HEADER_BYTES, quoted
from ridgeline.facts.model import ModelFacts, Rope, TensorFacts

MAX_LAYERS = 1_024
MAX_WIDTH = 1 << 20
MAX_VOCAB = 4 << 20
MAX_CONTEXT = 1 << 27
_SAMPLE_BYTES = 4_096
_TOKENS = "tokenizer.ggml.tokens"


def read_model_facts(path: Path) -> ModelFacts:
    """Facts of the GGUF model at `path` (the first file of a split). Raises ModelFormatError, ModelNotFoundError."""
    return model_facts(read_header(path))


def model_facts(header: Header) -> ModelFacts:
    """Facts from a header that has been read already."""
    name = header.text("general.architecture")
    architecture = ARCHITECTURES.get(name)
    if architecture is None:
        raise ModelFormatError(f"architecture {quoted(name)} is not supported; supported: {', '.join(sorted(ARCHITECTURES))}")
    _check_neutral(header, name, architecture)
    layers = header.integer(f"{name}.block_count", 1, MAX_LAYERS)
    hidden = header.integer(f"{name}.embedding_length", 1, MAX_WIDTH)
    heads = header.integer(f"{name}.attention.head_count", 1, MAX_WIDTH)
    kv_heads = header.integer(f"{name}.attention.head_count_kv", 1, heads, default=heads)
    if heads % kv_heads:
        raise ModelFormatError(f"{heads} query heads are no multiple of {kv_heads} KV heads")
    base = header.number(f"{name}.rope.freq_base", 1.0, 1e12, default=10_000.0)
    head_dim = _head_dim(header, name, hidden // heads)
    kinds = _layer_kinds(header, f"{name}.attention.sliding_window_pattern", layers, architecture.pattern)
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
        context=header.integer(f"{name}.context_length", 1, MAX_CONTEXT),
        eps=header.number(f"{name}.attention.layer_norm_rms_epsilon", 0.0, 1.0),
        layer_kinds=kinds,
        window=header.integer(f"{name}.attention.sliding_window", 1, MAX_CONTEXT) if "window" in kinds else 0,
        rope={
            "full": Rope(base, head_dim),
            "window": Rope(header.number(f"{name}.rope.freq_base_swa", 1.0, 1e12, default=architecture.window_rope_base or base), head_dim),
        },
        tied="output.weight" not in header.tensors,
        tensors=header.tensors,
        fingerprint=b"",
        attn_scale=head_dim**-0.5,
    )
    _check_tensors(facts, architecture)
    return replace(facts, fingerprint=fingerprint(header))


def _check_neutral(header: Header, name: str, architecture: Architecture) -> None:
    for key, neutral in architecture.neutral:
        found = header.metadata.get(f"{name}.{key}", neutral)
        if found != neutral:
            raise ModelFormatError(f"{name}.{key} is {quoted(found)}, which is not computed; {neutral!r} is, or a file without it")


def _head_dim(header: Header, name: str, default: int) -> int:
    """Length of a head's keys, of its values and of the part that RoPE turns: one number, even."""
    length = header.integer(f"{name}.attention.key_length", 1, MAX_WIDTH, default=default)
    for key in ("attention.value_length", "rope.dimension_count"):
        if header.integer(f"{name}.{key}", 1, MAX_WIDTH, default=length) != length:
            raise ModelFormatError(f"{name}.{key} is {header.metadata[f'{name}.{key}']}, but keys have length {length}; they must be equal")
    if length < 2 or length % 2:
        raise ModelFormatError(f"heads have length {length}, an even number ≥ 2 was expected; the file is damaged")
    return length


def _layer_kinds(header: Header, key: str, layers: int, period: int) -> tuple[str, ...]:
    """The file may give the period, or a flag for each layer (1: a window); else the architecture's period holds."""
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


def _check_tensors(facts: ModelFacts, architecture: Architecture) -> None:
    sizes = {
        "hidden": facts.hidden,
        "ffn": facts.ffn,
        "head": facts.head_dim,
        "queries": facts.heads * facts.head_dim,
        "keys": facts.kv_heads * facts.head_dim,
        "vocab": facts.vocab,
    }
    expected = {f"blk.{i}.{name}.weight": (rows, columns) for i in range(facts.layers) for name, rows, columns in architecture.tensors}
    expected["output_norm.weight"] = ("hidden", "")
    if not facts.tied:
        expected["output.weight"] = ("vocab", "hidden")
    for name, (rows, columns) in expected.items():
        shape = (sizes[rows], sizes[columns]) if columns else (sizes[rows],)
        tensor = facts.tensors.get(name)
        if tensor is None:
            raise ModelFormatError(f"tensor {name!r} of shape {shape} is missing; this is not a complete {facts.architecture} model")
        if tensor.shape != shape:
            raise ModelFormatError(f"tensor {name!r} has shape {tensor.shape}, the header says {shape}")
    strange = sorted(facts.tensors.keys() - expected.keys() - {"token_embd.weight", "output.weight"})
    if strange:
        raise ModelFormatError(
            f"{len(strange)} tensors, {strange[0]!r} among them, belong to no {facts.architecture} model that is supported; "
            "without them its answers would be wrong"
        )


def fingerprint(header: Header) -> bytes:
    """SHA-256 over the size and the header of every file, and the first and last 4 KiB of every tensor.

    Equal for copies of the same files; another number in the metadata, or other weights, give another fingerprint.
    """
    digest = hashlib.sha256()
    held: dict[Path, list[TensorFacts]] = {path: [] for path in header.files}
    for tensor in header.tensors.values():
        held[tensor.file].append(tensor)
    for path, tensors in held.items():
        with path.open("rb") as file:
            size = file.seek(0, 2)
            header_bytes = min((tensor.offset for tensor in tensors), default=min(size, MAX_HEADER_BYTES))
            digest.update(f"{size} {header_bytes}\n".encode())
            spans = [(0, header_bytes)]
            for tensor in tensors:
                length = min(_SAMPLE_BYTES, tensor.bytes)
                spans += [(tensor.offset, length), (tensor.offset + tensor.bytes - length, length)]
            for offset, length in spans:
                file.seek(offset)
                digest.update(file.read(length))
    return digest.digest()
