"""From a header to `ModelFacts`: every dimension bounded, every tensor's shape checked against the architecture."""

import hashlib
from pathlib import Path

from ridgeline.errors import ModelFormatError
from ridgeline.facts.architectures import ARCHITECTURES, Architecture
from ridgeline.facts.gguf import Header, read_header
from ridgeline.facts.model import ModelFacts

MAX_LAYERS = 1_024
MAX_WIDTH = 1 << 20
MAX_VOCAB = 4 << 20
MAX_CONTEXT = 1 << 27
_SAMPLE_BYTES = 4_096


def read_model_facts(path: Path) -> ModelFacts:
    """Facts of the GGUF model at `path` (the first file of a split). Raises ModelFormatError, ModelNotFoundError."""
    return model_facts(read_header(path))


def model_facts(header: Header) -> ModelFacts:
    """Facts from a header that has been read already."""
    name = header.text("general.architecture")
    architecture = ARCHITECTURES.get(name)
    if architecture is None:
        raise ModelFormatError(f"architecture {name!r} is not supported; supported: {', '.join(sorted(ARCHITECTURES))}")
    layers = header.integer(f"{name}.block_count", 1, MAX_LAYERS)
    hidden = header.integer(f"{name}.embedding_length", 1, MAX_WIDTH)
    heads = header.integer(f"{name}.attention.head_count", 1, MAX_WIDTH)
    kv_heads = header.integer(f"{name}.attention.head_count_kv", 1, heads, default=heads)
    if heads % kv_heads:
        raise ModelFormatError(f"{heads} query heads are no multiple of {kv_heads} KV heads")
    head_dim = header.integer(f"{name}.attention.key_length", 2, MAX_WIDTH, default=max(2, hidden // heads))
    if header.integer(f"{name}.attention.value_length", 1, MAX_WIDTH, default=head_dim) != head_dim or head_dim % 2:
        raise ModelFormatError(f"keys of {head_dim} and values of another length are not supported")
    base = header.number(f"{name}.rope.freq_base", 1.0, 1e12, default=10_000.0)
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
        tokens=len(header.strings("tokenizer.ggml.tokens")),
        context=header.integer(f"{name}.context_length", 1, MAX_CONTEXT),
        eps=header.number(f"{name}.attention.layer_norm_rms_epsilon", 0.0, 1.0),
        layer_kinds=_layer_kinds(layers, architecture),
        window=header.integer(f"{name}.attention.sliding_window", 1, MAX_CONTEXT) if architecture.pattern > 1 else 0,
        rope_base={
            "full": base,
            "window": header.number(f"{name}.rope.local.freq_base", 1.0, 1e12, default=architecture.window_rope_base or base),
        },
        tied="output.weight" not in header.tensors,
        tensors=header.tensors,
        fingerprint=fingerprint(header),
    )
    _check_tensors(facts, architecture)
    return facts


def _layer_kinds(layers: int, architecture: Architecture) -> tuple[str, ...]:
    return tuple("full" if (i + 1) % architecture.pattern == 0 else "window" for i in range(layers))


def _vocab(header: Header, hidden: int) -> int:
    embedding = header.tensors.get("token_embd.weight")
    if embedding is None:
        raise ModelFormatError("tensor 'token_embd.weight' is missing; this is not a complete model file")
    if len(embedding.shape) != 2 or embedding.shape[1] != hidden or embedding.shape[0] > MAX_VOCAB:
        raise ModelFormatError(f"tensor 'token_embd.weight' has shape {embedding.shape}, (vocabulary, {hidden}) was expected")
    tokens = len(header.strings("tokenizer.ggml.tokens"))
    if tokens > embedding.shape[0]:
        raise ModelFormatError(f"the tokenizer has {tokens} tokens, the embedding only {embedding.shape[0]} rows")
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


def fingerprint(header: Header) -> bytes:
    """SHA-256 over the tensor table and the first and last 4 KiB of every tensor: the same for every copy of the same weights."""
    digest = hashlib.sha256()
    open_files = {path: path.open("rb") for path in header.files}
    try:
        for tensor in header.tensors.values():
            digest.update(f"{tensor.name}\0{tensor.kind}\0{tensor.shape}\0{tensor.bytes}\n".encode())
            file = open_files[tensor.file]
            for offset in (tensor.offset, tensor.offset + max(0, tensor.bytes - _SAMPLE_BYTES)):
                file.seek(offset)
                digest.update(file.read(min(_SAMPLE_BYTES, tensor.bytes)))
    finally:
        for file in open_files.values():
            file.close()
    return digest.digest()
